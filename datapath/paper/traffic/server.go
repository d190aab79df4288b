package traffic

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// server is an endpoint. Its number is its position in simulation.servers.
type server struct {
	service int32
	node    int32
	weight  uint16
	// listed: it is in the newest table. listening: it accepts connections. present: packets reach it.
	listed, listening, present bool
	// ending: it is leaving, or has left.
	ending bool
	factor float64 // of the time of its work

	busy           int32     // workers
	waiting, taken list      // connections without and with a worker, or after the work
	flows          int32     // that were sent to it after the warm-up
	recent         int32     // in this window
	reported       *reported // nil: nobody has asked
}

// origin is what flows do not read of an endpoint, so that more servers are in a cache.
type origin struct {
	addr     netip.AddrPort
	replaces int32 // the endpoint that ends when this one is ready; -1: none
}

// open counts its connections.
func (s *server) open() int32 { return s.waiting.n + s.taken.n }

// phase is where a connection is in its life.
type phase uint8

const (
	free phase = iota // the record is not in use
	waits
	works
	idles
	unanswered // there is no endpoint to reply
	refused    // the node has dropped the refusal, see secondchance.go
)

// connection is a connection, from the decision to its end. It is as large as a cache line: with many endpoints, most of a
// simulation's time is waiting for memory.
type connection struct {
	arrived    int64
	work, idle int64
	tracked    balance.Connection
	server     int32
	node       int32
	client     int32
	next, prev int32 // in a list of its server
	use        uint32
	port       uint16
	retries    uint8 // at how many servers it has failed, see simulation.failed
	phase      phase
	// counted: it arrived after the warm-up. hasTracker: tracked is valid. again: the client has had a response on it, and arrived is that
	// of its latest request.
	counted, hasTracker, again bool
}

// list is a list of connections, oldest first.
type list struct{ first, last, n int32 }

var emptyList = list{-1, -1, 0}

func (s *simulation) push(l *list, id int32) {
	c := &s.connections[id]
	c.prev, c.next = l.last, -1
	if l.last >= 0 {
		s.connections[l.last].next = id
	} else {
		l.first = id
	}
	l.last = id
	l.n++
}

func (s *simulation) remove(l *list, id int32) {
	c := &s.connections[id]
	if c.prev >= 0 {
		s.connections[c.prev].next = c.next
	} else {
		l.first = c.next
	}
	if c.next >= 0 {
		s.connections[c.next].prev = c.prev
	} else {
		l.last = c.prev
	}
	l.n--
}

// newConnection returns the number of a connection's record.
func (s *simulation) newConnection() int32 {
	id := recordOf(&s.connections, &s.unused)
	if s.secondChance && int(id) == len(s.failed) {
		s.failed = append(s.failed, [maxRetries]int32{})
	}
	return id
}

// recordOf returns the number of a record that is not in use, of all.
func recordOf[T any](all *[]T, unused *[]int32) int32 {
	if n := len(*unused); n > 0 {
		id := (*unused)[n-1]
		*unused = (*unused)[:n-1]
		return id
	}
	*all = append(*all, *new(T))
	return int32(len(*all) - 1)
}

// release ends the use of a record.
func (s *simulation) release(id int32) {
	c := &s.connections[id]
	c.phase = free
	c.use++
	s.unused = append(s.unused, id)
}

// discard ends the use of a record whose connection has ended without a response.
func (s *simulation) discard(id int32) {
	s.release(id)
	if s.sessions != nil {
		s.ended(id)
	}
}

// offer gives a new connection, or the next request on one, to its endpoint.
func (s *simulation) offer(id int32) {
	c := &s.connections[id]
	e := &s.servers[c.server]
	service := &s.c.Cluster.Services[e.service]
	switch {
	case !e.present:
		c.phase = unanswered
		s.await(id)
	case (!e.listening || int(e.busy) >= service.Concurrency && int(e.waiting.n) >= service.Backlog) && !c.again:
		s.fail(c, balance.Refused)
		if s.secondChance && s.mayTry(id) {
			c.phase = refused
			s.await(id)
			return
		}
		s.countRefused(c.counted)
		s.discard(id)
	default:
		s.enter(id, e)
		if s.byKernel && !c.again {
			s.answered(c)
		}
		if int(e.busy) < service.Concurrency {
			s.start(id)
			return
		}
		c.phase = waits
		s.push(&e.waiting, id)
	}
}

// fail is the end of a connection that its endpoint refused or did not answer.
func (s *simulation) fail(c *connection, k balance.EventKind) {
	s.observe(c, k, 0)
	s.untrack(c)
}

// start has a worker take the connection.
func (s *simulation) start(id int32) {
	c := &s.connections[id]
	e := &s.servers[c.server]
	if !s.byKernel && !c.again {
		s.answered(c)
	}
	if s.sessions != nil {
		s.sessions.tries[id].began = s.now
	}
	if c.counted {
		s.waits++
		if s.now > c.arrived {
			s.waited++
		}
	}
	c.phase = works
	e.busy++
	s.push(&e.taken, id)
	work := c.work
	if f := max(e.factor, s.nodes[e.node].factor); f != 1 {
		work = int64(min(float64(work)*f, float64(longest)))
		c.work = work
	}
	s.queue.add(s.now+work, workDone, id, c.use)
}

// answered: the client gets a reply.
func (s *simulation) answered(c *connection) {
	latency := s.now - c.arrived + int64(s.c.Workload.RoundTrip)
	if c.counted {
		s.connects.Add(latency)
	}
	s.observe(c, balance.Answered, s.now-c.decided()+int64(s.c.Workload.RoundTrip))
}

// done ends the work on a connection.
func (s *simulation) done(id int32) {
	c := &s.connections[id]
	number := c.server
	s.served(id)
	arrived, counted := c.arrived, c.counted
	if s.sessions != nil {
		arrived, counted = s.sessions.request(id)
	}
	if counted {
		response := s.now - arrived + int64(s.c.Workload.RoundTrip)
		s.result.Response.Add(response)
		if s.o.Series {
			s.result.Series = append(s.result.Series, Served{time.Duration(arrived), time.Duration(response)})
		}
	}
	switch {
	case s.sessions != nil:
		s.respond(id)
	case c.idle > 0:
		c.phase = idles
		s.queue.add(s.now+c.idle, idleDone, id, c.use)
	default:
		s.close(id)
	}
	s.rest(number)
}

// rest has a worker of an endpoint take the next connection.
func (s *simulation) rest(number int32) {
	e := &s.servers[number]
	e.busy--
	if id := e.waiting.first; id >= 0 && e.present {
		s.remove(&e.waiting, id)
		s.start(id)
	} else if e.present && e.busy == 0 {
		s.idle(number)
	}
}

// close ends a connection that a worker took.
func (s *simulation) close(id int32) {
	c := &s.connections[id]
	s.remove(&s.servers[c.server].taken, id)
	s.inactive(c, true)
	s.release(id)
}

// inactive: the connection is closed. If its entry remains for some time, only some algorithms know.
func (s *simulation) inactive(c *connection, remains bool) {
	switch {
	case !c.hasTracker:
	case s.openOnly(c):
		c.tracked.Close()
	default:
		s.observe(c, balance.Inactive, 0)
		if remains {
			s.closed.push(entry{s.now + s.timeWait, c.tracked, c.node})
		} else {
			s.observe(c, balance.Ended, 0)
		}
	}
}

// lose ends all connections of an endpoint that is no longer there.
func (s *simulation) lose(number int32) {
	e := &s.servers[number]
	s.note(Step{Kind: Gone, Endpoint: int(number)})
	e.listening, e.present, e.busy = false, false, 0
	for _, l := range []*list{&e.waiting, &e.taken} {
		for id := l.first; id >= 0; id = l.first {
			c := &s.connections[id]
			s.broken(c)
			s.remove(l, id)
			s.inactive(c, true)
			s.discard(id)
		}
	}
}

// broken counts a connection that ended before its time.
func (s *simulation) broken(c *connection) {
	if c.counted && s.nodes[c.node].alive {
		s.result.Broken++
		s.window.Broken++
	}
}

// entry is the entry of a closed connection.
type entry struct {
	until   int64
	tracked balance.Connection
	node    int32
}

// entries are those of closed connections, in the order of their ends, because all remain for the same time. They are in blocks,
// which are never copied: a large cluster has millions of them.
type entries struct {
	blocks   [][]entry
	first, n int
	unused   []entry // a block; nil: none
}

const blockBits = 10

func (q *entries) push(e entry) {
	if (q.first+q.n)>>blockBits == len(q.blocks) {
		if q.unused == nil {
			q.unused = make([]entry, 1<<blockBits)
		}
		q.blocks, q.unused = append(q.blocks, q.unused), nil
	}
	q.n++
	*q.at(q.n - 1) = e
}

func (q *entries) at(i int) *entry {
	i += q.first
	return &q.blocks[i>>blockBits][i&(1<<blockBits-1)]
}

func (q *entries) pop() {
	q.n--
	if q.first++; q.first == 1<<blockBits {
		q.blocks, q.unused, q.first = q.blocks[1:], q.blocks[0], 0
	}
}
