package flow

import (
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
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
