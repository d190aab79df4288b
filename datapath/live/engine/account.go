package engine

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// count adds the batch to the counters.
func (w *worker) count(n int) {
	c := w.counters
	c.packets.Add(uint64(n - w.held))
	for i := range n {
		j := &w.jobs[i]
		switch j.state {
		case jobHeld:
			continue // counted when it is released
		case jobRepeated:
			c.heldBack.Add(1)
			continue
		case jobRefusal:
			continue
		case jobUndecodable:
			c.undecodable.Add(1)
			continue
		}
		d := &j.decision
		c.flows[d.Verdict][d.Entry][d.Reason].Add(1)
		if d.Verdict != decision.DNAT {
			continue
		}
		switch o := w.outcome(j); o {
		case conntrack.Failed:
			c.failed.Add(1)
			switch {
			case j.unnamed != nil: // neither of the two
			case j.entry < 0:
				c.noRoute.Add(1)
			case conntrack.IsFull(w.results[j.entry].Err):
				c.tableFull.Add(1)
			}
			continue
		case conntrack.Kept:
			c.kept.Add(1)
		default: // a new entry
			if o == conntrack.Created {
				c.created.Add(1)
			} else {
				c.replaced.Add(1)
			}
			if j.hostRule != nil {
				c.hostMasqueraded.Add(1)
			}
			if j.hostUnknown {
				c.hostUnknown.Add(1)
			}
		}
		if j.packet.Destination.Addr().IsLoopback() {
			c.localhostNodePorts.Add(1)
		}
	}
}

// batch is when the stages of a batch ended.
type batch struct{ received, decided, established, accepted time.Time }

// report makes the batch's flows, and passes them to the sink.
func (w *worker) report(table *decision.Table, n int, at batch) {
	w.decided = w.decided[:0]
	for i := range n {
		j := &w.jobs[i]
		if j.state != jobDecided {
			continue
		}
		w.decided = append(w.decided, flow.Flow{
			Packet: j.packet, Decision: j.decision, Table: table, Node: table.Node(), TableAge: at.decided.Sub(table.Built()),
			Queue: w.number, Time: at.decided,
			Waited: waited(w.packets[i].Arrived, at.received), Deciding: at.decided.Sub(at.received), Writing: at.established.Sub(at.decided), Accepting: at.accepted.Sub(at.established),
			Held: j.hold, Earlier: j.earlier, Shadows: j.shadows,
		})
		if j.decision.Verdict == decision.DNAT {
			w.reportEntry(&w.decided[len(w.decided)-1], j)
		}
	}
	w.sink.Flows(w.decided)
}

// reportEntry adds the outcome of the connection entry.
func (w *worker) reportEntry(d *flow.Flow, j *job) {
	d.HostRule = j.hostRule
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

// waited is how long a packet had waited since the kernel's time stamp; negative: there is no time
// stamp. (Its clock counts in microseconds.)
func waited(arrived, received time.Time) time.Duration {
	if arrived.IsZero() {
		return -1
	}
	return max(0, received.Sub(arrived))
}
