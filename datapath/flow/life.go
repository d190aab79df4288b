package flow

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Life is the life cycle of a flow after its decision, as seen by the kernel's connection tracking. In a stream it is
// what was known at the event.
type Life struct {
	State State     `json:"state"`
	Since time.Time `json:"since"` // when it entered the state
	// Answered: reply packets were seen.
	Answered bool `json:"answered"`
	// AnsweredAfter is the time from the decision to the first packet of the reply, in seconds, above 0; absent: there
	// was none, or its time is unknown.
	AnsweredAfter float64 `json:"answeredAfter,omitempty"`
	// Over: its conntrack entry is gone, so the record is final. See also [Life.Open].
	Over bool `json:"over"`
	// KernelState is conntrack's name for the state of a TCP connection or SCTP association, for
	// example SYN_SENT.
	KernelState string `json:"kernelState,omitempty"`
	// SeenSource is the source ip:port as seen by the endpoint; known from the first conntrack
	// event on.
	SeenSource string `json:"seenSource,omitempty"`
	// Sent and Received are the counters from the client's point of view, IP headers included; a packet of segmentation
	// offload counts once. They are valid at CountedAt; nil: unknown yet, or accounting is off
	// (net.netfilter.nf_conntrack_acct).
	Sent      *Count     `json:"sent,omitempty"`
	Received  *Count     `json:"received,omitempty"`
	CountedAt *time.Time `json:"countedAt,omitempty"`
	// Duration is the time from the creation of the conntrack entry to its end, in seconds;
	// before its end, to Since.
	Duration float64 `json:"duration"`
	// Repeated counts retransmissions of the first packet.
	Repeated uint32 `json:"repeated,omitempty"`
	// Incomplete: conntrack events were lost or not requested, so states may be missing from
	// History.
	Incomplete bool `json:"incomplete,omitempty"`
	// History lists the events so far, in order, at most eight; only in responses for a single flow.
	History []Moment `json:"history,omitempty"`
}

// Open reports whether the flow is open: it has not [State.Ended], and its conntrack entry
// exists. Counters of open flows count these.
func (l *Life) Open() bool { return !l.Over && !l.State.Ended() }

// Count is the traffic in one direction.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Moment is an event and its time.
type Moment struct {
	Event Event     `json:"event"`
	Time  time.Time `json:"time"`
}

// Stages are the latencies of the packet by stage, in seconds. The stages in user space are those
// of its batch: a packet waits for the whole batch.
type Stages struct {
	// Waited is the time from the packet's arrival at the node until the daemon read it, mostly spent in the queue. nil:
	// unknown, as for packets sent by the node itself.
	Waited   *float64 `json:"waited,omitempty"`
	Decided  float64  `json:"decided"`  // until all packets of the batch were decided
	Written  float64  `json:"written"`  // until their entries were in the conntrack table
	Accepted float64  `json:"accepted"` // until the kernel had their verdicts
}

// Hold is the user's action on a flow that was held at the queue.
type Hold struct {
	ID      string  `json:"id"`
	Seconds float64 `json:"seconds"` // how long it was held
	// Action is how the hold ended: see the constants.
	Action string `json:"action"`
}

// The actions that end a hold.
const (
	HoldReleased  = "released"
	HoldChosen    = "chosen" // released with another endpoint than the selected one
	HoldDropped   = "dropped"
	HoldCancelled = "cancelled"
	HoldExpired   = "expired" // released by timeout
)

// Replied reports whether reply packets were seen. A RST in reply to a TCP connection's first packet shows only in the
// counters (nf_conntrack_tcp_packet).
func Replied(s *conntrack.State) bool {
	return s.Status&conntrack.StatusSeenReply != 0 || s.HasCounters && s.Received.Packets > 0
}

// StateOf returns the flow state that corresponds to the kernel's state of a connection, after the state before.
func StateOf(s *conntrack.State, before State) State {
	replied := Replied(s)
	switch decision.Protocol(s.Original.Protocol) {
	case decision.TCP:
		return tcpState(s, before, replied)
	case decision.SCTP:
		return sctpState(s, before, replied)
	}
	switch {
	case s.Status&conntrack.StatusAssured != 0:
		return Established
	case replied:
		return Answered
	}
	return before
}

// tcpState follows tcp_conntracks in net/netfilter/nf_conntrack_proto_tcp.c.
func tcpState(s *conntrack.State, before State, replied bool) State {
	switch s.TCP {
	case conntrack.TCPSynRecv:
		return Answered
	case conntrack.TCPEstablished:
		return Established
	case conntrack.TCPFinWait, conntrack.TCPCloseWait, conntrack.TCPLastAck:
		return Closing
	case conntrack.TCPTimeWait:
		return Closed
	case conntrack.TCPClose:
		return resetState(s, before, replied)
	}
	return before
}

// sctpState follows sctp_conntracks in net/netfilter/nf_conntrack_proto_sctp.c, which has
// one state for an association that was shut down and one that was aborted.
func sctpState(s *conntrack.State, before State, replied bool) State {
	switch s.SCTP {
	case conntrack.SCTPEstablished:
		return Established
	case conntrack.SCTPShutdownSent, conntrack.SCTPShutdownRecd, conntrack.SCTPShutdownAckSent:
		return Closing
	case conntrack.SCTPClosed:
		if before == Closing || before == Closed {
			return Closed
		}
		return resetState(s, before, replied)
	}
	if replied && (before == Decided || before == Unanswered) {
		return Answered
	}
	return before
}

// resetState is the state of a connection that ended with a RST or an ABORT: an ABORT or RST that was
// the answer to the first packet is a refusal. The kernel marks a connection as assured when its handshake is complete,
// which tells of one whose states before are not known that it was no refusal.
func resetState(s *conntrack.State, before State, replied bool) State {
	switch before {
	case Decided, Unanswered, Refused:
		if replied && s.Status&conntrack.StatusAssured == 0 {
			return Refused
		}
	case Closed:
		return Closed
	}
	return Reset
}
