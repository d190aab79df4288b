package hubble

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// AppendProto appends the response as a protocol buffer: observer.GetFlowsResponse.
// Its numbers are those of observer.proto and flow.proto.
func (r *Response) AppendProto(b []byte) []byte {
	m := message{b}
	if r.Flow != nil {
		m.message(1, r.Flow.proto())
	}
	if n := r.NodeStatus; n != nil {
		status := message{}.with(1, Number(n.Change))
		status.texts(2, n.Nodes)
		status.text(3, n.Message)
		m.message(2, status)
	}
	if r.LostEvents != nil {
		m.message(3, r.LostEvents.proto())
	}
	m.text(1000, r.NodeName)
	m.time(1001, r.Time)
	return m.bytes
}

func (f *Flow) proto() message {
	var m message
	m.time(1, f.Time)
	m.number(2, Number(f.Verdict))
	m.number(3, uint64(f.DropReason))
	m.message(5, f.IP.proto())
	m.message(6, f.L4.proto())
	m.message(8, f.Source.proto())
	m.message(9, f.Destination.proto())
	m.number(10, Number(f.Type))
	m.text(11, f.NodeName)
	m.texts(13, f.SourceNames)
	m.texts(14, f.DestNames)
	m.message(19, message{}.with(1, uint64(f.EventType.Type)).with(2, uint64(f.EventType.SubType)))
	m.message(20, f.SourceService.proto())
	m.message(21, f.DestService.proto())
	m.number(22, Number(f.Direction))
	m.number(24, Number(f.Observation))
	m.number(25, uint64(f.DropReason))
	if f.IsReply != nil { // a BoolValue is empty if it is false
		m.field(26, message{}.with(1, bit(*f.IsReply)))
	}
	m.number(31, Number(f.SockXlatePoint))
	m.text(34, f.UUID)
	m.number(36, Number(f.TraceReason))
	m.text(100000, f.Summary)
	return m
}

func (ip *IP) proto() message {
	var m message
	m.text(1, ip.Source)
	m.text(2, ip.Destination)
	m.number(3, Number(ip.Version))
	m.text(5, ip.SourceXlated)
	return m
}

func (l *Layer4) proto() message {
	var m message
	switch {
	case l.TCP != nil:
		p := l.TCP.proto()
		if f := l.TCP.Flags; f != nil {
			p.message(3, message{}.with(1, bit(f.FIN)).with(2, bit(f.SYN)).with(3, bit(f.RST)).with(5, bit(f.ACK)))
		}
		m.message(1, p)
	case l.UDP != nil:
		m.message(2, l.UDP.proto())
	case l.SCTP != nil:
		m.message(5, l.SCTP.proto().with(3, Number(l.SCTP.ChunkType)))
	}
	return m
}

func (p *Ports) proto() message {
	return message{}.with(1, uint64(p.Source)).with(2, uint64(p.Destination))
}

func (e *Endpoint) proto() message {
	var m message
	if e != nil {
		m.number(2, uint64(e.Identity))
		m.text(3, e.Namespace)
		m.texts(4, e.Labels)
		m.text(5, e.PodName)
	}
	return m
}

func (s *ServiceName) proto() message {
	var m message
	if s != nil {
		m.text(1, s.Name)
		m.text(2, s.Namespace)
	}
	return m
}

func (l *LostEvents) proto() message {
	return message{}.with(1, Number(l.Source)).with(2, l.Lost)
}

// numbers are the numbers of the enums' names. No name is in two enums with different numbers.
var numbers = map[string]uint64{
	"FORWARDED": 1, "DROPPED": 2, "TRACED": 6, "TRANSLATED": 7, // Verdict
	"L3_L4": 1, "SOCK": 3, // FlowType
	"IPv4": 1, "IPv6": 2, // IPVersion
	"INGRESS": 1, "EGRESS": 2, // TrafficDirection
	"TO_STACK": 3,                               // TraceObservationPoint
	"NEW":      1, "ESTABLISHED": 2, "REPLY": 3, // TraceReason
	"SOCK_XLATE_POINT_PRE_DIRECTION_FWD": 1, "SOCK_XLATE_POINT_POST_DIRECTION_FWD": 2, // SocketTranslationPoint
	"INIT": 1, "INIT_ACK": 2, "SHUTDOWN": 3, "SHUTDOWN_COMPLETE": 5, "ABORT": 6, // SCTPChunkType
	"OBSERVER_EVENTS_QUEUE": 2, "HUBBLE_RING_BUFFER": 3, // LostEventSource
	"NODE_UNAVAILABLE": 2, // relay.NodeState
}

// Number returns the number of an enum's name; 0 for the empty name.
func Number[Name ~string](name Name) uint64 { return numbers[string(name)] }

func bit(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// message is a message of protocol buffers in the making. Zero values are left out.
type message struct{ bytes []byte }

func (m *message) number(n protowire.Number, v uint64) { *m = m.with(n, v) }

func (m message) with(n protowire.Number, v uint64) message {
	if v != 0 {
		m.bytes = protowire.AppendVarint(protowire.AppendTag(m.bytes, n, protowire.VarintType), v)
	}
	return m
}

func (m *message) text(n protowire.Number, v string) {
	if v != "" {
		m.bytes = protowire.AppendString(protowire.AppendTag(m.bytes, n, protowire.BytesType), v)
	}
}

func (m *message) texts(n protowire.Number, list []string) {
	for _, v := range list {
		m.text(n, v)
	}
}

// message adds one that is not there if it is empty, field one that is.
func (m *message) message(n protowire.Number, v message) {
	if len(v.bytes) > 0 {
		m.field(n, v)
	}
}

func (m *message) field(n protowire.Number, v message) {
	m.bytes = protowire.AppendBytes(protowire.AppendTag(m.bytes, n, protowire.BytesType), v.bytes)
}

func (m *message) time(n protowire.Number, t *Time) {
	if t != nil {
		m.field(n, timestampProto(t.Time))
	}
}

func timestampProto(t time.Time) message {
	return message{}.with(1, uint64(t.Unix())).with(2, uint64(t.Nanosecond()))
}
