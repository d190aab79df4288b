package history

import (
	"cmp"
	"container/heap"
	"context"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// waiting is how many rows of a list of all flows wait for older ones.
const waiting = 50_000

// search is one query.
type search struct {
	*History
	ctx     context.Context
	filter  *observe.Filter
	seen    idSet
	leftOut map[string]uint64 // flows for no service, by node
}

// group is a row group, with the rows that no later row replaces.
type group struct {
	*reader
	parquet.RowGroup
	keep bits
}

// list calls each for the newest records that match.
func (s *search) list(files opened, each func(*flow.Record) error) error {
	limit := s.filter.Limit
	if limit == observe.All {
		return s.all(files, each)
	}
	newest := rowHeap{}
	if err := s.eachGroup(files, func(g *group) error {
		_, last, known := g.times(g.RowGroup)
		if known && len(newest) == limit && last < newest[0].Time {
			return nil
		}
		return s.eachMatch(g, func(x *row) error {
			if len(newest) < limit {
				heap.Push(&newest, x)
			} else if newest.before(newest[0], x) {
				newest[0] = x
				heap.Fix(&newest, 0)
			}
			return nil
		})
	}); err != nil {
		return err
	}
	return newest.passOn(each)
}

// all calls each for all records that match: it first finds the rows that count, from the newest to the oldest, and then reads them in
// order.
func (s *search) all(files opened, each func(*flow.Record) error) error {
	var groups []*group
	if err := s.eachGroup(files, func(g *group) error {
		groups = append(groups, g)
		return nil
	}); err != nil {
		return err
	}
	next := rowHeap{}
	for _, g := range slices.Backward(groups) {
		if err := s.unreadable(reading(g.path, func() error {
			return s.eachMatch(g, func(x *row) error {
				heap.Push(&next, x)
				if len(next) <= waiting {
					return nil
				}
				return each(heap.Pop(&next).(*row).record())
			})
		})); err != nil {
			return err
		}
	}
	return next.passOn(each)
}

// eachGroup calls each for the row groups that may have flows of the time, the newest first.
func (s *search) eachGroup(files opened, each func(*group) error) error {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if f := s.filter; !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if f := s.filter; !f.Until.IsZero() {
		until = f.Until.UnixMicro()
	}
	for _, r := range slices.Backward(files) {
		if err := s.unreadable(reading(r.path, func() error {
			for _, g := range slices.Backward(r.RowGroups()) {
				if s.ctx.Err() != nil {
					return &callerError{s.ctx.Err()}
				}
				// All rows of a flow have the time of its decision: it is in no group, or it may be in several.
				if first, last, ok := r.times(g); ok && (last < since || first >= until) {
					continue
				}
				keep, err := r.unseen(g, &s.seen)
				if err == nil {
					err = each(&group{r, g, keep})
				}
				if err != nil {
					return err
				}
			}
			return nil
		})); err != nil {
			return err
		}
	}
	return nil
}

// eachMatch calls each with copies of the rows of a group that match.
func (s *search) eachMatch(g *group, each func(*row) error) error {
	count := 0
	return g.eachRow(g.RowGroup, g.keep, func(x *row) error {
		if count++; count%4096 == 0 && s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		if !s.filter.MatchRecord(x.record()) {
			return nil
		}
		if s.filter.ServicesOnly && x.Reason == decision.NotAService.String() {
			s.leftOut[x.Node]++
			return nil
		}
		c := *x
		return each(&c)
	})
}

// rowHeap has the row with the oldest flow first.
type rowHeap []*row

func (h rowHeap) before(a, b *row) bool {
	return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.ID, b.ID)) < 0
}
func (h rowHeap) Len() int           { return len(h) }
func (h rowHeap) Less(i, j int) bool { return h.before(h[i], h[j]) }
func (h rowHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *rowHeap) Push(x any)        { *h = append(*h, x.(*row)) }
func (h *rowHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// passOn calls each for all rows, the oldest first.
func (h *rowHeap) passOn(each func(*flow.Record) error) error {
	for len(*h) > 0 {
		if err := each(heap.Pop(h).(*row).record()); err != nil {
			return err
		}
	}
	return nil
}

// slack is the time between two spans that is none without records.
const slack = 2 * time.Second

// missed is what the history lacks of the time of a query: records that recorders did not get, and times in which they did not
// run.
func missed(files opened, f *observe.Filter) (list []*observe.Missed) {
	now := time.Now()
	since, until := f.Since, f.Until
	if until.IsZero() {
		until = now
	}
	type reason struct{ node, why string }
	by := make(map[reason]*observe.Missed)
	spans := make(map[string][]span) // by recorder
	for _, r := range files {
		name, _ := parseName(filepath.Base(r.path))
		spans[name.recorder] = append(spans[name.recorder], r.coverage.spans...)
		for _, g := range r.coverage.gaps {
			if g.To.Before(since) || !g.From.Before(until) {
				continue
			}
			if m := by[reason{g.Node, g.Why}]; m != nil {
				m.Missed, m.To = m.Missed+g.Missed, &g.To
				continue
			}
			m := &observe.Missed{Node: g.Node, Missed: g.Missed, Why: g.Why, From: &g.From, To: &g.To}
			by[reason{g.Node, g.Why}] = m
			list = append(list, m)
		}
	}
	for _, recorder := range slices.Sorted(maps.Keys(spans)) {
		for _, s := range uncovered(spans[recorder], since, until, now.Sub(until) < interval) {
			list = append(list, &observe.Missed{Node: recorder, Why: observe.MissedNotRecorded, From: &s.From, To: &s.To})
		}
	}
	return list
}

// uncovered returns the times between two that spans do not cover; a zero since is the beginning of the first. now: until is the present,
// and a running recorder may not have written its last minute.
func uncovered(spans []span, since, until time.Time, now bool) (holes []span) {
	slices.SortFunc(spans, func(a, b span) int { return a.From.Compare(b.From) })
	end := since
	for _, s := range spans {
		if !s.From.Before(until) {
			break
		}
		if !end.IsZero() && s.From.Sub(end) > slack {
			holes = append(holes, span{end, s.From})
		}
		if s.To.After(end) {
			end = s.To
		}
	}
	late := slack
	if now {
		late = 2 * interval
	}
	if until.Sub(end) > late && !end.IsZero() {
		holes = append(holes, span{end, until})
	}
	return holes
}
