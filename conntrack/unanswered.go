package conntrack

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Unanswered remembers the entries written last, so that unreplied ones can be evicted for new ones. The kernel evicts
// entries by itself for those that packets create: it drops entries that are not assured from the few hash buckets near
// the new one (early_drop in nf_conntrack_core.c). For an entry that is created over netlink it does not:
// ctnetlink_create_conntrack allocates with nf_conntrack_alloc, which passes hash 0 for every tuple, so that early_drop
// examines only the first 8 buckets of the table. Once these have no candidates left, each creation fails with ENOMEM.
//
// An entry is written before its packet has passed the node's other rules. So there are entries of
// packets that a rule dropped, and their sources may be spoofed.
//
// All [Table]s of a namespace share one; see [Table.MakeRoom]. Its memory does not grow. It
// is safe for concurrent use.
type Unanswered struct {
	now func() time.Time

	mu      sync.Mutex
	recent  recent
	written uint64 // entries so far

	crowded          atomic.Bool // the table was filled above crowdedShare at the last check
	starved          chan struct{}
	evicted, expired atomic.Uint64
}

const (
	// rememberedEntries bounds an Unanswered, to 7 MiB.
	rememberedEntries = 1 << 16
	// unansweredTimeout is how long an unreplied TCP entry lives in a crowded table. The kernel's
	// timeout is nf_conntrack_tcp_timeout_syn_sent, 120 s. A client that retransmits its SYN gets
	// a new entry.
	unansweredTimeout = 2 * time.Second
	// perSource is how many unreplied entries one source may have in a crowded table, of any
	// protocol. The excess is removed, the oldest first, once it is older than youngest. The
	// kernel has no such limit.
	perSource = 4096
	// youngest is the age at which an entry may be evicted: an endpoint needs time to reply.
	youngest = 250 * time.Millisecond
	// A table is crowded above one crowdedShare-th of nf_conntrack_max.
	crowdedShare = 2
	// fillCheck is after how many new entries the fill of the kernel's table is checked.
	fillCheck = 256
)

// NewUnanswered returns an empty Unanswered.
func NewUnanswered() *Unanswered { return newUnanswered(rememberedEntries, time.Now) }

func newUnanswered(size int, now func() time.Time) *Unanswered {
	return &Unanswered{now: now, recent: newRecent(size), starved: make(chan struct{}, 1)}
}

// Evicted counts the entries that were evicted from a full table, and the unreplied ones that were
// removed early from a crowded table.
func (u *Unanswered) Evicted() (full, crowded uint64) { return u.evicted.Load(), u.expired.Load() }

// Starved has a value when a full table had fewer entries to evict than new entries need: entries
// of other programs fill it. [Table.RememberTable] finds more candidates.
func (u *Unanswered) Starved() <-chan struct{} { return u.starved }

// wrote remembers the new entries of a batch. It reports whether the table's fill is due for a
// check.
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

// takeOldest takes entries of at least an age, as many as fit.
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

// takeExcess takes entries of at least an age that the sources of a batch have in excess of
// perSource, the oldest of each first.
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

// windowSize is how many entries are examined at once.
const windowSize = 64

// window is the entries that a Table examines.
type window struct {
	entries [windowSize]written
	lookups [windowSize]lookup
	chosen  [windowSize]bool
	n       int

	victims []State
	errs    [windowSize]error
	retry   []Entry
	results []Result
	at      []int // where the retried are in the batch
}

// MakeRoom makes the table evict unreplied entries when it is full. Call it before the first
// [Table.Establish].
func (t *Table) MakeRoom(u *Unanswered) {
	t.unanswered, t.window = u, new(window)
}

// RememberTable remembers entries that are not assured, if the table is crowded: those of an earlier run, and those of
// other flows, which the kernel would also drop early to make room for a packet's entry. That may take a second or
// more; other Tables can be used meanwhile.
func (t *Table) RememberTable() error {
	u := t.unanswered
	if t.checkFill(); !u.crowded.Load() {
		return nil
	}
	return t.Dump(Filter{}, func(s *State) {
		if s.Status&StatusAssured == 0 {
			u.putBack([]written{writtenOf(s.Original, s.Zone, 0)})
		}
	})
}

// makeRoomFor evicts entries for those of a batch that the full table refused and, in a crowded table,
// removes entries that have been unreplied for too long.
func (t *Table) makeRoomFor(entries []Entry, results []Result) {
	u, w := t.unanswered, t.window
	w.at, w.retry = w.at[:0], w.retry[:0]
	for i := range results {
		if results[i].Outcome == Failed && IsFull(results[i].Err) {
			w.at, w.retry = append(w.at, i), append(w.retry, entries[i])
		}
	}
	if n := len(w.retry); n > 0 && t.evict(n) {
		w.results = zeros(w.results, n)
		t.establish(w.retry, w.results)
		for k, i := range w.at {
			results[i] = w.results[k]
		}
	}
	if u.wrote(entries, results) {
		t.checkFill()
	}
	if u.crowded.Load() {
		// What the sources of the batch have in excess of perSource.
		t.remove(u.takeExcess(w.entries[:], entries, youngest), func(i int) bool { return w.evictable(i) && w.unanswered(i) })
		// Unreplied TCP entries. Others stay: those of other protocols are short-lived, and a UDP flow without
		// replies needs its entry.
		t.remove(u.takeOldest(w.entries[:min(2*len(entries), windowSize)], unansweredTimeout), func(i int) bool {
			return w.lookups[i].err == nil && w.entries[i].protocol == protoTCP && w.unanswered(i)
		})
	}
}

const (
	// evictions is how many entries are removed at least, so that the next entries fit.
	evictions = 16
	// evictionTries bounds how many windows are examined for one batch.
	evictionTries = 8
)

// evict removes entries from a full table. It reports whether it removed any.
func (t *Table) evict(want int) bool {
	u, removed := t.unanswered, 0
	want = max(want, evictions)
	for range evictionTries {
		if t.lookUpWindow(t.unanswered.takeOldest(t.window.entries[:], youngest)) == 0 {
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

// remove removes early those of the first n entries of the window that choose returns true for, and remembers the
// others as if they had been written now.
func (t *Table) remove(n int, choose func(i int) bool) {
	w := t.window
	if t.lookUpWindow(n) == 0 {
		return
	}
	for i := range w.n {
		w.chosen[i] = choose(i)
	}
	t.unanswered.expired.Add(uint64(t.removeChosen()))
	t.unanswered.renew(w.kept())
}

// lookUpWindow looks up the first n entries of the window. It returns how many can be chosen.
func (t *Table) lookUpWindow(n int) int {
	w := t.window
	w.n = n
	if n == 0 {
		return 0
	}
	t.begin()
	for i := range w.n {
		w.chosen[i] = false
		t.lookUp(&w.lookups[i], w.entries[i].tuple(), w.entries[i].zone)
	}
	if err := t.exchange(); err != nil {
		return 0 // what is not known stays
	}
	for i := range w.n {
		if f := &w.lookups[i]; f.err == nil && f.state.Original != w.entries[i].tuple() {
			f.err = syscall.ENOENT // another connection has this tuple in its reply direction
		}
	}
	return w.n
}

// unanswered reports whether entry i has seen no packet of the other direction.
func (w *window) unanswered(i int) bool {
	return w.lookups[i].state.Status&StatusSeenReply == 0
}

// evictable reports whether the kernel would drop entry i early: it is not assured.
func (w *window) evictable(i int) bool {
	return w.lookups[i].err == nil && w.lookups[i].state.Status&StatusAssured == 0
}

// choose chooses entries to remove: unreplied ones first, of these the ones of sources with the
// most, so that one source does not displace others; then the oldest.
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

// ofSource counts the unreplied entries that have the source of entry i and are not chosen.
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

// kept returns the entries of the window that may be evicted later. Those that are assured, gone
// or chosen are forgotten.
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

// checkFill reads how full the kernel's table is.
func (t *Table) checkFill() {
	t.lookups = append(t.lookups[:0], lookup{})
	t.entries, t.limit = 0, 0
	t.begin()
	t.buf = appendGetStats(t.buf, t.next(nil, &t.lookups[0].err))
	if err := t.exchange(); err != nil {
		return // the next time
	}
	// nf_conntrack_max 0: the table has no limit.
	t.unanswered.crowded.Store(t.limit > 0 && t.entries > t.limit/crowdedShare)
}
