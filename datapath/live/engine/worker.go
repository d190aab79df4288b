package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// The parts of the kernel that a worker needs.
type (
	// queue is a netfilter queue; see [nfqueue.Queue].
	queue interface {
		Receive([]nfqueue.Packet) (int, error)
		Send([]nfqueue.Verdict) error
		Counters() (nfqueue.Counters, error)
		Close() error
	}
	// connections is the connection tracking table; see [conntrack.Table].
	connections interface {
		Establish([]conntrack.Entry, []conntrack.Result)
		Lookup(conntrack.Tuple, uint16) (conntrack.State, error)
		Delete([]conntrack.State, []error)
		Close() error
	}
	// router looks up routes to destinations; see [hostnet.Cache].
	router interface {
		MasqueradeSource(dst netip.Addr) (netip.Addr, error)
		OutInterface(dst netip.Addr) (string, error)
		InterfaceName(index uint32) (string, error)
	}
)

// Balancer selects endpoints for service ports with their own algorithm; see [balance.Balancer].
type Balancer interface {
	decision.Balancer
	// Follow prepares for the table that comes into force next.
	Follow(*decision.Table)
	// Opened reports that a flow to an endpoint has a connection entry, and returns what other algorithms would have
	// selected. Undo reports that a pick did not get one.
	Opened(worker int, p *decision.Packet, d *decision.Decision, at time.Time) []flow.ShadowPick
	Undo(*decision.Decision)
	// Failed reports that the connection of a flow was refused, or was not answered.
	Failed(p *decision.Packet, refused bool)
}

// FlowSink takes decided flows. All workers call Flows, with those of a batch: it must not block,
// nor keep the slice. Lost counts the flows lost to overflow.
type FlowSink interface {
	Flows([]flow.Flow)
	Lost() uint64
}

// batchSize is how many packets a worker handles at once. Creating entries costs about 3 µs each
// in batches of 8 and more against 20 µs one at a time; larger batches gain little and delay the
// first packet.
const batchSize = 32

// worker serves one queue: it receives packets, decides, writes connection entries
// and gives verdicts. One goroutine runs it.
type worker struct {
	number      uint16
	index       int  // of the worker, from 0
	noService   bool // its packets are not to a service that has endpoints
	queue       queue
	connections connections
	router      router
	affinity    *affinity.Table
	balancer    Balancer // nil: endpoints are drawn at random
	lease       *lease   // nil: it never expires
	rand        decision.Rand
	table       *atomic.Pointer[decision.Table]
	sink        FlowSink            // nil: flows are not reported
	hostRules   hostmasq.Translator // the host's own nat rules
	delay       time.Duration       // before each batch; see Config.BatchDelay
	onStart     func()              // called first by the goroutine that runs it; may be nil
	counters    *counters
	heldFlows   *heldFlows // nil: flows are not held
	retries     *retries   // nil: flows have no second chance

	busySince atomic.Int64 // when the batch in work was received, in ns since 1970; 0: there is none

	batch  sync.Mutex // held while a batch is decided and written
	lastID uint32     // of the packet received last; they are numbered from 1

	kernelMu sync.Mutex
	kernel   nfqueue.Counters // of the queue, as they were last read

	// For one batch. job[i] belongs to packets[i]; entries and results to the jobs with their
	// index.
	packets  [batchSize]nfqueue.Packet
	verdicts [batchSize]nfqueue.Verdict
	jobs     [batchSize]job
	entries  []conntrack.Entry
	results  [batchSize]conntrack.Result
	held     int         // how many packets get no verdict because their flows are held
	decided  []flow.Flow // for the sink
}

// job is the work for one packet.
type job struct {
	state    jobState
	packet   decision.Packet   // valid unless jobUndecodable
	decision decision.Decision // valid iff jobDecided or jobHeld
	entry    int               // index into entries and results; -1: none
	// hostRule is the host's own rule that masquerades the source; nil: none does.
	hostRule    fmt.Stringer
	hostUnknown bool       // the effect of the host's own rules is unknown
	unnamed     error      // why it is unknown whether the packet comes from a pod; nil: it is known
	err         error      // why no entry was requested though one was needed
	hold        *flow.Hold // how the flow was held; nil: it was not
	// earlier are the endpoints to which the flow was sent before; nil: there are none.
	earlier []flow.Attempt
	shadows []flow.ShadowPick
}

// jobState is the state of a packet.
type jobState uint8

const (
	jobUndecodable jobState = iota
	jobDecided
	jobHeld     // decided, and waits for its verdict
	jobRepeated // of a held flow: not decided
	jobRefusal  // not of a new flow: it refused one
)

// yieldAfter is how long a worker keeps its processor. Go's scheduler preempts it after 10 ms; for
// some milliseconds after that its monitor wakes up every 20 µs or more, which costs as much as
// the decisions (runtime/proc.go, sysmon and retake). To yield costs, too: as the worker is locked
// to its thread, another one takes over and wakes it again.
const yieldAfter = 9 * time.Millisecond

// run serves the queue until it is closed.
func (w *worker) run() error {
	if w.onStart != nil {
		w.onStart()
	}
	yielded := time.Now()
	for {
		if now := time.Now(); now.Sub(yielded) > yieldAfter {
			runtime.Gosched()
			yielded = now
		}
		n, err := w.queue.Receive(w.packets[:])
		if err == nil {
			err = w.process(n)
		}
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		}
	}
}

// stuck reports whether a worker has been working on one batch for longer than the limit.
func stuck(workers []*worker, now time.Time, limit time.Duration) bool {
	for _, w := range workers {
		if since := w.busySince.Load(); since != 0 && now.Sub(time.Unix(0, since)) > limit {
			return true
		}
	}
	return false
}

// process handles n packets. On every path each of them gets a verdict, unless it is held: a
// packet without one would wait in the kernel for ever.
func (w *worker) process(n int) (err error) {
	received := time.Now()
	w.busySince.Store(received.UnixNano())
	defer w.busySince.Store(0)
	w.lease.beforeDecision(received)
	if w.delay > 0 {
		time.Sleep(w.delay)
	}
	w.countGaps(n)
	for i := range n {
		w.begin(i)
	}
	w.entries, w.held = w.entries[:0], 0
	defer w.recoverPanic(n, &err)

	w.batch.Lock()
	defer w.batch.Unlock()
	table := w.table.Load()
	holding := w.heldFlows.busy()
	for i := range n {
		w.decide(table, i, holding)
	}
	return w.finish(table, n, received)
}

// begin prepares packet i: by default, it passes.
func (w *worker) begin(i int) {
	w.verdicts[i] = nfqueue.Verdict{ID: w.packets[i].ID, Mark: w.packets[i].Mark}
	w.jobs[i] = job{entry: -1}
}

// recoverPanic turns a panic into an error, and sends the verdicts of the n packets. It must be
// deferred.
func (w *worker) recoverPanic(n int, err *error) {
	if p := recover(); p != nil {
		*err = errors.Join(fmt.Errorf("queue %d: panic: %v\n%s", w.number, p, debug.Stack()), w.send(n))
	}
}

// finish writes the entries of n decided packets, sends the verdicts, and reports the flows.
func (w *worker) finish(table *decision.Table, n int, received time.Time) error {
	decided := time.Now()
	w.connections.Establish(w.entries, w.results[:len(w.entries)])
	w.replaceUnanswered(table, n)
	established := time.Now()
	w.settle(n, established)
	if err := w.send(n); err != nil {
		return err
	}
	now := time.Now()
	w.count(n)
	done := n - w.held
	w.counters.decisionTime.observe(decided.Sub(received)/time.Duration(max(n, 1)), uint64(done))
	if len(w.entries) > 0 {
		w.counters.establishTime.observe(established.Sub(decided), 1)
	}
	w.counters.verdictTime.observe(now.Sub(received), uint64(done))
	if w.sink != nil {
		w.report(table, n, batch{received, decided, established, now})
	}
	return nil
}

// send sends the verdicts of n packets, except of held ones.
func (w *worker) send(n int) error {
	due := w.verdicts[:n]
	if w.held > 0 {
		due = due[:0]
		for i := range n {
			if w.jobs[i].state != jobHeld {
				due = append(due, w.verdicts[i])
			}
		}
		if len(due) == 0 {
			return nil
		}
	}
	return w.queue.Send(due)
}

// finishBatch returns when all decisions by an earlier table are carried out. It is for other
// goroutines than the worker's own.
func (w *worker) finishBatch() {
	w.batch.Lock()
	w.batch.Unlock() //nolint:staticcheck // SA2001: nothing is to be done, but waited for
}

// decide decides packet i, and carries the decision out unless the flow is held.
func (w *worker) decide(table *decision.Table, i int, holding bool) {
	p, j := &w.packets[i], &w.jobs[i]
	first, err := packet.Decode(p.Payload)
	if err != nil {
		return
	}
	if w.retries != nil && isRefusal(&first) {
		j.state, w.verdicts[i].Drop = jobRefusal, w.refused(&first)
		return
	}
	t := &first.Tuple
	j.packet = decision.Packet{Protocol: decision.Protocol(t.Protocol), Source: t.Source, Destination: t.Destination}
	if holding && w.heldFlows.repeated(&j.packet) {
		j.state, w.verdicts[i].Drop = jobRepeated, true
		return
	}
	j.packet.Local = p.Hook == nfqueue.Output
	if d := &table.Node().Detector; d.Bridge != "" || d.InterfacePrefix != "" {
		j.packet.InInterface, j.unnamed = w.router.InterfaceName(p.InInterface)
	}
	j.decision = decision.Decide(table, &j.packet, w.rand, w.affinity, w.balancer)
	j.state = jobDecided
	w.tryAnother(table, j)
	if holding && j.unnamed == nil && w.heldFlows.hold(w, table, i) {
		j.state = jobHeld
		w.held++
		return
	}
	w.carryOut(table, i)
}

// carryOut sets the verdict of packet i as it was decided, and requests a connection entry if it
// is to be translated.
func (w *worker) carryOut(table *decision.Table, i int) {
	p, v, j := &w.packets[i], &w.verdicts[i], &w.jobs[i]
	switch j.decision.Verdict {
	case decision.Reject:
		v.Mark = rejectMark // a value, not a flag
	case decision.Drop:
		v.Drop = true
	case decision.DNAT:
		// Without an entry the packet continues untranslated, and the rules for undecided packets
		// stop it; its sender retransmits. An entry could not be corrected later.
		if j.err = j.unnamed; j.err != nil {
			return
		}
		e := conntrack.Entry{Tuple: flow.TupleOf(&j.packet), Mark: conntrack.DefaultMark, Destination: j.decision.Endpoint()}
		if j.decision.Mark != decision.NotMarked {
			v.Mark |= table.Node().Mark()
		}
		if j.decision.Masquerade {
			if e.SourceAddr, j.err = w.router.MasqueradeSource(e.Destination.Addr()); j.err != nil {
				return
			}
		}
		if !j.decision.Masquerade && (j.packet.Local || !table.IsLocal(e.Destination.Addr())) {
			if j.err = w.applyHostRules(p, j, &e); j.err != nil {
				return
			}
		}
		j.entry = len(w.entries)
		w.entries = append(w.entries, e)
	}
}

// applyHostRules applies the effect of the host's own rules to the source in the entry: the flow
// bypasses them, because the entry fixes both sides of its translation. This concerns only flows
// that pass POSTROUTING. The error is the reason why the rules could not be applied.
func (w *worker) applyHostRules(p *nfqueue.Packet, j *job, e *conntrack.Entry) error {
	if !w.hostRules.Any(decision.FamilyOf(e.Destination.Addr())) {
		return nil
	}
	out, err := w.router.OutInterface(e.Destination.Addr())
	if err != nil {
		return err
	}
	if !j.packet.Local && j.packet.InInterface == "" {
		if j.packet.InInterface, err = w.router.InterfaceName(p.InInterface); err != nil {
			return err
		}
	}
	t := w.hostRules.Translate(&j.packet, e.Destination, out, p.Mark)
	switch {
	case t.Unknown != "":
		j.hostUnknown = true
		return nil
	case t.Rule == nil:
		return nil
	case t.Masquerade:
		if t.Source, err = w.router.MasqueradeSource(e.Destination.Addr()); err != nil {
			return err
		}
	}
	j.hostRule = t.Rule
	e.SourceAddr, e.SourcePorts = t.Source, [2]uint16{t.FirstPort, t.LastPort}
	return nil
}

// settle binds the clients of new flows with affinity, and reports to the Balancer which flows have connections. It comes
// before the verdicts: neither the client's next flow nor the reply may be known earlier than the flow.
func (w *worker) settle(n int, at time.Time) {
	for i := range n {
		j := &w.jobs[i]
		if j.state != jobDecided || j.decision.Verdict != decision.DNAT {
			continue
		}
		o := w.outcome(j)
		opened := o == conntrack.Created || o == conntrack.Replaced
		if opened && j.decision.ServicePort.AffinitySeconds > 0 {
			w.affinity.Bind(j.decision.ServicePort, j.decision.Endpoint(), j.packet.Source.Addr())
		}
		switch {
		case w.balancer == nil:
		case opened:
			j.shadows = w.balancer.Opened(w.index, &j.packet, &j.decision, at)
		default:
			w.balancer.Undo(&j.decision)
		}
	}
}

// countGaps counts the packets that got a number in the queue but did not fit into the socket's
// buffer: they passed undecided, which the kernel does not count for a queue with fail-open.
func (w *worker) countGaps(n int) {
	var missing uint32
	for i := range n {
		id := w.packets[i].ID
		missing += id - w.lastID - 1
		w.lastID = id
	}
	if missing > 0 {
		w.counters.missed.Add(uint64(missing))
	}
}

// queueCounters reads the kernel's counters; after the queue was closed it returns the last ones.
func (w *worker) queueCounters() nfqueue.Counters {
	w.kernelMu.Lock()
	defer w.kernelMu.Unlock()
	if c, err := w.queue.Counters(); err == nil {
		w.kernel = c
	}
	return w.kernel
}

func (w *worker) outcome(j *job) conntrack.Outcome {
	if j.entry < 0 {
		return conntrack.Failed
	}
	return w.results[j.entry].Outcome
}
