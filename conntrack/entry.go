// Package conntrack creates connections with address translation in the kernel's connection
// tracking table, and reports their events.
//
// An entry created for a packet that still waits in a netfilter queue before
// conntrack (priority raw) is found by conntrack when the packet goes on: it is in
// state NEW, and the nat hooks translate it and all that follow.
//
// It is a ground package.
package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// The transport protocols for which this package can create entries, with their IANA numbers.
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// Families of addresses, as the kernel numbers them.
const (
	IPv4 uint8 = 2  // AF_INET
	IPv6 uint8 = 10 // AF_INET6
)

// DefaultMark is the connection mark of our entries, so that `conntrack -L` shows which entries are ours. It avoids the
// packet mark bits of Kubernetes (0x4000, 0x8000), because other software copies connection marks to packets.
const DefaultMark uint32 = 0x2000

// CopyMark is the bit of the connection mark of entries that the kernel's copy of the service table translated, without
// a decision of the daemon. They also have DefaultMark.
const CopyMark uint32 = 0x1000

// Tuple is one direction of a flow.
type Tuple struct {
	Source      netip.AddrPort
	Destination netip.AddrPort
	Protocol    uint8 // IANA number; only protocols with ports
}

// String returns "6 10.0.0.1:1234->10.0.0.2:80".
func (t Tuple) String() string {
	return fmt.Sprintf("%d %s->%s", t.Protocol, t.Source, t.Destination)
}

// Inverse is the tuple of the replies, if nothing is translated.
func (t Tuple) Inverse() Tuple {
	return Tuple{Source: t.Destination, Destination: t.Source, Protocol: t.Protocol}
}

// Entry is a connection to be created.
type Entry struct {
	// Tuple is the first packet's tuple, before translation. Both addresses must be of one family.
	Tuple Tuple
	// Zone is the conntrack zone; 0 is the default one.
	Zone uint16
	// Mark is the connection mark (CTA_MARK).
	Mark uint32
	// Destination is the address and port that the destination is translated to (CTA_NAT_DST); the
	// zero value: no translation.
	Destination netip.AddrPort
	// SourceAddr is the address that the source is translated to (CTA_NAT_SRC); the zero value: no
	// translation. The source port is kept if it is free; otherwise the kernel selects one, as
	// MASQUERADE does (nf_nat_core.c, get_unique_tuple).
	SourceAddr netip.Addr
	// SourcePorts are the first and last port of the range for the translated source port; zeroes:
	// any. They are valid only with SourceAddr.
	SourcePorts [2]uint16
	// OverUnanswered replaces an existing TCP connection of the tuple that has not been answered.
	OverUnanswered bool
}

// State is an existing connection as the kernel reports it.
type State struct {
	Original Tuple
	Reply    Tuple // the kernel's, so the inverse of the translated direction
	Status   Status
	Mark     uint32
	Zone     uint16
	// ID is derived from the entry's memory address and its tuple: the next entry of the same
	// tuple often has the same ID.
	ID uint32
	// Timeout is the remaining life of the entry without further packets, in whole seconds,
	// rounded down.
	Timeout uint32
	// TCP is the state of a TCP connection, SCTP that of an association; each is
	// valid iff Original.Protocol is that protocol.
	TCP  TCPState
	SCTP SCTPState
	// Sent counts the original direction, Received the reply direction. They are valid iff
	// HasCounters: the entry was created while net.netfilter.nf_conntrack_acct was on.
	Sent, Received Counters
	HasCounters    bool
	// Start is when the entry was created, Stop when it ended, by the wall clock. Zero: unknown.
	// The kernel records them for entries that are created while
	// net.netfilter.nf_conntrack_timestamp is on; it needs CONFIG_NF_CONNTRACK_TIMESTAMP.
	Start, Stop time.Time
}

// Counters count one direction of a connection. IP headers are included; a packet merged by
// segmentation offload counts once.
type Counters struct {
	Packets, Bytes uint64
}

// Endpoint is the destination of the original direction after translation.
func (s *State) Endpoint() netip.AddrPort { return s.Reply.Source }

// Masqueraded reports whether the source of the connection is translated.
func (s *State) Masqueraded() bool { return s.Status&StatusSourceNAT != 0 }

// Status are the bits of enum ip_conntrack_status (nf_conntrack_common.h).
type Status uint32

// The bits of interest.
const (
	StatusSeenReply      Status = 1 << 1 // IPS_SEEN_REPLY
	StatusAssured        Status = 1 << 2 // IPS_ASSURED
	StatusSourceNAT      Status = 1 << 4 // IPS_SRC_NAT
	StatusDestinationNAT Status = 1 << 5 // IPS_DST_NAT
)

// TCPState is enum tcp_conntrack (nf_conntrack_tcp.h).
type TCPState uint8

// The states of a TCP connection.
const (
	TCPNone        TCPState = iota // TCP_CONNTRACK_NONE: created, no packet seen yet
	TCPSynSent                     // TCP_CONNTRACK_SYN_SENT
	TCPSynRecv                     // TCP_CONNTRACK_SYN_RECV
	TCPEstablished                 // TCP_CONNTRACK_ESTABLISHED
	TCPFinWait                     // TCP_CONNTRACK_FIN_WAIT
	TCPCloseWait                   // TCP_CONNTRACK_CLOSE_WAIT
	TCPLastAck                     // TCP_CONNTRACK_LAST_ACK
	TCPTimeWait                    // TCP_CONNTRACK_TIME_WAIT
	TCPClose                       // TCP_CONNTRACK_CLOSE
	TCPSynSent2                    // TCP_CONNTRACK_SYN_SENT2
)

var tcpNames = [...]string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}

// String returns the kernel's name of the state (tcp_conntrack_names in nf_conntrack_proto_tcp.c),
// or the number of an unknown one.
func (s TCPState) String() string { return nameOf(tcpNames[:], uint8(s)) }

// SCTPState is enum sctp_conntrack (nf_conntrack_sctp.h).
type SCTPState uint8

// The states of an SCTP association.
const (
	SCTPNone            SCTPState = iota // SCTP_CONNTRACK_NONE: created, no packet seen yet
	SCTPClosed                           // SCTP_CONNTRACK_CLOSED: after its end and, since Linux 5.12, before INIT ACK
	SCTPCookieWait                       // SCTP_CONNTRACK_COOKIE_WAIT
	SCTPCookieEchoed                     // SCTP_CONNTRACK_COOKIE_ECHOED
	SCTPEstablished                      // SCTP_CONNTRACK_ESTABLISHED
	SCTPShutdownSent                     // SCTP_CONNTRACK_SHUTDOWN_SENT
	SCTPShutdownRecd                     // SCTP_CONNTRACK_SHUTDOWN_RECD
	SCTPShutdownAckSent                  // SCTP_CONNTRACK_SHUTDOWN_ACK_SENT
	SCTPHeartbeatSent                    // SCTP_CONNTRACK_HEARTBEAT_SENT
	SCTPHeartbeatAcked                   // SCTP_CONNTRACK_HEARTBEAT_ACKED: not since Linux 6.0
)

var sctpNames = [...]string{"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED"}

// String returns the kernel's name of the state (sctp_conntrack_names in
// nf_conntrack_proto_sctp.c), or the number of an unknown one.
func (s SCTPState) String() string { return nameOf(sctpNames[:], uint8(s)) }

// nameOf returns the name of a code, or the number of an unknown one.
func nameOf(names []string, n uint8) string {
	if int(n) < len(names) {
		return names[n]
	}
	return strconv.Itoa(int(n))
}
