package engine

import "time"

// Alert is a message of the datapath for the operator.
type Alert struct {
	Reason string // one word for programs
	Text   string // a sentence or two
	Over   bool   // the condition is over
}

// tableWatch raises an alert when the connection table is full, and another when it no longer is.
type tableWatch struct {
	refused uint64    // entries that the table refused so far
	last    time.Time // when that number last grew
	full    bool
}

// recovered is the time without a refused entry after which the table counts as not full.
const recovered = 10 * time.Second

// look takes the number of refused entries at intervals. It returns nil if nothing changed.
func (w *tableWatch) look(now time.Time, refused uint64) *Alert {
	if refused > w.refused {
		w.refused, w.last = refused, now
		if w.full {
			return nil
		}
		w.full = true
		return &Alert{Reason: "ConntrackFull", Text: "The connection table is full: packets of new flows to services are dropped until the clients retransmit them. Raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore in the configuration file), or find the clients that open so many connections."}
	}
	if w.full && now.Sub(w.last) >= recovered {
		w.full = false
		return &Alert{Reason: "ConntrackRecovered", Text: "The connection table accepts new flows again.", Over: true}
	}
	return nil
}

// growth sums up a counter that may restart at 0.
type growth struct{ total, last uint64 }

// look takes the counter's value and returns the sum.
func (g *growth) look(shows uint64) uint64 {
	if shows < g.last {
		g.last = 0
	}
	g.total += shows - g.last
	g.last = shows
	return g.total
}

// overflow counts the packets that were sent to full queues: the difference between the counters
// of the rules and of the queues.
type overflow struct {
	before   uint64 // under earlier rules
	now      uint64 // under the present ones
	enqueued uint64 // when the present rules were installed
}

// restart begins again with rules whose counters are 0.
func (o *overflow) restart(enqueued uint64) {
	o.before, o.now, o.enqueued = o.before+o.now, 0, enqueued
}

// look takes the counters of the rules and those of the queues, read in this order: so a packet on
// its way from one to the other never counts as lost.
func (o *overflow) look(queued, enqueued uint64) uint64 {
	if arrived := enqueued - o.enqueued; queued > arrived {
		o.now = max(o.now, queued-arrived)
	}
	return o.before + o.now
}
