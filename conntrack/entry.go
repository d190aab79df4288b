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
)

// The transport protocols for which this package can create entries, with their IANA numbers.
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
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
