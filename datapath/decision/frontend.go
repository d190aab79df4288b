package decision

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision/persistent"
)

// The keys of the hot maps are small, comparable and free of pointers, so that the
// garbage collector has less to follow. (netip.AddrPort holds one for its zone.)
// addrPortKey has no padding either, so that its hash is that of its bytes.
type addrPortKey struct {
	addr  [16]byte // IPv4 in its IPv4-mapped form
	port  uint16
	proto uint16
}

type portKey struct {
	port   uint16
	proto  Protocol
	family Family
}

func keyOf(a netip.Addr, port uint16, proto Protocol) addrPortKey {
	return addrPortKey{a.As16(), port, uint16(proto)}
}

func (k addrPortKey) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(k.addr).Unmap(), k.port)
}

// frontend is an address or a node port of one service port. The frontends of several with the
// same one form a chain, of which the first wins. Frontends are immutable.
type frontend struct {
	service *ServicePort
	entry   Entry
	order   int // of the service port within its Service
	next    *frontend
}

// compare orders frontends by precedence. A service port without endpoints comes last: kube-proxy
// translates nothing for it, and refuses packets that no other service port translates. Among the
// others kube-proxy has no order, for it ranges over a map. Here ClusterIPs, which the API server
// allocates, come before addresses that users choose; then the names decide.
func (c *frontend) compare(d *frontend) int {
	return cmp.Or(
		cmp.Compare(c.refusals(), d.refusals()),
		cmp.Compare(min(c.entry, EntryClusterIP+1), min(d.entry, EntryClusterIP+1)),
		c.service.Name.Service().Compare(d.service.Name.Service()),
		cmp.Compare(c.order, d.order),
		cmp.Compare(c.entry, d.entry))
}

// refusals is 1 for a frontend that only refuses, else 0.
func (c *frontend) refusals() int {
	if c.service.HasEndpoints {
		return 0
	}
	return 1
}

// takesAll reports whether every packet that reaches the frontend in nat gets an endpoint, so that
// none reaches the next frontend. Source ranges and policy Local may skip some packets.
func (c *frontend) takesAll() bool {
	s := c.service
	if c.entry == EntryClusterIP {
		return s.HasEndpoints && len(s.Usable[s.InternalPolicy]) > 0
	}
	restricted := c.entry == EntryLoadBalancer && s.Restricted()
	return s.HasEndpoints && !restricted && len(s.Usable[Cluster]) > 0 && len(s.Usable[s.ExternalPolicy]) > 0
}

// with returns the chain with one more frontend, in order.
func (c *frontend) with(n frontend) *frontend {
	if c == nil || n.compare(c) < 0 {
		n.next = c
		return &n
	}
	d := *c
	d.next = c.next.with(n)
	return &d
}

// without returns the chain without the frontends of a service port; nil, if none is left.
func (c *frontend) without(s *ServicePort) *frontend {
	switch {
	case c == nil:
		return nil
	case c.service == s:
		return c.next.without(s)
	}
	d := *c
	d.next = c.next.without(s)
	return &d
}

// contested reports whether more than one service port is in the chain.
func (c *frontend) contested() bool {
	for d := c; d != nil; d = d.next {
		if d.service != c.service {
			return true
		}
	}
	return false
}

// place is an address or, if it has no such, a node port.
type place struct {
	address  addrPortKey
	nodePort portKey
}

// edit is an uncommitted change of a table's maps.
type edit struct {
	services  *persistent.Edit[ServiceName, []*ServicePort]
	addresses *persistent.Edit[addrPortKey, *frontend]
	nodePorts *persistent.Edit[portKey, *frontend]
	contested *persistent.Edit[place, struct{}]
}

// add adds the frontends of a service port, which is the order-th of its Service.
func (e *edit) add(s *ServicePort, order int) {
	e.each(s, func(entry Entry, chain *frontend) *frontend { return chain.with(frontend{s, entry, order, nil}) })
}

// remove removes them.
func (e *edit) remove(s *ServicePort) {
	e.each(s, func(_ Entry, chain *frontend) *frontend { return chain.without(s) })
}

// each changes the chains of all addresses and node ports of a service port.
func (e *edit) each(s *ServicePort, change func(Entry, *frontend) *frontend) {
	address := func(entry Entry, a netip.Addr) {
		k := keyOf(a, s.Port, s.Protocol)
		update(e.addresses, e.contested, k, place{address: k}, func(c *frontend) *frontend { return change(entry, c) })
	}
	address(EntryClusterIP, s.ClusterIP)
	for _, a := range s.ExternalIPs {
		address(EntryExternalIP, a)
	}
	for _, a := range s.LoadBalancerIPs {
		address(EntryLoadBalancer, a)
	}
	if s.NodePort != 0 {
		k := portKey{s.NodePort, s.Protocol, s.Family}
		update(e.nodePorts, e.contested, k, place{nodePort: k}, func(c *frontend) *frontend { return change(EntryNodePort, c) })
	}
}

func update[K comparable](chains *persistent.Edit[K, *frontend], contested *persistent.Edit[place, struct{}], k K, at place, change func(*frontend) *frontend) {
	before, _ := chains.Get(k)
	after := change(before)
	if after == nil {
		chains.Delete(k)
	} else {
		chains.Set(k, after)
	}
	switch {
	case after.contested():
		contested.Set(at, struct{}{}) // even if it was before: the conflict is a different one now
	case before.contested():
		contested.Delete(at)
	}
}

// Conflict is an address or node port that two service ports use; the loser's packets go to the winner.
type Conflict struct {
	Loser, Winner *ServicePort
	What          string // "cluster IP 10.96.0.1:443/TCP" or "node port 30080/TCP"
}

// Error describes the conflict.
func (c Conflict) Error() string {
	return fmt.Sprintf("service %s: %s is already taken by service %s", c.Loser.Name, c.What, c.Winner.Name)
}

// Conflicts returns all conflicts, in the order of the losers. A service port with the same address twice is not a
// conflict.
func (t *Table) Conflicts() []Conflict {
	type lost struct {
		frontend *frontend
		Conflict
	}
	entries := [...]string{EntryClusterIP: "cluster IP", EntryExternalIP: "external IP", EntryLoadBalancer: "load balancer IP"}
	var all []lost
	for at := range t.contested.All() {
		first, _ := t.addresses.Get(at.address)
		what := func(c *frontend) string {
			return fmt.Sprintf("%s %s/%s", entries[c.entry], at.address.addrPort(), c.service.Protocol)
		}
		if at.nodePort != (portKey{}) {
			first, _ = t.nodePorts.Get(at.nodePort)
			what = func(c *frontend) string { return fmt.Sprintf("node port %d/%s", at.nodePort.port, c.service.Protocol) }
		}
		for c := first.next; c != nil; c = c.next {
			if c.service != first.service {
				all = append(all, lost{c, Conflict{c.service, first.service, what(c)}})
			}
		}
	}
	slices.SortFunc(all, func(a, b lost) int {
		return cmp.Or(
			a.frontend.service.Name.Service().Compare(b.frontend.service.Name.Service()),
			cmp.Compare(a.frontend.order, b.frontend.order),
			cmp.Compare(a.frontend.entry, b.frontend.entry),
			cmp.Compare(a.What, b.What))
	})
	conflicts := make([]Conflict, len(all))
	for i := range all {
		conflicts[i] = all[i].Conflict
	}
	return conflicts
}

// SameConflicts reports whether two tables are known to have the same conflicts: it is cheap, and
// false in doubt.
func (t *Table) SameConflicts(as *Table) bool { return t.contested.Same(as.contested) }

// The following methods call changed for each difference between a table and an earlier one, from which it was made in
// any number of steps; nil is the empty table. They may include changes that were undone. The time they take depends on
// the differences, not on the size of the tables.

// ChangedServices finds the Services with a different service port; before or after is nil if it has none.
func (t *Table) ChangedServices(since *Table, changed func(name ServiceName, before, after []*ServicePort)) {
	persistent.Diff(since.orEmpty().services, t.services, changed)
}

// ChangedAddresses finds the addresses, with ports, whose service port differs; before or after is nil without one.
func (t *Table) ChangedAddresses(since *Table, changed func(at netip.AddrPort, p Protocol, before, after *ServicePort)) {
	persistent.Diff(since.orEmpty().addresses, t.addresses, func(k addrPortKey, before, after *frontend) {
		changed(k.addrPort(), Protocol(k.proto), before.owner(), after.owner())
	})
}

// ChangedNodePorts is [Table.ChangedAddresses] for node ports.
func (t *Table) ChangedNodePorts(since *Table, changed func(port uint16, p Protocol, f Family, before, after *ServicePort)) {
	persistent.Diff(since.orEmpty().nodePorts, t.nodePorts, func(k portKey, before, after *frontend) {
		changed(k.port, k.proto, k.family, before.owner(), after.owner())
	})
}

var empty Table

func (t *Table) orEmpty() *Table {
	if t == nil {
		return &empty
	}
	return t
}

// owner is the service port whose frontend comes first; nil of an empty chain.
func (c *frontend) owner() *ServicePort {
	if c == nil {
		return nil
	}
	return c.service
}
