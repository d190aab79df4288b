// Package conntrack makes connections in the kernel's connection tracking table,
// with the address translation they are to have.
//
// An entry created for a packet that still waits in a netfilter queue before
// conntrack (priority raw) is found by conntrack when the packet goes on: it is in
// state NEW, and the nat hooks translate it and all that follow.
package conntrack

import (
	"fmt"
	"net/netip"
)

// The transport protocols whose entries this package can make, with their IANA numbers.
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// DefaultMark is the connection mark of our entries, so that `conntrack -L` shows
// whose they are. It keeps clear of the packet mark bits of Kubernetes (0x4000,
// 0x8000), because other software copies connection marks to packets.
const DefaultMark uint32 = 0x2000

// Tuple is one direction of a flow.
type Tuple struct {
	Source      netip.AddrPort
	Destination netip.AddrPort
	Protocol    uint8 // IANA number; only protocols with ports
}

// String gives "6 10.0.0.1:1234->10.0.0.2:80".
func (t Tuple) String() string {
	return fmt.Sprintf("%d %s->%s", t.Protocol, t.Source, t.Destination)
}

// Inverse is the tuple of the packets that answer it, if nothing is translated.
func (t Tuple) Inverse() Tuple {
	return Tuple{Source: t.Destination, Destination: t.Source, Protocol: t.Protocol}
}

// Entry is a connection to be created.
type Entry struct {
	// Tuple is that of the first packet, before translation. Both addresses have
	// to be of one family.
	Tuple Tuple
	// Zone is the conntrack zone; 0 is the default one.
	Zone uint16
	// Mark is the connection mark (CTA_MARK).
	Mark uint32
	// Destination is the address and port that the destination is translated to
	// (CTA_NAT_DST); the zero value: stays as it is.
	Destination netip.AddrPort
	// SourceAddr is the address that the source is translated to (CTA_NAT_SRC);
	// the zero value: stays as it is. The source port is kept where it is free, and
	// chosen by the kernel where it is not, as MASQUERADE does (nf_nat_core.c,
	// get_unique_tuple).
	SourceAddr netip.Addr
	// SourcePorts, if SourceAddr is given, are first and last of the ports that the
	// source port is to be one of; zeroes: any.
	SourcePorts [2]uint16
}

// State is what the kernel knows of an existing connection.
type State struct {
	Original Tuple
	Reply    Tuple // the kernel's, so the inverse of where packets really go
	Status   Status
	Mark     uint32
	Zone     uint16
	// ID is made of the entry's place in memory and its tuple: another entry may have
	// another one, but the next entry of the same tuple often has the same.
	ID uint32
	// Timeout is how long the entry still lives if no packet comes by, in whole seconds,
	// rounded down.
	Timeout uint32
	// TCP is the state of a TCP connection, SCTP that of an association; each is
	// valid iff Original.Protocol is that protocol.
	TCP  TCPState
	SCTP SCTPState
}

// Endpoint is where packets of the original direction are delivered.
func (s *State) Endpoint() netip.AddrPort { return s.Reply.Source }

// Masqueraded says whether the source of the connection is translated.
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

// SCTPState is enum sctp_conntrack (nf_conntrack_sctp.h).
type SCTPState uint8

// The states of an SCTP association that matter here.
const (
	SCTPNone   SCTPState = 0 // SCTP_CONNTRACK_NONE: created, no packet seen yet
	SCTPClosed SCTPState = 1 // SCTP_CONNTRACK_CLOSED
)
