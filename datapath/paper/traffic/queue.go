package traffic

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
	probed                // an endpoint, by a probe of an algorithm
	heard                 // a node, the answer
)

// timed is an event at a time. Of several at the same time, the one that was made first comes first.
type timed struct {
	at     int64
	number uint64
	id     int32
	// tag is the use of the connection's record, or the version of the table, or the number of the Event.
	tag  uint32
	kind kind
}

func (a *timed) before(b *timed) bool { return a.at < b.at || a.at == b.at && a.number < b.number }

// queue is a heap of events, the next one first. Each has up to 4 children: that is faster than 2, because
// fewer cache lines are read.
type queue struct {
	heap []timed
	made uint64
}

// next is the time of the next event.
func (q *queue) next() int64 {
	if len(q.heap) == 0 {
		return never
	}
	return q.heap[0].at
}

func (q *queue) add(at int64, k kind, id int32, tag uint32) {
	e := timed{at, q.made, id, tag, k}
	q.made++
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = e
}

// take removes the next event.
func (q *queue) take() timed {
	first := q.heap[0]
	n := len(q.heap) - 1
	e := q.heap[n]
	q.heap = q.heap[:n]
	if n == 0 {
		return first
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for c := least + 1; c < min(4*i+5, n); c++ {
			if q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if !q.heap[least].before(&e) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = e
	return first
}
