package decision

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision/persistent"
)

// Table is an immutable snapshot of all service ports as one node sees them. It is safe for
// concurrent use. The time of a lookup does not depend on the number of services, and a table
// shares all unchanged parts with the table it was made from.
type Table struct {
	generation uint64
	built      time.Time
	node       Node
	counts     families
	services   persistent.Map[ServiceName, []*ServicePort]
	addresses  persistent.Map[addrPortKey, *frontend]
	nodePorts  persistent.Map[portKey, *frontend]
	// contested are the addresses and node ports of several service ports.
	contested persistent.Map[place, struct{}]
	// localAddrs are the addresses of the node; nodePortAddrs those on which node
	// ports are open, loopback ones aside.
	localAddrs    map[[16]byte]struct{}
	nodePortAddrs map[[16]byte]struct{}
	// sorted returns all service ports in order; the list is made on the first call. nil: it is not kept.
	sorted func() []*ServicePort
}

// Counts are the sizes of a table in one address family.
type Counts struct {
	ServicePorts int
	Endpoints    int // usable or not, once for each service port
	// NoLocalInternal and NoLocalExternal count the service ports whose flows of policy Local are dropped: they have
	// endpoints, but none here. kube-proxy (sync_proxy_rules_no_local_endpoints_total) also counts the external policy
	// of Services that cannot be reached from outside.
	NoLocalInternal, NoLocalExternal int
}

// families are the counts of each family.
type families struct{ v4, v6 Counts }

func (c *families) of(f Family) *Counts {
	if f == IPv4 {
		return &c.v4
	}
	return &c.v6
}

// add counts a service port; a sign of -1 removes it from the counts.
func (c *Counts) add(s *ServicePort, sign int) {
	c.ServicePorts += sign
	for i := range s.Endpoints {
		if FamilyOf(s.Endpoints[i].AddrPort.Addr()) == s.Family {
			c.Endpoints += sign
		}
	}
	if !s.HasEndpoints || len(s.Usable[Local]) > 0 {
		return
	}
	if s.InternalPolicy == Local {
		c.NoLocalInternal += sign
	}
	if s.ExternalPolicy == Local && s.External() {
		c.NoLocalExternal += sign
	}
}

// NewTable makes a table of the service ports. Those of one Service keep their order. NewTable
// keeps the slices of the node and the service ports, which must not be changed afterwards.
func NewTable(generation uint64, built time.Time, node Node, services []*ServicePort) *Table {
	byService := make(map[ServiceName][]*ServicePort)
	for _, s := range services {
		k := s.Name.Service()
		byService[k] = append(byService[k], s)
	}
	changes := make([]Change, 0, len(byService))
	for name, ports := range byService {
		changes = append(changes, Change{name, ports})
	}
	t := &Table{generation: generation - 1}
	return t.Next(built, node, changes...)
}

// Change is the new service ports of a Service; none: the Service was removed.
type Change struct {
	Service ServiceName
	Ports   []*ServicePort
}

// Next makes the table of the next generation, with the changes: at most one for each Service. The
// time it takes depends on the changes and the node's addresses, not on the size of the table. It
// keeps the slices as [NewTable] does.
func (t *Table) Next(built time.Time, node Node, changes ...Change) *Table {
	next := &Table{generation: t.generation + 1, built: built, node: node, counts: t.counts}
	e := edit{
		services: t.services.Edit(), addresses: t.addresses.Edit(),
		nodePorts: t.nodePorts.Edit(), contested: t.contested.Edit(),
	}
	// Removals come first: an address may move from one Service to another.
	for _, c := range changes {
		before, _ := e.services.Get(c.Service)
		for _, s := range before {
			e.remove(s)
			next.counts.of(s.Family).add(s, -1)
		}
		e.services.Delete(c.Service)
	}
	for _, c := range changes {
		for i, s := range c.Ports {
			e.add(s, i)
			next.counts.of(s.Family).add(s, 1)
		}
		if len(c.Ports) > 0 {
			e.services.Set(c.Service, c.Ports)
		}
	}
	next.services, next.addresses = e.services.Map(), e.addresses.Map()
	next.nodePorts, next.contested = e.nodePorts.Map(), e.contested.Map()
	if t.localAddrs != nil && slices.Equal(t.node.Addresses, node.Addresses) && slices.Equal(t.node.NodePortAddresses, node.NodePortAddresses) {
		next.localAddrs, next.nodePortAddrs = t.localAddrs, t.nodePortAddrs
	} else {
		next.localAddrs = make(map[[16]byte]struct{}, len(node.Addresses))
		next.nodePortAddrs = make(map[[16]byte]struct{}, len(node.Addresses))
		for _, a := range node.Addresses {
			next.localAddrs[a.As16()] = struct{}{}
			if ServesNodePorts(a, node.NodePortAddresses) {
				next.nodePortAddrs[a.As16()] = struct{}{}
			}
		}
	}
	if next.sorted = t.sorted; next.sorted == nil || !next.services.Same(t.services) {
		services := next.services // and not next, which would keep this table alive in all later ones
		next.sorted = sync.OnceValue(func() []*ServicePort { return sortedPorts(services) })
	}
	return next
}

func sortedPorts(services persistent.Map[ServiceName, []*ServicePort]) []*ServicePort {
	all := make([][]*ServicePort, 0, services.Len())
	for _, ports := range services.All() {
		all = append(all, ports)
	}
	slices.SortFunc(all, func(a, b []*ServicePort) int { return a[0].Name.Service().Compare(b[0].Name.Service()) })
	return slices.Concat(all...)
}

// ServesNodePorts reports whether node ports are open on the address. As in kube-proxy's
// NodePortAddresses, there is no restriction if all prefixes are of the other family.
func ServesNodePorts(a netip.Addr, within []netip.Prefix) bool {
	_, restricted := PrefixOf(within, FamilyOf(a))
	return !restricted || slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// Generation counts the tables made since the start, from 1.
func (t *Table) Generation() uint64 { return t.generation }

// Built is when the table was made.
func (t *Table) Built() time.Time { return t.built }

// Node is the node the table was made for: read only.
func (t *Table) Node() *Node { return &t.node }

// Services returns all service ports, sorted by namespace and name. Read only. The first call for
// a table takes time in proportion to their number.
func (t *Table) Services() []*ServicePort {
	if t.sorted == nil {
		return sortedPorts(t.services)
	}
	return t.sorted()
}

// Archive returns the table in a form that is cheap to keep: it shares everything with the tables before
// and after it. Services of the result takes time at each call, as the list is not kept.
func (t *Table) Archive() *Table {
	a := *t
	a.sorted = nil
	return &a
}

// Service returns the service ports of a Service, in order. Read only.
func (t *Table) Service(name ServiceName) []*ServicePort {
	ports, _ := t.services.Get(name)
	return ports
}

// ServiceCount counts the Services that have a service port.
func (t *Table) ServiceCount() int { return t.services.Len() }

// Counts returns the sizes of the table in one family.
func (t *Table) Counts(f Family) Counts { return *t.counts.of(f) }

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

// AllNodePortAddresses reports whether node ports of the family are open on all addresses of the
// node (kube-proxy: NodePortAddresses.MatchAll).
func (t *Table) AllNodePortAddresses(f Family) bool {
	within := t.node.NodePortAddresses
	_, restricted := PrefixOf(within, f)
	return !restricted || slices.ContainsFunc(within, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f && p.Bits() == 0 })
}

// OpensNodePorts reports whether node ports are open on the address, which need not be the node's.
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
	return a == loopback && ServesNodePorts(a, t.node.NodePortAddresses)
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// IsLocal reports whether the address is one of the node's, loopback ones included (iptables:
// addrtype LOCAL).
func (t *Table) IsLocal(a netip.Addr) bool {
	_, ok := t.localAddrs[a.As16()]
	return ok || a.IsLoopback()
}

// Candidates returns the service ports that match the packet's destination, each once: by address, and by node port if
// the destination is the node's. Those that get no packets, because an earlier one with the same address or node port
// takes all, are left out.
func (t *Table) Candidates(p *Packet) []*ServicePort {
	var found []*ServicePort
	add := func(c *frontend, translated bool) {
		for ; c != nil; c = c.next {
			if !slices.Contains(found, c.service) {
				found = append(found, c.service)
			}
			if translated && c.takesAll() {
				return
			}
		}
	}
	add(t.byAddress(p), true)
	if dst := p.Destination.Addr(); t.IsLocal(dst) {
		add(t.byNodePort(p), t.OpensNodePorts(dst))
	}
	return found
}

// frontends returns the frontends at an address with the service port's port and protocol or, with
// EntryNodePort, to its node port.
func (t *Table) frontends(s *ServicePort, e Entry, a netip.Addr) (c *frontend) {
	if e == EntryNodePort {
		c, _ = t.nodePorts.Get(portKey{s.NodePort, s.Protocol, s.Family})
	} else {
		c, _ = t.addresses.Get(keyOf(a, s.Port, s.Protocol))
	}
	return c
}

// Rank is the number of frontends at an address that come before the service port's own by the
// entry; with EntryNodePort it is about the node port, and the address does not matter. It is 0 if
// no other service port has the same one. The first frontend that translates a packet gets it.
func (t *Table) Rank(s *ServicePort, e Entry, a netip.Addr) int {
	rank := 0
	for c := t.frontends(s, e, a); c != nil && (c.service != s || c.entry != e); c = c.next {
		rank++
	}
	return rank
}

// Reached reports whether packets to the address, or with EntryNodePort to the node port, reach
// the service port. They do not if another service port has the same one, comes first and takes
// all.
func (t *Table) Reached(s *ServicePort, e Entry, a netip.Addr) bool {
	for c := t.frontends(s, e, a); c != nil; c = c.next {
		if c.service == s && c.entry == e {
			return true
		}
		if c.takesAll() {
			return false
		}
	}
	return false
}

// byAddress returns the frontends at the packet's destination as an address of a service port; nil:
// there are none.
func (t *Table) byAddress(p *Packet) *frontend {
	c, _ := t.addresses.Get(keyOf(p.Destination.Addr(), p.Destination.Port(), p.Protocol))
	return c
}

// byNodePort returns the frontends at the packet's destination port as a node port, on any address.
func (t *Table) byNodePort(p *Packet) *frontend {
	c, _ := t.nodePorts.Get(portKey{p.Destination.Port(), p.Protocol, FamilyOf(p.Destination.Addr())})
	return c
}

// Contested reports whether several service ports have the address and port. Packets that the first of
// them does not translate go on to the next.
func (t *Table) Contested(at netip.AddrPort, p Protocol) bool {
	c, _ := t.orEmpty().addresses.Get(keyOf(at.Addr(), at.Port(), p))
	return c != nil && c.next != nil
}

// ContestedNodePort is Contested for a node port.
func (t *Table) ContestedNodePort(port uint16, p Protocol, f Family) bool {
	c, _ := t.orEmpty().nodePorts.Get(portKey{port, p, f})
	return c != nil && c.next != nil
}
