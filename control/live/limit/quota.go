// Package limit bounds the use of a server by its clients: by all of them together, and by
// each of them.
package limit

import (
	"fmt"
	"sync"
)

// Numbers are the limits of a [Quota].
type Numbers struct {
	Total int // for all clients together
	Each  int // for each client that is not privileged (see [Client])
	// Reserved is the part of Total for privileged clients only, so that the node's own probes
	// and an operator are always served.
	Reserved int
}

// Quota counts what clients use at a time. It is safe for concurrent use.
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

// Exceeded is the error of a request that a limit refuses.
type Exceeded struct {
	What   string // that is limited
	Client Client // valid iff Each
	Each   bool   // it is the limit for each client; otherwise that for all together
	Max    int
}

// Error names the limit.
func (e *Exceeded) Error() string {
	if e.Each {
		return fmt.Sprintf("too many %s: %s has %d, the limit for one client: close one, or try again later", e.What, e.Client, e.Max)
	}
	return fmt.Sprintf("too many %s: all clients together have %d, the limit of this server: try again later", e.What, e.Max)
}

// Take takes one for the client, which must call release once. The error is an [*Exceeded].
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

// Count is the use of a quota.
type Count struct {
	Server, What string
	Taken, Total int
	// Refused counts refusals since the start: by the limit for all clients together, and by
	// that for each.
	RefusedTotal, RefusedEach uint64
}

// Count reads it.
func (q *Quota) Count() Count {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Count{q.server, q.what, q.taken, q.numbers.Total, q.refusedTotal, q.refusedEach}
}

// Set is the set of quotas of a process, for metrics. A nil set is empty. It is safe for
// concurrent use.
type Set struct {
	mu     sync.Mutex
	quotas []*Quota
}

// New returns a quota of the set for a server, with names for messages: "the flow API", "streams of
// flows".
func (s *Set) New(server, what string, n Numbers) *Quota {
	q := &Quota{server: server, what: what, numbers: n, by: make(map[Client]int)}
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.quotas = append(s.quotas, q)
	}
	return q
}

// Connections returns a quota of connections of the set. It is limited to an eighth of the
// process's file descriptors, so that several servers leave enough for the datapath's sockets
// and for files.
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
	defer s.mu.Unlock()
	counts := make([]Count, len(s.quotas))
	for i, q := range s.quotas {
		counts[i] = q.Count()
	}
	return counts
}
