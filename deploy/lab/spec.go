// Package lab runs multi-node clusters in network namespaces: nodes, pods and external
// clients with real routes between them, servers in the pods, and a daemon of this
// program on each node. Everything is in memory and ends with the process.
//
// [Load] reads a lab file into a [Spec]; [FromObjects] derives one from Kubernetes objects.
// [Up] starts it in a process that is already isolated (see package netns). The commands of
// "nfqproxy lab" are [RunUp], [RunDemo], [Exec], [ChangeOf], [StatusOf] and [Down].
package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Spec is a lab: the first document of a lab file. [Parse] returns valid ones only.
type Spec labfile.Lab

// specOf is the lab of objects; nil: they are of none.
func specOf(o *manifest.Objects) *Spec { return (*Spec)(labfile.Of(o)) }

// Configure takes over the settings of a lab; nil: there is none.
func (s *Spec) Configure(c *servicetable.NodeConfig) {
	if s == nil {
		return
	}
	c.ClusterCIDRs, c.NodePortAddresses = s.ClusterCIDRs, s.Proxy.NodePortAddresses
	c.MasqueradeAll, c.NoHairpinMasquerade = s.Proxy.MasqueradeAll, bool(s.Proxy.NoHairpinMasquerade)
	c.Balance = string(s.Proxy.Balance)
}

// The parts of a lab.
type (
	// Network is a network of a lab.
	Network = labfile.Network
	// Port is a port that a pod listens on.
	Port = labapi.Port
	// Node is a node of a lab.
	Node = labfile.Node
	// Pod is a pod of a lab.
	Pod = labapi.Pod
	// Deployment is a number of like pods.
	Deployment = labfile.Deployment
	// Client is a machine outside the cluster.
	Client = labapi.Client
	// Proxy is the configuration of the nodes' proxies.
	Proxy = labfile.Proxy
)

// observe has kube-proxy serve the nodes that have nfqproxy, and nfqproxyd observe all nodes.
func (s *Spec) observe() {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.HasDaemon() {
			n.Proxy = labfile.KubeProxy
		}
		n.Observe = true
	}
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
func (s *Spec) Hosts() []string {
	var names []string
	for _, h := range s.machines() {
		names = append(names, h.Who())
	}
	return append(names, labfile.Router)
}

// node finds a node of the lab.
func (s *Spec) node(name string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// machine is a node, a pod or a client.
type machine struct {
	Answer    // its identity
	addresses []netip.Addr
	ports     []Port
}

func (s *Spec) machines() (all []machine) {
	for _, n := range s.Nodes {
		all = append(all, machine{Answer{Node: n.Name}, n.Addresses, n.Ports})
	}
	for _, p := range s.Pods {
		all = append(all, machine{Answer{Pod: p.FullName(), Node: p.Node}, p.Addresses, p.Ports})
	}
	for _, c := range s.Clients {
		all = append(all, machine{Answer{Host: c.Name}, c.Addresses, c.Ports})
	}
	return all
}

// Resolve returns the full name of a host. The namespace of a pod is optional if its name is
// unique. The error is an [*UnknownHostError].
func (s *Spec) Resolve(name string) (string, error) {
	hosts := s.Hosts()
	if slices.Contains(hosts, name) {
		return name, nil
	}
	found := ""
	for i := range s.Pods {
		if s.Pods[i].Name != name {
			continue
		}
		if found != "" {
			return "", &UnknownHostError{name, hosts}
		}
		found = s.Pods[i].FullName()
	}
	if found == "" {
		return "", &UnknownHostError{name, hosts}
	}
	return found, nil
}

// devices names network devices after the host at their other end, within the kernel's
// limit of 15 bytes (IFNAMSIZ).
type devices map[string]bool

const maxDevice = 15

func (d devices) name(host string) string {
	name := host
	if len(name) > maxDevice || d[name] || name == "lo" || name == "all" || name == "default" || strings.HasPrefix(name, "eth") {
		for i := 1; ; i++ {
			suffix := fmt.Sprintf("-%d", i)
			name = host[:min(len(host), maxDevice-len(suffix))] + suffix
			if !d[name] {
				break
			}
		}
	}
	d[name] = true
	return name
}
