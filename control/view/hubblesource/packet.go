package hubblesource

import (
	"net/netip"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The kinds of Cilium's events that count: MessageType* in its pkg/monitor/api. Policy verdicts (5) are about packets that
// the others report, too.
const (
	eventDrop      = 1
	eventTrace     = 4
	eventTraceSock = 7
)

// sender is the side that sent a packet, by is_reply.
type sender int8

const (
	unknownSender sender = iota // of Cilium's, that is not known; of nfqproxy's own server, any
	client
	server
)

// event is what one of Hubble's flows says: of a packet or, with a kind of eventTraceSock, of a socket.
type event struct {
	kind     int32
	node     string
	at       time.Time
	protocol decision.Protocol
	// source has no port, and cookie and cgroup are known, iff it is of a socket of Cilium's.
	source, destination netip.AddrPort
	cookie, cgroup      uint64
	translated          bool // of a socket: after the translation

	sender        sender
	before        bool       // observed where the packet comes in (FROM_*), which is before Cilium's load balancer
	delivered     bool       // observed where the packet reaches an endpoint of the node
	xlated        netip.Addr // the source's address in the packet, where Cilium changed it; source has the one before
	service, from string     // the Services with the destination and with the source: NAMESPACE/NAME

	flags     *hubblepb.TCPFlags // nil: not known
	chunk     hubblepb.SCTPChunkType
	ongoing   bool // the connection is known to be older
	aggregate bool // it stands for several packets
	drop      hubblepb.DropReason

	sourceEnd, destinationEnd end
}

// end is what Hubble knows of the owner of an address.
type end struct {
	pod   string // NAMESPACE/NAME
	local bool   // a pod of the node
	host  bool   // the node itself
	name  string // of a machine outside the cluster, by DNS
}

// parse reads a flow. ok is false for those that are not about a TCP, UDP or SCTP connection, or lack what names it. All
// fields may be absent.
func parse(f *hubblepb.Flow) (e event, ok bool) {
	kind := f.GetEventType().GetType()
	if f.GetTime().CheckValid() != nil || f.GetType() == hubblepb.FlowType_L7 {
		return event{}, false
	}
	e = event{
		kind: kind, node: nodeName(f.GetNodeName()), at: f.GetTime().AsTime(),
		service: serviceName(f.GetDestinationService()), from: serviceName(f.GetSourceService()),
		aggregate: f.GetAggregate() != nil, sourceEnd: endOf(f.GetSource(), f.GetSourceNames()), destinationEnd: endOf(f.GetDestination(), f.GetDestinationNames()),
	}
	var from, to uint32
	switch l4 := f.GetL4().GetProtocol().(type) {
	case *hubblepb.Layer4_TCP:
		e.protocol, from, to, e.flags = decision.TCP, l4.TCP.GetSourcePort(), l4.TCP.GetDestinationPort(), l4.TCP.GetFlags()
	case *hubblepb.Layer4_UDP:
		e.protocol, from, to = decision.UDP, l4.UDP.GetSourcePort(), l4.UDP.GetDestinationPort()
	case *hubblepb.Layer4_SCTP:
		e.protocol, from, to, e.chunk = decision.SCTP, l4.SCTP.GetSourcePort(), l4.SCTP.GetDestinationPort(), l4.SCTP.GetChunkType()
	default:
		return event{}, false
	}
	source, err1 := netip.ParseAddr(f.GetIP().GetSource())
	destination, err2 := netip.ParseAddr(f.GetIP().GetDestination())
	if err1 != nil || err2 != nil || from > 0xffff || to > 0xffff || to == 0 {
		return event{}, false
	}
	e.source = netip.AddrPortFrom(source.Unmap().WithZone(""), uint16(from))
	e.destination = netip.AddrPortFrom(destination.Unmap().WithZone(""), uint16(to))
	switch kind {
	case eventTraceSock:
		// The translation point is also in sock_xlate_point, which is 0 with some field masks.
		switch hubblepb.SocketTranslationPoint(f.GetEventType().GetSubType()) {
		case hubblepb.SocketTranslationPoint_SOCK_XLATE_POINT_PRE_DIRECTION_FWD:
		case hubblepb.SocketTranslationPoint_SOCK_XLATE_POINT_POST_DIRECTION_FWD:
			e.translated = true
		default: // of replies
			return event{}, false
		}
		e.cookie, e.cgroup = f.GetSocketCookie(), f.GetCgroupId()
		return e, true
	case eventDrop:
		if e.drop = f.GetDropReasonDesc(); e.drop == 0 {
			e.drop = hubblepb.DropReason(f.GetEventType().GetSubType())
		}
	case eventTrace:
		if f.GetVerdict() == hubblepb.Verdict_TRACED { // a note of nfqproxy's own server, and no packet
			return event{}, false
		}
		if e.protocol == decision.TCP && e.flags == nil {
			return event{}, false
		}
		e.observed(f)
	default:
		return event{}, false
	}
	// Where packets come in, Cilium has not looked up their connection. Decrypted ones have a reason that Hubble decodes as that of
	// a first packet, also replies (TRACE_REASON_ENCRYPTED is a mask).
	if r := f.GetIsReply(); r != nil && !e.before {
		e.sender = client
		if r.GetValue() {
			e.sender = server
		}
	}
	if xlated, err := netip.ParseAddr(f.GetIP().GetSourceXlated()); err == nil && xlated.Unmap() != e.source.Addr() {
		e.xlated = xlated.Unmap().WithZone("")
	}
	return e, from != 0
}

// observed reads where the packet was observed.
func (e *event) observed(f *hubblepb.Flow) {
	switch f.GetTraceObservationPoint() {
	case hubblepb.TraceObservationPoint_FROM_ENDPOINT, hubblepb.TraceObservationPoint_FROM_PROXY, hubblepb.TraceObservationPoint_FROM_HOST,
		hubblepb.TraceObservationPoint_FROM_STACK, hubblepb.TraceObservationPoint_FROM_OVERLAY, hubblepb.TraceObservationPoint_FROM_NETWORK,
		hubblepb.TraceObservationPoint_FROM_CRYPTO:
		e.before = true
		return
	case hubblepb.TraceObservationPoint_TO_ENDPOINT:
		e.delivered = true
	}
	switch f.GetTraceReason() {
	case hubblepb.TraceReason_ESTABLISHED, hubblepb.TraceReason_REPLY:
		e.ongoing = true
	}
}

// first reports whether it is the first packet of a connection: a SYN without an ACK.
func (e *event) first() bool {
	switch e.protocol {
	case decision.TCP:
		return e.flags.GetSYN() && !e.flags.GetACK()
	case decision.SCTP:
		return e.chunk == hubblepb.SCTPChunkType_INIT
	}
	return false
}

// second reports whether it is the answer to the first packet.
func (e *event) second() bool {
	switch e.protocol {
	case decision.TCP:
		return e.flags.GetSYN() && e.flags.GetACK()
	case decision.SCTP:
		return e.chunk == hubblepb.SCTPChunkType_INIT_ACK
	}
	return false
}

func (e *event) aborts() bool { return e.flags.GetRST() || e.chunk == hubblepb.SCTPChunkType_ABORT }

func (e *event) closes() bool {
	return e.flags.GetFIN() || e.chunk == hubblepb.SCTPChunkType_SHUTDOWN || e.chunk == hubblepb.SCTPChunkType_SHUTDOWN_ACK || e.closed()
}

func (e *event) closed() bool { return e.chunk == hubblepb.SCTPChunkType_SHUTDOWN_COMPLETE }

// nodeName is the node's own name: Hubble puts the cluster's before it.
func nodeName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// serviceName is empty for none. Hubble does not know the name of the port.
func serviceName(s *hubblepb.Service) string {
	if s.GetName() == "" || s.GetNamespace() == "" {
		return ""
	}
	return s.GetNamespace() + "/" + s.GetName()
}

// Identities that Cilium reserves: pkg/identity.
const (
	identityHost  = 1
	identityWorld = 2
)

func endOf(e *hubblepb.Endpoint, names []string) (x end) {
	if e.GetPodName() != "" && e.GetNamespace() != "" {
		x.pod = e.GetNamespace() + "/" + e.GetPodName()
	}
	x.host = x.pod == "" && e.GetIdentity() == identityHost
	x.local = e.GetID() != 0 && !x.host // only endpoints of the node have an ID
	if x.pod == "" && e.GetIdentity() == identityWorld && len(names) > 0 {
		x.name = names[0]
	}
	return x
}

// dropWords is a drop reason as records have it: policy-denied.
func dropWords(r hubblepb.DropReason) string {
	return strings.ToLower(strings.ReplaceAll(r.String(), "_", "-"))
}
