package journal

import (
	"context"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

// Entry is a flow at an event, or in its present state.
type Entry struct {
	Number uint64 // of the flow; later flows have greater numbers
	Flow   flow.Flow
	Event  flow.Event // 0: in its present state
	// Noted is when the journal recorded the event; valid iff Event is not 0.
	Noted time.Time

	id         string
	at         time.Time // of the event
	life       life
	seenSource netip.AddrPort
	history    []flow.Moment
	table      *decision.Table // that decided the flow; nil: it is not kept
}

// Match reports whether a reader wants the numbered flow, in that state, at an event (0: in its present state). The
// flow is only valid during the call, which must not use the journal.
type Match func(number uint64, f *flow.Flow, s flow.State, e flow.Event) bool

// Reader follows a journal: it reads one event after the other. It belongs to one
// goroutine.
type Reader struct {
	journal *Journal
	next    uint64 // number of the note to be read
	lost    uint64
	// past is up to where flows were given as they are; nil: none were.
	past marks
}

// NewReader returns a reader of events from now on.
func (j *Journal) NewReader() *Reader {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.newReader()
}

func (j *Journal) newReader() *Reader { return &Reader{journal: j, next: j.notes.next, lost: j.Lost()} }

// readAtOnce bounds the number of events read under the journal's lock.
const readAtOnce = 1024

// Read reads events that match, without waiting: n of them, and the number of events missed because
// the reader was too slow. If n is less than the buffer's size, there are no more.
func (r *Reader) Read(into []Entry, match Match) (n int, missed uint64) {
	for more := true; more && n < len(into); {
		var k int
		var m uint64
		k, m, more = r.read(into[n:], match)
		n, missed = n+k, missed+m
	}
	return n, missed
}

func (r *Reader) read(into []Entry, match Match) (n int, missed uint64, more bool) {
	j := r.journal
	j.mu.RLock()
	defer j.mu.RUnlock()
	if r.next < j.notes.oldest {
		missed = j.notes.oldest - r.next
		r.next = j.notes.oldest
	}
	var f flow.Flow // one, as match makes it escape
	for range readAtOnce {
		note := j.notes.at(r.next)
		if note == nil || n == len(into) {
			return n, missed, false
		}
		number := r.next
		r.next++
		if r.past.cover(note.flow, number) {
			continue
		}
		e := j.flows.at(note.flow)
		if e == nil {
			missed++ // the flow made room for others
			continue
		}
		if f = e.flow(); match(note.flow, &f, note.life.state, note.event) {
			j.fill(&into[n], note.flow, e)
			into[n].Event, into[n].at, into[n].life = note.event, time.Unix(0, note.at), note.life
			into[n].Noted = time.Unix(0, note.noted)
			n++
		}
	}
	return n, missed, true
}

// Lost returns the number of flows lost by overflow since the last call.
func (r *Reader) Lost() uint64 {
	now := r.journal.Lost()
	lost := now - r.lost
	r.lost = now
	return lost
}

// Wait returns when there is something to read, or the context ends.
func (r *Reader) Wait(ctx context.Context) {
	j := r.journal
	j.mu.RLock()
	changed, there := j.changed, r.next < j.notes.next
	j.mu.RUnlock()
	if there {
		return
	}
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// fill copies a flow as it is.
func (j *Journal) fill(to *Entry, number uint64, e *entry) {
	*to = Entry{Number: number, Flow: e.flow(), id: j.ID(number), life: e.life, seenSource: e.seenSource.addrPort()}
	to.table = j.generations.decided(&to.Flow)
	to.life.incomplete = j.incomplete(number, e)
}

// Find returns a flow with its history.
func (j *Journal) Find(id string) (Entry, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	number := j.number(id)
	e := j.flows.at(number)
	if e == nil {
		return Entry{}, false
	}
	var found Entry
	j.fill(&found, number, e)
	for i, what := range e.history.events[:e.history.count] {
		found.history = append(found.history, flow.Moment{Event: what, Time: time.Unix(0, e.history.at[i])})
	}
	return found, true
}

// Record returns a record, with names and optionally steps.
func (e *Entry) Record(names flow.Names, withSteps bool) *flow.Record {
	f := &e.Flow
	r := f.Record()
	r.ID, r.Event = e.id, e.Event
	if e.Event == flow.Repeated {
		at := e.at
		r.Time = &at
		if f.Entry() {
			r.Conntrack = conntrack.Kept.String()
		}
	}
	r.Life = e.life.record(f, e.seenSource)
	r.Life.History = e.history
	r.AddNames(names)
	if withSteps {
		t := e.table
		if t == nil {
			t = paper(f)
		}
		switch {
		case f.Proxy != "":
			r.Steps = kubechains.WalkOfProxy(t, &f.Packet, &f.Decision, f.Proxy)
		case HasSteps(f):
			r.Steps = kubechains.Walk(t, &f.Packet, &f.Decision)
		}
	}
	return r
}

// HasSteps reports whether the walk through the chains leads where the flow went: it does not if an existing conntrack
// entry had another endpoint, the user dropped the flow, or the kernel decided it. The steps of flows that another
// proxy decided are those of [kubechains.WalkOfProxy].
func HasSteps(f *flow.Flow) bool {
	d := &f.Decision
	return d.Reason != decision.DroppedByHand && !d.Reason.Observed() && (d.Verdict != decision.DNAT || f.Endpoint() == d.Endpoint())
}

// paper is a table for a flow whose own table is not kept. It has only the service port of the flow, and decides the flow
// in the same way. It does not show other Services with the same address, which got no packet.
func paper(f *flow.Flow) *decision.Table {
	var ports []*decision.ServicePort
	if s := f.Decision.ServicePort; s != nil {
		ports = append(ports, s)
	}
	return decision.NewTable(f.Decision.Generation, f.Time.Add(-f.TableAge), *f.Node, ports)
}
