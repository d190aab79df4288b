// Package limit bounds how much of a server its clients take: all of them together, and
// each of them.
package limit

import (
	"fmt"
	"slices"
	"sync"
)

// Numbers are the limits of a [Quota].
type Numbers struct {
	Total int // for all clients together
	Each  int // for each client that is not privileged (see [Client])
	// Reserved is how much of Total only privileged clients get. Others never fill it, so
	// the node's own probes and an operator always get through.
	Reserved int
}

// Quota counts what clients take at a time. It is safe for concurrent use.
type Quota struct {
	server, what string
	numbers      Numbers

	mu     sync.Mutex
	taken  int            // by all
	by     map[Client]int // by clients that are not privileged
	others int            // the sum of by
	// refused counts refusals by the limit for all, and by that for each.
	refusedTotal, refusedEach uint64
}

// NewQuota makes a quota of a server, in words for messages: "the flow API", "streams of flows".
func NewQuota(server, what string, n Numbers) *Quota {
	return &Quota{server: server, what: what, numbers: n, by: make(map[Client]int)}
}

// Exceeded is the error of a request that a limit refuses.
type Exceeded struct {
	What   string // that is limited
	Client Client // valid iff Each
	Each   bool   // it is the limit for each client; otherwise that for all together
	Max    int
}

// Error says which limit it is.
func (e *Exceeded) Error() string {
	if e.Each {
		return fmt.Sprintf("too many %s: %s has %d, which is the limit for one client: close one, or try again later", e.What, e.Client, e.Max)
	}
	return fmt.Sprintf("too many %s: all clients together have %d, which is the limit of this server: try again later", e.What, e.Max)
}

// Take takes one for the client, who has to release it once. The error is an [*Exceeded].
func (q *Quota) Take(c Client) (release func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.numbers
	shared := n.Total - n.Reserved
	switch own := c.privileged; {
	case !own && q.by[c] >= n.Each:
		q.refusedEach++
		return nil, &Exceeded{What: q.what, Client: c, Each: true, Max: n.Each}
	case !own && q.others >= shared:
		q.refusedTotal++
		return nil, &Exceeded{What: q.what, Max: shared}
	case q.taken >= n.Total:
		q.refusedTotal++
		return nil, &Exceeded{What: q.what, Max: n.Total}
	}
	q.taken++
	if !c.privileged {
		q.others++
		q.by[c]++
	}
	return sync.OnceFunc(func() { q.release(c) }), nil
}

func (q *Quota) release(c Client) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	if c.privileged {
		return
	}
	q.others--
	if q.by[c]--; q.by[c] == 0 {
		delete(q.by, c)
	}
}

// Count is how a quota is used.
type Count struct {
	Server, What string
	Taken, Total int
	// Refused counts since the start: by the limit for all clients together, and by that
	// for each.
	RefusedTotal, RefusedEach uint64
}

// Count reads it.
func (q *Quota) Count() Count {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Count{q.server, q.what, q.taken, q.numbers.Total, q.refusedTotal, q.refusedEach}
}

// Set keeps the quotas of a process together, for metrics. A nil set keeps none. It is safe
// for concurrent use.
type Set struct {
	mu     sync.Mutex
	quotas []*Quota
}

// New makes a quota that the set counts.
func (s *Set) New(server, what string, n Numbers) *Quota {
	q := NewQuota(server, what, n)
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.quotas = append(s.quotas, q)
	}
	return q
}

// Connections makes a quota of connections that the set counts. It is smaller than n if the
// process may have few descriptors: an eighth of them, so that several servers leave room
// for the datapath's sockets and for files.
func (s *Set) Connections(server string, n Numbers) *Quota {
	return s.New(server, "connections", n.within(descriptors()/8))
}

// within scales the numbers down to the total.
func (n Numbers) within(total int) Numbers {
	if n.Total <= total {
		return n
	}
	scale := func(k int) int { return max(1, k*total/n.Total) }
	return Numbers{Total: total, Each: scale(n.Each), Reserved: scale(n.Reserved)}
}

// Counts reads all quotas.
func (s *Set) Counts() []Count {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	quotas := slices.Clone(s.quotas)
	s.mu.Unlock()
	counts := make([]Count, len(quotas))
	for i, q := range quotas {
		counts[i] = q.Count()
	}
	return counts
}
