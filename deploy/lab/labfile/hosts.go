package labfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// Configure takes over the settings of a lab; nil: there is none.
func (l *Lab) Configure(c *servicetable.NodeConfig) {
	if l == nil {
		return
	}
	c.ClusterCIDRs, c.NodePortAddresses = l.ClusterCIDRs, l.Proxy.NodePortAddresses
	c.MasqueradeAll, c.NoHairpinMasquerade = l.Proxy.MasqueradeAll, bool(l.Proxy.NoHairpinMasquerade)
	c.Balance = string(l.Proxy.Balance)
}

// UnknownHostError is the error for a name that no host of a lab has.
type UnknownHostError struct {
	Name  string
	Names []string // of all hosts
}

// Error lists the known names.
func (e *UnknownHostError) Error() string {
	return fmt.Sprintf("no host %q in this lab%s; known: %s", e.Name, nearest.Hint(e.Name, e.Names), strings.Join(e.Names, ", "))
}

// Hosts are the names of all hosts, for lab exec: nodes, pods (namespace/name), clients and
// the router.
func (l *Lab) Hosts() []string {
	var names []string
	for i := range l.Nodes {
		names = append(names, l.Nodes[i].Name)
	}
	for i := range l.Pods {
		names = append(names, l.Pods[i].FullName())
	}
	for i := range l.Clients {
		names = append(names, l.Clients[i].Name)
	}
	return append(names, Router)
}

// Owners are the names of the hosts by address, without the router.
func (l *Lab) Owners() map[netip.Addr]string {
	owners := make(map[netip.Addr]string)
	add := func(name string, addresses []netip.Addr) {
		for _, a := range addresses {
			owners[a] = name
		}
	}
	for i := range l.Nodes {
		add(l.Nodes[i].Name, l.Nodes[i].Addresses)
	}
	for i := range l.Pods {
		add(l.Pods[i].FullName(), l.Pods[i].Addresses)
	}
	for i := range l.Clients {
		add(l.Clients[i].Name, l.Clients[i].Addresses)
	}
	return owners
}

// Node finds a node of the lab; nil: it has none of this name.
func (l *Lab) Node(name string) *Node {
	for i := range l.Nodes {
		if l.Nodes[i].Name == name {
			return &l.Nodes[i]
		}
	}
	return nil
}

// Resolve returns the full name of a host. The namespace of a pod is optional if its name is
// unique. The error is an [*UnknownHostError].
func (l *Lab) Resolve(name string) (string, error) {
	hosts := l.Hosts()
	if slices.Contains(hosts, name) {
		return name, nil
	}
	found := ""
	for i := range l.Pods {
		if l.Pods[i].Name != name {
			continue
		}
		if found != "" {
			return "", &UnknownHostError{name, hosts}
		}
		found = l.Pods[i].FullName()
	}
	if found == "" {
		return "", &UnknownHostError{name, hosts}
	}
	return found, nil
}

// PodAt finds the pod that has an address; nil: none.
func (l *Lab) PodAt(a netip.Addr) *labapi.Pod {
	for i := range l.Pods {
		if slices.Contains(l.Pods[i].Addresses, a) {
			return &l.Pods[i]
		}
	}
	return nil
}
