package hubble

import (
	"cmp"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// packet is the packet of an event, as far as it is known. The zero value is no packet.
type packet struct {
	flags  *TCPFlags
	chunk  string // flow.SCTPChunkType; empty: a type without a name
	reply  bool   // from the server; otherwise from the client or not known
	reason string // flow.TraceReason
}

// first are the first packets of flows.
var first = map[string]packet{
	decision.TCP.String():  {flags: &TCPFlags{SYN: true}},
	decision.SCTP.String(): {chunk: "INIT"},
}

// packets are those that bring a flow into a state: net/netfilter/nf_conntrack_proto_tcp.c
// and nf_conntrack_proto_sctp.c.
var packets = map[flow.Event]packet{
	flow.Answered:    {flags: &TCPFlags{SYN: true, ACK: true}, chunk: "INIT_ACK", reply: true, reason: "REPLY"},
	flow.Refused:     {flags: &TCPFlags{RST: true, ACK: true}, chunk: "ABORT", reply: true, reason: "REPLY"},
	flow.Established: {flags: &TCPFlags{ACK: true}, reason: "ESTABLISHED"},
	flow.Closing:     {flags: &TCPFlags{FIN: true, ACK: true}, chunk: "SHUTDOWN", reason: "ESTABLISHED"},
	flow.Closed:      {flags: &TCPFlags{FIN: true, ACK: true}, chunk: "SHUTDOWN_COMPLETE", reason: "ESTABLISHED"},
	flow.Reset:       {flags: &TCPFlags{RST: true}, chunk: "ABORT", reason: "ESTABLISHED"},
}

// notices are the events without a packet.
var notices = map[flow.Event]string{
	flow.Unanswered: "no reply after " + flow.UnansweredAfter.String(),
	flow.Expired:    "expired: idle until the conntrack entry timed out",
	flow.Removed:    "conntrack entry deleted before its timeout",
	flow.Gone:       "conntrack entry deleted",
}

// layer4 returns the protocol's part of a flow with such a packet, and the summary as
// Hubble's parser writes it (pkg/hubble/parser/threefour).
func (p packet) layer4(protocol string, ports *Ports) (*Layer4, string) {
	switch protocol {
	case decision.UDP.String():
		return &Layer4{UDP: ports}, protocol
	case decision.SCTP.String():
		ports.ChunkType = p.chunk
		return &Layer4{SCTP: ports}, protocol
	}
	if p.flags == nil {
		return &Layer4{TCP: ports}, protocol
	}
	flags := *p.flags
	ports.Flags = &flags
	return &Layer4{TCP: ports}, "TCP Flags: " + flags.String()
}

// String lists the flags in Hubble's order.
func (f TCPFlags) String() string {
	var list []string
	for _, flag := range []struct {
		name string
		set  bool
	}{{"SYN", f.SYN}, {"ACK", f.ACK}, {"RST", f.RST}, {"FIN", f.FIN}} {
		if flag.set {
			list = append(list, flag.name)
		}
	}
	return strings.Join(list, ", ")
}

// The kinds of event: MessageType* in pkg/monitor/api.
const (
	eventDrop      = 1
	eventTrace     = 4
	eventTraceSock = 7
)

// forward makes it a forwarded packet: TO_STACK is to the kernel's network stack.
func forward(f *Flow, reason string) *Flow {
	const toStack = 3
	f.Verdict, f.EventType, f.Observation, f.TraceReason = Forwarded, EventType{eventTrace, toStack}, "TO_STACK", reason
	return f
}

func drop(f *Flow, reason DropReason, why string) *Flow {
	f.Verdict, f.DropReason, f.DropReasonDesc, f.EventType = Dropped, reason, reason.String(), EventType{eventDrop, int32(reason)}
	f.Summary += "; " + cmp.Or(why, "no reason given")
	return f
}

// translation makes it the event of Cilium's socket load balancer before and after the translation
// of a service's address. Here the conntrack entry translates, but Hubble has no other event for it.
func translation(f *Flow, v Verdict, when string, point int32) *Flow {
	f.Type, f.Verdict, f.EventType = "SOCK", v, EventType{eventTraceSock, point}
	f.SockXlatePoint = "SOCK_XLATE_POINT_" + when + "_DIRECTION_FWD"
	return f
}

// notice makes it an event without a packet.
func notice(f *Flow, what string) *Flow {
	forward(f, "")
	f.Verdict = Traced
	f.Summary += "; " + what
	return f
}

// dropReason is Hubble's reason for a record's reason. A rule of the node is a policy.
func dropReason(reason string) DropReason {
	switch reason {
	case decision.NoEndpoints.String(), decision.NoLocalEndpoints.String():
		return ServiceBackendNotFound
	case decision.SourceNotAllowed.String():
		return DeniedBySourceRanges
	case decision.ForeignLocalnet.String():
		return InvalidPacket
	}
	return PolicyDenied
}
