// Package engine decides the new flows of a node: it receives their first packets from netfilter
// queues, calls package decision, writes the outcome into the kernel's connection tracking table
// and accepts the packets.
package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// kernelRules is the static ruleset; see [ruleset.Ruleset].
type kernelRules interface {
	Follow(*decision.Table) error
	Changed() <-chan struct{}
	Audit(_ *decision.Table, thorough bool) (nft.Repair, error)
	Compare(*decision.Table) (ruleset.Comparison, error)
	IsAlive(decision.Family) (bool, error)
	Counters() (ruleset.Counters, error)
	StopQueueing() error
	Release()
	Resume() error
	Replaced() (bool, error)
	FollowReversePath(hostnet.ReversePath) error
	LeaveEstablished() error
	Remove() error
	Close() error
}

// Engine is the running datapath of one node.
type Engine struct {
	cfg       Config
	locks     conntrack.Locks // of all connection tables
	table     atomic.Pointer[decision.Table]
	applied   *decision.Table // the current table of all other parts; belongs to Run
	apply     chan application
	checks    chan chan<- RuleCheck // see [Engine.CheckRules]
	ended     chan struct{}         // Run takes no more applications
	rules     kernelRules
	flows     *conntrack.Table // for everything but the packets of the queues
	workers   []*worker
	heldFlows *heldFlows // nil: flows cannot be held
	bound     *affinity.Table
	retries   *retries // nil: flows have no second chance
	// unanswered evicts entries of a full connection table; nil: there is no eviction.
	unanswered  *conntrack.Unanswered
	remembered  sync.WaitGroup // until the entries of an earlier run are known
	remembering sync.WaitGroup // until the connection table is no longer read
	// reversePath is nil if the kernel cannot look up the reverse path in rules; rpFilter are the settings in the rules.
	reversePath *hostnet.ReversePathWatch
	rpFilter    hostnet.ReversePath
	log         *slog.Logger
	lock        io.Closer   // the lock that this is the namespace's only datapath
	heartbeat   io.Closer   // ends the heartbeats that keep packets queued; nil: there are none
	successors  *successors // requests of other processes to take over; nil: there are none
	// heir changes the rules, or has them; nil: they are ours.
	heir  *successor
	lease lease
	// unqueued counts the packets that did not fit into the queues, invalid those that were
	// dropped because they are invalid, copied those that the kernel's copy decided.
	unqueued, invalid, copied atomic.Uint64
	keeper                    ruleKeeper
}

// application is a table to put into force.
type application struct {
	table *decision.Table
	done  chan struct{} // closed when it is
}

// Apply puts a table into force and returns when that is complete: no packet is decided by an
// older table, no entry is written for one, and the kernel's sets show the new one. It returns
// early when the engine ends. Any goroutine may call it while Run runs, one at a time.
func (e *Engine) Apply(t *decision.Table) {
	if e.cfg.Balancer != nil {
		e.cfg.Balancer.Follow(t)
	}
	e.table.Store(t) // decisions do not wait for the rest
	for _, w := range e.workers {
		w.finishBatch()
	}
	a := application{t, make(chan struct{})}
	select {
	case e.apply <- a:
	case <-e.ended:
		return
	}
	select {
	case <-a.done:
	case <-e.ended:
	}
}

// FirstQueue is the number of the first queue; the others follow.
func (e *Engine) FirstQueue() uint16 { return e.workers[0].number }

// Queues is the number of all queues.
func (e *Engine) Queues() int { return len(e.workers) }

// Stuck reports whether a worker makes no progress: then packets of new flows are not queued, as long as
// the kernel's copy of the service table can decide them.
func (e *Engine) Stuck() bool { return stuck(e.workers, time.Now(), e.cfg.QueueTimeout/2) }

// Stats sums up the counters of all workers.
func (e *Engine) Stats() Stats {
	var s Stats
	now := time.Now()
	for _, w := range e.workers {
		w.counters.addTo(&s)
		c := w.queueCounters()
		s.RefusedVerdicts += c.Refused
		overrun := w.counters.missed.Load()
		s.Undecided += overrun
		s.Queues = append(s.Queues, QueueStats{
			Number: w.number, NoService: w.noService, Packets: w.counters.packets.Load(), Waiting: c.Waiting,
			Overrun: overrun, Refused: c.Refused, PortID: c.PortID, Stuck: stuck([]*worker{w}, now, e.cfg.QueueTimeout/2),
		})
	}
	s.Undecided += e.unqueued.Load()
	s.Reinstalled, s.Repaired = e.keeper.reinstalled.Load(), e.keeper.repaired.Load()
	s.InvalidDropped, s.DecidedByCopy = e.invalid.Load(), e.copied.Load()
	if e.retries != nil {
		s.SecondChances, s.RefusalsQueued = e.retries.given.Load(), e.retries.queued.Load()
	}
	if e.bound != nil {
		s.ForgottenClients = e.bound.Forgotten()
	}
	if e.unanswered != nil {
		s.EvictedFull, s.EvictedCrowded = e.unanswered.Evicted()
	}
	if e.cfg.Sink != nil {
		s.LostRecords = e.cfg.Sink.Lost()
	}
	return s
}

// Run serves until the context ends or something fails, and removes everything that Open set up,
// in the order in which no packet is lost: first queueing stops, then the waiting packets are
// decided, then the rules are removed, then the queues. Rules that translated connections need
// stay, until [Cleanup] or the next Open. Run has to be called in the network namespace of Open:
// it checks and repairs the rules there.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(e.workers))
	var running sync.WaitGroup
	for i, w := range e.workers {
		running.Go(func() {
			defer cancel()
			errs[i] = w.run()
		})
	}

	var err error
	var full tableWatch
	var lost overflow
	var invalid, copied growth
	var passed uint64 // packets that did not fit into the queues when bindings were read
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var waiting *application // the latest one, while the rules could not be updated to it
	var handed <-chan error  // the outcome of the heir
	audit := func(thorough bool) {
		if e.audit(&lost, thorough) && waiting != nil {
			close(waiting.done)
			waiting = nil
		}
	}
	// These are nil for parts that do not exist.
	var settings <-chan hostnet.ReversePath
	var unfollowed, unreleased <-chan error
	var successors <-chan *successor
	if e.reversePath != nil {
		settings, unfollowed = e.reversePath.Changes, e.reversePath.Failed
	}
	if e.heldFlows != nil {
		unreleased = e.heldFlows.failed
	}
	if e.successors != nil {
		successors = e.successors.requests
	}
	for err == nil && ctx.Err() == nil {
		apply, changed, interfaces, requests := e.apply, e.rules.Changed(), settings, successors
		if waiting != nil {
			apply = nil
		}
		if e.heir != nil {
			apply, interfaces, changed, requests = nil, nil, nil, nil
		}
		select {
		case <-ctx.Done():
		case now := <-tick.C:
			e.raise(full.look(now, e.tableFull()))
			if e.heir == nil && (waiting != nil || e.keeper.due(now)) {
				audit(false)
			}
			if counters, e1 := e.rules.Counters(); e1 == nil { // else the rules are at fault: see audit
				e.unqueued.Store(lost.look(counters.Queued, e.enqueued()))
				e.invalid.Store(invalid.look(counters.InvalidDropped))
				e.copied.Store(copied.look(counters.Copied))
			}
			if n := e.unqueued.Load(); n > passed {
				passed = n
				e.readBindings()
			}
		case a := <-apply:
			e.bound.Retain(a.table, e.applied)
			e.applied, waiting = a.table, &a
			if e1 := e.rules.Follow(a.table); e1 != nil {
				e.log.Debug("cannot update the kernel rules to the service table", "error", e1)
				audit(true)
				break
			}
			close(a.done)
			waiting = nil
		case reply := <-e.checks:
			reply <- e.checkRules(time.Now())
		case err = <-unreleased:
		case err = <-unfollowed:
		case p := <-interfaces:
			if e1 := e.followReversePath(p); e1 != nil {
				e.log.Debug("cannot update the kernel rules to the interfaces' rp_filter", "error", e1)
				audit(true)
			}
		case <-changed:
			audit(true)
		case s := <-requests:
			e.log.Info("another nfqproxy takes over")
			e.rules.Release()
			e.heir, handed = s, s.proceed()
		case e1 := <-handed:
			handed = nil
			if err = e.finishHandover(e1); err == nil {
				audit(true)
			}
		}
	}
	close(e.ended)
	err = errors.Join(err, e.stop())
	running.Wait()
	err = errors.Join(err, e.closeConnections())
	return errors.Join(append(errs, err, e.lock.Close())...)
}

// followReversePath updates the rules to the interfaces on which the kernel validates sources.
func (e *Engine) followReversePath(p hostnet.ReversePath) error {
	if p.Selective && !e.rpFilter.Selective {
		e.log.Info("routing rules have selectors (ip -4 rule): packets that rp_filter will drop are queued, and leave connection entries for a short time")
	}
	e.rpFilter = p
	return e.rules.FollowReversePath(p)
}

// readBindings adds the clients that the kernel's copy of the service table has bound, while it decided.
func (e *Engine) readBindings() {
	table := e.table.Load()
	if table == nil {
		return // not open yet
	}
	if err := readBindings(e.bound, table); err != nil {
		e.log.Warn("cannot read the clients that the kernel's copy of the service table has bound; some may change their endpoint", "error", err)
	}
}

// finishHandover ends a handover: with ErrReplaced if the heir has the rules. The error is the heir's.
func (e *Engine) finishHandover(err error) error {
	if err == nil {
		var replaced bool
		if replaced, err = e.rules.Replaced(); err == nil && replaced {
			close(e.heir.over)
			return ErrReplaced
		}
		if err == nil {
			err = errors.New("it has not replaced the rules that queue packets")
		}
	}
	err = errors.Join(err, e.rules.Resume())
	e.log.Warn("the nfqproxy that takes over has failed; continuing", "error", err)
	close(e.heir.over)
	e.heir = nil
	return nil
}

// enqueued counts the packets that the queues took.
func (e *Engine) enqueued() (n uint64) {
	for _, w := range e.workers {
		n += w.queueCounters().Sequence
	}
	return n
}

// tableFull counts the entries that the full connection table refused.
func (e *Engine) tableFull() (n uint64) {
	for _, w := range e.workers {
		n += w.counters.tableFull.Load()
	}
	return n
}

// closeConnections closes the sockets for writing entries.
func (e *Engine) closeConnections() (err error) {
	e.remembering.Wait()
	for _, w := range e.workers {
		err = errors.Join(err, w.connections.Close())
	}
	if e.heldFlows != nil {
		err = errors.Join(err, e.heldFlows.releaser.connections.Close())
	}
	if e.flows != nil {
		err = errors.Join(err, e.flows.Close())
	}
	return err
}

// stop releases held flows, removes the rules unless they are to stay, and ends the workers.
func (e *Engine) stop() error {
	e.heldFlows.empty()
	var err error
	if e.reversePath != nil {
		err = e.reversePath.Close()
	}
	if e.heartbeat != nil {
		err = errors.Join(err, e.heartbeat.Close())
	}
	err = errors.Join(err, e.successors.close())
	if e.heir != nil { // packets go to its queues now, or soon
		e.drain()
		err = errors.Join(err, e.rules.Close())
	} else {
		err = errors.Join(err, e.leaveRules())
	}
	for _, w := range e.workers {
		w.queueCounters() // the last chance
		err = errors.Join(err, w.queue.Close())
	}
	return err
}

// leaveRules stops queueing, and keeps or removes the rules.
func (e *Engine) leaveRules() error {
	err := e.rules.StopQueueing()
	if err == nil {
		e.drain()
	}
	if e.cfg.KeepRules {
		return errors.Join(err, e.rules.Close())
	}
	return errors.Join(err, e.removeRules())
}

// removeRules removes the rules except those that translated connections need.
func (e *Engine) removeRules() error {
	needed, err := e.flows.HasTranslated(conntrack.DefaultMark)
	if err != nil {
		// Better a few rules too many than connections that break.
		e.log.Warn("cannot read the connection table; leaving the rules that translate established connections (nfqproxy cleanup removes them)", "error", err)
		needed = true
	}
	if !needed {
		return e.rules.Remove()
	}
	e.log.Info("leaving the rules that translate established connections; nfqproxy cleanup removes them")
	return e.rules.LeaveEstablished()
}

// drain waits until the queues are empty. It gives up after maxDrain: the remaining packets are
// dropped with the rules, and their senders retransmit them.
func (e *Engine) drain() {
	deadline := time.Now().Add(maxDrain)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	waiting := func(w *worker) bool {
		c, err := w.queue.Counters()
		return err == nil && c.Waiting > 0
	}
	for now := time.Now(); now.Before(deadline) && slices.ContainsFunc(e.workers, waiting); {
		now = <-tick.C
	}
}

const maxDrain = time.Second
