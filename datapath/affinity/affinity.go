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

// clients are those of a service port, in the order of their last new flows.
type clients struct {
	byAddr         map[netip.Addr]*client
	oldest, newest *client
}

// client is one of a list, with its bindings.
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
	if c == nil {
		return false
	}
	for _, b := range c.bindings {
		if b.endpoint == endpoint {
			return !b.last.Before(oldest)
		}
	}
	return false
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
		t.services[of] = list
	}
	c := list.byAddr[addr]
	if c == nil {
		if len(list.byAddr) >= t.maxEach {
			t.forget(of, list)
		} else if t.count >= t.max {
			t.makeRoom()
		}
		c = &client{addr: addr}
		// The removed client may have been the last one.
		t.services[of] = list
		list.byAddr[addr] = c
		t.count++
	} else {
		list.unlink(c)
	}
	list.append(c)
	return c
}

// makeRoom removes some of the oldest clients of the service port with the most clients: several
// at once, because finding the service port takes longer than removing a client.
func (t *Table) makeRoom() {
	const most = 32
	of, list := t.largest()
	for range min(most, (len(list.byAddr)+1)/2) {
		t.forget(of, list)
	}
}

// largest finds the service port with the most clients.
func (t *Table) largest() (of service, list *clients) {
	for s, l := range t.services {
		if list == nil || len(l.byAddr) > len(list.byAddr) {
			of, list = s, l
		}
	}
	return of, list
}

// forget forgets the oldest client of a service port.
func (t *Table) forget(of service, list *clients) {
	if c := list.oldest; c != nil {
		t.remove(of, list, c)
		t.forgotten.Add(1)
	}
}

// remove removes a client.
func (t *Table) remove(of service, list *clients, c *client) {
	list.unlink(c)
	delete(list.byAddr, c.addr)
	if t.count--; len(list.byAddr) == 0 {
		delete(t.services, of)
	}
}

func (l *clients) append(c *client) {
	c.older, c.newer = l.newest, nil
	if l.newest == nil {
		l.oldest = c
	} else {
		l.newest.newer = c
	}
	l.newest = c
}

func (l *clients) unlink(c *client) {
	if c.older == nil {
		l.oldest = c.newer
	} else {
		c.older.newer = c.newer
	}
	if c.newer == nil {
		l.newest = c.older
	} else {
		c.newer.older = c.older
	}
}

// Retain drops the bindings to endpoints to which the service table no longer leads,
// and those that have expired. since is the table of the last call, nil at first: if no
// Service with session affinity differs from it, there is nothing to do.
func (t *Table) Retain(services, since *decision.Table) {
	type at struct {
		service  decision.ServicePortName
		protocol decision.Protocol
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
					reachable[at{s.Name, s.Protocol, s.Endpoints[i].AddrPort}] = true
				}
			}
		}
	})
	if len(changed) == 0 && since != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep(func(s service, b binding) bool {
		return since != nil && !changed[s.name.Service()] || reachable[at{s.name, s.protocol, b.endpoint}]
	})
}

// keep drops the bindings that have expired or that wanted does not want.
func (t *Table) keep(wanted func(service, binding) bool) {
	oldest := t.now().Add(-t.longest)
	for s, list := range t.services {
		for _, c := range list.byAddr {
			kept := c.bindings[:0]
			for _, b := range c.bindings {
				if !b.last.Before(oldest) && wanted(s, b) {
					kept = append(kept, b)
				}
			}
			if c.bindings = kept; len(kept) == 0 {
				t.remove(s, list, c)
			}
		}
	}
}

// Len counts the clients.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.count
}
