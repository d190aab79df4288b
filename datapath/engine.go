// Package datapath decides the new flows of a node: it receives their first packets
// from netfilter queues, asks package decision, writes the outcome into the
// kernel's connection tracking table and lets the packets go.
package datapath

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// Marks are the bits of packet and connection marks that are ours.
type Marks struct {
	Reject     uint32 // packet mark: the packet is to be refused by a rule
	Connection uint32 // connection mark of our entries
}

// rules is the static ruleset; see [ruleset.Ruleset].
type rules interface {
	Follow(*decision.Table) error
	Changed() <-chan struct{}
	Audit(_ *decision.Table, thorough bool) (nft.Repair, error)
	Queued() (uint64, error)
	StopQueueing() error
	Remove() error
	Close() error
}

// Engine is the running datapath of one node.
type Engine struct {
	table    atomic.Pointer[decision.Table]
	applied  *decision.Table // what everything else shows; belongs to Run
	apply    chan application
	ended    chan struct{} // Run is past taking applications
	rules    rules
	workers  []*worker
	room     *room // nil: flows cannot be held
	bound    *affinity.Table
	sink     FlowSink
	log      *slog.Logger
	lock     io.Closer     // held as long as this is the namespace's only datapath
	unqueued atomic.Uint64 // packets that did not fit into the queues
	keeper   ruleKeeper
	alert    func(Alert)
	// keepRules leaves the rules in place at the end.
	keepRules bool
}

// application is a table to put into force.
type application struct {
	table *decision.Table
	done  chan struct{} // closed when it is
}

// Apply puts a table into force and returns when it is: no packet is decided by an older
// one any more, no entry is written because of one, and the kernel's sets show the new
// one. It returns early when the engine ends. It may be called by any goroutine while Run
// runs, one at a time.
func (e *Engine) Apply(t *decision.Table) {
	e.table.Store(t) // decisions need not wait for the rest
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

// Stats sums up the counters of all workers.
func (e *Engine) Stats() Stats {
	var s Stats
	for _, w := range e.workers {
		w.counters.addTo(&s)
		c := w.queueCounters()
		s.RefusedVerdicts += c.Refused
		overrun := w.counters.missed.Load()
		s.Undecided += overrun
		s.Queues = append(s.Queues, QueueStats{
			Number: w.number, Packets: w.counters.packets.Load(), Waiting: c.Waiting,
			Overrun: overrun, Refused: c.Refused,
		})
	}
	s.Undecided += e.unqueued.Load()
	s.Reinstalled, s.Repaired = e.keeper.reinstalled.Load(), e.keeper.repaired.Load()
	if e.sink != nil {
		s.LostRecords = e.sink.Lost()
	}
	return s
}

// Run serves until the context ends or something fails, and takes everything
// away that Open had set up, in the order in which no packet is lost: first no more
// are queued, then those that wait are decided, then the rules go, then the queues.
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
	var received uint64 // when lost was looked at last
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var waiting *application // the latest one, while the rules do not follow it
	audit := func(thorough bool) {
		if e.audit(&lost, thorough) && waiting != nil {
			close(waiting.done)
			waiting = nil
		}
	}
	for err == nil && ctx.Err() == nil {
		apply := e.apply
		if waiting != nil {
			apply = nil
		}
		select {
		case <-ctx.Done():
		case now := <-tick.C:
			e.raise(full.look(now, e.tableFull()))
			if waiting != nil || e.keeper.due(now) {
				audit(false)
			}
			// Whenever a queue was full, packets were received after that.
			n := e.received()
			if n == received {
				break
			}
			if queued, e1 := e.rules.Queued(); e1 == nil { // else the rules are lost: see below
				received = n
				e.unqueued.Store(lost.look(queued, e.enqueued()))
			}
		case a := <-apply:
			e.bound.Retain(a.table, e.applied)
			e.applied, waiting = a.table, &a
			if e1 := e.rules.Follow(a.table); e1 != nil {
				e.log.Debug("the kernel rules do not follow the service table", "error", e1)
				audit(true)
				break
			}
			close(a.done)
			waiting = nil
		case err = <-e.room.failures():
		case <-e.rules.Changed():
			audit(true)
		}
	}
	close(e.ended)
	err = errors.Join(err, e.stop())
	running.Wait()
	err = errors.Join(err, e.closeConnections())
	return errors.Join(append(errs, err, e.lock.Close())...)
}

// raise tells the operator; nil: there is nothing to tell.
func (e *Engine) raise(a *Alert) {
	if a == nil {
		return
	}
	e.log.Warn(a.Text, "reason", a.Reason)
	if e.alert != nil {
		e.alert(*a)
	}
}

// received counts the packets that came out of the queues.
func (e *Engine) received() (n uint64) {
	for _, w := range e.workers {
		n += w.counters.packets.Load()
	}
	return n
}

// enqueued counts the packets that found room in the queues.
func (e *Engine) enqueued() (n uint64) {
	for _, w := range e.workers {
		n += w.queueCounters().Sequence
	}
	return n
}

// tableFull counts the entries that the connection table did not take.
func (e *Engine) tableFull() (n uint64) {
	for _, w := range e.workers {
		n += w.counters.tableFull.Load()
	}
	return n
}

// closeConnections closes what entries were written with.
func (e *Engine) closeConnections() (err error) {
	for _, w := range e.workers {
		err = errors.Join(err, w.connections.Close())
	}
	if e.room != nil {
		err = errors.Join(err, e.room.usher.connections.Close())
	}
	return err
}

// stop lets go what is held, removes the rules, unless they are to stay, and ends the
// workers.
func (e *Engine) stop() error {
	e.room.empty()
	var err error
	if e.keepRules {
		err = e.rules.Close()
	} else {
		if err = e.rules.StopQueueing(); err == nil {
			e.drain()
		}
		err = errors.Join(err, e.rules.Remove())
	}
	for _, w := range e.workers {
		w.queueCounters() // the last chance
		err = errors.Join(err, w.queue.Close())
	}
	return err
}

// drain waits until no packet waits in the queues. It gives up after maxDrain: what is
// left then is dropped with the rules and sent again by its senders.
func (e *Engine) drain() {
	deadline := time.Now().Add(maxDrain)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for now := time.Now(); now.Before(deadline) && e.waiting(); {
		now = <-tick.C
	}
}

const maxDrain = time.Second

// waiting says whether a packet is known to wait for a verdict.
func (e *Engine) waiting() bool {
	for _, w := range e.workers {
		if c, err := w.queue.Counters(); err == nil && c.Waiting > 0 {
			return true
		}
	}
	return false
}
