package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/algorithms"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// ErrStopped is the error of a run that Options.Progress stopped.
var ErrStopped = errors.New("the simulation was stopped")

// simulation is a run.
type simulation struct {
	c      *Config
	o      Options
	seed   uint64
	now    int64
	queue  queue
	closed entries

	nodes       []node
	servers     []server
	origins     []origin // of servers
	connections []connection
	unused      []int32             // of connections
	failed      [][maxRetries]int32 // of connections: servers that refused them or did not answer; only with second chances
	members     [][]int32
	control     control
	probes      map[int32]*probe
	scalers     []scaler
	sessions    *sessions // nil: each flow is a request
	reports     reports

	giveUp, timeWait int64
	secondChance     bool
	byKernel         bool       // Workload.Accept
	delay            *rand.Rand // of changes
	script           *Script    // that is written; nil: none

	result        Result
	window        Window
	connects      stats.Times // in this window
	waits, waited int
	nextWindow    int64
	first         decision.Packet // for reuse, see packet
	opened        uint64          // flows
	trackAll      bool            // events are passed on, whatever the algorithm reads
	measured      uint64          // of how many new flows the decision of one is measured
	loads         []float64       // for reuse
	weights       []uint16        // for reuse
}

// node is a node: its clients' flows are decided here.
type node struct {
	table    *decision.Table
	version  uint32
	balancer *balance.Balancer
	routes   map[int32]*route // by service, by the table
	rand     *rand.Rand
	number   int32
	zone     int32 // in control.tables
	alive    bool
	factor   float64 // of the time of its endpoints' work
}

// Run simulates the cluster with an algorithm, as package balance spells it, or with [SecondChance] after
// that. Runs with the same seed have the same flows, whatever the algorithm. The config must be valid ([Config.Validate]), and is only read.
func Run(c *Config, algorithm string, seed uint64, o Options) (*Result, error) {
	if problems := c.Validate(); len(problems) > 0 {
		return nil, fmt.Errorf("%s: %s", problems[0].Field, problems[0].Text)
	}
	s := newSimulation(c, seed, o)
	if err := s.simulate(algorithm); err != nil {
		return nil, err
	}
	return &s.result, nil
}

func (s *simulation) simulate(algorithm string) error {
	algorithm, s.secondChance = strings.CutSuffix(algorithm, SecondChance)
	if err := s.build(algorithm); err != nil {
		return err
	}
	s.schedule()
	if err := s.run(); err != nil {
		return err
	}
	s.finish()
	return nil
}

func newSimulation(c *Config, seed uint64, o Options) *simulation {
	if o.Algorithms == nil {
		o.Algorithms = algorithms.Names()
	}
	s := &simulation{
		c: c, o: o, seed: seed, byKernel: c.Workload.Accept == ByKernel, measured: 16, first: decision.Packet{Protocol: decision.TCP},
		giveUp: int64(cmp.Or(c.Workload.GiveUp, DefaultGiveUp)), timeWait: int64(cmp.Or(c.Workload.TimeWait, defaultTimeWait)),
		delay: stream(seed, "delay", 0), probes: make(map[int32]*probe),
	}
	if c.Workload.Requests != nil {
		s.result.Requests = new(RequestResult)
		s.sessions = newSessions(c, s.result.Requests)
	}
	return s
}

// schedule prepares what happens by itself.
func (s *simulation) schedule() {
	for i := range s.c.Events {
		s.queue.add(int64(s.c.Events[i].At), change, 0, uint32(i))
	}
	s.nextWindow = int64(s.c.WindowLength())
}

// WindowLength is the time between rows of the time series.
func (c *Config) WindowLength() time.Duration {
	const rows = 60
	return max(cmp.Or(c.Window, c.Duration/rows), 1)
}

// run is the loop: the next arrival, event, end of a window or end of an entry, whichever comes first.
func (s *simulation) run() error {
	flows := newSource(s.c, s.seed)
	end := int64(s.c.Duration)
	var flow Flow
	arrival := int64(never)
	next := func() {
		if arrival = never; flows.next(&flow) {
			arrival = int64(flow.At)
		}
	}
	next()
	const often = 1 << 16
	for steps := 1; ; steps++ {
		if steps%often == 0 && s.o.Progress != nil && !s.o.Progress(time.Duration(s.now)) {
			return ErrStopped // a window may have billions of flows
		}
		at := min(arrival, s.queue.next())
		for s.nextWindow <= min(at, end) {
			s.now = s.nextWindow
			s.expire()
			s.sample()
			s.nextWindow += int64(s.c.WindowLength())
			if s.o.Progress != nil && !s.o.Progress(time.Duration(s.now)) {
				return ErrStopped
			}
		}
		if arrival >= end {
			arrival = never
		}
		if at = min(arrival, s.queue.next()); at > 2*int64(longest) { // never, or queues that would end after years
			return nil
		}
		s.now = at
		s.expire()
		if arrival <= s.queue.next() {
			s.arrive(&flow)
			next()
			continue
		}
		s.happen(s.queue.take())
	}
}

// expire removes the entries of connections that were closed some time ago.
func (s *simulation) expire() {
	for s.closed.n > 0 {
		e := s.closed.at(0)
		if e.until > s.now {
			return
		}
		if e.node >= 0 {
			e.tracked.Observe(balance.Event{Kind: balance.Ended, At: e.until})
		}
		s.closed.pop()
	}
}

// happen does what is due.
func (s *simulation) happen(e timed) {
	switch e.kind {
	case workDone, idleDone, gaveUp, again, timedOut, hedged:
		if c := &s.connections[e.id]; c.phase == free || c.use != e.tag {
			return // it has broken before
		}
		switch e.kind {
		case workDone:
			s.done(e.id)
		case idleDone:
			s.close(e.id)
		case again:
			s.tryAgain(e.id)
		case timedOut, hedged:
			s.timer(e)
		default:
			s.abandon(e.id)
		}
	case delivered:
		s.deliver(e.id, e.tag)
	case probed:
		s.probed(e.id)
	case heard:
		s.heard(e.id)
	case overdue, retry, thought:
		s.timer(e)
	default:
		if e.at < int64(s.c.Duration) { // afterwards, connections end in peace
			s.change(e)
		}
	}
}

// abandon: a client without a reply gives up.
func (s *simulation) abandon(id int32) {
	c := &s.connections[id]
	if c.counted {
		s.result.Unanswered++
		s.window.Unanswered++
	}
	s.fail(c, balance.Unanswered)
	s.discard(id)
}

// arrive is a new flow.
func (s *simulation) arrive(f *Flow) {
	n := &s.nodes[f.Node]
	switch {
	case !n.alive:
	case s.sessions != nil:
		s.meet(f)
	default:
		if id := s.connect(n, f, s.now >= int64(s.c.Warmup)); id >= 0 {
			s.offer(id)
		}
	}
}

// connect decides a flow, and returns its connection, which is not offered to its endpoint yet; below 0: the node refuses it.
func (s *simulation) connect(n *node, f *Flow, counted bool) int32 {
	client := int32(f.Client)
	if counted {
		s.result.Flows++
		s.window.Flows++
	}
	server, tracked, hasTracker := s.open(n, client, f.Port, int32(f.Service))
	if server < 0 {
		s.countRefused(counted)
		return -1
	}
	id := s.newConnection()
	c := &s.connections[id]
	*c = connection{
		arrived: s.now, work: int64(f.Work), idle: int64(f.Idle), server: server, node: n.number, client: client, port: f.Port,
		use: c.use, counted: counted, tracked: tracked, hasTracker: hasTracker,
	}
	e := &s.servers[server]
	if counted {
		e.flows++
	}
	e.recent++
	return id
}

func (s *simulation) countRefused(counted bool) {
	if counted {
		s.result.Refused++
		s.window.Refused++
	}
}

// observe passes an event of a connection on to the algorithm, if it may read what comes of it.
func (s *simulation) observe(c *connection, k balance.EventKind, after int64) {
	if c.hasTracker && !s.openOnly(c) {
		c.tracked.Observe(balance.Event{Kind: k, At: s.now, After: time.Duration(after)})
	}
}

// openOnly reports whether the algorithm of a connection with a tracker reads the number of open connections only.
func (s *simulation) openOnly(c *connection) bool { return !s.trackAll && c.tracked.OpenOnly() }

// untrack ends a connection without an entry that remains.
func (s *simulation) untrack(c *connection) {
	s.inactive(c, false)
	c.hasTracker = false
}
