package flow

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// State is the state of a flow in its life cycle. This file defines the meaning of each state
// and which counters include it. SCHEMA.md documents it; all other code derives from it.
type State string

// The states. Those of TCP follow conntrack's (net/netfilter/nf_conntrack_proto_tcp.c).
const (
	// Decided: the first packet has its verdict; no reply seen yet.
	Decided State = "decided"
	// Answered: a reply packet was seen.
	Answered State = "answered"
	// Established: the TCP or SCTP handshake is complete; UDP had traffic in both directions (assured).
	Established State = "established"
	// Closing: one side has closed (FIN).
	Closing State = "closing"
	// Closed: both sides have closed. The kernel keeps the entry for some time
	// (TIME_WAIT).
	Closed State = "closed"
	// Reset: one side aborted the connection (RST, ABORT) after it was established.
	Reset State = "reset"
	// Refused: the endpoint replied to the first packet with a RST or an ABORT.
	Refused State = "refused"
	// Unanswered: no reply for [UnansweredAfter], or none at all. One may still arrive.
	Unanswered State = "unanswered"
	// Expired: it had a reply, then stayed idle until its conntrack entry timed out: the
	// usual end of UDP.
	Expired State = "expired"
	// Removed: its conntrack entry was deleted before its timeout.
	Removed State = "removed"
	// Rejected, Dropped, Failed: it never reached an endpoint, because of the verdict or because
	// its conntrack entry could not be created.
	Rejected State = "rejected"
	Dropped  State = "dropped"
	Failed   State = "failed"
)

// UnansweredAfter is the time without a reply after which a flow counts as unanswered.
const UnansweredAfter = 3 * time.Second

// Event is the event that a record of a stream reports: the flow entered the state of this
// name, or one of the events below.
type Event = State

// The events that are not states.
const (
	// Repeated: its first packet was retransmitted and decided again.
	Repeated Event = "repeated"
	// Gone: its conntrack entry is deleted; the counters are final.
	Gone Event = "gone"
)

// Tone is the severity of a state, for colours.
type Tone string

// The tones.
const (
	Waiting Tone = "wait" // pending
	Good    Tone = "good"
	Notable Tone = "warn" // worth a look
	Bad     Tone = "bad"  // an error: see [State.IsError]
	Neutral Tone = "pass"
)

// meaning holds the properties of an event.
type meaning struct {
	event Event
	tone  Tone
	ended bool // see [State.Ended]
	words string
}

// meanings lists the events: first the states, in life cycle order, then the other two.
var meanings = []meaning{
	{Decided, Waiting, false, "verdict given; no reply seen yet"},
	{Answered, Good, false, "reply seen"},
	{Established, Good, false, "traffic in both directions"},
	{Closing, Good, false, "one side has closed (FIN)"},
	{Closed, Good, true, "both sides have closed"},
	{Reset, Bad, true, "aborted by one side (RST)"},
	{Refused, Bad, true, "connection refused by the endpoint"},
	{Unanswered, Notable, false, "no reply"},
	{Expired, Good, true, "idle until its conntrack entry timed out"},
	{Removed, Notable, true, "its conntrack entry was deleted before its timeout"},
	{Rejected, Bad, true, "rejected by the verdict; it reached no endpoint"},
	{Dropped, Bad, true, "dropped by the verdict; it reached no endpoint"},
	{Failed, Bad, true, "conntrack entry could not be created; it reached no endpoint"},
	{Repeated, Notable, false, "first packet retransmitted and decided again"},
	{Gone, Neutral, false, "conntrack entry deleted; the counters are final"},
}

// States lists all states, in life cycle order.
func States() []State { return Events()[:len(meanings)-2] }

// Events lists all events: the states, repeated and gone.
func Events() []Event {
	all := make([]Event, len(meanings))
	for i := range meanings {
		all[i] = meanings[i].event
	}
	return all
}

// about returns the properties of the state or event; the zero value for one of a later version.
func (s State) about() meaning {
	for _, m := range meanings {
		if m.event == s {
			return m
		}
	}
	return meaning{}
}

// Ended reports whether a flow in this state has ended: both sides have closed, or it never
// reached an endpoint. The kernel may keep the conntrack entry for some time (see [Life.Over]).
func (s State) Ended() bool { return s.about().ended }

// IsError reports whether the state counts as an error: refused, reset, rejected, dropped or
// failed. Unanswered is not an error, as a reply may still arrive; it is counted separately.
func (s State) IsError() bool { return s.about().tone == Bad }

// Tone returns the tone of the state or event; [Waiting] for one of a later version.
func (s State) Tone() Tone {
	if t := s.about().tone; t != "" {
		return t
	}
	return Waiting
}

// Words returns the description of a state or event; empty for one of a later version.
func (s State) Words() string { return s.about().words }

// Open reports whether the flow is open: it has not [State.Ended], and its conntrack entry
// exists. Counters of open flows count these.
func (l *Life) Open() bool { return !l.Over && !l.State.Ended() }

// First returns the state of a flow at its decision.
func (d *Flow) First() State { return first(d.Decision.Verdict, d.Outcome == conntrack.Failed) }

func first(v decision.Verdict, failed bool) State {
	switch {
	case v == decision.Reject:
		return Rejected
	case v == decision.Drop:
		return Dropped
	case v == decision.DNAT && failed:
		return Failed
	}
	return Decided
}

// State returns the flow's state, or the state that follows from its verdict where its life
// cycle is not known. It is empty for a packet that passes unchanged and has no known life cycle.
func (r *Record) State() State {
	if r.Life != nil {
		return r.Life.State
	}
	for _, v := range Verdicts() {
		if v != decision.Accept && r.Verdict == v.String() {
			return first(v, r.Conntrack == conntrack.Failed.String())
		}
	}
	return ""
}

// IsDecision reports whether the event is the decision itself rather than a later one.
func (s State) IsDecision() bool {
	switch s {
	case Decided, Rejected, Dropped, Failed:
		return true
	}
	return false
}

// NoService reports whether the flow has no service as destination and passes unchanged. Lists
// of service flows leave it out. A connection translated by another node is such a flow on the
// next node of its path.
func (d *Flow) NoService() bool { return d.Decision.Reason == decision.NotAService }
