package decision

import (
	"fmt"
	"net/netip"
	"time"
)

// Table is an immutable snapshot of all service ports as one node sees them. It
// is safe for concurrent use. The time of a look-up does not depend on the
// number of services.
type Table struct {
	generation uint64
	built      time.Time
	node       Node
	services   []*ServicePort
	endpoints  map[Family]int
	addresses  map[addrPortKey]target
	nodePorts  map[portKey]*ServicePort
	// localAddrs are the addresses of the node; nodePortAddrs those on which node
	// ports are open, loopback ones aside.
	localAddrs    map[[16]byte]struct{}
	nodePortAddrs map[[16]byte]struct{}
}

// target is a service port and the way to it that an address is.
type target struct {
	service *ServicePort
	entry   Entry
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
		endpoints:     make(map[Family]int),
		addresses:     make(map[addrPortKey]target, len(services)),
		nodePorts:     make(map[portKey]*ServicePort),
		localAddrs:    make(map[[16]byte]struct{}),
		nodePortAddrs: make(map[[16]byte]struct{}),
	}
	var conflicts []Conflict
	// ClusterIPs are the API server's to give out; they go before what users write.
	for _, s := range services {
		for i := range s.Endpoints {
			if FamilyOf(s.Endpoints[i].AddrPort.Addr()) == s.Family {
				t.endpoints[s.Family]++
			}
		}
		conflicts = t.claim(conflicts, s, EntryClusterIP, s.ClusterIP)
	}
	for _, s := range services {
		conflicts = t.claim(conflicts, s, EntryExternalIP, s.ExternalIPs...)
		conflicts = t.claim(conflicts, s, EntryLoadBalancer, s.LoadBalancerIPs...)
		if s.NodePort == 0 {
			continue
		}
		k := portKey{s.NodePort, s.Protocol, s.Family}
		if w, ok := t.nodePorts[k]; ok {
			conflicts = append(conflicts, Conflict{s, w, fmt.Sprintf("node port %d/%s", s.NodePort, s.Protocol)})
		} else {
			t.nodePorts[k] = s
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

// claim gives addresses to a service port. That a service port names an address
// twice is no conflict.
func (t *Table) claim(conflicts []Conflict, s *ServicePort, entry Entry, addresses ...netip.Addr) []Conflict {
	for _, a := range addresses {
		k := addrPortKey{a.As16(), s.Port, s.Protocol}
		w, ok := t.addresses[k]
		switch {
		case !ok:
			t.addresses[k] = target{s, entry}
		case w.service != s:
			conflicts = append(conflicts, Conflict{s, w.service, fmt.Sprintf("%s %s/%s", entry.words(), netip.AddrPortFrom(a, s.Port), s.Protocol)})
		}
	}
	return conflicts
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

// Node is the node the table was made for: read only.
func (t *Table) Node() *Node { return &t.node }

// Services are all service ports, in the order they were given. Read only.
func (t *Table) Services() []*ServicePort { return t.services }

// EndpointCount counts the endpoints of the family, usable or not, once for each
// service port.
func (t *Table) EndpointCount(f Family) int { return t.endpoints[f] }

// NodePortAddresses are the node's addresses on which node ports are open, without
// loopback ones.
func (t *Table) NodePortAddresses() []netip.Addr {
	var addrs []netip.Addr
	for _, a := range t.node.Addresses {
		if _, ok := t.nodePortAddrs[a.As16()]; ok {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// AllNodePortAddresses says whether node ports of the family are open on whatever
// address the node has (kube-proxy: NodePortAddresses.MatchAll).
func (t *Table) AllNodePortAddresses(f Family) bool {
	restricted := false
	for _, p := range t.node.NodePortAddresses {
		if FamilyOf(p.Addr()) == f {
			if p.Bits() == 0 {
				return true
			}
			restricted = true
		}
	}
	return !restricted
}

// OpensNodePorts says whether node ports are open on the address, which need not be
// the node's.
func (t *Table) OpensNodePorts(a netip.Addr) bool {
	if !a.IsLoopback() {
		_, ok := t.nodePortAddrs[a.As16()]
		return ok
	}
	switch {
	case !a.Is4() || !t.node.LocalhostNodePorts:
		return false
	case t.AllNodePortAddresses(IPv4):
		return true
	}
	// Restricted to addresses that interfaces have, of which lo has this one.
	return a == loopback && servesNodePorts(a, t.node.NodePortAddresses)
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// IsLocal says whether the address is one of the node's, loopback ones included
// (iptables: addrtype LOCAL).
func (t *Table) IsLocal(a netip.Addr) bool {
	_, ok := t.localAddrs[a.As16()]
	return ok || a.IsLoopback()
}

// Candidates are the service ports that have to do with the packet's destination: by
// address, and by node port if the destination is the node's.
func (t *Table) Candidates(p *Packet) []*ServicePort {
	var found []*ServicePort
	if tg, ok := t.byAddress(p); ok {
		found = append(found, tg.service)
	}
	if s := t.byNodePort(p); s != nil && t.IsLocal(p.Destination.Addr()) && (len(found) == 0 || found[0] != s) {
		found = append(found, s)
	}
	return found
}

// Owns says whether the address, with the service port's port and protocol, leads to
// it. It does not where another service port claims the same and came first.
func (t *Table) Owns(s *ServicePort, a netip.Addr) bool {
	return t.addresses[addrPortKey{a.As16(), s.Port, s.Protocol}].service == s
}

// OwnsNodePort is [Table.Owns] for the node port.
func (t *Table) OwnsNodePort(s *ServicePort) bool {
	return s.NodePort != 0 && t.nodePorts[portKey{s.NodePort, s.Protocol, s.Family}] == s
}

// byAddress finds the service port that has the packet's destination as one of its
// own addresses.
func (t *Table) byAddress(p *Packet) (target, bool) {
	tg, ok := t.addresses[addrPortKey{p.Destination.Addr().As16(), p.Destination.Port(), p.Protocol}]
	return tg, ok
}

// byNodePort finds the service port whose node port the packet's destination port
// is, on whatever address.
func (t *Table) byNodePort(p *Packet) *ServicePort {
	return t.nodePorts[portKey{p.Destination.Port(), p.Protocol, FamilyOf(p.Destination.Addr())}]
}
