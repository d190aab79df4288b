package decision

import (
	"net/netip"
	"strings"
)

// Node is what the decision has to know about the node it is made for. Two nodes
// with the same services decide differently only because of their Node.
type Node struct {
	// Name is the Kubernetes node name, Zone the value of its label
	// topology.kubernetes.io/zone.
	Name, Zone string
	// IPs are the node's own addresses, at most one of each family: those of its
	// Node object. A source range that contains one lets the node use load
	// balancer IPs that are local to it.
	IPs []netip.Addr
	// Addresses are all addresses local to the node (iptables: addrtype LOCAL)
	// but for loopback ones.
	Addresses []netip.Addr
	// NodePortAddresses restricts node ports to the local addresses within these
	// prefixes. Without a prefix of an address's family there is no restriction.
	NodePortAddresses []netip.Prefix
	// LocalhostNodePorts opens node ports on IPv4 loopback addresses, too. On IPv6
	// ones they never work. It is false where NodePortAddresses leave 127.0.0.0/8 out, as in
	// kube-proxy (NewProxier): then there is no KUBE-FIREWALL rule, and route_localnet stays
	// as it is.
	LocalhostNodePorts bool
	// Detector tells pods on this node, or of the cluster, from everyone else.
	Detector Detector
	// MasqueradeAll masquerades every ClusterIP flow.
	MasqueradeAll bool
	// NoHairpinMasquerade leaves the source of what an endpoint sends to itself as it
	// is, which breaks such flows. kube-proxy has no such setting: it is for showing
	// what the rule is there for.
	NoHairpinMasquerade bool
	// MasqueradeMark is the packet mark's bit; 0 means kube-proxy's default, 0x4000.
	MasqueradeMark uint32
}

// DefaultMasqueradeMark is bit 14, kube-proxy's default.
const DefaultMasqueradeMark = 1 << 14

// Mark is MasqueradeMark or its default.
func (n *Node) Mark() uint32 {
	if n.MasqueradeMark == 0 {
		return DefaultMasqueradeMark
	}
	return n.MasqueradeMark
}

// IP is the node's own address of the family; the zero Addr if there is none.
func (n *Node) IP(f Family) netip.Addr {
	for _, a := range n.IPs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// Detector is kube-proxy's local detector (pkg/proxy/util/localdetector.go). Of its
// fields at most one is set; the zero Detector knows nothing, and no ClusterIP flow
// is masqueraded for coming from outside.
type Detector struct {
	// CIDRs are pods' addresses: one prefix of a family at most counts, the first.
	CIDRs []netip.Prefix
	// Bridge is the interface that pods' packets come in by.
	Bridge string
	// InterfacePrefix is what the names of pods' interfaces begin with.
	InterfacePrefix string
}

// CIDR is the prefix of the family, if there is one.
func (d *Detector) CIDR(f Family) (netip.Prefix, bool) {
	for _, p := range d.CIDRs {
		if FamilyOf(p.Addr()) == f {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// Implemented says whether the detector knows anything about the family.
func (d *Detector) Implemented(f Family) bool {
	_, ok := d.CIDR(f)
	return ok || d.Bridge != "" || d.InterfacePrefix != ""
}

// IsLocal says whether the packet comes from a pod, as far as the detector can
// tell. The detector has to be implemented for its family.
func (d *Detector) IsLocal(p *Packet) bool {
	switch {
	case d.Bridge != "":
		return p.InInterface == d.Bridge
	case d.InterfacePrefix != "":
		// A packet made on the node came in by no interface.
		return p.InInterface != "" && strings.HasPrefix(p.InInterface, d.InterfacePrefix)
	}
	cidr, ok := d.CIDR(FamilyOf(p.Source.Addr()))
	return ok && cidr.Contains(p.Source.Addr())
}

// Match is the part of an iptables rule that matches pods' packets of the family,
// or with not set everyone else's; empty if the detector is not implemented for it.
func (d *Detector) Match(f Family, not bool) string {
	sign := ""
	if not {
		sign = "! "
	}
	switch cidr, ok := d.CIDR(f); {
	case d.Bridge != "":
		return sign + "-i " + d.Bridge
	case d.InterfacePrefix != "":
		return sign + "-i " + d.InterfacePrefix + "+"
	case ok:
		return sign + "-s " + cidr.String()
	}
	return ""
}
