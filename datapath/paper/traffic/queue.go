package traffic

import "math/bits"

// kind is the kind of a timed event.
type kind uint8

const (
	workDone  kind = iota // of a connection
	idleDone              // of a connection
	gaveUp                // of a connection's client
	again                 // a client sends its SYN again
	change                // an Event; its number
	undo                  // the end of an Event
	replace               // an endpoint, by a rolling update
	ready                 // an endpoint
	listens               // an endpoint
	deaf                  // an endpoint no longer accepts connections
	gone                  // an endpoint
	noticed               // the loss of a node
	delivered             // a table to a node
)

// timed is an event at a time.
type timed struct {
	at int64
	id int32
	// tag is the use of the connection's record, or the version of the table, or the number of the Event.
	tag  uint32
	kind kind
}

// queue has the events that are to come. Of several at the same time, the one that was added first comes first.
//
// It is a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, Faster Algorithms for the Shortest Path Problem, Journal of the
// ACM 37(2), 1990), which relies on that no event is added before the last one that was taken. An event moves at most
// once for each bit of its time, with its neighbours: that is faster than a heap of comparisons, which reads events all over
// its memory, and has no width to tune, as a calendar has.
type queue struct {
	last int64 // the time of the event that was taken last
	// buckets[0] has the events at last, those before position taken without meaning. buckets[i] has those whose time differs
	// from last in bit i-1, and in no higher one: all of them are before those of buckets[i+1].
	buckets [64][]timed
	taken   int
	least   [64]int64 // the first time in each bucket
	used    uint64    // bit i: buckets[i] has an event
}

// next is the time of the next event.
func (q *queue) next() int64 {
	if q.used == 0 {
		return never
	}
	return q.least[bits.TrailingZeros64(q.used)]
}

func (q *queue) add(at int64, k kind, id int32, tag uint32) { q.push(timed{at, id, tag, k}) }

func (q *queue) push(e timed) {
	i := bits.Len64(uint64(e.at^q.last)) & 63
	if q.used&(1<<i) == 0 || e.at < q.least[i] {
		q.least[i] = e.at
	}
	q.used |= 1 << i
	q.buckets[i] = append(q.buckets[i], e)
}

// take removes the next event, which there must be.
func (q *queue) take() timed {
	if i := bits.TrailingZeros64(q.used); i > 0 {
		q.last = q.least[i]
		q.used &^= 1 << i
		for _, e := range q.buckets[i] { // all into buckets below
			q.push(e)
		}
		q.buckets[i] = q.buckets[i][:0]
	}
	e := q.buckets[0][q.taken]
	if q.taken++; q.taken == len(q.buckets[0]) {
		q.buckets[0], q.taken = q.buckets[0][:0], 0
		q.used &^= 1
	}
	return e
}
