package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
)

// Gate selects flows to hold: their first packets stay in the kernel's queue without a verdict,
// while all other flows continue. All workers call it concurrently, for each batch or each flow:
// it must not block.
type Gate interface {
	// Armed reports whether Take might take a flow. It is called once for each batch.
	Armed() bool
	// Take is called for each flow that is decided while the gate is armed. A flow that it takes
	// waits until it is released, which Take itself must not do.
	Take(HeldFlow) bool
	// Repeated is called for another packet of a held flow, which was dropped.
	Repeated(HeldFlow)
	// Close releases all flows as they were decided, and takes no more. The engine calls it when
	// it stops.
	Close()
}

// HeldFlow is a decided flow whose first packet waits for its verdict. It is safe for concurrent
// use.
type HeldFlow interface {
	// Flow is the flow as it was decided, at its Time; it must not be changed. The connection
	// entry and the effect of the host's own rules are unknown until its release.
	Flow() *flow.Flow
	// Release carries out a decision: the flow's own, or another one by the same table. When the
	// packet has its verdict, it returns the flow as the sink gets it; hold describes how the flow
	// was held. Of several calls only the first does so: the others return nil.
	Release(d decision.Decision, hold flow.Hold) *flow.Flow
}

// heldFlows are the flows of all workers that a [Gate] holds.
type heldFlows struct {
	gate   Gate
	count  atomic.Int32 // of flows that wait
	failed chan error   // the first error of a release

	mu      sync.Mutex // not held during calls of the gate or the kernel
	waiting map[conntrack.Tuple]*heldFlow
	closed  bool
	leaving sync.WaitGroup // those that are being released

	// releaser does for one flow what the worker of its queue would have done.
	releaserMu sync.Mutex
	releaser   *worker
}

// newHeldFlows makes them. The releaser needs only the sink and what workers do not share: connections, a
// router and a translator.
func newHeldFlows(gate Gate, releaser *worker) *heldFlows {
	if releaser.sink == nil {
		releaser.sink = noSink{} // the flows that it makes are Release's, too
	}
	releaser.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) // for second chances
	return &heldFlows{gate: gate, failed: make(chan error, 1), waiting: make(map[conntrack.Tuple]*heldFlow), releaser: releaser}
}

type noSink struct{}

func (noSink) Flows([]flow.Flow) {}
func (noSink) Lost() uint64      { return 0 }

// heldFlow is a flow that waits or has waited.
type heldFlow struct {
	flow      flow.Flow
	heldFlows *heldFlows
	worker    *worker // the worker of the queue in which its packet waits
	packet    nfqueue.Packet
	left      bool // guarded by heldFlows.mu
}

// Flow is [HeldFlow]'s.
func (h *heldFlow) Flow() *flow.Flow { return &h.flow }

// busy reports whether any flow may be held.
func (r *heldFlows) busy() bool { return r != nil && (r.count.Load() > 0 || r.gate.Armed()) }

// repeated reports whether the packet belongs to a flow that waits.
func (r *heldFlows) repeated(p *decision.Packet) bool {
	r.mu.Lock()
	h := r.waiting[flow.TupleOf(p)]
	r.mu.Unlock()
	if h == nil {
		return false
	}
	r.gate.Repeated(h)
	return true
}

// hold reports whether the flow of the worker's packet i must wait.
func (r *heldFlows) hold(w *worker, table *decision.Table, i int) bool {
	now := time.Now()
	j := &w.jobs[i]
	h := &heldFlow{
		flow: flow.Flow{
			Packet: j.packet, Decision: j.decision, Table: table, Node: table.Node(), TableAge: now.Sub(table.Built()),
			Queue: w.number, Time: now, Waited: waited(w.packets[i].Arrived, now),
		},
		heldFlows: r, worker: w, packet: w.packets[i],
	}
	h.packet.Payload = nil // the next batch's
	if !r.gate.Armed() || !r.gate.Take(h) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case h.left: // the gate has already released it
	case r.closed:
		h.left = true
		return false
	default:
		r.waiting[flow.TupleOf(&j.packet)] = h
		r.count.Add(1)
	}
	return true
}

// Release is [HeldFlow]'s.
func (h *heldFlow) Release(d decision.Decision, hold flow.Hold) *flow.Flow {
	r := h.heldFlows
	if !r.leave(h) {
		return nil
	}
	defer r.leaving.Done()
	r.releaserMu.Lock()
	defer r.releaserMu.Unlock()
	gone := h.flow
	if err := r.releaser.release(h, d, &hold); err != nil {
		gone.Decision, gone.Held, gone.Err = d, &hold, err
		select {
		case r.failed <- err:
		default:
		}
	} else {
		gone = r.releaser.decided[0]
	}
	clear(r.releaser.decided) // its table must not be kept
	return &gone
}

// leave records that a flow is being released. It reports whether it was waiting until now.
func (r *heldFlows) leave(h *heldFlow) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.left {
		return false
	}
	h.left = true
	if tuple := flow.TupleOf(&h.flow.Packet); r.waiting[tuple] == h {
		delete(r.waiting, tuple)
		r.count.Add(-1)
	}
	r.leaving.Add(1)
	return true
}

// release sends the verdict for a packet that waits in another worker's queue, with its entry and
// record.
func (w *worker) release(h *heldFlow, d decision.Decision, hold *flow.Hold) (err error) {
	received := time.Now()
	from := h.worker
	w.number, w.queue, w.counters = from.number, from.queue, from.counters
	w.affinity, w.balancer, w.index, w.retries = from.affinity, from.balancer, from.index, from.retries
	if picked := &h.flow.Decision; w.balancer != nil && picked.Pick != d.Pick { // another endpoint was chosen by hand
		w.balancer.Undo(picked)
	}
	w.packets[0] = h.packet
	w.begin(0)
	w.jobs[0].state, w.jobs[0].packet, w.jobs[0].decision, w.jobs[0].hold = jobDecided, h.flow.Packet, d, hold
	w.entries = w.entries[:0]
	defer w.recoverPanic(1, &err)
	w.carryOut(h.flow.Table, 0)
	return w.finish(h.flow.Table, 1, received)
}

// empty releases all flows; none waits from then on.
func (r *heldFlows) empty() {
	if r == nil {
		return
	}
	r.gate.Close()
	r.mu.Lock()
	r.closed = true
	var rest []*heldFlow
	for _, h := range r.waiting {
		rest = append(rest, h)
	}
	r.mu.Unlock()
	for _, h := range rest { // the gate did not release them
		h.Release(h.flow.Decision, flow.Hold{Seconds: time.Since(h.flow.Time).Seconds(), Action: flow.HoldCancelled})
	}
	r.leaving.Wait()
}
