package journal

import (
	"sort"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Past reads known flows in their present state, oldest first. It keeps no copies, and locks the
// journal for a bounded number of flows at a time. It belongs to one goroutine.
type Past struct {
	journal   *Journal
	match     Match
	next, end uint64 // numbers of flows: of the one to be read next, and the first that is not to be
	left      int    // how many match at most
	reader    *Reader
}

// visitBatch bounds the number of flows visited under the journal's lock.
const visitBatch = 1024

// NewPast starts reading the newest flows that match, at most limit, and leaves out flows decided before since. A flow
// whose match changes meanwhile counts as it is when it is read.
func (j *Journal) NewPast(limit int, since time.Time, match Match) *Past {
	j.mu.RLock()
	p := &Past{journal: j, match: match, next: j.flows.next, end: j.flows.next, left: limit, reader: j.newReader()}
	j.mu.RUnlock()
	for found, more := 0, limit > 0; more; {
		found, more = p.seekStart(found, limit, since)
	}
	return p
}

// seekStart looks for where to begin: found is how many match already.
func (p *Past) seekStart(found, limit int, since time.Time) (_ int, more bool) {
	j := p.journal
	j.mu.RLock()
	defer j.mu.RUnlock()
	var f flow.Flow // one, as match makes it escape
	for range visitBatch {
		e := j.flows.at(p.next - 1)
		if e == nil || found == limit || time.Unix(0, e.time).Before(since) {
			return found, false
		}
		p.next--
		if f = e.flow(); p.match(p.next, &f, e.life.state, 0) {
			found++
		}
	}
	return found, true
}

// Read reads flows: n of them. If n is less than the length of into, there are no more: match has been called for the
// newest flow.
func (p *Past) Read(into []Entry) (n int) {
	for p.next < p.end && n < len(into) {
		n += p.read(into[n:])
	}
	return n
}

func (p *Past) read(into []Entry) (n int) {
	j := p.journal
	j.mu.RLock()
	defer j.mu.RUnlock()
	p.next = max(p.next, j.flows.oldest) // others were evicted
	first := p.next
	var f flow.Flow // one, as match makes it escape
	for range visitBatch {
		if p.next >= p.end || n == len(into) {
			break
		}
		e := j.flows.at(p.next)
		if f = e.flow(); p.match(p.next, &f, e.life.state, 0) && p.left > 0 {
			j.fill(&into[n], p.next, e)
			n++
			p.left--
		}
		p.next++
	}
	p.reader.past.add(first, p.next, j.notes.next)
	return n
}

// Reader returns a reader of what happens to each flow after it was read, and to all others after NewPast. Call it when
// all have been read.
func (p *Past) Reader() *Reader { return p.reader }

// marks record up to which note flows were read: those of a mark and before the next one, when
// the next note had that number; 0: they were not read. They are sorted by flow.
type marks []mark

type mark struct{ flow, note uint64 }

// add notes that the flows from first, and before end, were read.
func (m *marks) add(first, end, note uint64) {
	if k := len(*m); k > 0 && (*m)[k-1].flow == first { // where the last ones ended
		*m = (*m)[:k-1]
	}
	if k := len(*m); k == 0 || (*m)[k-1].note != note {
		*m = append(*m, mark{first, note})
	}
	*m = append(*m, mark{flow: end})
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
