package journal

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Events are the events of the kernel's connections; see [conntrack.Watcher].
type Events interface {
	Receive([]conntrack.Event) (int, error)
	Pause(bool) error
	Close() error
}

// Connections are the kernel's connections; see [conntrack.Table].
type Connections interface {
	Reread([]*conntrack.State, func(int, *conntrack.State)) error
	Dump(conntrack.Filter, func(*conntrack.State)) error
}

// Kernel is the source of a journal's conntrack events.
type Kernel struct {
	Events Events
	// Connections is for single entries, and Dumps, with a socket of its own, for the whole table: a
	// lookup does not wait for a dump.
	Connections, Dumps Connections
	// Accounting and Timestamps: the kernel counts bytes and records times.
	Accounting, Timestamps bool
	// DetailRate is the maximum rate of new flows per second for following their life cycles. Above
	// it conntrack events are paused: they cost as much as a tenth of the connections. A journal that observes another proxy
	// then takes a sample of the flows, and counts the others as lost, by their rate. 0: 4,000.
	DetailRate float64
}

// follower keeps a journal informed.
type follower struct {
	*Journal
	Kernel
	// looking is held while Connections is used; only watch uses Dumps.
	looking sync.Mutex
	ended   []*conntrack.State // see countEnds
	// blindFrom is the number of the oldest flow that may not be over; see anyUnobserved. Only watch
	// uses it.
	blindFrom uint64
}

// Follow processes conntrack events until the context ends; then it closes the events. After an
// error no more events are received: the life cycles of flows stay in their present state, marked
// as incomplete.
func (j *Journal) Follow(ctx context.Context, k Kernel) error {
	if k.DetailRate == 0 {
		k.DetailRate = 4000
	}
	f := &follower{Journal: j, Kernel: k}
	j.mu.Lock()
	j.kernel.Accounting, j.kernel.Timestamps = k.Accounting, k.Timestamps
	j.mu.Unlock()
	j.setFollowing(true, "")
	j.follower.Store(f)
	stop := context.AfterFunc(ctx, func() { _ = k.Events.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { f.watch(ctx) })
	err := f.receive(ctx)
	cancel()
	watching.Wait()
	f.looking.Lock()
	j.follower.Store(nil)
	f.looking.Unlock()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	why := "the daemon is stopping"
	if err != nil {
		why = err.Error()
	}
	j.setFollowing(false, why)
	return err
}

// NotFollowed records why conntrack events are not available.
func (j *Journal) NotFollowed(why string) { j.setFollowing(false, why) }

// Refresh updates the counters of a flow that is not over from the kernel.
func (j *Journal) Refresh(e *Entry) {
	f := j.follower.Load()
	if f == nil || e.life.over {
		return
	}
	f.looking.Lock()
	defer f.looking.Unlock()
	if j.follower.Load() != f {
		return // it has stopped meanwhile
	}
	p := &e.Flow.Packet
	_ = f.Connections.Reread([]*conntrack.State{{Original: flow.TupleOf(p)}}, func(_ int, s *conntrack.State) { // without it, the counters are older
		if l := &e.life; s.Original.Source == p.Source && s.HasCounters {
			l.counted, l.countedAt, l.sent, l.received = true, time.Now().UnixNano(), s.Sent, s.Received
		}
	})
}

func (j *Journal) setFollowing(following bool, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := &j.kernel
	k.Following, k.Why, k.Paused, k.stale = following, why, false, false
	if !following {
		j.markIncomplete()
	}
}

// markIncomplete marks all flows that are not over as possibly incomplete. It does not touch the
// flows, as there may be a million; see incomplete.
func (j *Journal) markIncomplete() { j.kernel.incompleteTo = j.flows.next }

// incomplete reports whether something of the flow's life may be missed.
func (j *Journal) incomplete(number uint64, e *entry) bool {
	return e.life.incomplete || !e.life.over && number < j.kernel.incompleteTo
}

// receive takes over events until there can be no more.
func (f *follower) receive(ctx context.Context) error {
	events := make([]conntrack.Event, 256)
	pause, lookups := gather, maxLookups
	if f.observe != nil { // there are more at a time
		pause, lookups = gatherObserved, 2*maxLookups
	}
	caught := time.Now()
	for ctx.Err() == nil {
		asked := time.Now()
		n, err := f.Events.Receive(events)
		if time.Since(asked) > gatherObserved { // there were none
			caught = time.Now()
		}
		f.countEnds(events[:n], lookups)
		f.apply(events[:n], caught, time.Now())
		switch {
		case errors.Is(err, conntrack.ErrOverrun):
			f.lostEvents()
		case err != nil:
			return err
		}
		if n < len(events) {
			// All that there was. What comes meanwhile is taken over at once.
			caught = time.Now()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
	return os.ErrClosed
}

// maxLookups is the number of conntrack entries whose counters are read in one exchange: all answers wait in the socket.
const maxLookups = 32

// countEnds adds the counters to the events of connections that have just been closed: the kernel
// reports them only with the deletion of the entry, two minutes later. Of many at once, it does so for
// the first ones only.
func (f *follower) countEnds(events []conntrack.Event, most int) {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.ended = f.ended[:0]
	for i := 0; i < len(events) && len(f.ended) < most; i++ {
		if ev := &events[i]; ev.Kind == conntrack.Updated && flow.StateOf(&ev.State, flow.Established).Order() >= flow.Closed.Order() {
			f.ended = append(f.ended, &ev.State)
		}
	}
	for ended := range slices.Chunk(f.ended, maxLookups) {
		_ = f.Connections.Reread(ended, func(i int, s *conntrack.State) { // without it, the deletion has the counters
			if of := ended[i]; s.ID == of.ID && s.Reply == of.Reply && s.TCP == of.TCP {
				of.HasCounters, of.Sent, of.Received, of.Start = s.HasCounters, s.Sent, s.Received, s.Start
			}
		})
	}
}

func (f *follower) lostEvents() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kernel.Overruns++
	f.kernel.stale = true
	f.markIncomplete()
	// The events of about so many flows waited, and those after them are lost.
	const waited = 1500
	if rate := f.kernel.caught.rate(f.kernel.begun, waited, time.Now()); f.observe != nil && rate > f.DetailRate {
		f.kernel.signalRush(rate)
	}
}

// How watch goes on.
const (
	watchInterval = 250 * time.Millisecond
	// quietPeriod is the time with few new flows before all events are requested again.
	quietPeriod = 2 * time.Second
	// rest is between two passes over the connection table.
	rest = 5 * time.Second
)

// watch requests fewer events when there are too many flows, and dumps the conntrack table when
// events were lost.
func (f *follower) watch(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	f.beginInterval(time.Now())
	var busy, resynced time.Time
	var samples sampling
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case rate := <-f.kernel.rush: // at once: until the interval is over, much more would come
			busy = time.Now()
			if !f.Busy() {
				f.setPaused(true)
				samples = sampling{since: busy, rate: rate}
			}
			continue
		case now = <-tick.C:
		}
		rate := f.beginInterval(now)
		if rate > f.DetailRate/2 {
			busy = now
		}
		switch paused := f.Busy(); {
		case !paused && rate > f.DetailRate:
			f.setPaused(true)
			samples = sampling{since: now, rate: rate}
		case paused && f.observe != nil && now.Sub(samples.since) >= sampleRest:
			f.sample(ctx, &samples)
		case paused && f.observe == nil && now.Sub(busy) > quietPeriod:
			f.setPaused(false)
		case !paused && f.stale() && now.Sub(busy) > quietPeriod && now.Sub(resynced) > rest,
			!paused && now.Sub(resynced) > 6*rest && f.anyUnobserved():
			f.resync()
			resynced = time.Now()
		}
	}
}

// beginInterval ends the interval, and returns the rate of new flows per second in it.
func (f *follower) beginInterval(now time.Time) (rate float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.kernel
	rate = k.rate(now)
	k.detailRate, k.interval = f.DetailRate, interval{moment: moment{now, k.begun}}
	return rate
}

// Busy reports whether conntrack events are paused because of the rate of new flows.
func (j *Journal) Busy() bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.kernel.Paused
}

// anyUnobserved reports whether there are open flows without events, because they began while events were
// paused. A flow that is over stays so: each is checked only once.
func (f *follower) anyUnobserved() (anyUnobserved bool) {
	for more := true; more; {
		anyUnobserved, more = f.findUnobserved()
	}
	return anyUnobserved
}

// findUnobserved checks a bounded number of flows: the workers need the lock for new ones.
func (f *follower) findUnobserved() (anyUnobserved, more bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	end := min(f.kernel.blindTo, f.flows.next)
	f.blindFrom = max(f.blindFrom, f.flows.oldest)
	for range visitBatch {
		if f.blindFrom >= end {
			return false, false
		}
		if !f.flows.at(f.blindFrom).life.over {
			return true, false
		}
		f.blindFrom++
	}
	return false, true
}

func (j *Journal) stale() bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.kernel.stale || j.kernel.look
}

func (f *follower) setPaused(pause bool) {
	if err := f.Events.Pause(pause); err != nil {
		return // the events are closed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kernel.Paused = pause
	if pause {
		f.markIncomplete()
	} else {
		f.kernel.stale = true
		f.kernel.blindTo = f.flows.next
	}
}

// resync dumps all connections to recover from lost events.
func (f *follower) resync() {
	f.mu.Lock()
	f.kernel.stale, f.kernel.look = false, false // what is lost from here on is for the next time
	f.kernel.Resyncs++
	pass, horizon := f.kernel.Resyncs, f.horizon()
	f.mu.Unlock()
	began := time.Now()
	states := make([]conntrack.Event, 0, 256)
	flush := func() {
		f.found(states, pass, horizon)
		states = states[:0]
	}
	err := f.Dumps.Dump(conntrack.Filter{}, func(s *conntrack.State) {
		if states = append(states, conntrack.Event{State: *s}); len(states) == cap(states) {
			flush()
		}
	})
	flush()
	if err == nil {
		f.missing(began, pass)
	}
}

// found takes over states of connections that are there. horizon is that before the pass: flows that it finds do not make
// each other forgotten.
func (j *Journal) found(states []conntrack.Event, pass uint64, horizon int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now().UnixNano()
	for i := range states {
		number, e := j.find(&states[i])
		if e == nil && j.insertObserved(&states[i], time.Unix(0, now), horizon, true) {
			number, e = j.find(&states[i])
		}
		if e != nil {
			e.seen = pass
			j.update(number, e, &states[i].State, now, false)
		}
	}
	j.announce()
}

// missing ends the flows whose entries are gone without an event.
func (j *Journal) missing(began time.Time, pass uint64) {
	j.mu.RLock()
	end := j.flows.next
	j.mu.RUnlock()
	for next := uint64(0); next < end; {
		next = j.missingFrom(next, end, began, pass)
	}
}

// missingFrom looks at a bounded number of flows, and gives the number of the next.
func (j *Journal) missingFrom(number, end uint64, began time.Time, pass uint64) (next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.announce()
	now := time.Now().UnixNano()
	number = max(number, j.flows.oldest)
	for end = min(end, number+visitBatch); number < end; number++ {
		e := j.flows.at(number)
		if !e.life.over && e.seen != pass && e.time < began.UnixNano() {
			e.life.incomplete = true
			j.over(number, e, now)
		}
	}
	return number
}
