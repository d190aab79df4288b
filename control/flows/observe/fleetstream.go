package observe

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Flows lists the nodes' flows in the order of their decisions, after the missed items, or follows
// them in the order of their arrival; Limit then counts for each node. An unreachable node is
// reported as missed ([MissedUnreachable]), and retried.
func (f *Fleet) Flows(ctx context.Context, q FlowQuery, each func(Item) error) error {
	filter, err := q.Parse(time.Now())
	if err != nil {
		return err
	}
	members, err := f.named(filter.Nodes)
	if err != nil {
		return err
	}
	q.Source, q.Endpoint = f.addressList(q.Source), f.addressList(q.Endpoint)
	if q.Follow {
		return f.follow(ctx, members, q, each)
	}
	return f.list(ctx, members, q, filter.Limit, each)
}

func (f *Fleet) list(ctx context.Context, members []Member, q FlowQuery, limit int, each func(Item) error) error {
	join := q.Joined
	q.Joined = false // a node alone joins nothing
	replies := queryAll(members, func(m Member) (items []Item, err error) {
		err = m.Observer.Flows(ctx, q, func(i Item) error {
			items = append(items, f.decorateItem(m.Name, i))
			return nil
		})
		return items, err
	})
	good, err := answered(f, replies)
	if err != nil {
		return err
	}
	var missed []Item
	var placed []placedItem
	for _, r := range replies {
		if r.err != nil {
			missed = append(missed, unreachable(r.Member))
		}
	}
	for _, r := range good {
		var at time.Time // of the record before
		for _, i := range r.answer {
			if i.Missed != nil && i.Missed.Why != MissedLeftOut {
				missed = append(missed, i)
				continue
			}
			if i.Record != nil {
				at = decided(i)
			}
			placed = append(placed, placedItem{i, at})
		}
	}
	slices.SortStableFunc(placed, func(a, b placedItem) int { return a.at.Compare(b.at) })
	var joined map[string][]Joined
	if join {
		placed, joined = f.joinList(ctx, q, placed)
	}
	if limit != All {
		placed = newest(placed, limit)
	}
	for _, i := range missed {
		if err := each(i); err != nil {
			return err
		}
	}
	for _, p := range placed {
		if err := each(p.Item); err != nil {
			return err
		}
		if p.Record == nil {
			continue
		}
		for _, j := range joined[p.Record.ID] {
			if err := each(Item{Joined: &j}); err != nil {
				return err
			}
		}
	}
	return nil
}

// placedItem is a record, or flows left out after the record decided at a time.
type placedItem struct {
	Item
	at time.Time
}

// newest cuts a list to its last records, and what was left out among and after them.
func newest(list []placedItem, records int) []placedItem {
	for i, p := range slices.Backward(list) {
		if p.Record == nil {
			continue
		}
		if records == 0 {
			return list[i+1:]
		}
		records--
	}
	return list
}

// decided is when the flow was.
func decided(i Item) time.Time {
	if i.Record.Time == nil {
		return time.Time{}
	}
	return *i.Record.Time
}

func unreachable(m Member) Item {
	return Item{Missed: &Missed{Node: m.Name, Why: MissedUnreachable}}
}

func (f *Fleet) decorateItem(node string, i Item) Item {
	if i.Record != nil {
		i.Record = f.decorate(node, i.Record)
	}
	return i
}

func (f *Fleet) follow(ctx context.Context, members []Member, q FlowQuery, each func(Item) error) error {
	following, cancel := context.WithCancel(ctx)
	items, passed, faults := make(chan Item), make(chan Item), make(chan error)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := func(m Member, q FlowQuery, items chan<- Item) {
		running.Go(func() {
			if err := f.followOne(following, m, q, items); err != nil {
				select {
				case faults <- err:
				case <-following.Done():
				}
			}
		})
	}
	joined := q.Joined
	q.Joined = false // a node alone joins nothing
	for _, m := range members {
		start(m, q, items)
	}
	if joined {
		for _, m := range f.members {
			start(m, passing(q), passed)
		}
	}
	j := joiner{pairs: !q.ServicesOnly}
	for {
		select {
		case i := <-items:
			if err := each(i); err != nil {
				return err
			}
			if err := eachJoined(j.record, joined, i, each); err != nil {
				return err
			}
		case i := <-passed:
			if err := eachJoined(j.pass, joined, i, each); err != nil {
				return err
			}
		case err := <-faults:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// eachJoined gives what a joiner finds for a record.
func eachJoined(find func(*flow.Record) []Joined, wanted bool, i Item, each func(Item) error) error {
	if !wanted || i.Record == nil {
		return nil
	}
	for _, found := range find(i.Record) {
		if err := each(Item{Joined: &found}); err != nil {
			return err
		}
	}
	return nil
}

// followOne follows a node's flows until the context ends, and reconnects as often as needed. The
// error is that of an invalid request.
func (f *Fleet) followOne(ctx context.Context, m Member, q FlowQuery, items chan<- Item) error {
	give := func(i Item) error {
		select {
		case items <- i:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	wait, reported := f.retry, false
	for {
		err := m.Observer.Flows(ctx, q, func(i Item) error {
			q.Since, q.Limit = "", "" // earlier records were already sent
			wait, reported = f.retry, false
			return give(f.decorateItem(m.Name, i))
		})
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = errors.New("the stream ended")
		}
		var e *Error
		if errors.As(err, &e) && e.Status != http.StatusTooManyRequests {
			return e
		}
		f.Log.Warn("cannot follow the flows of a node; reconnecting", "node", m.Name, "in", wait, "error", err)
		if !reported {
			if reported = true; give(unreachable(m)) != nil {
				return nil
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, longestRetry)
	}
}
