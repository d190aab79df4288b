package datapath

import "time"

// Alert is what an operator has to know of the datapath.
type Alert struct {
	Reason string // one word for programs
	Text   string // a sentence or two
	Over   bool   // it is past
}

// tableWatch tells when the connection table is full, and when it no longer is.
type tableWatch struct {
	refused uint64    // entries it took no more of, so far
	last    time.Time // when that number last grew
	full    bool
}

// recovered is how long no entry may have been refused for the table to count as not
// full.
const recovered = 10 * time.Second

// look is given the number of refused entries from time to time. It gives nil if there is
// nothing new.
func (w *tableWatch) look(now time.Time, refused uint64) *Alert {
	if refused > w.refused {
		w.refused, w.last = refused, now
		if w.full {
			return nil
		}
		w.full = true
		return &Alert{Reason: "ConntrackFull", Text: "The connection table is full: packets of new flows to services are dropped, and sent again by their senders. Raise net.netfilter.nf_conntrack_max (--conntrack-max-per-core), or find out who opens so many connections."}
	}
	if w.full && now.Sub(w.last) >= recovered {
		w.full = false
		return &Alert{Reason: "ConntrackRecovered", Text: "The connection table takes new flows again.", Over: true}
	}
	return nil
}

// growth sums up a counter that begins again at 0 now and then.
type growth struct{ total, last uint64 }

// look is given what the counter shows, and gives the sum.
func (g *growth) look(shows uint64) uint64 {
	if shows < g.last {
		g.last = 0
	}
	g.total += shows - g.last
	g.last = shows
	return g.total
}

// overflow counts the packets that were sent to the queues and found no room there: the
// difference of what the rules count and what the queues do.
type overflow struct {
	before   uint64 // under rules that are gone
	now      uint64 // under the present ones
	enqueued uint64 // when the present rules were installed
}

// restart begins anew with rules whose counters are 0.
func (o *overflow) restart(enqueued uint64) {
	o.before, o.now, o.enqueued = o.before+o.now, 0, enqueued
}

// look is given what the rules have counted and, read after that, what the queues have:
// so a packet on its way from one to the other never counts as lost.
func (o *overflow) look(queued, enqueued uint64) uint64 {
	if arrived := enqueued - o.enqueued; queued > arrived {
		o.now = max(o.now, queued-arrived)
	}
	return o.before + o.now
}
