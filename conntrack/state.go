package conntrack

import (
	"net/netip"
	"strconv"
	"time"
)

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
func (s TCPState) String() string { return stateName(tcpNames[:], uint8(s)) }

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
func (s SCTPState) String() string { return stateName(sctpNames[:], uint8(s)) }

func stateName(names []string, n uint8) string {
	if int(n) < len(names) {
		return names[n]
	}
	return strconv.Itoa(int(n))
}
