package hubble

//lint:file-ignore SA1019 Hubble's command prints Flow.Summary, and programs read Flow.DropReason.

import (
	"cmp"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// packet is the packet of an event, as far as it is known. The zero value is no packet.
type packet struct {
	flags  *hubblepb.TCPFlags     // shared by flows: not to be changed
	chunk  hubblepb.SCTPChunkType // UNSUPPORTED: a type without a name
	reply  bool                   // from the server; otherwise from the client or not known
	reason hubblepb.TraceReason
}

// first are the first packets of flows.
var first = map[string]packet{
	decision.TCP.String():  {flags: &hubblepb.TCPFlags{SYN: true}},
	decision.SCTP.String(): {chunk: hubblepb.SCTPChunkType_INIT},
}

// packets are those that bring a flow into a state: net/netfilter/nf_conntrack_proto_tcp.c
// and nf_conntrack_proto_sctp.c.
var packets = map[flow.Event]packet{
	flow.Answered:    {flags: &hubblepb.TCPFlags{SYN: true, ACK: true}, chunk: hubblepb.SCTPChunkType_INIT_ACK, reply: true, reason: hubblepb.TraceReason_REPLY},
	flow.Refused:     {flags: &hubblepb.TCPFlags{RST: true, ACK: true}, chunk: hubblepb.SCTPChunkType_ABORT, reply: true, reason: hubblepb.TraceReason_REPLY},
	flow.Established: {flags: &hubblepb.TCPFlags{ACK: true}, reason: hubblepb.TraceReason_ESTABLISHED},
	flow.Closing:     {flags: &hubblepb.TCPFlags{FIN: true, ACK: true}, chunk: hubblepb.SCTPChunkType_SHUTDOWN, reason: hubblepb.TraceReason_ESTABLISHED},
	flow.Closed:      {flags: &hubblepb.TCPFlags{FIN: true, ACK: true}, chunk: hubblepb.SCTPChunkType_SHUTDOWN_COMPLETE, reason: hubblepb.TraceReason_ESTABLISHED},
	flow.Reset:       {flags: &hubblepb.TCPFlags{RST: true}, chunk: hubblepb.SCTPChunkType_ABORT, reason: hubblepb.TraceReason_ESTABLISHED},
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
func (p packet) layer4(protocol string, from, to uint32) (*hubblepb.Layer4, string) {
	switch protocol {
	case decision.UDP.String():
		return &hubblepb.Layer4{Protocol: &hubblepb.Layer4_UDP{UDP: &hubblepb.UDP{SourcePort: from, DestinationPort: to}}}, protocol
	case decision.SCTP.String():
		return &hubblepb.Layer4{Protocol: &hubblepb.Layer4_SCTP{SCTP: &hubblepb.SCTP{SourcePort: from, DestinationPort: to, ChunkType: p.chunk}}}, protocol
	}
	tcp := &hubblepb.Layer4{Protocol: &hubblepb.Layer4_TCP{TCP: &hubblepb.TCP{SourcePort: from, DestinationPort: to, Flags: p.flags}}}
	if p.flags == nil {
		return tcp, protocol
	}
	return tcp, "TCP Flags: " + flagNames(p.flags)
}

// flagNames lists the flags that packets have, in Hubble's order.
func flagNames(f *hubblepb.TCPFlags) string {
	var list []string
	for _, flag := range []struct {
		name string
		set  bool
	}{{"SYN", f.GetSYN()}, {"ACK", f.GetACK()}, {"RST", f.GetRST()}, {"FIN", f.GetFIN()}} {
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
func forward(f *hubblepb.Flow, reason hubblepb.TraceReason) *hubblepb.Flow {
	point := hubblepb.TraceObservationPoint_TO_STACK
	f.Verdict, f.EventType = hubblepb.Verdict_FORWARDED, &hubblepb.CiliumEventType{Type: eventTrace, SubType: int32(point)}
	f.TraceObservationPoint, f.TraceReason = point, reason
	return f
}

func drop(f *hubblepb.Flow, reason hubblepb.DropReason, why string) *hubblepb.Flow {
	f.Verdict, f.EventType = hubblepb.Verdict_DROPPED, &hubblepb.CiliumEventType{Type: eventDrop, SubType: int32(reason)}
	f.DropReason, f.DropReasonDesc = uint32(reason), reason
	f.Summary += "; " + cmp.Or(why, "no reason given")
	return f
}

// translation makes it the event of Cilium's socket load balancer before and after the translation
// of a service's address. Here the conntrack entry translates, but Hubble has no other event for it.
func translation(f *hubblepb.Flow, v hubblepb.Verdict, point hubblepb.SocketTranslationPoint) *hubblepb.Flow {
	f.Type, f.Verdict, f.EventType = hubblepb.FlowType_SOCK, v, &hubblepb.CiliumEventType{Type: eventTraceSock, SubType: int32(point)}
	f.SockXlatePoint = point
	return f
}

// notice makes it an event without a packet.
func notice(f *hubblepb.Flow, what string) *hubblepb.Flow {
	forward(f, hubblepb.TraceReason_TRACE_REASON_UNKNOWN)
	f.Verdict = hubblepb.Verdict_TRACED
	f.Summary += "; " + what
	return f
}

// dropReason is Hubble's reason for a record's reason. A rule of the node is a policy.
func dropReason(reason string) hubblepb.DropReason {
	switch reason {
	case decision.NoEndpoints.String(), decision.NoLocalEndpoints.String():
		return hubblepb.DropReason_SERVICE_BACKEND_NOT_FOUND
	case decision.SourceNotAllowed.String():
		return hubblepb.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK
	case decision.ForeignLocalnet.String():
		return hubblepb.DropReason_INVALID_PACKET_DROPPED
	}
	return hubblepb.DropReason_POLICY_DENIED
}
