package traffic

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/paper/algorithms"
)

// reports is what nodes and endpoints tell each other for algorithms that need it.
type reports struct {
	// node is the one whose pickers are in use; noNode: none of the cluster's.
	node   int32
	asked  []asked // probes under way, and records not in use
	unused []int32 // of asked
	boards map[time.Duration]*board
	queues map[int32][]nodeQueue // of idle endpoints, by service
	rand   *rand.Rand            // the node that an idle endpoint joins
	// begins are the connections that the server of each connection had at its begin, with itself; nil before the first probe.
	begins []int32
}

const noNode = -1

// reported is what an endpoint reports besides its connections.
type reported struct {
	done   uint64
	worked int64
	newest []response // a ring, at done % its length; only with probes
	queue  algorithms.IdleQueue
}

// counts returns what an endpoint counts for reports, from the first time on.
func (s *simulation) counts(number int32) *reported {
	e := &s.servers[number]
	if e.reported == nil {
		e.reported = new(reported)
	}
	return e.reported
}

// response is a response time, with the number of connections that the endpoint had, and its end.
type response struct {
	open      int32
	nanos, at int64
}

// responses is how many an endpoint keeps, and recent for how long they count: otherwise an endpoint without flows would report for ever
// how slow it was under load, and get no flow that shows that it is fast again.
const (
	responses = 32
	recent    = 2 * time.Second
)

// asked is a probe.
type asked struct {
	to       algorithms.Prober
	endpoint *balance.Endpoint
	report   algorithms.Report
	server   int32
}

// board shows connections of servers as they were.
type board struct {
	epoch int64
	open  []int32
}

type nodeQueue struct {
	node  int32
	queue algorithms.IdleQueue
}

// informer is the simulation for the algorithms of its nodes.
type informer struct{ s *simulation }

var _ algorithms.Cluster = informer{}

// message counts a message.
func (s *simulation) message() {
	if s.now >= int64(s.c.Warmup) && s.now < int64(s.c.Duration) {
		s.result.Messages++
	}
}

// Client implements [algorithms.Cluster].
func (i informer) Client() int { return int(max(i.s.reports.node, 0)) }

// Endpoint implements [algorithms.Cluster].
func (i informer) Endpoint(set *balance.Set, candidate int) int {
	return int(i.s.control.ids[set.Service][set.Service.Usable[set.Policy][set.Candidates[candidate].Position]])
}

// Report implements [algorithms.Cluster].
func (i informer) Report(endpoint int) algorithms.Report {
	if i.s.reports.node != noNode {
		i.s.message()
	}
	return i.s.report(int32(endpoint))
}

// Probe implements [algorithms.Cluster].
func (i informer) Probe(endpoint int, of *balance.Endpoint, to algorithms.Prober) {
	s, r := i.s, &i.s.reports
	if r.node == noNode {
		return
	}
	s.message()
	id := recordOf(&r.asked, &r.unused)
	r.asked[id] = asked{to: to, endpoint: of, server: int32(endpoint)}
	if e := s.counts(int32(endpoint)); e.newest == nil {
		e.newest = make([]response, 0, responses)
	}
	if r.begins == nil {
		r.begins = make([]int32, 0, len(s.connections))
	}
	s.queue.add(s.now+int64(s.c.Workload.RoundTrip)/2, probed, id, 0)
}

// probed: a probe reaches its endpoint.
func (s *simulation) probed(id int32) {
	a := &s.reports.asked[id]
	if !s.servers[a.server].present {
		s.forget(id)
		return
	}
	a.report = s.report(a.server)
	s.queue.add(s.now+int64(s.c.Workload.RoundTrip)/2, heard, id, 0)
}

// heard: the answer reaches the node.
func (s *simulation) heard(id int32) {
	a := &s.reports.asked[id]
	a.to.Answer(a.endpoint, a.report, s.now)
	s.forget(id)
}

func (s *simulation) forget(id int32) {
	s.reports.asked[id] = asked{}
	s.reports.unused = append(s.reports.unused, id)
}

// Posted implements [algorithms.Cluster]. A board that is due is renewed when it is read.
func (i informer) Posted(age time.Duration) []int32 {
	s := i.s
	b := s.reports.boards[age]
	if b == nil {
		b = &board{epoch: -1}
		if s.reports.boards == nil {
			s.reports.boards = make(map[time.Duration]*board)
		}
		s.reports.boards[age] = b
	}
	if epoch := s.now / int64(age); epoch != b.epoch {
		b.epoch, b.open = epoch, b.open[:0]
		for i := range s.servers {
			b.open = append(b.open, s.servers[i].open())
		}
	}
	return b.open
}

// Join implements [algorithms.Cluster].
func (i informer) Join(set *balance.Set, queue algorithms.IdleQueue) {
	s, r := i.s, &i.s.reports
	if r.node == noNode || len(set.Candidates) == 0 {
		return
	}
	if r.queues == nil {
		r.queues, r.rand = make(map[int32][]nodeQueue), stream(s.seed, "idle queue", 0)
	}
	service := s.servers[i.Endpoint(set, 0)].service
	all := r.queues[service]
	for i := range all {
		if all[i].node == r.node {
			for id := range s.servers { // those in the queue before are in this one
				if e := s.servers[id].reported; e != nil && e.queue == all[i].queue {
					e.queue = queue
				}
			}
			all[i].queue = queue
			return
		}
	}
	r.queues[service] = append(all, nodeQueue{r.node, queue})
}

// idle: an endpoint has become idle, and joins the queue of a node.
func (s *simulation) idle(number int32) {
	e := &s.servers[number]
	all := s.reports.queues[e.service]
	if len(all) == 0 || !e.listed {
		return
	}
	q := &all[s.reports.rand.IntN(len(all))]
	if !s.nodes[q.node].alive {
		return
	}
	s.counts(number).queue = q.queue
	q.queue.Idle(s.origins[number].addr)
	s.message()
}

// enter: an endpoint gets a connection.
func (s *simulation) enter(id int32, e *server) {
	if r := &s.reports; r.begins != nil {
		for int(id) >= len(r.begins) {
			r.begins = append(r.begins, 0)
		}
		r.begins[id] = e.open() + 1
	}
	if e.reported == nil || e.reported.queue == nil {
		return
	}
	q := e.reported.queue
	if e.reported.queue = nil; q.Busy(s.origins[s.connections[id].server].addr) {
		s.message()
	}
}

// served: the work on a connection has ended.
func (s *simulation) served(id int32) {
	c := &s.connections[id]
	r := s.servers[c.server].reported
	if r == nil {
		return
	}
	if b := s.reports.begins; r.newest != nil && int(id) < len(b) { // others began before the first probe
		one := response{b[id], s.now - c.decided(), s.now}
		if len(r.newest) < responses {
			r.newest = append(r.newest, one)
		} else {
			r.newest[r.done%responses] = one
		}
	}
	r.done++
	r.worked += c.work
}

// report is what an endpoint reports. The latency is the median of the recent responses that began with the number of connections
// that a new one would, or with the nearest one.
func (s *simulation) report(number int32) algorithms.Report {
	e := &s.servers[number]
	counts := s.counts(number)
	r := algorithms.Report{Open: int(e.open()), Done: counts.done, Worked: time.Duration(counts.worked)}
	var near [responses]int64
	n, nearest := 0, int32(-1)
	for _, one := range counts.newest {
		if s.now-one.at > int64(recent) {
			continue
		}
		d := max(one.open-e.open()-1, e.open()+1-one.open)
		if nearest < 0 || d < nearest {
			n, nearest = 0, d
		}
		if d == nearest {
			near[n] = one.nanos
			n++
		}
	}
	if n > 0 {
		slices.Sort(near[:n])
		r.Latency = time.Duration(near[n/2])
	}
	return r
}
