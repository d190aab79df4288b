// Package journal keeps the newest flows of a node and their life cycles: it receives decided
// flows from the datapath's workers and events from the kernel's connection tracking. Any number
// of readers can follow it, and a slow reader delays nothing.
//
// Its memory is bounded: see [Config].
package journal

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Config bounds the memory of a journal.
type Config struct {
	// Flows is the maximum number of flows; 0: 16,384. One takes about 0.8 KiB, with four events;
	// the kernel gives memory as flows arrive.
	Flows int
	// ServiceBytes limits the memory of service ports that are kept for flows, with their
	// candidates, beyond those of the table in force; 0: 16 MiB. Beyond it older flows are
	// evicted.
	ServiceBytes int
	// Generations is the maximum number of generations of the service table that are kept; 0: 1,024.
	// GenerationBytes limits the memory that they take beyond the table in force; 0: 16 MiB. Beyond either the
	// oldest ones are dropped.
	Generations, GenerationBytes int
	// Observe: another service proxy decides the flows; nil: nfqproxy does.
	Observe *Observe
	Meter   Meter // nil: none
}

// inputCapacity is the capacity of the input queue of flows: about 3 MiB, twice. It is emptied when
// it is half full, at the latest.
const inputCapacity = 8192

// gatherFlows is how long the journal waits for more flows before it takes them over, and gather is
// that for events: what costs a wake-up is then paid once for many.
const (
	gatherFlows = 20 * time.Millisecond
	gather      = 5 * time.Millisecond
)

// gatherObserved is that for events of another proxy's connections. No flow comes before them, so nobody waits for a sooner one.
const gatherObserved = 40 * time.Millisecond

// Journal is the memory of one node's flows. It is safe for concurrent use.
type Journal struct {
	prefix  string // of flow IDs
	started time.Time
	observe *Observe

	intake struct {
		mu      sync.Mutex
		flows   []flow.Flow
		offered chan struct{} // holds something if there are flows
		filling chan struct{} // holds something if the queue has become half full
	}
	lost     atomic.Uint64
	follower atomic.Pointer[follower] // nil: no conntrack events

	following sync.Mutex // held by SetTable

	mu     sync.RWMutex // guards what follows
	spare  []flow.Flow  // becomes the intake's next slice
	flows  ring[entry]
	notes  ring[note]
	tuples tuples
	nodes  nodes
	ports  retained
	// waited is up to which flow all have had their time to be answered.
	waited uint64
	// open counts flows that may go on, forgotten those that were open when they made room
	// for others.
	open      int
	forgotten uint64
	services  tallies
	changes   changes
	inForce   *decision.Table // nil: none yet
	unpruned  bool            // services was not pruned by it
	pruned    time.Time
	kernel    kernelView
	// generations are the newest tables, up to inForce.
	generations generations
	// changed is closed and made anew when there are notes.
	changed chan struct{}
}

// New returns an empty journal. [Journal.Run] must run to process its input.
func New(c Config) *Journal {
	capacity := cmp.Or(c.Flows, 16384)
	j := &Journal{
		prefix: strconv.FormatUint(rand.Uint64N(1<<30)|1<<30, 32), started: time.Now(), observe: c.Observe,
		flows: newRing[entry](capacity), notes: newRing[note](4 * capacity), tuples: tuples{maphash.MakeSeed(), make([]uint64, capacity)},
		ports:       retained{limit: cmp.Or(c.ServiceBytes, 16<<20), ports: make(map[*decision.ServicePort]*usedPort)},
		generations: generations{limit: cmp.Or(c.Generations, 1024), byteLimit: cmp.Or(c.GenerationBytes, 16<<20)},
		services:    make(tallies),
		changes:     changes{ports: make(map[portKey]*history), meter: c.Meter},
		changed:     make(chan struct{}), waited: 1,
		kernel: kernelView{Kernel: observe.Kernel{Why: "conntrack events are disabled"}, announced: 1, rush: make(chan float64, 1)},
	}
	if c.Observe != nil {
		j.changes.rules = newProxyRules()
	}
	j.intake.offered, j.intake.filling = make(chan struct{}, 1), make(chan struct{}, 1)
	return j
}

// Flows takes decided flows, which it copies. It blocks only for a concurrent call; on overflow
// flows are lost and counted. It is the datapath's FlowSink.
func (j *Journal) Flows(flows []flow.Flow) {
	in := &j.intake
	in.mu.Lock()
	n := min(len(flows), inputCapacity-len(in.flows))
	in.flows = append(in.flows, flows[:n]...)
	waiting := len(in.flows)
	in.mu.Unlock()
	if n < len(flows) {
		j.lost.Add(uint64(len(flows) - n))
	}
	if waiting > 0 && waiting == n {
		signal(in.offered)
	}
	if waiting >= inputCapacity/2 && waiting-n < inputCapacity/2 {
		signal(in.filling)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Lost returns the number of flows lost by overflow.
func (j *Journal) Lost() uint64 { return j.lost.Load() }

// Started returns the time when the journal was created.
func (j *Journal) Started() time.Time { return j.started }

// Run processes flows until the context ends, and then the remaining ones.
func (j *Journal) Run(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	pause := time.NewTimer(0)
	<-pause.C
	for {
		select {
		case <-ctx.Done():
			j.take(time.Now())
			return
		case now := <-tick.C:
			j.take(now)
		case <-j.intake.offered:
			// The first of a burst is taken at once: a reader of a single flow sees it
			// without delay.
			j.take(time.Now())
			pause.Reset(gatherFlows)
			select {
			case <-pause.C:
			case <-j.intake.filling:
			case <-ctx.Done():
			}
		}
	}
}

// take processes the input of the workers, and detects unanswered flows.
func (j *Journal) take(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.takeLocked()
	j.kernel.retry(j, now)
	j.lookForUnanswered(now)
	j.prune(now)
	j.changes.judgeOld(now)
	j.announce()
}

// takeLocked is the first part of take.
func (j *Journal) takeLocked() {
	j.intake.mu.Lock()
	flows := j.intake.flows
	j.intake.flows = j.spare[:0]
	j.intake.mu.Unlock()
	for i := range flows {
		j.insert(&flows[i], past{})
	}
	clear(flows) // their tables must not be kept
	j.spare = flows
	j.kernel.detectRush(time.Now())
}

// announce wakes the readers that wait.
func (j *Journal) announce() {
	if j.notes.next != j.kernel.announced {
		j.kernel.announced = j.notes.next
		close(j.changed)
		j.changed = make(chan struct{})
	}
}

// past is of a flow that began before the journal knew it.
type past struct {
	inherited  bool
	undated    bool // when it began is not known
	incomplete bool // something of its life may be missed
}

// insert adds a flow: a new one, or a retransmission of a known one.
func (j *Journal) insert(f *flow.Flow, p past) {
	k := keyOf(uint8(f.Packet.Protocol), f.Packet.Source, f.Packet.Destination)
	if previous, e := j.newest(k); e != nil {
		if e.repeatedBy(f) {
			e.life.repeated++
			j.note(previous, e, flow.Repeated, f.Time.UnixNano())
			return
		}
		j.failedBefore(previous, e, f)
	}
	if j.flows.full() {
		j.forget()
	}
	if !p.inherited {
		j.kernel.begun++
	}
	e, number := j.flows.add()
	*e = entry{kept: keep(f, k), life: newLife(f), older: j.tuples.add(k, number)}
	e.node = j.nodes.keep(f.Node)
	before := f.Entry() && f.Outcome == conntrack.Kept
	e.inherited = p.inherited || before
	e.life.incomplete = p.incomplete || !e.life.over && (before || !j.kernel.complete())
	if s := f.Decision.ServicePort; s != nil {
		e.port = j.ports.use(s, j.services, &j.changes)
		e.tally(number, f, p.undated, &j.changes)
		for j.ports.full() && j.flows.len() > 1 {
			j.forget()
		}
	}
	if e.life.open() {
		j.open++
	}
	j.note(number, e, e.life.state, f.Time.UnixNano())
}

// forget evicts the oldest flow.
func (j *Journal) forget() {
	number := j.flows.oldest
	e := j.flows.at(number)
	if e.life.open() {
		j.forgotten++
		j.notOpen(e, 0)
	}
	if e.port != nil {
		j.ports.release(e.port)
	}
	j.flows.drop()
}

// note publishes an event of a flow to the readers.
func (j *Journal) note(number uint64, e *entry, what flow.Event, at int64) {
	e.history.add(what, at)
	if j.notes.full() {
		j.notes.drop()
	}
	n, _ := j.notes.add()
	*n = note{number, what, at, time.Now().UnixNano(), e.life}
	n.life.incomplete = j.incomplete(number, e)
}

// lookForUnanswered detects the flows without a reply in time. It looks at each flow
// once. Without conntrack events, replies are not known.
func (j *Journal) lookForUnanswered(now time.Time) {
	j.waited = max(j.waited, j.flows.oldest)
	// More than the workers can add meanwhile: the rest is processed soon.
	for end := min(j.flows.next, j.waited+2*inputCapacity); j.waited < end; j.waited++ {
		e := j.flows.at(j.waited)
		if now.UnixNano()-e.time < int64(flow.UnansweredAfter) {
			return
		}
		if e.life.state == flow.Decided && !e.life.over && j.kernel.complete() && !j.incomplete(j.waited, e) {
			j.change(j.waited, e, flow.Unanswered, now.UnixNano())
		}
	}
}

// change puts a flow into another state.
func (j *Journal) change(number uint64, e *entry, s flow.State, at int64) {
	j.enter(e, s, at)
	j.note(number, e, s, at)
}

// enter puts a flow into another state, about which readers need no event.
func (j *Journal) enter(e *entry, s flow.State, at int64) {
	open := e.life.open()
	e.countState(e.life.state, s)
	e.life.state, e.life.since = s, at
	if open && !e.life.open() {
		j.notOpen(e, at)
	}
}

// notOpen counts a flow that was open and is not any more, since a time; 0: it is evicted.
func (j *Journal) notOpen(e *entry, at int64) {
	j.open--
	if of := e.counts(); of != nil {
		of.closed = max(of.closed, at)
	}
	e.count(observe.Flows{Open: oneLess})
}

// ID returns the ID of the flow with a number.
func (j *Journal) ID(number uint64) string {
	return j.prefix + "-" + strconv.FormatUint(number, 10)
}

// number is the inverse of ID; 0: not an ID of this journal.
func (j *Journal) number(id string) uint64 {
	prefix, digits, ok := strings.Cut(id, "-")
	if !ok || prefix != j.prefix {
		return 0
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// nodes keeps one copy of a node for all flows that were decided while it was the same.
type nodes struct {
	from *decision.Node // the one that copy is of; its table is not kept for long
	copy *decision.Node
}

func (n *nodes) keep(node *decision.Node) *decision.Node {
	if n.from != node {
		n.from = node
		if n.copy == nil || !reflect.DeepEqual(n.copy, node) {
			n.copy = new(*node)
		}
	}
	return n.copy
}

// retained are the service ports that flows hold on to. Those of the table in force are there
// anyway, so the limit applies to what exceeds that table's size.
type retained struct {
	limit, inForce, bytes int // inForce is the size of the table's, bytes that of those that flows hold on to: about
	// ports are those that flows hold on to, and the newest one of each tally: with many services the next flow to one comes when
	// the last one is long forgotten.
	ports map[*decision.ServicePort]*usedPort
}

// usedPort is a service port, as it was in one or more tables, that flows hold on to.
type usedPort struct {
	port  *decision.ServicePort
	flows int
	tally *tally
	// endpoints are their counts, at the same places.
	endpoints []*endpointTally
}

func size(servicePorts, endpoints int) int { return 512*servicePorts + 136*endpoints }

// use notes that one more flow holds on to the service port.
func (r *retained) use(s *decision.ServicePort, t tallies, c *changes) *usedPort {
	u := r.ports[s]
	if u == nil {
		of := t.of(s, c)
		r.supersede(of)
		u = of.use(s)
		r.ports[s] = u
	}
	if u.flows++; u.flows == 1 {
		r.bytes += size(1, len(s.Endpoints))
	}
	return u
}

// release notes that a flow does no more.
func (r *retained) release(u *usedPort) {
	if u.flows--; u.flows == 0 {
		r.bytes -= size(1, len(u.port.Endpoints))
		if u != u.tally.used {
			delete(r.ports, u.port)
		}
	}
}

// supersede notes that the newest port of a tally, which is kept for its next flow, is not the newest any more.
func (r *retained) supersede(t *tally) {
	if t.used.flows == 0 {
		delete(r.ports, t.used.port)
	}
}

func (r *retained) full() bool { return r.bytes > r.limit+r.inForce }
