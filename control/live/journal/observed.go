package journal

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Observe is how a journal makes records of flows that another service proxy decides, from their connection entries.
type Observe struct {
	// Proxy is the name of the proxy in force, as in [flow.Record.Proxy].
	Proxy func() string
	// OnlyServices: flows to no service have no records.
	OnlyServices bool
}

// insertObserved adds the flow of a connection that no worker decided, and reports whether it did. These are connections
// that the kernel's copy of the service table decided, which have its mark, and, if the journal observes another proxy,
// all others: these from their beginning, or from a pass over the connection table, in which the event has no kind.
// horizon: see there. settled: the table is not going to change in time for an endpoint that it does not have yet.
func (j *Journal) insertObserved(ev *conntrack.Event, now time.Time, horizon int64, settled bool) bool {
	s := &ev.State
	copied := s.Mark&conntrack.CopyMark != 0
	if !copied && (j.observe == nil || ev.Kind == conntrack.Updated || ev.Kind == conntrack.Destroyed) || j.inForce == nil {
		return false
	}
	if ev.Kind != conntrack.Began && horizon > 0 && (s.Start.IsZero() || s.Start.UnixNano() < horizon) {
		return false
	}
	k := keyOf(s.Original.Protocol, s.Original.Source, s.Original.Destination)
	number, e := j.newest(k)
	if e != nil && e.life.over && ev.Kind != conntrack.Began && (s.Start.IsZero() && !copied || !s.Start.IsZero() && s.Start.UnixNano() <= e.time) {
		return false // it has ended since its state was read
	}
	f := flow.Flow{
		Packet: decision.Packet{
			Protocol: decision.Protocol(s.Original.Protocol), Source: s.Original.Source, Destination: s.Original.Destination,
			Local: j.inForce.IsLocal(s.Original.Source.Addr()),
		},
		Node: j.inForce.Node(), Time: now, Waited: -1, Outcome: conntrack.Created,
	}
	for _, at := range []time.Time{ev.At, s.Start} {
		if !at.IsZero() && at.Before(f.Time) {
			f.Time = at
		}
	}
	table, ok := j.inForce, false
	if copied {
		f.Decision, ok = decision.ToEndpoint(table, &f.Packet, s.Endpoint(), decision.ByKernel)
	} else {
		table, ok = j.attribute(&f, s.Endpoint(), ev.Kind == conntrack.Began, settled)
	}
	switch {
	case !ok:
		return false
	case !copied && j.observe.OnlyServices && f.NoService():
		return true
	}
	f.TableAge = max(0, f.Time.Sub(table.Built()))
	// The interface that the packet came in by is not known, so the mark may be wrong.
	if masqueraded := s.Reply.Destination != s.Original.Source; masqueraded != f.Decision.Masquerade {
		f.Decision.Masquerade, f.Decision.Mark = masqueraded, decision.NotMarked
	}
	if f.Decision.Masquerade {
		f.SourceAddr = s.Reply.Destination.Addr()
	}
	if e != nil && !e.life.over && ev.Kind == conntrack.Began {
		if e.found(ev, &f, now) {
			e.inherited, e.life.incomplete = false, !j.kernel.complete()
			if connects(&f) && s.Start.IsZero() {
				e.connected(flowRef{number, e.time, e.generation}, f.Endpoint(), &j.changes)
			}
			return true
		}
		e.life.incomplete = true // the event of its end was lost
		j.over(number, e, f.Time.UnixNano())
	}
	inherited := ev.Kind != conntrack.Began
	j.insert(&f, past{inherited, inherited && s.Start.IsZero() && !copied, inherited && !copied})
	return true
}

// eventDelay is by how much an event may be later than a pass over the connection table that found its entry.
const eventDelay = 2 * markedEventTimeout

// found reports whether the entry is of the connection that the event is the beginning of, because a pass over the
// connection table was faster.
func (e *entry) found(ev *conntrack.Event, f *flow.Flow, now time.Time) bool {
	if s := ev.State.Start; !s.IsZero() {
		return s.UnixNano() == e.life.start
	}
	k := keep(f, e.key)
	return e.inherited && now.UnixNano()-e.time < int64(eventDelay) && k.index == e.index && k.generation == e.generation && k.reason == e.reason
}

// horizon is when the oldest flow in memory began, in nanoseconds. A connection that began before it, or at an unknown time,
// may have had its record already, which is forgotten. 0: nothing is.
func (j *Journal) horizon() int64 {
	if j.flows.oldest == 1 {
		return 0
	}
	return j.flows.at(j.flows.oldest).time
}

// attribute fills in what the service proxy of the node decided about a flow, and returns the table by which: the newest
// one that leads to the endpoint. It reports false if none does, and one may still come. began: the flow has just begun.
func (j *Journal) attribute(f *flow.Flow, endpoint netip.AddrPort, began, settled bool) (t *decision.Table, ok bool) {
	t = j.inForce
	d, ok := decision.ToEndpoint(t, &f.Packet, endpoint, decision.ByProxy)
	translated := endpoint != f.Packet.Destination
	if !ok && translated {
		if of, earlier, until := j.earlier(f, endpoint); of != nil { // perhaps of a Service that is gone
			t, d, ok = of, earlier, true
			if began { // when an older flow began is not known
				f.Outdated = max(0, f.Time.Sub(until))
			}
		}
	}
	f.Decision = d
	switch {
	case ok:
		f.Proxy = j.observe.Proxy()
		return t, true
	case d.ServicePort == nil:
		f.Decision = decision.Decision{Generation: t.Generation()}
		return t, true
	case !translated:
		f.Decision.Reason = decision.NotTranslated
	default:
		f.Decision.Verdict, f.Decision.Reason, f.Existing = decision.DNAT, decision.UnknownEndpoint, endpoint
	}
	f.Proxy = j.observe.Proxy()
	return t, settled
}

// earlier finds the newest table before the one in force that leads the flow to the endpoint, and when the next one
// replaced it; nil: none that is kept does.
func (j *Journal) earlier(f *flow.Flow, endpoint netip.AddrPort) (t *decision.Table, d decision.Decision, until time.Time) {
	kept := j.generations.kept
	for i := len(kept) - 2; i >= 0; i-- {
		if d, ok := decision.ToEndpoint(kept[i].table, &f.Packet, endpoint, decision.ByProxy); ok {
			return kept[i].table, d, kept[i+1].table.Built()
		}
	}
	return nil, decision.Decision{}, time.Time{}
}
