package decision

import (
	"net/netip"
	"strings"
)

// Node is the input of a decision about its node. Two nodes with the same services decide
// differently only because of their Node.
type Node struct {
	// Name is the Kubernetes node name, Zone the value of its label
	// topology.kubernetes.io/zone.
	Name, Zone string
	// IPs are the node's own addresses, from its Node object, at most one of each family. A
	// source range that contains one allows the node to use local load balancer IPs.
	IPs []netip.Addr
	// Addresses are all addresses local to the node (iptables: addrtype LOCAL)
	// except loopback ones.
	Addresses []netip.Addr
	// NodePortAddresses restricts node ports to the local addresses within these
	// prefixes. Without a prefix of an address's family there is no restriction.
	NodePortAddresses []netip.Prefix
	// LocalhostNodePorts also opens node ports on IPv4 loopback addresses. They never work on IPv6 ones. It is false if
	// NodePortAddresses exclude 127.0.0.0/8, as in kube-proxy (NewProxier): then there is no KUBE-FIREWALL rule, and
	// route_localnet is unchanged.
	LocalhostNodePorts bool
	// Detector detects pods of this node or the cluster.
	Detector Detector
	// MasqueradeAll masquerades every ClusterIP flow.
	MasqueradeAll bool
	// NoHairpinMasquerade leaves out the masquerading of an endpoint's packets to itself, which breaks such
	// flows. kube-proxy has no such setting: it is for lessons about the rule.
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
	a, _ := AddressOf(n.IPs, f)
	return a
}

// Detector is kube-proxy's local detector (pkg/proxy/util/localdetector.go). At most one field is set; the zero
// Detector detects nothing, and no ClusterIP flow is masqueraded as coming from outside.
type Detector struct {
	// CIDRs are the pods' prefixes. Only the first of each family counts.
	CIDRs []netip.Prefix
	// Bridge is the input interface of pods' packets.
	Bridge string
	// InterfacePrefix is the prefix of the names of pods' interfaces.
	InterfacePrefix string
}

// CIDR is the prefix for the family, if there is one.
func (d *Detector) CIDR(f Family) (netip.Prefix, bool) {
	return PrefixOf(d.CIDRs, f)
}

// Implemented reports whether the detector works for the family.
func (d *Detector) Implemented(f Family) bool {
	_, ok := d.CIDR(f)
	return ok || d.Bridge != "" || d.InterfacePrefix != ""
}

// IsLocal reports whether the packet comes from a pod, according to the detector. The detector
// must be implemented for its family.
func (d *Detector) IsLocal(p *Packet) bool {
	switch {
	case d.Bridge != "":
		return p.InInterface == d.Bridge
	case d.InterfacePrefix != "":
		// A packet that originates on the node has no input interface.
		return strings.HasPrefix(p.InInterface, d.InterfacePrefix)
	}
	cidr, ok := d.CIDR(FamilyOf(p.Source.Addr()))
	return ok && cidr.Contains(p.Source.Addr())
}
