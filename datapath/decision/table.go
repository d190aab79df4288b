package decision

import (
	"fmt"
	"net/netip"
	"time"
)

// Node is what the decision has to know about the node it is made for. Two nodes
// with the same services decide differently only because of their Node.
type Node struct {
	// Name is the Kubernetes node name.
	Name string
	// Addresses are all addresses local to the node (iptables: addrtype LOCAL)
	// but for loopback ones. Node ports are open on them.
	Addresses []netip.Addr
	// NodePortAddresses restricts node ports to the local addresses within these
	// prefixes. Empty, or without a prefix of an address's family: no restriction.
	NodePortAddresses []netip.Prefix
	// ClusterCIDRs tell pods from everyone else: a ClusterIP flow whose source
	// lies outside is masqueraded. No prefix of a family means no local detector
	// for that family, and no such masquerading.
	ClusterCIDRs []netip.Prefix
	// MasqueradeAll masquerades every ClusterIP flow.
	MasqueradeAll bool
}

// portKey and addrPortKey are the keys of the hot maps: small, comparable and
// free of pointers, so that the garbage collector passes the maps by.
// (netip.AddrPort holds a pointer for its zone.)
type addrPortKey struct {
	addr  [16]byte // IPv4 in its IPv4-mapped form
	port  uint16
	proto Protocol
}

type portKey struct {
	port   uint16
	proto  Protocol
	family Family
}

// Table is an immutable snapshot of all service ports as one node sees them. It
// is safe for concurrent use. The time of a look-up does not depend on the
// number of services.
type Table struct {
	generation uint64
	built      time.Time
	node       Node
	services   []*ServicePort
	clusterIPs map[addrPortKey]*ServicePort
	nodePorts  map[portKey]*ServicePort
	// localAddrs are the addresses of the node.
	localAddrs map[[16]byte]struct{}
	// nodePortAddrs are the addresses of the node on which node ports are open.
	nodePortAddrs map[[16]byte]struct{}
}

// Conflict tells of a service port that could not have one of its addresses
// because another service port already has it.
type Conflict struct {
	Loser, Winner *ServicePort
	What          string // "cluster IP 10.96.0.1:443/TCP" or "node port 30080/TCP"
}

// Error describes the conflict.
func (c Conflict) Error() string {
	return fmt.Sprintf("service %s: %s is already taken by service %s", c.Loser.Name, c.What, c.Winner.Name)
}

// NewTable makes a table of the service ports, in their order: where two claim
// the same address, port and protocol, the first has it and the other is
// reported. generation and built identify the snapshot in decisions; NewTable
// keeps the slices it is given, which must not be changed afterwards.
func NewTable(generation uint64, built time.Time, node Node, services []*ServicePort) (*Table, []Conflict) {
	t := &Table{
		generation:    generation,
		built:         built,
		node:          node,
		services:      services,
		clusterIPs:    make(map[addrPortKey]*ServicePort, len(services)),
		nodePorts:     make(map[portKey]*ServicePort),
		localAddrs:    make(map[[16]byte]struct{}),
		nodePortAddrs: make(map[[16]byte]struct{}),
	}
	var conflicts []Conflict
	for _, s := range services {
		k := addrPortKey{s.ClusterIP.As16(), s.Port, s.Protocol}
		if w, ok := t.clusterIPs[k]; ok {
			conflicts = append(conflicts, Conflict{s, w, fmt.Sprintf("cluster IP %s/%s", netip.AddrPortFrom(s.ClusterIP, s.Port), s.Protocol)})
		} else {
			t.clusterIPs[k] = s
		}
		if s.NodePort == 0 {
			continue
		}
		nk := portKey{s.NodePort, s.Protocol, s.Family}
		if w, ok := t.nodePorts[nk]; ok {
			conflicts = append(conflicts, Conflict{s, w, fmt.Sprintf("node port %d/%s", s.NodePort, s.Protocol)})
		} else {
			t.nodePorts[nk] = s
		}
	}
	for _, a := range node.Addresses {
		t.localAddrs[a.As16()] = struct{}{}
		if servesNodePorts(a, node.NodePortAddresses) {
			t.nodePortAddrs[a.As16()] = struct{}{}
		}
	}
	return t, conflicts
}

// servesNodePorts says whether node ports are open on the address. As in
// kube-proxy's NodePortAddresses, prefixes of the other family only mean no
// restriction.
func servesNodePorts(a netip.Addr, within []netip.Prefix) bool {
	restricted := false
	for _, p := range within {
		if FamilyOf(p.Addr()) != FamilyOf(a) {
			continue
		}
		if p.Contains(a.Unmap()) {
			return true
		}
		restricted = true
	}
	return !restricted
}

// Generation counts the tables made since the start, from 1.
func (t *Table) Generation() uint64 { return t.generation }

// Built is when the table was made.
func (t *Table) Built() time.Time { return t.built }

// Node is the node the table was made for. Its slices are shared: read only.
func (t *Table) Node() Node { return t.node }

// NodePortAddresses are the node's addresses on which node ports are open.
func (t *Table) NodePortAddresses() []netip.Addr {
	var addrs []netip.Addr
	for _, a := range t.node.Addresses {
		if _, ok := t.nodePortAddrs[a.As16()]; ok {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Services are all service ports, in the order they were given. Read only.
func (t *Table) Services() []*ServicePort { return t.services }

// IsLocal says whether the address is one of the node's, loopback ones included
// (iptables: addrtype LOCAL).
func (t *Table) IsLocal(a netip.Addr) bool {
	_, ok := t.localAddrs[a.As16()]
	return ok || a.IsLoopback()
}

// lookup finds the service port a packet is addressed to, and by which way.
func (t *Table) lookup(p *Packet) (*ServicePort, Entry) {
	addr := p.Destination.Addr()
	if s, ok := t.clusterIPs[addrPortKey{addr.As16(), p.Destination.Port(), p.Protocol}]; ok {
		return s, EntryClusterIP
	}
	// The cheap test first: most packets are to no local address.
	if _, ok := t.nodePortAddrs[addr.As16()]; ok {
		if s, ok := t.nodePorts[portKey{p.Destination.Port(), p.Protocol, FamilyOf(addr)}]; ok {
			return s, EntryNodePort
		}
	}
	return nil, EntryNone
}

// outsideCluster says whether ClusterIP traffic from the address is masqueraded
// for coming from outside the cluster (rule "! -s CIDR ... -j KUBE-MARK-MASQ").
func (t *Table) outsideCluster(src netip.Addr) bool {
	known := false
	for _, p := range t.node.ClusterCIDRs {
		if FamilyOf(p.Addr()) != FamilyOf(src) {
			continue
		}
		if p.Contains(src) {
			return false
		}
		known = true
	}
	return known
}
