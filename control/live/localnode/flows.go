package localnode

import (
	"context"
	"encoding/binary"
	"math"
	"math/bits"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// The rate limit of a reader: a maximum number of records in each window, which leaves the
// processors to the datapath under any load. Beyond it the reader gets all records of a sample of
// flows. A window is longer for a reader that requests a low rate: a sample of a few records varies too much.
const (
	window        = 100 * time.Millisecond
	longestWindow = time.Second
	// minWindow is the minimum number of records of a window, for any number of readers.
	minWindow = 20
	// page is the number of known flows that are copied at a time.
	page = 64
	// missedInterval is the interval of the reports of missed records.
	missedInterval = time.Second
)

// Flows lists or follows flows.
func (n *Node) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	f, err := q.Parse(time.Now())
	if err != nil {
		return err
	}
	limit := f.Limit
	if limit == observe.All {
		limit = math.MaxInt
	}
	here := f.MatchNode(n.config.Name)
	matches := func(fl *flow.Flow, s flow.State, e flow.Event) bool {
		return here && f.Match(fl, s, e, n.config.Owners.Owner)
	}
	list := n.readKnown(f, limit, matches)
	if err := list.deliver(ctx, n, f.Steps, each); err != nil {
		return err
	}
	if !f.Follow {
		return nil
	}
	n.readers.Add(1)
	defer n.readers.Add(-1)
	s := &stream{Node: n, reader: list.flows.Reader(), each: each, filter: f, window: windowFor(f.Rate), reported: time.Now()}
	return s.follow(ctx, matches)
}

// known are flows of the journal in their present state, without an event.
type known struct {
	flows *journal.Past
	// gaps[i] are the flows left out before the i-th that was read, gap those after the last.
	gaps []uint64
	gap  uint64
}

// readKnown begins to read the newest flows that match.
func (n *Node) readKnown(f *observe.Filter, limit int, matches journal.Match) *known {
	p := &known{}
	reading := false // not yet: it is only looked for where to begin
	p.flows = n.config.Journal.NewPast(limit, f.Since, func(fl *flow.Flow, s flow.State, _ flow.Event) bool {
		given := matches(fl, s, 0)
		leftOut := given && f.ServicesOnly && fl.NoService()
		switch {
		case !reading:
		case leftOut:
			p.gap++
		case given:
			p.gaps, p.gap = append(p.gaps, p.gap), 0
		}
		return given && !leftOut
	})
	reading = true
	return p
}

// deliver reads the flows a page at a time.
func (p *known) deliver(ctx context.Context, n *Node, steps bool, each func(observe.Item) error) error {
	leftOut := func(gap uint64) error { // flows for no service
		if gap == 0 {
			return nil
		}
		return each(observe.Item{Missed: &observe.Missed{Node: n.config.Name, Missed: gap, Why: observe.MissedLeftOut}})
	}
	entries := make([]journal.Entry, page)
	for k := page; k == page && ctx.Err() == nil; {
		p.gaps = p.gaps[:0]
		k = p.flows.Read(entries)
		for i := range k {
			if err := leftOut(p.gaps[i]); err != nil {
				return err
			}
			if err := each(observe.Item{Record: entries[i].Record(n.config.Owners.Owner, steps)}); err != nil {
				return err
			}
		}
	}
	return leftOut(p.gap)
}

// stream serves one reader.
type stream struct {
	*Node
	reader *journal.Reader
	each   func(observe.Item) error
	filter *observe.Filter
	window time.Duration
	// mask picks flows: those whose sampleOf has none of its bits. It has more bits the more
	// happens.
	mask  uint64
	quiet int // windows in a row in which there was room to spare
	// Missed records not reported to the reader yet.
	slow, sampled, left uint64
	reported            time.Time
}

// follow sends events until the context ends.
func (s *stream) follow(ctx context.Context, matches journal.Match) error {
	picked := func(f *flow.Flow, state flow.State, e flow.Event) bool {
		if !matches(f, state, e) {
			return false
		}
		if s.filter.ServicesOnly && f.NoService() {
			if e.IsDecision() || len(s.filter.States)+len(s.filter.Events) > 0 {
				s.left++
			}
			return false
		}
		if sampleOf(&f.Packet)&s.mask != 0 {
			s.sampled++
			return false
		}
		return true
	}
	entries := make([]journal.Entry, 256)
	// Of this window: what there is room for does not change within one.
	began, room, given := time.Now(), s.capacity(), 0
	for {
		wait, cancel := context.WithTimeout(ctx, missedInterval)
		s.reader.Wait(wait)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if now := time.Now(); now.Sub(began) > s.window {
			s.relax(given)
			began, room, given = now, s.capacity(), 0
		}
		k, missed := s.reader.Read(entries[:min(len(entries), room-given)], picked)
		s.slow += missed
		for i := range k {
			r := entries[i].Record(s.config.Owners.Owner, s.filter.Steps)
			r.Emitted = new(entries[i].Noted)
			if err := s.each(observe.Item{Record: r}); err != nil {
				return err
			}
		}
		if err := s.sendMissed(); err != nil {
			return err
		}
		given += k
		full := given >= room
		if full {
			// Too much for this window: fewer flows from now on.
			s.mask, s.quiet = s.mask<<1|1, 0
		}
		// While the datapath is busy, being woken for a few records each time costs more of it
		// than the records.
		if full || s.config.Journal.Busy() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(s.window - time.Since(began)):
			}
		}
	}
}

// windowFor is the window of a reader that requests a rate; 0: it requests none.
func windowFor(rate int) time.Duration {
	if rate == 0 {
		return window
	}
	return min(max(window, minWindow*time.Second/time.Duration(rate)), longestWindow)
}

// capacity is the number of records of a window for each reader: a fifth while the datapath is busy, and no more than
// the reader requests.
func (s *stream) capacity() int {
	all := float64(s.config.Records) * s.window.Seconds()
	if s.config.Journal.Busy() {
		all /= 5
	}
	room := max(minWindow, int(all)/int(max(1, s.readers.Load())))
	if rate := s.filter.Rate; rate > 0 {
		room = min(room, max(1, int(float64(rate)*s.window.Seconds())))
	}
	return room
}

// relax enlarges the sample again after some time below the limit.
func (s *stream) relax(given int) {
	if given*4 > s.capacity() {
		s.quiet = 0
		return
	}
	if s.quiet++; s.quiet >= 5 {
		s.mask, s.quiet = s.mask>>1, 0
	}
}

// sendMissed reports missed records to the reader, at most once a second.
func (s *stream) sendMissed() error {
	now := time.Now()
	if now.Sub(s.reported) < missedInterval {
		return nil
	}
	s.reported = now
	for _, m := range []observe.Missed{
		{Missed: s.slow, Why: observe.MissedSlow}, {Missed: s.sampled, Why: observe.MissedSampled},
		{Missed: s.reader.Lost(), Why: observe.MissedLost}, {Missed: s.left, Why: observe.MissedLeftOut},
	} {
		if m.Missed == 0 {
			continue
		}
		if m.IsLoss() {
			s.missed.Add(m.Missed)
		}
		m.Node = s.config.Name
		if err := s.each(observe.Item{Missed: &m}); err != nil {
			return err
		}
	}
	s.slow, s.sampled, s.left = 0, 0, 0
	return nil
}

// sampleOf is the number by which flows are sampled. It depends on the source only, so that samples of several nodes,
// before and after the translation of the destination, have the same connections.
func sampleOf(p *decision.Packet) uint64 {
	a := p.Source.Addr().As16()
	n := mix(binary.NativeEndian.Uint64(a[:8]))
	n = mix(n ^ binary.NativeEndian.Uint64(a[8:]))
	return mix(n ^ uint64(p.Source.Port())<<8 ^ uint64(p.Protocol))
}

// mix distributes numbers that differ little.
func mix(n uint64) uint64 {
	hi, lo := bits.Mul64(n+1, 0x9e3779b97f4a7c15)
	return hi ^ lo>>32
}
