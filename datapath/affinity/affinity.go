// Package affinity stores which endpoints clients are bound to (sessionAffinity: ClientIP).
//
// It is a ground package.
package affinity

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Table holds the bindings of one node: what kube-proxy keeps in the kernel's recent lists, one
// for each KUBE-SEP chain. A binding lasts for the service's timeout after the client's last new
// flow; it is removed with its endpoint. A recent list has the last 100 clients of an endpoint
// (ip_list_tot in xt_recent.c, which kube-proxy leaves as it is). A Table has many more, but
// bounds them, too: per service port, so that spoofed sources do not displace the clients of other
// services, and in total. The client that is removed is the one of the service port whose last new
// flow is the oldest. A Table is safe for concurrent use.
type Table struct {
	now          func() time.Time
	max, maxEach int // clients: of all service ports, of each
	forgotten    atomic.Uint64
	mu           sync.RWMutex
	services     map[service]*clients
	count        int // of all clients
	// longest is the longest timeout seen: an older binding of any service has expired.
	longest time.Duration
}

// service is a service port. All of its addresses share its bindings.
type service struct {
	name     decision.ServicePortName
	protocol decision.Protocol
}

// clients are those of a service port, in a ring in the order of their last new flows. It begins and ends at ring, which
// is no client.
type clients struct {
	byAddr map[netip.Addr]*client
	ring   client
}

// client is one of a ring, with its bindings.
type client struct {
	addr         netip.Addr
	older, newer *client
	bindings     []binding
}

// binding is one endpoint that a client was sent to. There may be several, from times when other
// endpoints were unusable.
type binding struct {
	endpoint netip.AddrPort
	last     time.Time // when the client's last new flow went there
}

// Bounds of a table: about 20 MB in all, and a quarter of it for one service port.
const (
	maxClients     = 1 << 16
	maxClientsEach = maxClients / 4
)

// New makes an empty table.
func New() *Table { return NewAt(time.Now) }

// NewAt makes an empty table that reads the time from now, for example that of a capture. Every
// user of the table calls now.
func NewAt(now func() time.Time) *Table { return newTable(now, maxClients, maxClientsEach) }

func newTable(now func() time.Time, limit, limitEach int) *Table {
	return &Table{now: now, max: limit, maxEach: limitEach, services: make(map[service]*clients)}
}

// Forgotten counts the clients that were removed early, because there were too many.
func (t *Table) Forgotten() uint64 { return t.forgotten.Load() }

func serviceOf(s *decision.ServicePort) service { return service{s.Name, s.Protocol} }

// Bound implements [decision.Affinity].
func (t *Table) Bound(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr) bool {
	oldest := t.now().Add(-timeout(s))
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := t.services[serviceOf(s)]
	if list == nil {
		return false
	}
	c := list.byAddr[client]
	return c != nil && slices.ContainsFunc(c.bindings, func(b binding) bool { return b.endpoint == endpoint && !b.last.Before(oldest) })
}

func timeout(s *decision.ServicePort) time.Duration {
	return time.Duration(s.AffinitySeconds) * time.Second
}

// Bind records that a new flow of the client went to the endpoint now.
func (t *Table) Bind(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr) {
	t.BindAt(s, endpoint, client, t.now())
}

// BindAt records a flow of the past.
func (t *Table) BindAt(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr, when time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.longest = max(t.longest, timeout(s))
	c := t.client(serviceOf(s), client)
	for i := range c.bindings {
		if b := &c.bindings[i]; b.endpoint == endpoint {
			if when.After(b.last) {
				b.last = when
			}
			return
		}
	}
	c.bindings = append(c.bindings, binding{endpoint, when})
}

// client finds or makes a client, which becomes the newest one.
func (t *Table) client(of service, addr netip.Addr) *client {
	list := t.services[of]
	if list == nil {
		list = &clients{byAddr: make(map[netip.Addr]*client)}
		list.ring.older, list.ring.newer = &list.ring, &list.ring
	}
	c := list.byAddr[addr]
	if c == nil {
		if len(list.byAddr) >= t.maxEach {
			t.forget(of, list)
		} else if t.count >= t.max {
			t.makeRoom()
		}
		c = &client{addr: addr}
		t.services[of] = list // it is new, or the removed client was its last one
		list.byAddr[addr] = c
		t.count++
	} else {
		c.unlink()
	}
	c.older, c.newer = list.ring.older, &list.ring
	c.older.newer, c.newer.older = c, c
	return c
}

// makeRoom removes some of the oldest clients of the service port with the most clients: several
// at once, because finding the service port takes longer than removing a client.
func (t *Table) makeRoom() {
	const most = 32
	var of service
	var list *clients
	for s, l := range t.services {
		if list == nil || len(l.byAddr) > len(list.byAddr) {
			of, list = s, l
		}
	}
	for range min(most, (len(list.byAddr)+1)/2) {
		t.forget(of, list)
	}
}

// forget forgets the oldest client of a service port.
func (t *Table) forget(of service, list *clients) {
	t.remove(of, list, list.ring.newer)
	t.forgotten.Add(1)
}

// remove removes a client.
func (t *Table) remove(of service, list *clients, c *client) {
	c.unlink()
	delete(list.byAddr, c.addr)
	if t.count--; len(list.byAddr) == 0 {
		delete(t.services, of)
	}
}

func (c *client) unlink() { c.older.newer, c.newer.older = c.newer, c.older }

// Retain drops the bindings to endpoints to which the service table no longer leads,
// and those that have expired. since is the table of the last call, nil at first: if no
// Service with session affinity differs from it, there is nothing to do.
func (t *Table) Retain(services, since *decision.Table) {
	type at struct {
		service  service
		endpoint netip.AddrPort
	}
	bound := func(s *decision.ServicePort) bool { return s.AffinitySeconds > 0 }
	changed := make(map[decision.ServiceName]bool)
	reachable := make(map[at]bool)
	services.ChangedServices(since, func(name decision.ServiceName, before, after []*decision.ServicePort) {
		if !slices.ContainsFunc(before, bound) && !slices.ContainsFunc(after, bound) {
			return
		}
		changed[name] = true
		for _, s := range after {
			if !bound(s) {
				continue
			}
			for _, usable := range s.Usable {
				for _, i := range usable {
					reachable[at{serviceOf(s), s.Endpoints[i].AddrPort}] = true
				}
			}
		}
	})
	if len(changed) == 0 && since != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.now().Add(-t.longest)
	for of, list := range t.services {
		settled := since != nil && !changed[of.name.Service()]
		for _, c := range list.byAddr {
			c.bindings = slices.DeleteFunc(c.bindings, func(b binding) bool {
				return b.last.Before(oldest) || !settled && !reachable[at{of, b.endpoint}]
			})
			if len(c.bindings) == 0 {
				t.remove(of, list, c)
			}
		}
	}
}
