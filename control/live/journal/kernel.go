package journal

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// kernelView is the state of the conntrack event subscription.
type kernelView struct {
	observe.Kernel
	// begun counts flows, without those that a pass over the connection table found.
	begun    uint64
	interval interval
	// caught is when the journal had taken over all events last.
	caught moment
	// rush gets the rate of new flows as soon as it is above detailRate; 0: never.
	rush       chan float64
	detailRate float64
	// blindTo is the number of the first flow that began after the last pause.
	blindTo uint64
	// incompleteTo: of flows with smaller numbers that are not over something may be missed.
	incompleteTo uint64
	// stale: events were lost, and the table was not read since.
	stale bool
	// look: there may be connections that the kernel's copy decided before the journal followed events.
	look      bool
	announced uint64 // note number up to which readers were woken
	// orphans are events that arrived before their flow: a reply may be faster than the worker.
	orphans []unmatchedEvent
	// retried is the number of the next flow when the orphans were last compared with the flows.
	retried uint64
}

// interval is the time since the watch looked last.
type interval struct {
	moment
	rush bool // it is signalled
}

// moment is a time, and how many flows had begun until then.
type moment struct {
	at    time.Time
	begun uint64
}

// rate is that of new flows per second since, with more flows than are counted.
func (s moment) rate(begun, more uint64, now time.Time) float64 {
	return float64(begun+more-s.begun) / max(now.Sub(s.at), watchInterval/5).Seconds()
}

// unmatchedEvent is an event without a flow.
type unmatchedEvent struct {
	event conntrack.Event
	until time.Time // then it is given up: it is of a connection that no worker decided
	// table is the one in force when it was last compared.
	table *decision.Table
}

// maxOrphans bounds them; events of connections that are not ours are the most of them.
const maxOrphans = 4096

// eventTimeout is how long an event waits for its flow. The worker reports the flow as soon as its
// packets have their verdicts, but on a busy machine other programs run first: events of entries
// with nfqproxy's mark wait longer.
const (
	eventTimeout       = 50 * time.Millisecond
	markedEventTimeout = 2 * time.Second
)

// rate is that of new flows per second in the interval. With a backlog, it is that since the backlog began: a busy machine takes
// over at once what happened in a long time.
func (k *kernelView) rate(now time.Time) float64 {
	since := k.interval.moment
	if c := k.caught; !c.at.IsZero() && c.at.Before(since.at) {
		since = c
	}
	return since.rate(k.begun, 0, now)
}

// detectRush signals a rush, once in an interval.
func (k *kernelView) detectRush(now time.Time) {
	if k.detailRate == 0 || float64(k.begun-k.interval.begun) <= k.detailRate*watchInterval.Seconds() {
		return
	}
	if rate := k.rate(now); rate > k.detailRate {
		k.signalRush(rate)
	}
}

func (k *kernelView) signalRush(rate float64) {
	if k.interval.rush {
		return
	}
	k.interval.rush = true
	select {
	case k.rush <- rate:
	default:
	}
}

// complete reports whether all events are received.
func (k *kernelView) complete() bool { return k.Following && !k.Paused && !k.stale }

// apply applies conntrack events, which happened since the journal had caught up with them.
func (j *Journal) apply(events []conntrack.Event, caught, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.observe != nil && caught != j.kernel.caught.at {
		j.kernel.caught = moment{caught, j.kernel.begun}
	}
	j.takeLocked()
	j.kernel.retry(j, now)
	j.kernel.Events += uint64(len(events))
	for i := range events {
		if !j.applyEvent(&events[i], now, false) {
			j.wait(&events[i], now)
		}
	}
	j.announce()
}

// wait keeps an event whose flow may still arrive. The entries of most connections that are not
// known began long ago.
func (j *Journal) wait(ev *conntrack.Event, now time.Time) {
	long := eventTimeout
	if ev.State.Mark&conntrack.DefaultMark != 0 || j.observe != nil {
		long = markedEventTimeout
	}
	switch young := ev.State.Start.IsZero() || now.Sub(ev.State.Start) < long; {
	case j.observe != nil && ev.Kind != conntrack.Began && !j.kernel.waits(ev):
	case young && len(j.kernel.orphans) < maxOrphans:
		j.kernel.orphans = append(j.kernel.orphans, unmatchedEvent{*ev, now.Add(long), j.inForce})
	case j.observe != nil:
		j.applyEvent(ev, now, true)
	}
}

// waits reports whether the beginning of the event's connection waits.
func (k *kernelView) waits(ev *conntrack.Event) bool {
	return slices.ContainsFunc(k.orphans, func(o unmatchedEvent) bool { return o.event.State.Original == ev.State.Original })
}

// retry applies the events that waited for their flows, in their order.
func (k *kernelView) retry(j *Journal, now time.Time) {
	left, arrived := k.orphans[:0], j.flows.next != k.retried
	for i := range k.orphans {
		o := &k.orphans[i]
		expired := !now.Before(o.until)
		if j.observe != nil { // its flow comes with a table that has its endpoint, or without
			arrived = o.table != j.inForce || expired
			o.table = j.inForce
		}
		if !(arrived && j.applyEvent(&o.event, now, expired)) && !expired {
			left = append(left, *o)
		}
	}
	k.orphans, k.retried = left, j.flows.next
}

// applyEvent takes over one event. It gives false if no flow is known that it can be of; settled: see insertObserved.
func (j *Journal) applyEvent(ev *conntrack.Event, now time.Time, settled bool) bool {
	number, e := uint64(0), (*entry)(nil)
	if ev.Kind != conntrack.Began || j.observe == nil {
		number, e = j.find(ev)
	}
	if e == nil {
		if !j.insertObserved(ev, now, j.horizon(), settled) {
			return false
		}
		if number, e = j.find(ev); e == nil {
			return true // it has no record
		}
	}
	at := now.UnixNano()
	if !ev.At.IsZero() {
		at = ev.At.UnixNano()
	}
	if ev.Kind == conntrack.Destroyed {
		j.end(number, e, ev, at)
		return true
	}
	return j.update(number, e, &ev.State, at, !e.inherited)
}

// find finds the flow that the event is of: that which has its tuple or, if the event is
// older than that, one that had it before.
func (j *Journal) find(ev *conntrack.Event) (uint64, *entry) {
	t := &ev.State.Original
	k := keyOf(t.Protocol, t.Source, t.Destination)
	number, e := j.newest(k)
	for e != nil && e.newerThan(ev) {
		number, e = j.before(e.older, k)
	}
	if e == nil || e.life.over {
		return 0, nil
	}
	return number, e
}

// newerThan reports whether the event is older than the flow, whose entry is no older than the batch that it was decided in.
func (e *entry) newerThan(ev *conntrack.Event) bool {
	at := cmp.Or(ev.State.Start, ev.At)
	return !e.inherited && !at.IsZero() && at.UnixNano() < e.time-int64(e.deciding)
}

// update takes over the state of a connection that goes on. It gives false if the state
// is none that the flow can get into from its own: then it is another connection's. timely: the state
// was entered at the time, and not before.
func (j *Journal) update(number uint64, e *entry, s *conntrack.State, at int64, timely bool) bool {
	l := &e.life
	next := flow.StateOf(s, l.state)
	if next.Order() < l.state.Order() {
		return false
	}
	e.take(s, at)
	if flow.Replied(s) {
		e.answer(at, timely)
	}
	if next != l.state {
		j.change(number, e, next, at)
	}
	return true
}

// take applies the other fields of a conntrack state.
func (e *entry) take(s *conntrack.State, at int64) {
	l := &e.life
	e.seenSource = addressOf(s.Reply.Destination)
	if k := uint8(s.TCP) | uint8(s.SCTP); k != 0 { // of one protocol; not in every event
		l.kernelState = k
	}
	if s.HasCounters {
		l.counted, l.countedAt, l.sent, l.received = true, at, s.Sent, s.Received
	}
	if !s.Start.IsZero() {
		l.start = s.Start.UnixNano()
	}
}

// end takes over the last state of a connection.
func (j *Journal) end(number uint64, e *entry, ev *conntrack.Event, at int64) {
	l, s := &e.life, &ev.State
	before := l.state
	l.answered = l.answered || flow.Replied(s)
	last := flow.StateOf(s, before)
	if last.Order() < before.Order() {
		last = before
	}
	e.take(s, at)
	if l.end = at; !s.Stop.IsZero() {
		l.end = s.Stop.UnixNano()
	}
	early := ev.PortID != 0 || s.Timeout > 0
	switch {
	case last.Order() >= flow.Closed.Order(): // the entry of the next connection may replace it
	case early:
		last = flow.Removed
	case l.answered:
		last = flow.Expired
	default:
		last = flow.Unanswered
	}
	switch {
	case last == before:
	case last.Order() >= flow.Closed.Order() && last != flow.Expired && last != flow.Removed:
		// The kernel reported only the end, as for a refused connection.
		j.change(number, e, last, at)
	default:
		j.enter(e, last, at)
	}
	j.over(number, e, at)
}

// over notes that nothing more will come.
func (j *Journal) over(number uint64, e *entry, at int64) {
	e.life.incomplete = j.incomplete(number, e)
	open := e.life.open()
	if e.life.over = true; open {
		j.notOpen(e, at)
	}
	e.count(observe.Flows{BytesSent: e.life.sent.Bytes, BytesReceived: e.life.received.Bytes})
	j.note(number, e, flow.Gone, at)
}

// sampling is how a journal that observes another proxy listens while there are more flows than it
// can follow: for a moment, every sampleRest. A window ends by the clock, before its events are
// processed: on a busy machine these wait for the CPU, while the kernel would make an event of
// each packet that changes a connection.
type sampling struct {
	since    time.Time     // the end of the last window
	window   time.Duration // how long that was; 0: there was none
	begun    uint64        // flows that had begun before it
	overruns uint64        // before it
	// rate is that of new flows per second before rest, the last pause that is over. Half of the flows of a pause are counted
	// as lost by the rate before it, half by that after it, which the next window shows.
	rate    float64
	atLeast bool // the rate is no lower: more came than were counted
	rest    time.Duration
}

const (
	sampleRest = 2 * time.Second
	// A window is as long as its flows are as many as are followed in one interval, within these limits.
	minWindow, maxWindow = 10 * time.Millisecond, watchInterval
)

// sample is called when a pause has been long enough. It listens for another window, or for good if the last one had few flows.
func (f *follower) sample(ctx context.Context, s *sampling) {
	now := time.Now()
	f.mu.Lock()
	begun, overruns := f.kernel.begun, f.kernel.Overruns
	f.mu.Unlock()
	rate, overrun := s.rate, overruns > s.overruns
	lose := func(in time.Duration, rate float64) { f.lost.Add(uint64(in.Seconds() * rate / 2)) }
	if s.window > 0 {
		rate = float64(begun-s.begun) / s.window.Seconds()
		if overrun {
			rate = max(rate, s.rate)
		}
		lose(s.rest, rate)
		if s.atLeast {
			lose(s.rest, max(0, rate-s.rate))
		}
	}
	next := sampling{begun: begun, overruns: overruns, rate: rate, atLeast: overrun || s.window == 0, rest: now.Sub(s.since)}
	lose(next.rest, rate)
	f.setPaused(false)
	if s.window > 0 && !overrun && rate <= f.DetailRate/2 {
		lose(next.rest, rate)
		return
	}
	window := maxWindow
	if most := f.DetailRate * watchInterval.Seconds() / rate; most < window.Seconds() {
		window = time.Duration(most * float64(time.Second))
	}
	if overrun { // more than is known
		window = cmp.Or(s.window, maxWindow) / 4
	}
	select {
	case <-ctx.Done():
	case <-time.After(max(window, minWindow)):
	}
	f.setPaused(true)
	next.since, next.window = time.Now(), time.Since(now)
	*s = next
}
