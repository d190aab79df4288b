package conntrack

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Unanswered remembers the entries that were written last, so that those without an answer
// can make room for new ones. The kernel makes room by itself for the entries that packets
// make: it drops entries that are not assured from the few hash buckets near the new one
// (early_drop in nf_conntrack_core.c). For an entry that is made over netlink it does not:
// ctnetlink_create_conntrack allocates with nf_conntrack_alloc, which hands on hash 0
// whatever the tuple, so that early_drop looks at the first 8 buckets of the table only. When
// these have nothing more to give, each creation fails with ENOMEM.
//
// An entry is written before its packet has passed the node's other rules. So there are
// entries of packets that a rule dropped, whose sources may be forged.
//
// All [Table]s of a namespace share one; see [Table.MakeRoom]. Its memory does not grow. It
// is safe for concurrent use.
type Unanswered struct {
	now func() time.Time

	mu      sync.Mutex
	recent  recent
	written uint64 // entries so far

	crowded          atomic.Bool // the table was filled above crowdedShare when it was last looked at
	starved          chan struct{}
	evicted, expired atomic.Uint64
}

const (
	// rememberedEntries bounds an Unanswered, to 7 MiB.
	rememberedEntries = 1 << 16
	// unansweredTimeout is how long a TCP entry without an answer lives in a crowded table.
	// The kernel gives it nf_conntrack_tcp_timeout_syn_sent, 120 s. A client that still wants
	// its connection sends its SYN again, which makes a new entry.
	unansweredTimeout = 2 * time.Second
	// perSource is how many entries without an answer one source may have in a crowded table,
	// of any protocol. What it has in excess goes, the oldest first, once it is older than
	// youngest. The kernel has no such bound.
	perSource = 4096
	// youngest is how old an entry must be to make room for another: an
	// endpoint needs time to answer.
	youngest = 250 * time.Millisecond
	// A table is crowded above one crowdedShare-th of nf_conntrack_max.
	crowdedShare = 2
	// fillCheck is after how many new entries the kernel is asked how full its table is.
	fillCheck = 256
)

// NewUnanswered makes an empty one.
func NewUnanswered() *Unanswered { return newUnanswered(rememberedEntries, time.Now) }

func newUnanswered(size int, now func() time.Time) *Unanswered {
	return &Unanswered{now: now, recent: newRecent(size), starved: make(chan struct{}, 1)}
}

// Evicted counts the entries that were removed to make room in a full table, and those
// without an answer that were removed from a crowded one before the kernel would have.
func (u *Unanswered) Evicted() (full, crowded uint64) { return u.evicted.Load(), u.expired.Load() }

// Starved has a value when there was less to evict from a full table than new entries need:
// others have filled it. [Table.RememberTable] finds more.
func (u *Unanswered) Starved() <-chan struct{} { return u.starved }

// wrote remembers the new entries of a batch. It reports whether it is time to ask how full
// the table is.
func (u *Unanswered) wrote(entries []Entry, results []Result) (check bool) {
	at := u.now().UnixNano()
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.written
	for i := range entries {
		if o := results[i].Outcome; o == Created || o == Replaced {
			u.recent.push(writtenOf(entries[i].Tuple, entries[i].Zone, at))
			u.written++
		}
	}
	return before/fillCheck != u.written/fillCheck
}

// takeOldest takes entries that are at least of an age, as many as fit.
func (u *Unanswered) takeOldest(into []written, age time.Duration) (n int) {
	latest := u.now().Add(-age).UnixNano()
	u.mu.Lock()
	defer u.mu.Unlock()
	for n < len(into) {
		w := u.recent.oldest()
		if w == nil || w.at > latest {
			break
		}
		into[n] = *w
		u.recent.pop()
		n++
	}
	return n
}

// takeExcess takes entries that are at least of an age and that their sources, which are
// among those of a batch, have in excess of perSource, the oldest of each first.
func (u *Unanswered) takeExcess(into []written, batch []Entry, age time.Duration) (n int) {
	latest := u.now().Add(-age).UnixNano()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range batch {
		s := sourceOf(batch[i].Tuple.Source.Addr().As16())
		for n < len(into) {
			w, has := u.recent.oldestOf(s)
			if has <= perSource || w.at > latest {
				break
			}
			into[n] = *w
			u.recent.popOf(s)
			n++
		}
	}
	return n
}

// putBack remembers entries again that were the oldest.
func (u *Unanswered) putBack(entries []written) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := len(entries) - 1; i >= 0 && u.recent.pushOldest(entries[i]); i-- {
	}
}

// renew remembers entries again as if they had been written now.
func (u *Unanswered) renew(entries []written) {
	at := u.now().UnixNano()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range entries {
		w.at = at
		u.recent.push(w)
	}
}

// windowSize is how many entries are looked at at once.
const windowSize = 64

// window is the entries that a Table looks at.
type window struct {
	entries [windowSize]written
	lookups [windowSize]lookup
	chosen  [windowSize]bool
	n       int
	first   uint32 // sequence number of the first request

	victims []State
	errs    [windowSize]error
	retry   []Entry
	results []Result
	at      []int // where the retried are in the batch
}

// MakeRoom has the table evict entries without an answer when it is full. It belongs before
// the first [Table.Establish].
func (t *Table) MakeRoom(u *Unanswered) {
	t.unanswered, t.window = u, new(window)
}

// RememberTable remembers entries that are not assured, if the table is crowded: those that an
// earlier run has left, and those of other flows, which the kernel would drop early for the
// entry of a packet, too. That may take a second and more; other Tables can be used meanwhile.
func (t *Table) RememberTable() error {
	u := t.unanswered
	if t.checkFill(); !u.crowded.Load() {
		return nil
	}
	for _, f := range []Filter{{}, {IPv6: true}} {
		if err := t.Dump(f, func(s *State) {
			if s.Status&StatusAssured == 0 {
				u.putBack([]written{writtenOf(s.Original, s.Zone, 0)})
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// relieve makes room for the entries of a batch that found none and, in a crowded table,
// removes entries that wait for an answer for too long.
func (t *Table) relieve(entries []Entry, results []Result) {
	u, w := t.unanswered, t.window
	w.at, w.retry = w.at[:0], w.retry[:0]
	for i := range results {
		if results[i].Outcome == Failed && IsFull(results[i].Err) {
			w.at, w.retry = append(w.at, i), append(w.retry, entries[i])
		}
	}
	if n := len(w.retry); n > 0 && t.evict(n) {
		w.results = append(w.results[:0], make([]Result, n)...)
		t.establish(w.retry, w.results)
		for k, i := range w.at {
			results[i] = w.results[k]
		}
	}
	if u.wrote(entries, results) {
		t.checkFill()
	}
	if u.crowded.Load() {
		t.capSources(entries)
		t.expire(2 * len(entries))
	}
}

const (
	// evictions is how many entries are removed at least: the next ones find room.
	evictions = 16
	// evictionTries bounds how many windows are looked at for one batch.
	evictionTries = 8
)

// evict removes entries from a full table. It reports whether it removed any.
func (t *Table) evict(want int) bool {
	u, removed := t.unanswered, 0
	want = max(want, evictions)
	for range evictionTries {
		if t.lookAt(t.unanswered.takeOldest(t.window.entries[:], youngest)) == 0 {
			break
		}
		t.window.choose(want - removed)
		n := t.removeChosen()
		u.putBack(t.window.kept())
		u.evicted.Add(uint64(n))
		if removed += n; removed >= want {
			break
		}
	}
	if removed < want {
		select {
		case u.starved <- struct{}{}:
		default: // it is known
		}
	}
	return removed > 0
}

// expire removes TCP entries without an answer. Others stay: those of other protocols are
// short-lived, and a UDP flow that is never answered needs its entry.
func (t *Table) expire(most int) {
	w := t.window
	if t.lookAt(t.unanswered.takeOldest(w.entries[:min(most, windowSize)], unansweredTimeout)) == 0 {
		return
	}
	for i := range w.n {
		w.chosen[i] = w.lookups[i].err == nil && w.entries[i].protocol == protoTCP && w.unanswered(i)
	}
	t.unanswered.expired.Add(uint64(t.removeChosen()))
	t.unanswered.renew(w.kept())
}

// capSources removes what the sources of a batch have in excess of perSource.
func (t *Table) capSources(batch []Entry) {
	w := t.window
	if t.lookAt(t.unanswered.takeExcess(w.entries[:], batch, youngest)) == 0 {
		return
	}
	for i := range w.n {
		w.chosen[i] = w.evictable(i) && w.unanswered(i)
	}
	t.unanswered.expired.Add(uint64(t.removeChosen()))
	t.unanswered.renew(w.kept())
}

// lookAt finds out what became of the first n entries of the window. It returns how many
// there are to choose from.
func (t *Table) lookAt(n int) int {
	w := t.window
	w.n = n
	if n == 0 {
		return 0
	}
	w.first = t.seq + 1
	t.buf = t.buf[:0]
	for i := range w.n {
		w.lookups[i], w.chosen[i] = lookup{err: syscall.ENODATA}, false
		t.seq++
		t.buf = appendGet(t.buf, t.seq, w.entries[i].tuple(), w.entries[i].zone)
	}
	if err := t.exchange(w); err != nil {
		return 0 // what is not known stays
	}
	for i := range w.n {
		if f := &w.lookups[i]; f.err == nil && f.state.Original != w.entries[i].tuple() {
			f.err = syscall.ENOENT // another connection answers with this tuple
		}
	}
	return w.n
}

// receive takes the answers to lookAt.
func (w *window) receive(seq uint32, typ uint16, body []byte) {
	if i := seq - w.first; i < uint32(w.n) {
		w.lookups[i].take(typ, body)
	}
}

// unanswered reports whether entry i has seen no packet of the other direction.
func (w *window) unanswered(i int) bool {
	return w.lookups[i].state.Status&StatusSeenReply == 0
}

// evictable reports whether the kernel would drop entry i early: it is not assured.
func (w *window) evictable(i int) bool {
	return w.lookups[i].err == nil && w.lookups[i].state.Status&StatusAssured == 0
}

// choose chooses entries to remove: those without an answer first, of these the sources with
// the most, so that one source does not push others out; then the oldest.
func (w *window) choose(want int) {
	for ; want > 0; want-- {
		best, rank := -1, 0
		for i := range w.n {
			if !w.evictable(i) || w.chosen[i] {
				continue
			}
			r := 1
			if w.unanswered(i) {
				r += w.ofSource(i)
			}
			if r > rank {
				best, rank = i, r
			}
		}
		if best < 0 {
			return
		}
		w.chosen[best] = true
	}
}

// ofSource counts the entries without an answer that have the source of entry i and are not
// chosen.
func (w *window) ofSource(i int) (n int) {
	for k := range w.n {
		if sourceOf(w.entries[k].source) == sourceOf(w.entries[i].source) && !w.chosen[k] && w.evictable(k) && w.unanswered(k) {
			n++
		}
	}
	return n
}

// removeChosen removes the chosen entries of the window. It returns how many there were.
func (t *Table) removeChosen() (removed int) {
	w := t.window
	w.victims = w.victims[:0]
	for i := range w.n {
		if w.chosen[i] {
			w.victims = append(w.victims, w.lookups[i].state)
		}
	}
	if len(w.victims) == 0 {
		return 0
	}
	t.Delete(w.victims, w.errs[:len(w.victims)])
	for _, err := range w.errs[:len(w.victims)] {
		if err == nil {
			removed++
		}
	}
	return removed
}

// kept gives the entries of the window that may have to go another time. Those that are
// assured, gone or chosen are forgotten.
func (w *window) kept() []written {
	n := 0
	for i := range w.n {
		if w.evictable(i) && !w.chosen[i] {
			w.entries[n] = w.entries[i]
			n++
		}
	}
	return w.entries[:n]
}

// checkFill asks the kernel how full its table is.
func (t *Table) checkFill() {
	t.seq++
	t.buf = appendGetStats(t.buf[:0], t.seq)
	f := (*fill)(t)
	t.entries, t.limit = 0, 0
	if err := t.exchange(f); err != nil {
		return // the next time
	}
	// nf_conntrack_max 0: the table has no limit.
	t.unanswered.crowded.Store(t.limit > 0 && t.entries > t.limit/crowdedShare)
}

// fill takes the answer to checkFill.
type fill Table

func (t *fill) receive(seq uint32, typ uint16, body []byte) {
	if seq != t.seq || typ != msgCTGetStats || len(body) < nfgenmsgLen {
		return
	}
	_ = attributes(body[nfgenmsgLen:], func(typ uint16, v []byte) error {
		n, err := parseUint32(v)
		switch typ {
		case ctaStatsGlobalEntries:
			t.entries = n
		case ctaStatsGlobalMaxEntries:
			t.limit = n
		}
		return err
	})
}
