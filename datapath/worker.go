package datapath

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
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/masquerade"
	"github.com/nfqproxy/nfqproxy/datapath/nfqueue"
)

// What a worker needs of the kernel.
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
		Close() error
	}
	// router knows the ways to destinations; see [hostnet.Cache].
	router interface {
		MasqueradeSource(dst netip.Addr) (netip.Addr, error)
		OutInterface(dst netip.Addr) (string, error)
		InterfaceName(index uint32) string
	}
	// affinities knows which clients are bound; see [affinity.Table].
	affinities interface {
		decision.Affinity
		Bind(s *decision.ServicePort, endpoint netip.AddrPort, client netip.Addr)
	}
)

// FlowSink takes decided flows. Flows is called by all workers, with those of a batch: it
// must not block, nor keep the slice. Lost counts the flows it had no room for.
type FlowSink interface {
	Flows([]flow.Flow)
	Lost() uint64
}

// batchSize is how many packets a worker handles at once. Creating entries costs
// about 3 µs each in batches of 8 and more against 20 µs one at a time; larger
// batches gain little and make the first packet wait.
const batchSize = 32

// worker serves one queue: it receives packets, decides, writes connection entries
// and gives verdicts. One goroutine runs it.
type worker struct {
	number      uint16
	queue       queue
	connections connections
	router      router
	affinity    affinities
	rand        decision.Rand
	table       *atomic.Pointer[decision.Table]
	marks       Marks
	sink        FlowSink // nil: nobody is told of flows
	// hostRules are the host's own nat rules; nil: they do not count.
	hostRules *masquerade.Follower
	asker     masquerade.Asker
	onStart   func() // called first by the goroutine that runs it; may be nil
	counters  counters

	batch  sync.Mutex // held while a batch is decided and written
	lastID uint32     // of the packet received last; they are numbered from 1

	kernelMu sync.Mutex
	kernel   nfqueue.Counters // of the queue, as they were last read

	// For one batch. job[i] belongs to packets[i]; entries and results to the jobs
	// whose entry index points at them.
	packets  [batchSize]nfqueue.Packet
	verdicts [batchSize]nfqueue.Verdict
	jobs     [batchSize]job
	entries  []conntrack.Entry
	results  [batchSize]conntrack.Result
	decided  []flow.Flow // for the sink
}

// job is the work for one packet.
type job struct {
	packet   decision.Packet
	decision decision.Decision
	decided  bool // packet and decision are valid
	entry    int  // index into entries and results; -1: none
	// hostRule is the host's own rule that has the source masqueraded; nil: none does.
	hostRule     *iptables.Rule
	hostUnjudged bool  // it cannot be told what the host's own rules would have done
	err          error // why no entry was asked for though one was needed
}

// yieldAfter is how long a worker keeps its processor. Go's scheduler takes it away after
// 10 ms, and is on the alert for some milliseconds after: its monitor then wakes up every
// 20 µs and more, which costs as much as the decisions (runtime/proc.go, sysmon and retake).
const yieldAfter = 5 * time.Millisecond

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

// process handles n packets. However it ends, each of them gets a verdict: a
// packet without one would wait in the kernel for ever.
func (w *worker) process(n int) (err error) {
	received := time.Now()
	w.noteGaps(n)
	for i := range n {
		w.verdicts[i] = nfqueue.Verdict{ID: w.packets[i].ID, Mark: w.packets[i].Mark}
		w.jobs[i] = job{entry: -1}
	}
	w.entries = w.entries[:0]
	defer func() {
		if p := recover(); p != nil {
			err = errors.Join(fmt.Errorf("queue %d: panic: %v\n%s", w.number, p, debug.Stack()), w.queue.Send(w.verdicts[:n]))
		}
	}()

	w.batch.Lock()
	defer w.batch.Unlock()
	table := w.table.Load()
	for i := range n {
		w.decide(table, i)
	}
	decided := time.Now()
	w.connections.Establish(w.entries, w.results[:len(w.entries)])
	established := time.Now()
	// Bound before the verdicts: the client's next flow may come right behind.
	w.bind(n)
	if err := w.queue.Send(w.verdicts[:n]); err != nil {
		return err
	}
	now := time.Now()
	w.count(n)
	w.counters.decisionTime.observe(decided.Sub(received)/time.Duration(max(n, 1)), uint64(n))
	if len(w.entries) > 0 {
		w.counters.establishTime.observe(established.Sub(decided), 1)
	}
	w.counters.verdictTime.observe(now.Sub(received), uint64(n))
	if w.sink != nil {
		w.tell(table, n, batch{received, decided, established, now})
	}
	return nil
}

// finishBatch returns when everything that was decided by an earlier table is done. It is
// for other goroutines than the worker's own.
func (w *worker) finishBatch() {
	w.batch.Lock()
	//lint:ignore SA2001 nothing is to be done, but waited for
	w.batch.Unlock()
}

// decide sets the verdict of packet i and asks for a connection entry if it is to be
// translated.
func (w *worker) decide(table *decision.Table, i int) {
	p, v, j := &w.packets[i], &w.verdicts[i], &w.jobs[i]
	var err error
	if j.packet, err = decode(p.Payload); err != nil {
		return
	}
	j.packet.Local = p.Hook == nfqueue.Output
	if d := &table.Node().Detector; d.Bridge != "" || d.InterfacePrefix != "" {
		j.packet.InInterface = w.router.InterfaceName(p.InInterface)
	}
	j.decision = decision.Decide(table, &j.packet, w.rand, w.affinity)
	j.decided = true
	switch j.decision.Verdict {
	case decision.Reject:
		v.Mark |= w.marks.Reject
	case decision.Drop:
		v.Drop = true
	case decision.DNAT:
		e := conntrack.Entry{
			Tuple: conntrack.Tuple{
				Source: j.packet.Source, Destination: j.packet.Destination, Protocol: uint8(j.packet.Protocol),
			},
			Mark:        w.marks.Connection,
			Destination: j.decision.Endpoint(),
		}
		if j.decision.Mark != decision.NotMarked {
			v.Mark |= table.Node().Mark()
		}
		if j.decision.Masquerade {
			if e.SourceAddr, j.err = w.router.MasqueradeSource(e.Destination.Addr()); j.err != nil {
				// Without an entry the packet goes on untranslated and is stopped
				// by the rules for what slipped by; its sender tries again.
				return
			}
		}
		if !j.decision.Masquerade && (j.packet.Local || !table.IsLocal(e.Destination.Addr())) {
			w.askHost(p, j, &e)
		}
		j.entry = len(w.entries)
		w.entries = append(w.entries, e)
	}
}

// askHost has the entry do to the source what the host's own rules would have done:
// they never see the flow, for the entry binds both sides of its translation. Only flows
// that pass POSTROUTING are theirs.
func (w *worker) askHost(p *nfqueue.Packet, j *job, e *conntrack.Entry) {
	rules := w.hostRules.Rules()
	if !rules.Any(decision.FamilyOf(e.Destination.Addr())) {
		return
	}
	out, err := w.router.OutInterface(e.Destination.Addr())
	if err != nil {
		return // the packet will not leave, either
	}
	if !j.packet.Local && j.packet.InInterface == "" {
		j.packet.InInterface = w.router.InterfaceName(p.InInterface)
	}
	a := w.asker.Ask(rules, &j.packet, e.Destination, out, p.Mark)
	switch {
	case a.Unjudged != "":
		j.hostUnjudged = true
		w.hostRules.Unjudged(a)
		return
	case a.Rule == nil:
		return
	case a.Masquerade:
		if a.Source, err = w.router.MasqueradeSource(e.Destination.Addr()); err != nil {
			return
		}
	}
	j.hostRule = a.Rule
	e.SourceAddr, e.SourcePorts = a.Source, [2]uint16{a.Ports.First, a.Ports.Last}
}

// bind notes the new flows of services with affinity.
func (w *worker) bind(n int) {
	for i := range n {
		j := &w.jobs[i]
		if !j.decided || j.decision.Verdict != decision.DNAT || j.decision.ServicePort.AffinitySeconds == 0 {
			continue
		}
		if o := w.outcome(j); o == conntrack.Created || o == conntrack.Replaced {
			w.affinity.Bind(j.decision.ServicePort, j.decision.Endpoint(), j.packet.Source.Addr())
		}
	}
}

// count adds the batch to the counters.
func (w *worker) count(n int) {
	c := &w.counters
	c.packets.Add(uint64(n))
	for i := range n {
		j := &w.jobs[i]
		if !j.decided {
			c.undecodable.Add(1)
			continue
		}
		d := &j.decision
		c.flows[d.Verdict][d.Entry][d.Reason].Add(1)
		if d.Verdict != decision.DNAT {
			continue
		}
		switch w.outcome(j) {
		case conntrack.Failed:
			w.countFailure(j)
			continue
		case conntrack.Created:
			c.created.Add(1)
			w.countHost(j)
		case conntrack.Kept:
			c.kept.Add(1)
		case conntrack.Replaced:
			c.replaced.Add(1)
			w.countHost(j)
		}
		c.translated.Add(1)
	}
}

// countFailure counts a flow that has no connection entry, and why.
func (w *worker) countFailure(j *job) {
	c := &w.counters
	c.failed.Add(1)
	switch {
	case j.entry < 0:
		c.noRoute.Add(1)
	case conntrack.IsFull(w.results[j.entry].Err):
		c.tableFull.Add(1)
	}
}

// countHost counts what the host's own rules mean to a new entry.
func (w *worker) countHost(j *job) {
	if j.hostRule != nil {
		w.counters.hostMasqueraded.Add(1)
	}
	if j.hostUnjudged {
		w.counters.hostUnjudged.Add(1)
	}
}

// noteGaps counts the packets that got a number in the queue but did not fit into the
// socket's buffer: they passed undecided, which the kernel does not count for a queue
// that fails open.
func (w *worker) noteGaps(n int) {
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

// queueCounters reads the kernel's counters; after the queue was closed they are the
// last that were read.
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

// batch is when the stages of a batch ended.
type batch struct{ received, decided, established, accepted time.Time }

// tell tells the sink of the batch's flows.
func (w *worker) tell(table *decision.Table, n int, at batch) {
	w.decided = w.decided[:0]
	for i := range n {
		j := &w.jobs[i]
		if !j.decided {
			continue
		}
		w.decided = append(w.decided, flow.Flow{
			Packet: j.packet, Decision: j.decision, Table: table, Node: table.Node(), TableAge: at.accepted.Sub(table.Built()),
			Queue: w.number, Time: at.accepted,
			Waited: waited(w.packets[i].Arrived, at.received), Deciding: at.decided.Sub(at.received), Writing: at.established.Sub(at.decided), Accepting: at.accepted.Sub(at.established),
		})
		if j.decision.Verdict == decision.DNAT {
			w.tellEntry(&w.decided[len(w.decided)-1], j)
		}
	}
	w.sink.Flows(w.decided)
}

// waited is how long a packet had waited that arrived when the kernel noted; negative: the
// kernel noted nothing. (Its clock counts in microseconds.)
func waited(arrived, received time.Time) time.Duration {
	if arrived.IsZero() {
		return -1
	}
	return max(0, received.Sub(arrived))
}

// tellEntry adds what became of the connection entry.
func (w *worker) tellEntry(d *flow.Flow, j *job) {
	if j.hostRule != nil {
		d.HostRule = j.hostRule
	}
	d.Outcome = w.outcome(j)
	if j.entry < 0 {
		d.Err = j.err
		return
	}
	d.SourceAddr = w.entries[j.entry].SourceAddr
	switch result := &w.results[j.entry]; result.Outcome {
	case conntrack.Failed:
		d.Err = result.Err
	case conntrack.Kept:
		d.Existing, d.ExistingMasqueraded = result.Existing.Endpoint(), result.Existing.Masqueraded()
	}
}
