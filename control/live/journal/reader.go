package journal

import (
	"context"
	"net/netip"
	"sort"
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

// Match reports whether a reader wants the flow, in that state, at an event (0: in its present state). The
// flow is only valid during the call, which must not use the journal.
type Match func(f *flow.Flow, s flow.State, e flow.Event) bool

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

// Read reads events that match, without waiting: n of them, and the number of events missed because
// the reader was too slow. If n is less than the buffer's size, there are no more.
func (r *Reader) Read(into []Entry, match Match) (n int, missed uint64) {
	j := r.journal
	var f flow.Flow // one, as match makes it escape
	j.visit(func() (more bool) {
		if r.next < j.notes.oldest {
			missed += j.notes.oldest - r.next
			r.next = j.notes.oldest
		}
		note := j.notes.at(r.next)
		if note == nil || n == len(into) {
			return false
		}
		number := r.next
		r.next++
		if r.past.cover(note.flow, number) {
			return true
		}
		e := j.flows.at(note.flow)
		if e == nil {
			missed++ // the flow made room for others
			return true
		}
		if f = e.flow(); match(&f, note.life.state, note.event) {
			j.fill(&into[n], note.flow, e)
			into[n].Event, into[n].at, into[n].life = note.event, time.Unix(0, note.at), note.life
			into[n].Noted = time.Unix(0, note.noted)
			n++
		}
		return true
	})
	return n, missed
}

// visitBatch bounds the number of flows, or events, visited under the journal's lock.
const visitBatch = 1024

// visit calls each, for one flow or event at a time, until there are no more. It holds the journal's lock meanwhile, and
// releases it after every visitBatch calls: the workers need it for new flows.
func (j *Journal) visit(each func() (more bool)) {
	batch := func() (more bool) {
		j.mu.RLock()
		defer j.mu.RUnlock()
		for range visitBatch {
			if !each() {
				return false
			}
		}
		return true
	}
	for batch() {
	}
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
		r.Time = new(e.at)
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

// Past reads known flows in their present state, oldest first. It keeps no copies, and locks the
// journal for a bounded number of flows at a time. It belongs to one goroutine.
type Past struct {
	journal   *Journal
	match     Match
	next, end uint64 // numbers of flows: of the one to be read next, and the first that is not to be
	left      int    // how many match at most
	reader    *Reader
}

// NewPast starts reading the newest flows that match, at most limit, and leaves out flows decided before since. A flow
// whose match changes meanwhile counts as it is when it is read.
func (j *Journal) NewPast(limit int, since time.Time, match Match) *Past {
	j.mu.RLock()
	p := &Past{journal: j, match: match, next: j.flows.next, end: j.flows.next, left: limit, reader: j.newReader()}
	j.mu.RUnlock()
	found := 0
	var f flow.Flow              // one, as match makes it escape
	j.visit(func() (more bool) { // backwards, to where to begin
		e := j.flows.at(p.next - 1)
		if e == nil || found == limit || time.Unix(0, e.time).Before(since) {
			return false
		}
		p.next--
		if f = e.flow(); match(&f, e.life.state, 0) {
			found++
		}
		return true
	})
	return p
}

// Read reads flows: n of them. If n is less than the length of into, there are no more: match has been called for the
// newest flow.
func (p *Past) Read(into []Entry) (n int) {
	j := p.journal
	var f flow.Flow // one, as match makes it escape
	j.visit(func() (more bool) {
		p.next = max(p.next, j.flows.oldest) // others were evicted
		if p.next >= p.end || n == len(into) {
			return false
		}
		e := j.flows.at(p.next)
		if f = e.flow(); p.match(&f, e.life.state, 0) && p.left > 0 {
			j.fill(&into[n], p.next, e)
			n++
			p.left--
		}
		p.reader.past.add(p.next, j.notes.next)
		p.next++
		return true
	})
	return n
}

// Reader returns a reader of what happens to each flow after it was read, and to all others after NewPast. Call it when
// all have been read.
func (p *Past) Reader() *Reader { return p.reader }

// marks record up to which note flows were read: those of a mark and before the next one, when
// the next note had that number; 0: they were not read. They are sorted by flow.
type marks []mark

type mark struct{ flow, note uint64 }

// add notes that a flow, after those before, was read.
func (m *marks) add(flow, note uint64) {
	if k := len(*m); k > 0 && (*m)[k-1].flow == flow { // where the last ones ended
		*m = (*m)[:k-1]
	}
	if k := len(*m); k == 0 || (*m)[k-1].note != note {
		*m = append(*m, mark{flow, note})
	}
	*m = append(*m, mark{flow: flow + 1})
}

// cover reports whether the note is of a flow that was read after it. Notes come in the order of
// their numbers: when no flow was read after one, the marks are not needed any more.
func (m *marks) cover(flow, note uint64) bool {
	if len(*m) == 0 {
		return false
	}
	if last := len(*m) - 1; last == 0 || note >= (*m)[last-1].note {
		*m = nil
		return false
	}
	i := sort.Search(len(*m), func(i int) bool { return (*m)[i].flow > flow }) - 1
	return i >= 0 && note < (*m)[i].note
}
