// Package tracking follows the connections of a node's flows, as the kernel's connection tracking
// reports them, so that balancing algorithms know how many are open, which were answered, and which
// failed.
//
// It is a ground package.
package tracking

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Events are what happens to the kernel's connections; see [conntrack.Watcher].
type Events interface {
	Receive([]conntrack.Event) (int, error)
	Close() error
}

// Connections are the kernel's connections; see [conntrack.Table].
type Connections interface {
	Dump(conntrack.Filter, func(*conntrack.State)) error
}

// Tracker is a Balancer that knows what happens to its connections. Flows that the kernel's copy of the
// service table decided count as well. It is safe for concurrent use.
type Tracker struct {
	*balance.Balancer
	shadows *shadow.Shadows // nil: none
	clock   *Clock
	intakes [workers]intake

	mu     sync.Mutex // guards what follows
	known  map[conntrack.Tuple]*connection
	recent []*connection // that may become unanswered, oldest first
	pass   uint64        // number of passes over the connection table
	lost   uint64
}

// workers is more than a node has; others share their intakes.
const workers = 64

// Limits of a Tracker. A connection takes about 200 bytes.
const (
	maxConnections = 1 << 18
	intakeSize     = 4096
)

// intake is where a worker puts its new flows.
type intake struct {
	mu    sync.Mutex
	flows []opened
	_     [64]byte // workers do not share a cache line
}

type opened struct {
	key     conntrack.Tuple
	conn    balance.Connection
	shadows shadow.Connection
	at      int64
}

// connection is a connection to an endpoint of a service port with an algorithm of its own or, with shadows, of any.
type connection struct {
	key        conntrack.Tuple
	conn       balance.Connection // none of a service port that is balanced at random
	shadows    shadow.Connection
	at         int64 // of the decision
	state      flow.State
	answered   bool
	unanswered bool // has been reported
	inactive   bool // likewise
	over       bool
	pass       uint64 // the last pass that found it
}

// Clock converts times to those of a Balancer: nanoseconds since the clock was made.
type Clock struct{ origin time.Time }

// NewClock returns a clock.
func NewClock() *Clock { return &Clock{time.Now()} }

// Now is the present time.
func (c *Clock) Now() int64 { return int64(time.Since(c.origin)) }

// At converts a time.
func (c *Clock) At(t time.Time) int64 { return int64(t.Sub(c.origin)) }

// New returns a Tracker for the Balancer, which must have the clock's Now, as the shadows must; nil: there
// are none. With shadows it follows the connections of all service ports.
func New(b *balance.Balancer, shadows *shadow.Shadows, c *Clock) *Tracker {
	return &Tracker{Balancer: b, shadows: shadows, clock: c, known: make(map[conntrack.Tuple]*connection)}
}

// Follow prepares for a new table; see [balance.Balancer.Follow].
func (t *Tracker) Follow(table *decision.Table) {
	t.Balancer.Follow(table)
	if t.shadows != nil {
		t.shadows.Follow(table)
	}
}

// Opened takes over a flow whose connection entry was made at the time, before its first packet goes on.
// It returns what the shadows selected. It is for the worker with the number; each may call it at the same time.
func (t *Tracker) Opened(worker int, p *decision.Packet, d *decision.Decision, at time.Time) []flow.ShadowPick {
	conn, ok := t.Connection(d)
	if !ok && t.shadows == nil {
		return nil
	}
	var picks []flow.ShadowPick
	var shadows shadow.Connection
	if t.shadows != nil {
		picks, shadows = t.shadows.Decide(p, d)
	}
	in := &t.intakes[worker%workers]
	in.mu.Lock()
	full := len(in.flows) >= intakeSize
	if !full {
		in.flows = append(in.flows, opened{flow.TupleOf(p), conn, shadows, t.clock.At(at)})
	}
	in.mu.Unlock()
	if full {
		t.Undo(d)
		shadows.Observe(balance.Event{Kind: balance.Inactive, At: t.clock.At(at)})
		shadows.Observe(balance.Event{Kind: balance.Ended, At: t.clock.At(at)})
	}
	return picks
}

// gather is how long events wait for more: what costs a wake-up is then paid once for many.
const gather = 2 * time.Millisecond

// tick is how often flows without an answer are looked for.
const tick = 250 * time.Millisecond

// Run follows the connections until the context ends; then it closes the events. Before it, and after an
// error, a Tracker knows of no end of a connection.
func (t *Tracker) Run(ctx context.Context, events Events, connections Connections) error {
	stop := context.AfterFunc(ctx, func() { _ = events.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	looking.Go(func() { t.look(ctx) })
	t.resync(connections)
	batch := make([]conntrack.Event, 256)
	for {
		n, err := events.Receive(batch)
		t.apply(batch[:n])
		switch {
		case errors.Is(err, conntrack.ErrOverrun):
			t.resync(connections)
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		if n < len(batch) {
			select {
			case <-ctx.Done():
			case <-time.After(gather):
			}
		}
	}
}

// look looks for flows without an answer.
func (t *Tracker) look(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		t.mu.Lock()
		t.take()
		t.findUnanswered(t.clock.Now())
		t.mu.Unlock()
	}
}

// findUnanswered reports the flows that have waited for an answer for too long.
func (t *Tracker) findUnanswered(now int64) {
	for len(t.recent) > 0 {
		c := t.recent[0]
		if !c.answered && !c.over && now-c.at < int64(flow.UnansweredAfter) {
			return
		}
		if !c.answered && !c.over {
			c.fail(balance.Unanswered, now)
		}
		t.recent = t.recent[1:]
	}
	t.recent = nil // its memory
}

// observe passes an event of the connection on.
func (c *connection) observe(e balance.Event) {
	c.conn.Observe(e)
	c.shadows.Observe(e)
}

// fail reports that the connection was not answered, or was refused, once.
func (c *connection) fail(kind balance.EventKind, at int64) {
	if !c.unanswered {
		c.unanswered = true
		c.observe(balance.Event{Kind: kind, At: at})
	}
}

// close reports that the connection is being closed, once.
func (c *connection) close(at int64) {
	if !c.inactive {
		c.inactive = true
		c.observe(balance.Event{Kind: balance.Inactive, At: at})
	}
}

// take takes over the workers' new flows.
func (t *Tracker) take() {
	for i := range t.intakes {
		in := &t.intakes[i]
		in.mu.Lock()
		flows := in.flows
		in.flows = nil
		in.mu.Unlock()
		for _, f := range flows {
			t.insert(f)
		}
	}
}

// insert adds a connection. One with the same tuple before it is over.
func (t *Tracker) insert(f opened) {
	if before := t.known[f.key]; before != nil {
		t.end(before, f.at, 0)
	}
	c := &connection{key: f.key, conn: f.conn, shadows: f.shadows, at: f.at, state: flow.Decided}
	if len(t.known) >= maxConnections {
		t.lost++
		t.end(c, f.at, 0)
		return
	}
	t.known[f.key] = c
	t.recent = append(t.recent, c)
}

// apply takes events over.
func (t *Tracker) apply(events []conntrack.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.take()
	now := t.clock.Now()
	for i := range events {
		ev := &events[i]
		at := now
		if !ev.At.IsZero() {
			at = t.clock.At(ev.At)
		}
		t.applyEvent(ev, at)
	}
}

func (t *Tracker) applyEvent(ev *conntrack.Event, at int64) {
	s := &ev.State
	c := t.known[s.Original]
	switch {
	case c == nil && ev.Kind == conntrack.Updated:
		c = t.adopt(s, at) // that the kernel's copy decided
	case c != nil && c.begunAfter(ev, at):
		return
	}
	if c == nil {
		return
	}
	t.update(c, s, at)
	if ev.Kind == conntrack.Destroyed {
		if !c.answered {
			c.fail(balance.Unanswered, at)
		}
		var bytes uint64
		if s.HasCounters {
			bytes = s.Sent.Bytes + s.Received.Bytes
		}
		t.end(c, at, bytes)
	}
}

// begunAfter reports whether the event is of the connection that had the tuple before.
func (c *connection) begunAfter(ev *conntrack.Event, at int64) bool {
	if !ev.At.IsZero() {
		return at < c.at
	}
	// Without times: a worker replaced one that was closed, and nothing is known of this one yet.
	return ev.Kind == conntrack.Destroyed && ev.PortID != 0 && c.state == flow.Decided &&
		flow.StateOf(&ev.State, flow.Established).Order() >= flow.Closing.Order()
}

// Failed reports that the connection of a flow was refused, or was not answered, before the kernel
// reports its end.
func (t *Tracker) Failed(p *decision.Packet, refused bool) {
	kind := balance.Unanswered
	if refused {
		kind = balance.Refused
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.take()
	if c := t.known[flow.TupleOf(p)]; c != nil && !c.answered {
		c.fail(kind, t.clock.Now())
	}
}

// update takes over the state of a connection.
func (t *Tracker) update(c *connection, s *conntrack.State, at int64) {
	next := flow.StateOf(s, c.state)
	if next.Order() < c.state.Order() || next == flow.Reset && !c.answered && !flow.Replied(s) {
		return // whether the endpoint refused the connection shows in the counts at its end
	}
	c.state = next
	switch {
	case next == flow.Refused:
		c.answered = true
		c.fail(balance.Refused, at)
	case !c.answered && (flow.Replied(s) || next.Order() > flow.Decided.Order()):
		c.answered = true
		c.observe(balance.Event{Kind: balance.Answered, At: at, After: time.Duration(max(at-c.at, 0))})
	}
	if next.Order() >= flow.Closing.Order() {
		c.close(at)
	}
}

// end ends a connection.
func (t *Tracker) end(c *connection, at int64, bytes uint64) {
	if c.over {
		return
	}
	c.over = true
	c.close(at)
	c.observe(balance.Event{Kind: balance.Ended, At: at, Bytes: bytes})
	if t.known[c.key] == c {
		delete(t.known, c.key)
	}
}

// adopt takes over a connection that no worker decided: an older one, or one of the kernel's copy. It
// returns nil if the connection is none of a service port whose connections are followed.
func (t *Tracker) adopt(s *conntrack.State, at int64) *connection {
	table := t.Table()
	if table == nil || s.Mark&(conntrack.DefaultMark|conntrack.CopyMark) == 0 || len(t.known) >= maxConnections {
		return nil
	}
	t.take()
	if c := t.known[s.Original]; c != nil { // a worker decided it just now: it counts once
		return c
	}
	p := decision.Packet{Protocol: decision.Protocol(s.Original.Protocol), Source: s.Original.Source, Destination: s.Original.Destination}
	for _, service := range table.Candidates(&p) {
		// When it was opened is unknown, so its answer is not measured.
		c := &connection{key: s.Original, at: at, state: flow.Decided, answered: true}
		ok := false
		if service.Balance != "" {
			c.conn, ok = t.Adopt(service, s.Endpoint())
		}
		if t.shadows != nil {
			c.shadows = t.shadows.Adopt(service, s.Endpoint())
		}
		if ok || c.shadows != nil {
			t.known[c.key] = c
			return c
		}
	}
	return nil
}

// resync compares the known connections with the kernel's: at the beginning, and after a loss of
// events.
func (t *Tracker) resync(connections Connections) {
	t.mu.Lock()
	t.take()
	t.pass++
	began := t.clock.Now()
	t.mu.Unlock()
	err := connections.Dump(conntrack.Filter{}, func(s *conntrack.State) {
		t.mu.Lock()
		defer t.mu.Unlock()
		c := t.known[s.Original]
		if c == nil {
			c = t.adopt(s, began)
		}
		if c != nil {
			c.pass = t.pass
			t.update(c, s, began)
		}
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.known {
		if err == nil && c.pass != t.pass && c.at < began {
			t.end(c, began, 0)
		}
	}
}

// Lost counts the connections that were not followed, because there were too many.
func (t *Tracker) Lost() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}
