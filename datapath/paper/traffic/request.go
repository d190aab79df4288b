package traffic

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/exactlog"
)

// Requests is what clients do with their connections. Without it each flow is a connection with one request, for which
// the client waits until the end.
//
// With it, an arrival is a client that sends one request, or several one after the other on a connection. Each attempt
// at a request beyond the first has a connection of its own, for which a node selects an endpoint as for any other: it
// may be the same one. The client goes on with the connection that has answered.
type Requests struct {
	// PerConnection is the number of requests of a client; nil: 1. Between a response and the next request is the
	// time Think; nil: none. No request begins after [Config.Duration].
	PerConnection *Count        `json:"perConnection"`
	Think         *Distribution `json:"think"`
	// Deadline is after what time a request without a response is an error; 0: none. It counts from the beginning of the request.
	Deadline time.Duration `json:"deadline"`
	// Attempts is how often a request is sent at most, with the first time; 0: 1. A further attempt begins when one has
	// failed: its endpoint or node refused it, its connection broke, or there was no response in time.
	Attempts int `json:"attempts"`
	// Timeout is after what time an attempt without a response has failed; 0: it waits. Backoff is the time from a
	// failure to the attempt that follows; nil: none.
	Timeout time.Duration `json:"timeout"`
	Backoff *Distribution `json:"backoff"`
	// Hedge is after what time without a response another attempt begins beside the one that is under way; 0: none does.
	// A response that is on its way counts as one.
	Hedge time.Duration `json:"hedge"`
	// Budget bounds further attempts to this share of a client address's requests; 0: no bound. An address saves up to 10 of them,
	// and begins with none.
	Budget float64 `json:"budget"`
	// Cancel: an endpoint stops an attempt that the client no longer waits for. Otherwise it works on it to the end.
	Cancel bool `json:"cancel"`
	// SameWork: all attempts at a request have the same work. Otherwise each draws its own.
	SameWork bool `json:"sameWork"`
}

// MaxAttempts is the largest number of attempts at a request, as with gRPC.
const MaxAttempts = 5

// Count is a distribution of whole numbers from 1 on.
type Count struct {
	// Kind is constant, geometric or empirical.
	Kind string  `json:"distribution"`
	Mean float64 `json:"mean"`
	// Values are those of empirical: each with the same probability.
	Values []int `json:"values"`
}

const geometric = "geometric"

var counts = []string{constant, geometric, empirical}

// maxCount bounds the numbers of a Count.
const maxCount = 1_000_000

func (d *Count) draw(r *rand.Rand) int {
	switch {
	case d == nil:
		return 1
	case d.Kind == empirical:
		return d.Values[r.IntN(len(d.Values))]
	case d.Kind == geometric && d.Mean > 1:
		return 1 + int(min(unitExponential(r)/-exactlog.Log(1-1/d.Mean), maxCount-1))
	}
	return int(d.Mean)
}

// average is the mean of the numbers that draw draws.
func (d *Count) average() float64 {
	switch {
	case d == nil:
		return 1
	case d.Kind != empirical:
		return d.Mean
	}
	sum := 0.0
	for _, v := range d.Values {
		sum += float64(v)
	}
	return sum / float64(max(len(d.Values), 1))
}

// perFlow is how many requests an arrival has on average.
func (w *Workload) perFlow() float64 {
	if w.Requests == nil {
		return 1
	}
	return w.Requests.PerConnection.average()
}

// RequestResult is what came of requests. Counts are of those that began after the warm-up.
type RequestResult struct {
	N int
	// Late had no response until their deadline, Failed had none because all attempts failed before it.
	Late, Failed int
	// Retries are attempts after a failure, Hedges those beside another one.
	Retries, Hedges int
	// Worked is the time, in nanoseconds, that endpoints worked after the warm-up, Wasted the part of it on attempts whose response
	// no client used.
	Worked, Wasted float64
	// MaxOverMean and Jain are about the endpoints' attempts after the warm-up.
	MaxOverMean, Jain float64
}

// sessions are the clients that have a request under way or to come.
type sessions struct {
	*Requests
	result   *RequestResult
	attempts int // at a request, at most
	all      []session
	unused   []int32
	tries    []try   // of connections
	begun    []int32 // attempts of servers after the warm-up
	savings  []int64 // of client addresses: attempts that the budget allows, in millionths
	share    int64   // that a request adds
	pcg      *rand.PCG
	rand     *rand.Rand // of pcg
	flow     Flow       // for reuse
}

// session is a client with its requests, of which at most one is under way.
type session struct {
	arrived int64  // the request
	work    int64  // of its first attempt
	idle    int64  // after the last request
	seed    uint64 // of what the algorithm has no influence on
	client  int32
	service int32
	left    int32              // requests that follow
	number  uint32             // of the request
	use     uint32             // of the record by a request
	kept    int32              // the connection between two requests; -1: none
	live    [MaxAttempts]int32 // connections of attempts under way
	n       uint8              // in live
	sent    uint8              // attempts that have begun
	due     uint8              // attempts that begin after a failure
	port    uint16             // of the first connection
	counted bool               // the request began after the warm-up
}

// try is an attempt, by its connection.
type try struct {
	session int32 // -1: nobody waits for it
	began   int64 // the work
}

const millionths = 1_000_000

// savedAttempts is how many attempts an address saves.
const savedAttempts = 10

func newSessions(c *Config, of *RequestResult) *sessions {
	q := c.Workload.Requests
	k := &sessions{Requests: q, result: of, attempts: cmp.Or(q.Attempts, 1), share: int64(math.Round(q.Budget * millionths)), pcg: rand.NewPCG(0, 0)}
	k.rand = rand.New(k.pcg)
	if q.Budget > 0 {
		k.savings = make([]int64, c.PerNode()*len(c.Cluster.Nodes))
	}
	return k
}

// draws are random numbers for a purpose of the session's request: the same, whatever the algorithm.
func (k *sessions) draws(q *session, purpose uint64) *rand.Rand {
	const golden = 0x9e3779b97f4a7c15 // spreads the bits
	k.pcg.Seed(q.seed, (uint64(q.number)<<8|purpose)*golden)
	return k.rand
}

// The purposes of draws, above the numbers of attempts.
const (
	forThink   = 0x80
	forBackoff = 0x90
)

// allows reports whether the request may be sent again, and if so takes an attempt from the budget.
func (k *sessions) allows(q *session) bool {
	if int(q.sent)+int(q.due) >= k.attempts {
		return false
	}
	if k.savings == nil {
		return true
	}
	saved := &k.savings[q.client]
	if *saved < millionths {
		return false
	}
	*saved -= millionths
	return true
}

// within is the time from now at which a response must leave the endpoint so that it arrives in time.
func (s *simulation) within(d time.Duration) int64 {
	return s.now + max(int64(d-s.c.Workload.RoundTrip), 0)
}

// meet begins the requests of an arrival.
func (s *simulation) meet(f *Flow) {
	k := s.sessions
	id := recordOf(&k.all, &k.unused)
	q := &k.all[id]
	*q = session{
		work: int64(f.Work), idle: int64(f.Idle), seed: f.Seed, client: int32(f.Client), service: int32(f.Service), left: int32(f.Requests), use: q.use,
		kept: -1, port: f.Port,
	}
	s.nextRequest(id)
}

// nextRequest begins a client's next request.
func (s *simulation) nextRequest(id int32) {
	k := s.sessions
	q := &k.all[id]
	if q.left == 0 || s.now >= int64(s.c.Duration) || !s.clientOf(q).alive {
		s.leaveSession(id)
		return
	}
	q.left--
	q.arrived, q.counted, q.sent, q.due = s.now, s.now >= int64(s.c.Warmup), 0, 0
	if q.number > 0 {
		q.work = s.c.Workload.Work.draw(k.draws(q, 0))
	}
	if q.counted {
		k.result.N++
	}
	if k.savings != nil {
		k.savings[q.client] = min(k.savings[q.client]+k.share, savedAttempts*millionths)
	}
	if k.Deadline > 0 {
		s.queue.add(s.within(k.Deadline), overdue, id, q.use)
	}
	s.attempt(id)
}

// clientOf is the node of a client.
func (s *simulation) clientOf(q *session) *node { return &s.nodes[int(q.client)/s.c.PerNode()] }

// attempt sends a request: on the connection that the client has, or on a new one.
func (s *simulation) attempt(id int32) {
	k := s.sessions
	q := &k.all[id]
	port, work, n := q.port, q.work, s.clientOf(q)
	connection, kept := q.kept, q.kept >= 0
	if q.sent > 0 || q.number > 0 && !kept {
		r := k.draws(q, uint64(q.sent))
		if w := s.c.Workload.Work.draw(r); q.sent > 0 && !k.SameWork {
			work = w
		}
		port = firstPort + uint16(r.IntN(cmp.Or(s.c.Workload.Clients.Ports, portRange)))
	}
	q.sent++
	if q.kept = -1; !kept {
		k.flow = Flow{Client: int(q.client), Port: port, Service: int(q.service), Work: time.Duration(work), Idle: time.Duration(q.idle)}
		if connection = s.connect(n, &k.flow, q.counted); connection < 0 {
			s.noResponse(id)
			return
		}
	}
	for int(connection) >= len(k.tries) {
		k.tries = append(k.tries, try{})
	}
	k.tries[connection] = try{session: id}
	q.live[q.n] = connection
	q.n++
	c := &s.connections[connection]
	if q.counted {
		for int(c.server) >= len(k.begun) {
			k.begun = append(k.begun, 0)
		}
		k.begun[c.server]++
	}
	if k.Timeout > 0 {
		s.queue.add(s.within(k.Timeout), timedOut, connection, c.use)
	}
	if k.Hedge > 0 && int(q.sent) < k.attempts {
		s.queue.add(s.now+int64(k.Hedge), hedged, connection, c.use)
	}
	if kept {
		c.arrived, c.work, c.retries, c.again = s.now, work, 0, true
		s.remove(&s.servers[c.server].taken, connection)
	}
	s.offer(connection)
}

// request is when the request of a connection began, and whether results have it; false also if nobody waits for it.
func (k *sessions) request(connection int32) (arrived int64, counted bool) {
	id := k.tries[connection].session
	if id < 0 {
		return 0, false
	}
	return k.all[id].arrived, k.all[id].counted
}

// respond: the work on a connection's request has ended.
func (s *simulation) respond(id int32) {
	k := s.sessions
	t, c := &k.tries[id], &s.connections[id]
	s.spent(id, t.session < 0)
	if t.session < 0 {
		s.close(id)
		return
	}
	number := t.session
	q := &k.all[number]
	t.session = -1
	s.dropAll(q, id)
	switch {
	case q.left > 0:
		c.phase, t.session, q.kept = idles, number, id
		c.use++ // the timers of this request are over
	case c.idle > 0:
		c.phase = idles
		s.queue.add(s.now+c.idle, idleDone, id, c.use)
	default:
		s.close(id)
	}
	s.over(number)
}

// spent notes the time that a worker spent on an attempt.
func (s *simulation) spent(id int32, wasted bool) {
	k := s.sessions
	if s.now < int64(s.c.Warmup) {
		return
	}
	time := float64(s.now - k.tries[id].began)
	k.result.Worked += time
	if wasted {
		k.result.Wasted += time
	}
}

// over is the end of a request: the next one follows when the client knows.
func (s *simulation) over(id int32) {
	k := s.sessions
	q := &k.all[id]
	q.use++
	if q.left == 0 {
		s.leaveSession(id)
		return
	}
	think := k.Think.draw(k.draws(q, forThink))
	q.number++
	s.queue.add(s.now+int64(s.c.Workload.RoundTrip)+think, thought, id, q.use)
}

// leaveSession ends the use of a client's record.
func (s *simulation) leaveSession(id int32) {
	k := s.sessions
	q := &k.all[id]
	if kept := q.kept; kept >= 0 {
		k.tries[kept].session = -1
		s.close(kept)
	}
	q.use++
	k.unused = append(k.unused, id)
}

// ended: a connection has ended without a response. If a client has it, the request may be sent again.
func (s *simulation) ended(connection int32) {
	k := s.sessions
	if int(connection) >= len(k.tries) {
		return
	}
	t := &k.tries[connection]
	id := t.session
	if t.session = -1; id < 0 {
		return
	}
	q := &k.all[id]
	if q.kept == connection {
		q.kept = -1
		return
	}
	q.remove(connection)
	s.noResponse(id)
}

// remove removes an attempt.
func (q *session) remove(connection int32) {
	i := slices.Index(q.live[:q.n], connection)
	q.n--
	q.live[i] = q.live[q.n]
}

// noResponse: an attempt has failed. The client knows after a round trip.
func (s *simulation) noResponse(id int32) {
	k := s.sessions
	q := &k.all[id]
	alive := s.clientOf(q).alive
	if alive && k.allows(q) {
		q.due++
		s.queue.add(s.now+int64(s.c.Workload.RoundTrip)+k.Backoff.draw(k.draws(q, forBackoff+uint64(q.sent))), retry, id, q.use)
		return
	}
	if q.n > 0 || q.due > 0 {
		return
	}
	if q.counted && alive {
		k.result.Failed++
	}
	s.over(id)
}

// dropAll: the client waits for none of its attempts but one.
func (s *simulation) dropAll(q *session, but int32) {
	live := q.live
	n := q.n
	q.n = 0
	for _, id := range live[:n] {
		if id != but {
			s.drop(id)
		}
	}
}

// drop: the client no longer waits for a connection.
func (s *simulation) drop(id int32) {
	c := &s.connections[id]
	s.sessions.tries[id].session = -1
	switch phase := c.phase; {
	case phase == unanswered || phase == refused:
		s.abandon(id)
	case !s.sessions.Cancel: // the endpoint does not know
	case phase == waits:
		s.remove(&s.servers[c.server].waiting, id)
		s.inactive(c, true)
		s.release(id)
	default:
		s.spent(id, true)
		server := c.server
		s.close(id)
		s.rest(server)
	}
}

// timer is a timer of a client.
func (s *simulation) timer(e timed) {
	k := s.sessions
	id := e.id
	if e.kind == timedOut || e.kind == hedged {
		if id = k.tries[e.id].session; id < 0 {
			return // the client no longer waits for the connection
		}
	}
	q := &k.all[id]
	if e.kind != timedOut && e.kind != hedged && q.use != e.tag {
		return // the request is over
	}
	if !s.clientOf(q).alive {
		s.dropAll(q, -1)
		s.leaveSession(id)
		return
	}
	switch e.kind {
	case thought:
		s.nextRequest(id)
	case overdue:
		if q.counted {
			k.result.Late++
		}
		s.dropAll(q, -1)
		s.over(id)
	case retry:
		q.due--
		if q.counted {
			k.result.Retries++
		}
		s.attempt(id)
	case timedOut:
		q.remove(e.id)
		s.drop(e.id)
		s.noResponse(id)
	case hedged:
		if !k.allows(q) {
			return
		}
		if q.counted {
			k.result.Hedges++
		}
		s.attempt(id)
	}
}
