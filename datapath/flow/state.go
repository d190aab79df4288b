package flow

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// State is the state of a flow in its life cycle. This file defines the meaning of each state
// and which counters include it. SCHEMA.md documents it; all other code derives from it. The zero
// value is no state. In JSON a state is its name.
type State int8 // not uint8: go vet reports string(state)

// The states. Those of TCP follow conntrack's (net/netfilter/nf_conntrack_proto_tcp.c).
const (
	// Decided: the first packet has its verdict; no reply seen yet.
	Decided State = iota + 1
	// Answered: a reply packet was seen.
	Answered
	// Established: the TCP or SCTP handshake is complete; UDP had traffic in both directions (assured).
	Established
	// Closing: one side has closed (FIN).
	Closing
	// Closed: both sides have closed. The kernel keeps the entry for some time
	// (TIME_WAIT).
	Closed
	// Reset: one side aborted the connection (RST, ABORT) after it was established.
	Reset
	// Refused: the endpoint replied to the first packet with a RST or an ABORT.
	Refused
	// Unanswered: no reply for [UnansweredAfter], or none at all. One may still arrive.
	Unanswered
	// Expired: it had a reply, then stayed idle until its conntrack entry timed out: the
	// usual end of UDP.
	Expired
	// Removed: its conntrack entry was deleted before its timeout.
	Removed
	// Rejected, Dropped, Failed: it never reached an endpoint, because of the verdict or because
	// its conntrack entry could not be created.
	Rejected
	Dropped
	Failed

	// The events that are not states:

	// Repeated: its first packet was retransmitted and decided again.
	Repeated
	// Gone: its conntrack entry is deleted; the counters are final.
	Gone

	// Unknown is any state or event of a later version.
	Unknown
)

// UnansweredAfter is the time without a reply after which a flow counts as unanswered.
const UnansweredAfter = 3 * time.Second

// Event is the event that a record of a stream reports: the flow entered the state of this
// name, or [Repeated] or [Gone].
type Event = State

var names = [...]string{
	Decided:     "decided",
	Answered:    "answered",
	Established: "established",
	Closing:     "closing",
	Closed:      "closed",
	Reset:       "reset",
	Refused:     "refused",
	Unanswered:  "unanswered",
	Expired:     "expired",
	Removed:     "removed",
	Rejected:    "rejected",
	Dropped:     "dropped",
	Failed:      "failed",
	Repeated:    "repeated",
	Gone:        "gone",
	Unknown:     "unknown",
}

// States lists all states, in life cycle order.
func States() []State { return between(Decided, Failed) }

// Events lists all events: the states, repeated and gone.
func Events() []Event { return between(Decided, Gone) }

func between(first, last Event) []Event {
	var list []Event
	for e := first; e <= last; e++ {
		list = append(list, e)
	}
	return list
}

// String returns the name of a state or event, as in records; empty for the zero value.
func (s State) String() string { return names[s] }

// MarshalText returns the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a name. One that is not known is [Unknown].
func (s *State) UnmarshalText(name []byte) error {
	for *s = 0; *s < Unknown && s.String() != string(name); {
		*s++
	}
	return nil
}

// Ended reports whether a flow in this state has ended: both sides have closed, or it never
// reached an endpoint. The kernel may keep the conntrack entry for some time (see [Life.Over]).
func (s State) Ended() bool {
	switch s {
	case Closed, Reset, Refused, Expired, Removed, Rejected, Dropped, Failed:
		return true
	}
	return false
}

// Order is the position of a state in the life cycle. The kernel's entries never go back.
func (s State) Order() int {
	switch s {
	case Decided, Unanswered:
		return 0
	case Answered:
		return 1
	case Established:
		return 2
	case Closing:
		return 3
	}
	return 4
}

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
// cycle is not known. It is 0 for a packet that passes unchanged and has no known life cycle.
func (r *Record) State() State {
	if r.Life != nil {
		return r.Life.State
	}
	for _, v := range Verdicts() {
		if v != decision.Accept && r.Verdict == v.String() {
			return first(v, r.Conntrack == conntrack.Failed.String())
		}
	}
	return 0
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

// Verdicts lists all verdicts in records.
func Verdicts() []decision.Verdict { return All(decision.Accept, "unknown") }

// Reasons lists all reasons of verdicts.
func Reasons() []decision.Reason { return All(decision.NotAService, "unknown") }

// All lists the values from first up to the one before the first without a name, whose text is none.
func All[T interface {
	~uint8
	String() string
}](first T, none string) []T {
	var list []T
	for v := first; v.String() != none; v++ {
		list = append(list, v)
	}
	return list
}
