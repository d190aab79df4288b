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

// claim is a service port's entry for an address or a node port that it uses. The claims to the
// same one form a chain, of which the first wins. Claims are immutable.
type claim struct {
	service *ServicePort
	entry   Entry
	order   int // of the service port within its Service
	next    *claim
}

// compare orders claims by precedence. A service port without endpoints comes last: kube-proxy
// translates nothing for it, and refuses packets that no other service port translates. Among the
// others kube-proxy has no order, for it ranges over a map. Here ClusterIPs, which the API server
// allocates, come before addresses that users choose; then the names decide.
func (c *claim) compare(d *claim) int {
	return cmp.Or(
		cmp.Compare(c.refusals(), d.refusals()),
		cmp.Compare(min(c.entry, EntryClusterIP+1), min(d.entry, EntryClusterIP+1)),
		c.service.Name.Service().Compare(d.service.Name.Service()),
		cmp.Compare(c.order, d.order),
		cmp.Compare(c.entry, d.entry))
}

// refusals is 1 for a claim that only refuses, else 0.
func (c *claim) refusals() int {
	if c.service.HasEndpoints {
		return 0
	}
	return 1
}

// takesAll reports whether every packet that reaches the claim in nat gets an endpoint, so that
// none reaches the next claim. Source ranges and policy Local may skip some packets.
func (c *claim) takesAll() bool {
	s := c.service
	if c.entry == EntryClusterIP {
		return s.HasEndpoints && len(s.Usable[s.InternalPolicy]) > 0
	}
	restricted := c.entry == EntryLoadBalancer && s.Restricted()
	return s.HasEndpoints && !restricted && len(s.Usable[Cluster]) > 0 && len(s.Usable[s.ExternalPolicy]) > 0
}

// with returns the chain with one more claim, in order.
func (c *claim) with(n claim) *claim {
	if c == nil || n.compare(c) < 0 {
		n.next = c
		return &n
	}
	d := *c
	d.next = c.next.with(n)
	return &d
}

// without returns the chain without the claims of a service port; nil, if none is left.
func (c *claim) without(s *ServicePort) *claim {
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
func (c *claim) contested() bool {
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
	addresses *persistent.Edit[addrPortKey, *claim]
	nodePorts *persistent.Edit[portKey, *claim]
	contested *persistent.Edit[place, struct{}]
}

// claim adds the claims of a service port, which is the order-th of its Service.
func (e *edit) claim(s *ServicePort, order int) {
	e.each(s, func(entry Entry, chain *claim) *claim { return chain.with(claim{s, entry, order, nil}) })
}

// withdraw removes them.
func (e *edit) withdraw(s *ServicePort) {
	e.each(s, func(_ Entry, chain *claim) *claim { return chain.without(s) })
}

// each changes the chains of all addresses and node ports that a service port claims.
func (e *edit) each(s *ServicePort, change func(Entry, *claim) *claim) {
	address := func(entry Entry, a netip.Addr) {
		k := keyOf(a, s.Port, s.Protocol)
		update(e.addresses, e.contested, k, place{address: k}, func(c *claim) *claim { return change(entry, c) })
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
		update(e.nodePorts, e.contested, k, place{nodePort: k}, func(c *claim) *claim { return change(EntryNodePort, c) })
	}
}

func update[K comparable](chains *persistent.Edit[K, *claim], contested *persistent.Edit[place, struct{}], k K, at place, change func(*claim) *claim) {
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

// Conflict is an address or node port that two service ports use; the loser's packets go to the
// other one.
type Conflict struct {
	Loser, Winner *ServicePort
	What          string // "cluster IP 10.96.0.1:443/TCP" or "node port 30080/TCP"
}

// Error describes the conflict.
func (c Conflict) Error() string {
	return fmt.Sprintf("service %s: %s is already taken by service %s", c.Loser.Name, c.What, c.Winner.Name)
}

// Conflicts returns all conflicts, in the order of the losers. A service port with the same
// address twice is no conflict.
func (t *Table) Conflicts() []Conflict {
	type lost struct {
		claim *claim
		Conflict
	}
	var all []lost
	for at := range t.contested.All() {
		first, _ := t.addresses.Get(at.address)
		what := func(c *claim) string {
			return fmt.Sprintf("%s %s/%s", c.entry.words(), at.address.addrPort(), c.service.Protocol)
		}
		if at.nodePort != (portKey{}) {
			first, _ = t.nodePorts.Get(at.nodePort)
			what = func(c *claim) string { return fmt.Sprintf("node port %d/%s", at.nodePort.port, c.service.Protocol) }
		}
		for c := first.next; c != nil; c = c.next {
			if c.service != first.service {
				all = append(all, lost{c, Conflict{c.service, first.service, what(c)}})
			}
		}
	}
	slices.SortFunc(all, func(a, b lost) int {
		return cmp.Or(
			a.claim.service.Name.Service().Compare(b.claim.service.Name.Service()),
			cmp.Compare(a.claim.order, b.claim.order),
			cmp.Compare(a.claim.entry, b.claim.entry),
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
