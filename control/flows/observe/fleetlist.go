package observe

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"time"
)

// listed is how many items of each node's list wait to be merged: a list of all flows of many nodes does not fit
// into memory.
const listed = 16

// list merges the lists of the members, which are in the order of their decisions. What is missing comes first, unless
// a list breaks off later.
func (f *Fleet) list(ctx context.Context, members []Member, q FlowQuery, limit int, each func(Item) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var lists listHeap
	var v verdict
	var missed []Item
	var begun []*nodeList
	for i, m := range members {
		begun = append(begun, f.begin(ctx, i, m, q))
	}
	for _, l := range begun {
		for l.next() && l.item.Missed != nil && l.item.Missed.Why != MissedLeftOut {
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

func unreachable(m Member) Item {
	return Item{Missed: &Missed{Node: m.Name, Why: MissedUnreachable}}
}

// nodeList is the list of one node.
type nodeList struct {
	Member
	number int // of the member
	items  chan Item
	end    chan error
	item   Item      // the present one
	at     time.Time // of the decision of its record, or of the record before
	ended  bool
	err    error // of a list that broke off
}

// begin requests a list.
func (f *Fleet) begin(ctx context.Context, number int, m Member, q FlowQuery) *nodeList {
	l := &nodeList{Member: m, number: number, items: make(chan Item, listed), end: make(chan error, 1)}
	go func() {
		defer close(l.items)
		l.end <- m.Observer.Flows(ctx, q, func(i Item) error {
			select {
			case l.items <- f.decorated(m.Name, i):
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
	limit   int // All: all
	each    func(Item) error
	kept    []Item
	records int // among kept
}

func (n *newest) add(i Item) error {
	if n.limit == All {
		return n.each(i)
	}
	n.kept = append(n.kept, i)
	if i.Record != nil {
		n.records++
	}
	first := 0
	for ; n.records > n.limit; first++ {
		if n.kept[first].Record != nil {
			n.records--
		}
	}
	n.kept = n.kept[first:]
	return nil
}

// close gives what is kept.
func (n *newest) close() error {
	for _, i := range n.kept {
		if err := n.each(i); err != nil {
			return err
		}
	}
	return nil
}
