package remote

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// listed is how many items of each node's list wait to be merged: a list of all flows of many nodes does not fit
// into memory.
const listed = 16

// list merges the lists of the members, which are in the order of their decisions. What is missing comes first, unless
// a list breaks off later.
func (f *Relay) list(ctx context.Context, members []Member, q observe.FlowQuery, limit int, each func(observe.Item) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	join := q.Joined
	q.Joined = false // a node alone joins nothing
	var lists listHeap
	var v verdict
	var missed []observe.Item
	var begun []*nodeList
	for i, m := range members {
		begun = append(begun, f.begin(ctx, i, m, q))
	}
	for _, l := range begun {
		for l.next() && l.item.Missed != nil && l.item.Missed.IsLoss() {
			missed = append(missed, l.item)
		}
		if l.ended {
			if v.add(l.Name, l.err) {
				continue
			}
			missed = append(missed, unreachable(l.Member))
			continue
		}
		v.good++
		lists = append(lists, l)
	}
	if v.invalid == nil {
		for _, l := range begun {
			if l.ended {
				f.note(l.Name, l.err)
			}
		}
	}
	if err := v.err(); err != nil {
		return err
	}
	for _, i := range missed {
		if err := each(i); err != nil {
			return err
		}
	}
	last := newest{limit: limit, each: each}
	if join && (limit != observe.All || len(members) <= maxQueriedMembers) {
		last.join = func(list []observe.Item) ([]observe.Item, map[string][]observe.Joined) {
			members, _ := f.all()
			return joinList(q, list, len(members), func(passed observe.FlowQuery) []*flow.Record { return f.passed(ctx, members, passed) })
		}
	}
	heap.Init(&lists)
	for len(lists) > 0 {
		l := lists[0]
		if err := last.add(l.item); err != nil {
			return err
		}
		if l.next() {
			heap.Fix(&lists, 0)
			continue
		}
		heap.Pop(&lists)
		f.note(l.Name, l.err)
		if v.add(l.Name, l.err); v.invalid != nil {
			return v.invalid
		}
		if l.err != nil {
			if err := last.add(unreachable(l.Member)); err != nil {
				return err
			}
		}
	}
	return errors.Join(last.close(), ctx.Err())
}

func unreachable(m Member) observe.Item {
	return observe.Item{Missed: &observe.Missed{Node: m.Name, Why: observe.MissedUnreachable}}
}

// nodeList is the list of one node.
type nodeList struct {
	Member
	number int // of the member
	items  chan observe.Item
	end    chan error
	item   observe.Item // the present one
	at     time.Time    // of the decision of its record, or of the record before
	ended  bool
	err    error // of a list that broke off
}

// begin requests a list.
func (f *Relay) begin(ctx context.Context, number int, m Member, q observe.FlowQuery) *nodeList {
	l := &nodeList{Member: m, number: number, items: make(chan observe.Item, listed), end: make(chan error, 1)}
	go func() {
		defer close(l.items)
		l.end <- m.Observer.Flows(ctx, q, func(i observe.Item) error {
			select {
			case l.items <- f.filledIn(m.Name, i):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return l
}

// next reads the next item, and reports whether there is one.
func (l *nodeList) next() bool {
	item, ok := <-l.items
	if !ok {
		l.ended, l.err = true, <-l.end
		return false
	}
	l.item = item
	// Two queues of a node may report in another order than they decide: its own order is kept.
	if r := item.Record; r != nil && r.Time != nil && r.Time.After(l.at) {
		l.at = *r.Time
	}
	return true
}

// listHeap has the list with the oldest present item first; of two with one time, that of the first member.
type listHeap []*nodeList

func (h listHeap) Len() int      { return len(h) }
func (h listHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h listHeap) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), cmp.Compare(h[i].number, h[j].number)) < 0
}
func (h *listHeap) Push(x any) { *h = append(*h, x.(*nodeList)) }
func (h *listHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// newest gives the last records of a list, and what is missing among and after them.
type newest struct {
	limit int // All: all
	each  func(observe.Item) error
	// join finds what other nodes decided about connections of a list: it returns the list without their records, and
	// these by the flow that they belong to; nil: nothing is joined.
	join    func([]observe.Item) ([]observe.Item, map[string][]observe.Joined)
	kept    []observe.Item
	records int // among kept
}

// recordsOfOne is the number of records that a connection may have in a list, one of each node.
const recordsOfOne = 3

func (n *newest) add(i observe.Item) error {
	if n.limit == observe.All && n.join == nil {
		return n.each(i)
	}
	n.kept = append(n.kept, i)
	if i.Record != nil {
		n.records++
	}
	switch {
	case n.limit == observe.All && n.records >= maxJoined:
		return n.close()
	case n.limit == observe.All:
	case n.join == nil:
		n.trim(n.limit)
	default:
		n.trim(recordsOfOne * n.limit)
	}
	return nil
}

// trim cuts what is kept to its last records.
func (n *newest) trim(records int) {
	first := 0
	for ; n.records > records; first++ {
		if n.kept[first].Record != nil {
			n.records--
		}
	}
	n.kept = n.kept[first:]
}

// close gives what is kept.
func (n *newest) close() error {
	var joined map[string][]observe.Joined
	if n.join != nil {
		n.kept, joined = n.join(n.kept)
	}
	if n.limit != observe.All {
		n.records = 0
		for _, i := range n.kept {
			if i.Record != nil {
				n.records++
			}
		}
		n.trim(n.limit)
	}
	kept := n.kept
	n.kept, n.records = nil, 0
	for _, i := range kept {
		if err := n.each(i); err != nil {
			return err
		}
		if i.Record == nil {
			continue
		}
		for _, j := range joined[i.Record.ID] {
			if err := n.each(observe.Item{Joined: &j}); err != nil {
				return err
			}
		}
	}
	return nil
}
