package traffic

import "math/bits"

// kind is the kind of a timed event.
type kind uint8

const (
	workDone  kind = iota // of a connection
	idleDone              // of a connection
	gaveUp                // of a connection's client
	again                 // a client sends its SYN again
	timedOut              // of an attempt's connection
	hedged                // of an attempt's connection: another attempt begins
	change                // an Event; its number
	undo                  // the end of an Event
	replace               // an endpoint, by a rolling update
	ready                 // an endpoint
	listens               // an endpoint
	deaf                  // an endpoint no longer accepts connections
	gone                  // an endpoint
	noticed               // the loss of a node
	delivered             // a table to a node
	probed                // an endpoint, by a probe of an algorithm
	heard                 // a node, the answer
	overdue               // the request of a session
	retry                 // of a session: an attempt after another failed
	thought               // of a session: its next request
	sampled               // the load of a service, by its autoscaler
)

// timed is an event at a time.
type timed struct {
	at int64
	id int32
	// tag is the use of the connection's or session's record, or the version of the table, or the number of the Event.
	tag  uint32
	kind kind
	next int32 // in its slot
}

// queue has the events that are to come. Of several at the same time, the one that was added first comes first.
//
// It is a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, Faster Algorithms for the Shortest Path Problem, Journal of the
// ACM 37(2), 1990) with digits of six bits, which relies on that no event is added before the last one that was taken. An
// event moves at most once for each digit, and mostly two or three times, however many there are: a heap of comparisons makes more of
// them with more events, and reads events all over its memory.
type queue struct {
	last int64 // the time of the event that was taken last
	// slots[k][d] has the events whose time differs from last in digit k, which is d, and in no higher one. Those of slots[0] are
	// at one time each.
	slots  [levels][1 << digit]slot
	used   [levels]uint64 // bit d: slots[k][d] has an event
	levels uint64         // bit k: used[k] is not 0
	events []timed
	free   []int32 // in events
}

const (
	digit  = 6 // bits
	levels = 11
)

// slot is a list of events, in the order in which they were added.
type slot struct {
	least       int64 // the time of the first one to come
	first, last int32 // in events
}

// next is the time of the next event.
func (q *queue) next() int64 {
	if q.levels == 0 {
		return never
	}
	k := bits.TrailingZeros64(q.levels)
	return q.slots[k][bits.TrailingZeros64(q.used[k])].least
}

func (q *queue) add(at int64, k kind, id int32, tag uint32) {
	i := recordOf(&q.events, &q.free)
	q.events[i] = timed{at: at, id: id, tag: tag, kind: k}
	q.push(i)
}

// push puts an event into its slot.
func (q *queue) push(i int32) {
	e := &q.events[i]
	k := (bits.Len64(uint64(e.at^q.last)|1) - 1) / digit
	d := e.at >> (k * digit) & (1<<digit - 1)
	s := &q.slots[k][d]
	e.next = -1
	if q.used[k]&(1<<d) == 0 {
		q.used[k] |= 1 << d
		q.levels |= 1 << k
		*s = slot{e.at, i, i}
		return
	}
	q.events[s.last].next = i
	s.last = i
	s.least = min(s.least, e.at)
}

// take removes the next event, which there must be.
func (q *queue) take() timed {
	for {
		k := bits.TrailingZeros64(q.levels)
		d := bits.TrailingZeros64(q.used[k])
		s := &q.slots[k][d]
		i := s.first
		q.last = s.least
		if k == 0 && i != s.last {
			s.first = q.events[i].next
			return q.remove(i)
		}
		if q.used[k] &^= 1 << d; q.used[k] == 0 {
			q.levels &^= 1 << k
		}
		if i == s.last {
			return q.remove(i)
		}
		for i >= 0 { // into slots below
			next := q.events[i].next
			q.push(i)
			i = next
		}
	}
}

func (q *queue) remove(i int32) timed {
	q.free = append(q.free, i)
	return q.events[i]
}
