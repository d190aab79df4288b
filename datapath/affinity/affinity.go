// Package affinity remembers which endpoints clients are bound to (sessionAffinity:
// ClientIP).
package affinity

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Table holds the bindings of one node: what kube-proxy keeps in the kernel's
// recent lists, one for each KUBE-SEP chain. A binding lasts for the service's
// timeout after the client's last new flow; it goes with its endpoint. Unlike a
// recent list, which forgets the oldest of more than 100 clients, it is only bounded
// as a whole. A Table is safe for concurrent use.
type Table struct {
	now func() time.Time
	max int

	mu       sync.RWMutex
	bindings map[key][]binding
	// longest is the longest timeout seen: what is older than that has expired
	// whatever service it was of.
	longest time.Duration
}

// key is a client of a service port. All of the service port's addresses share its
// bindings.
type key struct {
	service  decision.ServicePortName
	protocol decision.Protocol
	client   netip.Addr
}

// binding is one endpoint a client has been to. There may be several: of times when
// others were not there.
type binding struct {
	endpoint netip.AddrPort
	last     time.Time // when the client's last new flow went there
}

// maxClients bounds a table to some hundred megabytes.
const maxClients = 1 << 20

// New makes an empty table.
func New() *Table { return NewAt(time.Now) }

// NewAt makes an empty table that takes the time from now: that of a capture, say. now is
// called by all who use the table.
func NewAt(now func() time.Time) *Table { return newTable(now, maxClients) }

func newTable(now func() time.Time, limit int) *Table {
	return &Table{now: now, max: limit, bindings: make(map[key][]binding)}
}

func keyOf(s *decision.ServicePort, client netip.Addr) key {
	return key{s.Name, s.Protocol, client}
}

// Bound implements [decision.Affinity].
func (t *Table) Bound(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr) bool {
	oldest := t.now().Add(-timeout(s))
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, b := range t.bindings[keyOf(s, client)] {
		if b.endpoint == endpoint {
			return !b.last.Before(oldest)
		}
	}
	return false
}

func timeout(s *decision.ServicePort) time.Duration {
	return time.Duration(s.AffinitySeconds) * time.Second
}

// Bind notes that a new flow of the client went to the endpoint, now.
func (t *Table) Bind(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr) {
	t.BindAt(s, endpoint, client, t.now())
}

// BindAt notes a flow of the past.
func (t *Table) BindAt(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr, when time.Time) {
	k := keyOf(s, client)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.longest = max(t.longest, timeout(s))
	list := t.bindings[k]
	for i := range list {
		if list[i].endpoint == endpoint {
			if when.After(list[i].last) {
				list[i].last = when
			}
			return
		}
	}
	if len(list) == 0 && len(t.bindings) >= t.max {
		t.makeRoom()
	}
	t.bindings[k] = append(list, binding{endpoint, when})
}

// makeRoom drops what has expired and, if that is not enough, a sixteenth of the
// rest, whichever comes up: those clients are balanced anew.
func (t *Table) makeRoom() {
	t.keep(func(key, binding) bool { return true })
	n := len(t.bindings) - t.max*15/16
	for k := range t.bindings {
		if n--; n < 0 {
			return
		}
		delete(t.bindings, k)
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
	t.keep(func(k key, b binding) bool {
		return since != nil && !changed[k.service.Service()] || reachable[at{k.service, k.protocol, b.endpoint}]
	})
}

// keep drops the bindings that have expired or that wanted does not want.
func (t *Table) keep(wanted func(key, binding) bool) {
	oldest := t.now().Add(-t.longest)
	for k, list := range t.bindings {
		kept := list[:0]
		for _, b := range list {
			if !b.last.Before(oldest) && wanted(k, b) {
				kept = append(kept, b)
			}
		}
		if len(kept) == 0 {
			delete(t.bindings, k)
		} else {
			t.bindings[k] = kept
		}
	}
}

// Len counts the clients.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.bindings)
}
