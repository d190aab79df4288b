package thisnode

import (
	"context"
	"math"
	"math/bits"
	"time"

	"github.com/nfqproxy/nfqproxy/control/journal"
	"github.com/nfqproxy/nfqproxy/control/match"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// How a reader is served: at most so many records in each window, which leaves the
// processors to the datapath however much happens; of more, all records of some flows.
const (
	window = 100 * time.Millisecond
	// few is how many records a window has at least, whatever the number of readers.
	few = 20
	// page is how many flows that are known already are copied at a time.
	page = 64
	// tellMissed is how often a reader is told what it missed.
	tellMissed = time.Second
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
	matches := match.Node{Name: n.config.Name, Names: n}.Flows(f)
	// As they are, they are at no event.
	past := n.config.Journal.NewPast(limit, f.Since, func(number uint64, fl *flow.Flow, s flow.State, _ flow.Event) bool {
		return matches(fl, s, "")
	})
	asTheyAre := make([]journal.Entry, min(limit, page))
	for k := len(asTheyAre); k > 0 && k == len(asTheyAre); {
		if err := ctx.Err(); err != nil {
			break
		}
		k = past.Read(asTheyAre)
		for i := range k {
			if err := each(observe.Item{Record: asTheyAre[i].Record(n, f.Steps)}); err != nil {
				return err
			}
		}
	}
	if !f.Follow {
		return nil
	}
	n.readers.Add(1)
	defer n.readers.Add(-1)
	s := &stream{Node: n, reader: past.Reader(), each: each, steps: f.Steps, told: time.Now()}
	return s.follow(ctx, matches)
}

// stream serves one reader.
type stream struct {
	*Node
	reader *journal.Reader
	each   func(observe.Item) error
	steps  bool
	// mask picks flows: those whose hash has none of its bits. It has more bits the more
	// happens.
	mask  uint64
	quiet int // windows in a row in which there was room to spare
	// What the reader has not been told of yet.
	slow, sampled uint64
	told          time.Time
}

// follow gives what happens until the context ends.
func (s *stream) follow(ctx context.Context, matches func(*flow.Flow, flow.State, flow.Event) bool) error {
	picked := func(number uint64, f *flow.Flow, state flow.State, e flow.Event) bool {
		if !matches(f, state, e) {
			return false
		}
		if hash(number)&s.mask != 0 {
			s.sampled++
			return false
		}
		return true
	}
	entries := make([]journal.Entry, 256)
	// Of this window: what there is room for does not change within one.
	began, room, given := time.Now(), s.room(), 0
	for {
		wait, cancel := context.WithTimeout(ctx, tellMissed)
		s.reader.Wait(wait)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if now := time.Now(); now.Sub(began) > window {
			s.relax(given)
			began, room, given = now, s.room(), 0
		}
		k, missed := s.reader.Read(entries[:min(len(entries), room-given)], picked)
		s.slow += missed
		for i := range k {
			if err := s.each(observe.Item{Record: entries[i].Record(s.Node, s.steps)}); err != nil {
				return err
			}
		}
		if err := s.tell(); err != nil {
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
			case <-time.After(window - time.Since(began)):
			}
		}
	}
}

// room is how many records a window has for each reader: when the datapath is busy, a fifth.
func (s *stream) room() int {
	all := float64(s.config.Records) * window.Seconds()
	if s.config.Journal.Busy() {
		all /= 5
	}
	return max(few, int(all)/int(max(1, s.readers.Load())))
}

// relax picks more flows again when there has been room to spare for a while.
func (s *stream) relax(given int) {
	if given*4 > s.room() {
		s.quiet = 0
		return
	}
	if s.quiet++; s.quiet >= 5 {
		s.mask, s.quiet = s.mask>>1, 0
	}
}

// tell tells the reader what it missed, once a second at most.
func (s *stream) tell() error {
	if now := time.Now(); now.Sub(s.told) >= tellMissed {
		s.told = now
		for _, m := range []observe.Missed{{Missed: s.slow, Why: observe.MissedSlow}, {Missed: s.sampled, Why: observe.MissedSampled}, {Missed: s.reader.Lost(), Why: observe.MissedLost}} {
			if m.Missed == 0 {
				continue
			}
			s.missed.Add(m.Missed)
			m.Node = s.config.Name
			if err := s.each(observe.Item{Missed: &m}); err != nil {
				return err
			}
		}
		s.slow, s.sampled = 0, 0
	}
	return nil
}

// hash spreads numbers that follow each other.
func hash(n uint64) uint64 {
	hi, lo := bits.Mul64(n, 0x9e3779b97f4a7c15)
	return hi ^ lo>>32
}
