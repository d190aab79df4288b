package flow

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// State is where a flow is in its life. This file defines what each state means and how
// counts follow from states; SCHEMA.md documents it, and all else derives from it.
type State string

// The states. Those of TCP follow conntrack's (net/netfilter/nf_conntrack_proto_tcp.c).
const (
	// Decided: its packet has its verdict, and no answer was seen yet.
	Decided State = "decided"
	// Answered: a packet came back.
	Answered State = "answered"
	// Established: TCP's and SCTP's handshake is done; UDP went to and fro (assured).
	Established State = "established"
	// Closing: one side has no more to send (FIN).
	Closing State = "closing"
	// Closed: both sides have no more to send. The kernel keeps the entry for a while
	// (TIME_WAIT).
	Closed State = "closed"
	// Reset: one side broke off (RST, ABORT) what was established.
	Reset State = "reset"
	// Refused: the endpoint answered the first packet with a RST or an ABORT.
	Refused State = "refused"
	// Unanswered: no packet came back for [UnansweredAfter], or ever. One may still come.
	Unanswered State = "unanswered"
	// Expired: it was answered, and nothing came for so long that the kernel forgot it: the
	// usual end of UDP.
	Expired State = "expired"
	// Removed: its entry was taken out of the connection table before its time.
	Removed State = "removed"
	// Rejected, Dropped, Failed: it never reached an endpoint, by the verdict or for want of
	// an entry.
	Rejected State = "rejected"
	Dropped  State = "dropped"
	Failed   State = "failed"
)

// UnansweredAfter is how long an answer may take before the flow counts as unanswered.
const UnansweredAfter = 3 * time.Second

// Event is what a record of a stream is about: that the flow got into the state of this
// name, or one of those below.
type Event = State

// The events that are no states.
const (
	// Repeated: its first packet came again, and was decided again.
	Repeated Event = "repeated"
	// Gone: the kernel's entry is gone; the counts are final.
	Gone Event = "gone"
)

// Tone is what a state means to the reader, for colours.
type Tone string

// The tones.
const (
	Waiting Tone = "wait" // not known yet
	Good    Tone = "good"
	Notable Tone = "warn" // worth a look
	Bad     Tone = "bad"  // an error: see [State.IsError]
	Neutral Tone = "pass"
)

// meaning is what is known of an event.
type meaning struct {
	event Event
	tone  Tone
	ended bool // see [State.Ended]
	words string
}

// meanings are the events: first the states, in the order of a life, then the other two.
var meanings = []meaning{
	{Decided, Waiting, false, "it has its verdict; no answer was seen yet"},
	{Answered, Good, false, "a packet came back"},
	{Established, Good, false, "both sides talk"},
	{Closing, Good, false, "one side has no more to send"},
	{Closed, Good, true, "both sides have no more to send"},
	{Reset, Bad, true, "one side broke it off"},
	{Refused, Bad, true, "the endpoint refused the first packet"},
	{Unanswered, Notable, false, "no packet came back"},
	{Expired, Good, true, "nothing came for so long that the kernel forgot it"},
	{Removed, Notable, true, "its entry was taken out of the connection table before its time"},
	{Rejected, Bad, true, "the verdict rejected its packet: it reached no endpoint"},
	{Dropped, Bad, true, "the verdict dropped its packet: it reached no endpoint"},
	{Failed, Bad, true, "no connection entry could be made: it reached no endpoint"},
	{Repeated, Notable, false, "its first packet came again, and was decided again"},
	{Gone, Neutral, false, "the kernel's entry is gone; the counts are final"},
}

// States are all states, in the order of a life.
func States() []State { return Events()[:len(meanings)-2] }

// Events are all events: the states, repeated and gone.
func Events() []Event {
	all := make([]Event, len(meanings))
	for i := range meanings {
		all[i] = meanings[i].event
	}
	return all
}

// about gives what is known of the state or event; the zero value: it is of a later version.
func (s State) about() meaning {
	for _, m := range meanings {
		if m.event == s {
			return m
		}
	}
	return meaning{}
}

// Ended says whether a flow in this state has ended: neither side sends more, or it never
// reached an endpoint. The kernel may keep the entry for some time (see [Life.Over]).
func (s State) Ended() bool { return s.about().ended }

// IsError says whether the state counts as an error: refused, reset, rejected, dropped or
// failed. Unanswered is none, as an answer may still come; it is counted apart.
func (s State) IsError() bool { return s.about().tone == Bad }

// Tone gives the state's or the event's; of one of a later version it is [Waiting].
func (s State) Tone() Tone {
	if t := s.about().tone; t != "" {
		return t
	}
	return Waiting
}

// Words gives the meaning of a state or an event; empty: it is of a later version.
func (s State) Words() string { return s.about().words }

// Open says whether the flow may go on: it has not [State.Ended], and the kernel has its
// entry. This is what is counted as open.
func (l *Life) Open() bool { return !l.Over && !l.State.Ended() }

// First is the state of a flow when it was decided.
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

// State is the flow's state, or what its verdict says of it where no life is known; empty: it
// passes untouched, and no more is known.
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

// IsDecision says whether the event is the decision itself, rather than what came of it.
func (s State) IsDecision() bool {
	switch s {
	case Decided, Rejected, Dropped, Failed:
		return true
	}
	return false
}

// NoService says whether the flow is for no service and passes untouched: lists of service
// flows leave it out. A connection that another node translated is such a flow on the next
// node of its way.
func (d *Flow) NoService() bool { return d.Decision.Reason == decision.NotAService }
