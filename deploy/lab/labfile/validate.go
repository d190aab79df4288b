package labfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Limits to the size of a lab: a laptop cannot run larger ones well.
const (
	MaxNodes = 64
	MaxHosts = 1024 // pods and clients
	MaxPorts = 64   // of one host
)

// Router is the name of the network between the hosts; lab exec runs commands in it
// as in a host.
const Router = "router"

// validation collects the mistakes of a lab that decoded.
type validation struct {
	lab    *Lab
	errs   []yamlfile.FieldError
	names  map[string]string     // a node's, client's or pod's name -> its path
	owners map[netip.Addr]string // an address -> the path that has it
	nodes  map[string]*Node
}

// Validate returns the mistakes in a lab that concern more than one of its fields, or its names and addresses.
func (l *Lab) Validate() []yamlfile.FieldError {
	v := validation{lab: l, names: map[string]string{Router: "the router between the nodes"}, owners: make(map[netip.Addr]string), nodes: make(map[string]*Node)}
	v.label("metadata.name", l.Name)
	v.networks()
	v.nodesAndTheirCIDRs()
	v.pods()
	v.clients()
	for i, o := range l.Objects {
		if o == "" {
			v.fail(fmt.Sprintf("objects[%d]", i), "missing")
		}
	}
	return v.errs
}

func (v *validation) fail(path, format string, args ...any) {
	v.errs = append(v.errs, yamlfile.FieldError{Field: path, Err: fmt.Errorf(format, args...)})
}

// IsLabel reports whether a name is valid for labs, clients and namespaces: as in Kubernetes (RFC 1123).
func IsLabel(name string) bool { return len(apivalidation.IsDNS1123Label(name)) == 0 }

// IsHostName reports whether a name is valid for nodes and pods: as in Kubernetes (RFC 1123).
func IsHostName(name string) bool { return len(apivalidation.IsDNS1123Subdomain(name)) == 0 }

// label checks the name of a lab, client or namespace.
func (v *validation) label(path, name string) bool {
	switch {
	case name == "":
		v.fail(path, "missing")
	case !IsLabel(name):
		v.fail(path, "%q is not a name: want at most 63 lower case letters, digits and hyphens", name)
	default:
		return true
	}
	return false
}

// hostName checks the name of a node or pod, which must be unique.
func (v *validation) hostName(path, name, full string) {
	if !IsHostName(name) {
		v.fail(path, "%q is not a name: want at most 253 lower case letters, digits, hyphens and dots", name)
		return
	}
	v.own(path, full)
}

// own assigns a name to a path.
func (v *validation) own(path, full string) {
	if other, ok := v.names[full]; ok {
		v.fail(path, "%q is already the name of %s", full, other)
		return
	}
	v.names[full] = path
}

// take assigns an address to a path.
func (v *validation) take(path string, a netip.Addr) {
	if !kubeaddr.CanBeHost(a) {
		v.fail(path, "%s cannot be the address of a host", a)
		return
	}
	if other, ok := v.owners[a]; ok {
		v.fail(path, "%s is already used by %s", a, other)
		return
	}
	v.owners[a] = path
}

// Overlap finds an earlier CIDR that overlaps with this one.
func Overlap(p netip.Prefix, earlier []netip.Prefix) (netip.Prefix, bool) {
	for _, e := range earlier {
		if e.Overlaps(p) {
			return e, true
		}
	}
	return netip.Prefix{}, false
}

func (v *validation) networks() {
	if len(v.lab.Networks) == 0 {
		v.fail("networks", "missing: nodes need a network")
	}
	var earlier []netip.Prefix
	for i, n := range v.lab.Networks {
		path := fmt.Sprintf("networks[%d]", i)
		if !n.CIDR.IsValid() {
			v.fail(path+".cidr", "missing")
			continue
		}
		if e, ok := Overlap(n.CIDR, earlier); ok {
			v.fail(path+".cidr", "%s overlaps with network %s", n.CIDR, e)
		}
		earlier = append(earlier, n.CIDR)
		for j, c := range v.lab.ClusterCIDRs {
			if c.Overlaps(n.CIDR) {
				v.fail(path+".cidr", "%s overlaps with clusterCIDRs[%d] %s", n.CIDR, j, c)
			}
		}
		switch {
		case !n.Gateway.IsValid():
			v.fail(path+".gateway", "missing")
		case !n.CIDR.Contains(n.Gateway):
			v.fail(path+".gateway", "%s is not in %s", n.Gateway, n.CIDR)
		default:
			v.take(path+".gateway", n.Gateway)
		}
	}
	for i, c := range v.lab.ClusterCIDRs {
		if e, ok := Overlap(c, v.lab.ClusterCIDRs[:i]); ok {
			v.fail(fmt.Sprintf("clusterCIDRs[%d]", i), "%s overlaps with %s", c, e)
		}
	}
}

// addresses checks the addresses of a host: at least one, at most one per family, and each
// accepted by within.
func (v *validation) addresses(path string, addresses []netip.Addr, within func(netip.Addr) error) {
	if len(addresses) == 0 {
		v.fail(path, "missing")
	}
	families := make(map[decision.Family]bool)
	for i, a := range addresses {
		p := fmt.Sprintf("%s[%d]", path, i)
		f := decision.FamilyOf(a)
		if families[f] {
			v.fail(p, "%s is a second %s address; a host has one", a, f)
		}
		families[f] = true
		if err := within(a); err != nil {
			v.fail(p, "%v", err)
			continue
		}
		v.take(p, a)
	}
}

// inNetwork returns an error for an address outside all networks.
func (v *validation) inNetwork(a netip.Addr) error {
	if n := v.lab.Network(a); n == nil {
		return fmt.Errorf("%s is in none of the networks", a)
	}
	return nil
}

// Network finds the network an address is in; nil: none.
func (l *Lab) Network(a netip.Addr) *Network {
	for i := range l.Networks {
		if l.Networks[i].CIDR.Contains(a) {
			return &l.Networks[i]
		}
	}
	return nil
}

func (v *validation) ports(path string, ports []labapi.Port) {
	if len(ports) > MaxPorts {
		v.fail(path, "%d ports; want at most %d", len(ports), MaxPorts)
	}
	for i, p := range ports {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case PortAt(ports[:i], p.Port, p.Protocol) >= 0:
			v.fail(at, "port %d/%s is given twice", p.Port, p.Protocol)
		case p.Port == 0:
			v.fail(at, "port 0: want a port from 1 to 65535")
		case p.Protocol != decision.TCP && p.Protocol != decision.UDP:
			v.fail(at, "port %d/%s: the built-in server supports TCP and UDP", p.Port, p.Protocol)
		case p.Server != labapi.AnswerServer && p.Server != labapi.DNSServer:
			v.fail(at, "server %q: want dns, or none for the server that answers with its name", p.Server)
		}
	}
}

// PortAt is the index of a port; -1: there is none.
func PortAt(ports []labapi.Port, port uint16, protocol decision.Protocol) int {
	return slices.IndexFunc(ports, func(p labapi.Port) bool { return p.Port == port && p.Protocol == protocol })
}

// nodesAndTheirCIDRs checks nodes and reserves the addresses of the pods' gateways.
func (v *validation) nodesAndTheirCIDRs() {
	if n := len(v.lab.Nodes); n == 0 || n > MaxNodes {
		v.fail("nodes", "%d of them; a lab has from 1 to %d", n, MaxNodes)
	}
	var earlier []netip.Prefix
	for i := range v.lab.Nodes {
		n := &v.lab.Nodes[i]
		path := fmt.Sprintf("nodes[%d]", i)
		v.hostName(path+".name", n.Name, n.Name)
		v.addresses(path+".addresses", n.Addresses, v.inNetwork)
		v.ports(path+".ports", n.Ports)
		if n.Proxy != "" && !slices.Contains(Proxies, n.Proxy) {
			v.fail(path+".proxy", "%q: want one of %s", n.Proxy, strings.Join(Proxies, ", "))
		}
		switch {
		case n.KubeProxyMode == "":
		case n.Proxy != KubeProxy:
			v.fail(path+".kubeProxyMode", "it requires proxy: %s", KubeProxy)
		case !slices.Contains(KubeProxyModes, n.KubeProxyMode):
			v.fail(path+".kubeProxyMode", "%q: want %s", n.KubeProxyMode, strings.Join(KubeProxyModes, " or "))
		}
		if n.Observe && n.HasDaemon() {
			v.fail(path+".observe", "it requires another proxy: nfqproxy makes records of its own decisions")
		}
		families := make(map[decision.Family]bool)
		for j, c := range n.PodCIDRs {
			p := fmt.Sprintf("%s.podCIDRs[%d]", path, j)
			f := decision.FamilyOf(c.Addr())
			if families[f] && !c.IsSingleIP() {
				v.fail(p, "%s is a second %s CIDR; a node has one, besides single addresses", c, f)
			}
			families[f] = families[f] || !c.IsSingleIP()
			if _, ok := decision.AddressOf(n.Addresses, f); !ok {
				v.fail(p, "%s: the node has no %s address, so there is no route to its pods", c, f)
			}
			if e, ok := Overlap(c, earlier); ok {
				v.fail(p, "%s overlaps with the pod CIDR %s", c, e)
			}
			earlier = append(earlier, c)
			v.clusterHas(p, c)
			switch {
			case c.IsSingleIP(): // the node is its gateway
			case c.Addr().BitLen()-c.Bits() < 2:
				v.fail(p, "%s is too small for a gateway and pods", c)
			default:
				v.take(p, Gateway(c))
			}
		}
		v.nodes[n.Name] = n
	}
}

// clusterHas checks a pod CIDR against networks and cluster CIDRs.
func (v *validation) clusterHas(path string, c netip.Prefix) {
	for _, n := range v.lab.Networks {
		// The route to a single address has precedence over that to its network.
		if n.CIDR.Overlaps(c) && !c.IsSingleIP() {
			v.fail(path, "%s overlaps with network %s", c, n.CIDR)
		}
	}
	known := false
	for _, cluster := range v.lab.ClusterCIDRs {
		if decision.FamilyOf(cluster.Addr()) != decision.FamilyOf(c.Addr()) {
			continue
		}
		known = true
		if cluster.Bits() <= c.Bits() && cluster.Contains(c.Addr()) {
			return
		}
	}
	if known {
		v.fail(path, "%s is not within clusterCIDRs", c)
	}
}

// Gateway is the first address of a pod CIDR, as with the CNI plug-ins.
func Gateway(c netip.Prefix) netip.Addr { return c.Addr().Next() }

func (v *validation) pods() {
	if n := len(v.lab.Pods) + len(v.lab.Clients); n > MaxHosts {
		v.fail("pods", "%d pods and clients; at most %d", n, MaxHosts)
	}
	for i := range v.lab.Pods {
		p := &v.lab.Pods[i]
		path := fmt.Sprintf("pods[%d]", i)
		if v.label(path+".namespace", p.Namespace) {
			v.hostName(path+".name", p.Name, p.FullName())
		}
		v.ports(path+".ports", p.Ports)
		node, ok := v.nodes[p.Node]
		switch {
		case p.Node == "":
			v.fail(path+".node", "missing")
			continue
		case !ok:
			v.fail(path+".node", "no node %q", p.Node)
			continue
		}
		v.addresses(path+".addresses", p.Addresses, func(a netip.Addr) error {
			for _, c := range node.PodCIDRs {
				if c.Contains(a) && (a != c.Addr() || c.IsSingleIP()) {
					return nil
				}
			}
			return fmt.Errorf("%s is not in the podCIDRs of node %s", a, node.Name)
		})
	}
}

func (v *validation) clients() {
	for i, c := range v.lab.Clients {
		path := fmt.Sprintf("clients[%d]", i)
		if v.label(path+".name", c.Name) {
			v.own(path+".name", c.Name)
		}
		v.addresses(path+".addresses", c.Addresses, v.inNetwork)
		v.ports(path+".ports", c.Ports)
	}
}
