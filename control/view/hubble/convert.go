// Package hubble converts flow records to the format of Cilium's Hubble, so that programs that
// read Hubble's JSON can read nfqproxy's: the objects are observer.GetFlowsResponse as
// "hubble observe -o jsonpb" prints them (cilium/cilium, api/v1/observer/observer.proto and
// api/v1/flow/flow.proto).
//
// Hubble's flows are packets, records are flows. So each record becomes what Cilium would report
// of its packet:
//
//	record                  Hubble's flows
//	decided, dnat           TRACED pre-xlate-fwd, client to service; TRANSLATED
//	                        post-xlate-fwd and FORWARDED to-stack, client to endpoint
//	  entry was kept        FORWARDED to-stack, client to endpoint
//	decided, accept         FORWARDED to-stack, client to destination
//	rejected, dropped       DROPPED, client to destination, with a reason
//	failed                  DROPPED, CT_MAP_INSERTION_FAILED
//	repeated                FORWARDED or DROPPED like the first time
//	answered, refused       FORWARDED to-stack, a reply: endpoint to client
//	established, closing,   FORWARDED to-stack, client to endpoint; is_reply is absent,
//	closed, reset           as the sender of the packet is not known
//	unanswered, expired,    TRACED, client to endpoint, no packet; the summary has the
//	removed, gone           event
//	missed                  lost_events; node_status, NODE_UNAVAILABLE, if the number is
//	                        not known: the node is unreachable
//
// A record without an event becomes its decision and the present state of the flow.
//
// Identities are known only for nodes and the world; Cilium's identities of pods are not.
package hubble

//lint:file-ignore SA1019 Hubble's command prints Flow.Summary, and programs read Flow.DropReason.

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Flows converts a record to Hubble's flows, in the order of their events. The error names the
// invalid field of the record.
func Flows(r *flow.Record) ([]*hubblepb.GetFlowsResponse, error) {
	r = printable(r)
	c, err := newConversation(r)
	if err != nil {
		return nil, err
	}
	var flows []*hubblepb.Flow
	switch r.Event {
	case 0:
		flows = c.decision(r.Time)
		if s := state(r); !s.IsDecision() {
			flows = append(flows, c.event(s))
		}
	case flow.Repeated:
		flows = c.decision(c.eventTime())
		flows = flows[len(flows)-1:] // without the translation, which is done only once
	default:
		if r.Event.IsDecision() {
			flows = c.decision(r.Time)
		} else {
			flows = []*hubblepb.Flow{c.event(r.Event)}
		}
	}
	responses := make([]*hubblepb.GetFlowsResponse, len(flows))
	for i, f := range flows {
		if t := f.GetTime(); t != nil && t.CheckValid() != nil {
			return nil, fmt.Errorf("flow record %s: time %s: want a year from 1 to 9999", r.ID, t.AsTime())
		}
		f.Uuid = c.uuid(f)
		responses[i] = &hubblepb.GetFlowsResponse{
			ResponseTypes: &hubblepb.GetFlowsResponse_Flow{Flow: f}, NodeName: f.GetNodeName(), Time: f.GetTime(),
		}
	}
	return responses, nil
}

// Missing reports missing flows. Their time is not known.
func Missing(m *observe.Missed) *hubblepb.GetFlowsResponse {
	node := validUTF8(m.Node)
	if m.Why == observe.MissedUnreachable || m.Why == observe.MissedNoDaemon {
		status := &hubblepb.NodeStatusEvent{StateChange: hubblepb.NodeState_NODE_UNAVAILABLE, NodeNames: []string{node}, Message: validUTF8(m.Why)}
		return &hubblepb.GetFlowsResponse{ResponseTypes: &hubblepb.GetFlowsResponse_NodeStatus{NodeStatus: status}, NodeName: node}
	}
	lost := &hubblepb.LostEvent{NumEventsLost: m.Missed}
	switch m.Why {
	case observe.MissedSlow:
		lost.Source = hubblepb.LostEventSource_HUBBLE_RING_BUFFER
	case observe.MissedLost:
		lost.Source = hubblepb.LostEventSource_OBSERVER_EVENTS_QUEUE
	}
	return &hubblepb.GetFlowsResponse{ResponseTypes: &hubblepb.GetFlowsResponse_LostEvents{LostEvents: lost}, NodeName: node}
}

// printable returns the record with valid UTF-8, without which a protocol buffer cannot be encoded.
func printable(r *flow.Record) *flow.Record {
	valid := *r
	for _, text := range []*string{
		&valid.ID, &valid.Node, &valid.Service, &valid.Pod, &valid.SourcePod, &valid.SourceNode, &valid.SourceHost, &valid.Reason, &valid.Error,
	} {
		*text = validUTF8(*text)
	}
	return &valid
}

func validUTF8(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

// state is the state of a record's flow; without a life cycle, that of its decision.
func state(r *flow.Record) flow.State {
	if r.Life == nil {
		return flow.Decided
	}
	return r.Life.State
}

// conversation is a record with parsed addresses: client, destination and server.
type conversation struct {
	record                      *flow.Record
	client, destination, server netip.AddrPort // server is the endpoint or, untranslated, destination
	clientXlated                netip.Addr     // the client's address as seen by the server, if it differs
	service                     *hubblepb.Service
}

func newConversation(r *flow.Record) (*conversation, error) {
	c := &conversation{record: r}
	read := func(name, value string, into *netip.AddrPort) error {
		a, err := netip.ParseAddrPort(value)
		if err != nil {
			return fmt.Errorf("flow record %s: field %s is %q: want an address and a port, like 10.96.0.10:53 or [fd00::10]:53", r.ID, name, value)
		}
		*into = a
		return nil
	}
	if err := read("source", r.Source, &c.client); err != nil {
		return nil, err
	}
	if err := read("destination", r.Destination, &c.destination); err != nil {
		return nil, err
	}
	c.server = c.destination
	if r.Endpoint != "" {
		if err := read("endpoint", r.Endpoint, &c.server); err != nil {
			return nil, err
		}
	}
	switch r.Protocol {
	case decision.TCP.String(), decision.UDP.String(), decision.SCTP.String():
	default:
		return nil, fmt.Errorf("flow record %s: field protocol is %q: want TCP, UDP or SCTP", r.ID, r.Protocol)
	}
	if seen, err := netip.ParseAddr(r.MasqueradeAddress); err == nil {
		c.clientXlated = seen
	}
	if r.Life != nil {
		if seen, err := netip.ParseAddrPort(r.Life.SeenSource); err == nil {
			c.clientXlated = seen.Addr()
		}
	}
	if c.clientXlated == c.client.Addr() {
		c.clientXlated = netip.Addr{}
	}
	if namespace, name, ok := strings.Cut(r.Service, "/"); ok {
		name, _, _ = strings.Cut(name, ":")
		c.service = &hubblepb.Service{Name: name, Namespace: namespace}
	}
	return c, nil
}

// decision is what happens to the first packet.
func (c *conversation) decision(t *time.Time) []*hubblepb.Flow {
	r, first := c.record, first[c.record.Protocol]
	notYet := c.sent(t, first, c.destination)
	switch {
	case r.Verdict == decision.Reject.String() || r.Verdict == decision.Drop.String():
		return []*hubblepb.Flow{drop(notYet, dropReason(r.Reason), r.Reason)}
	case r.Conntrack == "failed":
		return []*hubblepb.Flow{drop(notYet, hubblepb.DropReason_CT_MAP_INSERTION_FAILED, r.Error)}
	case r.Verdict == decision.Accept.String():
		return []*hubblepb.Flow{forward(notYet, hubblepb.TraceReason_NEW)}
	case r.Verdict != decision.DNAT.String():
		return []*hubblepb.Flow{notice(notYet, "verdict of the rules not known")}
	}
	last := forward(c.sent(t, first, c.server), hubblepb.TraceReason_NEW)
	if r.Conntrack == "kept" {
		return []*hubblepb.Flow{last}
	}
	before := translation(c.sent(t, packet{}, c.destination), hubblepb.Verdict_TRACED, hubblepb.SocketTranslationPoint_SOCK_XLATE_POINT_PRE_DIRECTION_FWD)
	after := translation(c.sent(t, packet{}, c.server), hubblepb.Verdict_TRANSLATED, hubblepb.SocketTranslationPoint_SOCK_XLATE_POINT_POST_DIRECTION_FWD)
	after.Summary += "; " + r.Reason
	if r.Draw != nil {
		after.Summary += fmt.Sprintf(", one of %d", len(r.Candidates))
	}
	return []*hubblepb.Flow{before, after, last}
}

// event is an event after the decision.
func (c *conversation) event(e flow.Event) *hubblepb.Flow {
	t := c.eventTime()
	p, happened := packets[e]
	switch {
	case !happened:
		text, ok := notices[e]
		if !ok {
			text = e.String()
		}
		return notice(c.sent(t, packet{}, c.server), text)
	case p.reply:
		return forward(c.received(t, p), p.reason)
	}
	f := forward(c.sent(t, p, c.server), p.reason)
	f.IsReply = nil
	return f
}

// eventTime is the time of the event, as far as the record has it.
func (c *conversation) eventTime() *time.Time {
	l := c.record.Life
	switch {
	case l == nil:
		return c.record.Time
	case c.record.Event == flow.Gone && l.CountedAt != nil:
		return l.CountedAt
	}
	return &l.Since
}

// sent is a packet from the client.
func (c *conversation) sent(t *time.Time, p packet, to netip.AddrPort) *hubblepb.Flow {
	f := c.flow(t, p, c.client, to)
	f.IsReply, f.DestinationService = wrapperspb.Bool(false), c.service
	f.Source, f.SourceNames = c.clientEndpoint()
	if to == c.server {
		f.Destination = pod(c.record.Pod)
		if to != c.destination && c.clientXlated.IsValid() {
			f.IP.SourceXlated = c.clientXlated.String()
		}
	}
	return f
}

// received is a packet from the server.
func (c *conversation) received(t *time.Time, p packet) *hubblepb.Flow {
	f := c.flow(t, p, c.server, c.client)
	f.IsReply, f.SourceService = wrapperspb.Bool(true), c.service
	f.Source = pod(c.record.Pod)
	f.Destination, f.DestinationNames = c.clientEndpoint()
	return f
}

func (c *conversation) flow(t *time.Time, p packet, from, to netip.AddrPort) *hubblepb.Flow {
	r := c.record
	f := &hubblepb.Flow{
		Time: timestamp(t), NodeName: r.Node, Type: hubblepb.FlowType_L3_L4, TrafficDirection: direction(r),
		IP: &hubblepb.IP{Source: from.Addr().String(), Destination: to.Addr().String(), IpVersion: hubblepb.IPVersion_IPv6},
	}
	if to.Addr().Is4() {
		f.IP.IpVersion = hubblepb.IPVersion_IPv4
	}
	f.L4, f.Summary = p.layer4(r.Protocol, uint32(from.Port()), uint32(to.Port()))
	return f
}

// clientEndpoint is the client, and its name if it is not a pod.
func (c *conversation) clientEndpoint() (*hubblepb.Endpoint, []string) {
	const host, world, remoteNode = 1, 2, 6 // pkg/identity's reserved ones
	r := c.record
	switch {
	case r.SourcePod != "":
		return pod(r.SourcePod), nil
	case r.Local, r.SourceNode != "" && r.SourceNode == r.Node:
		return &hubblepb.Endpoint{Identity: host, Labels: []string{"reserved:host"}}, names(r.Node)
	case r.SourceNode != "":
		return &hubblepb.Endpoint{Identity: remoteNode, Labels: []string{"reserved:remote-node"}}, names(r.SourceNode)
	case r.SourceHost != "":
		return &hubblepb.Endpoint{Identity: world, Labels: []string{"reserved:world"}}, names(r.SourceHost)
	}
	return nil, nil
}

func names(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// pod is the endpoint of a pod, given as namespace/name.
func pod(name string) *hubblepb.Endpoint {
	namespace, name, ok := strings.Cut(name, "/")
	if !ok {
		return nil
	}
	return &hubblepb.Endpoint{Namespace: namespace, PodName: name, Labels: []string{"k8s:io.kubernetes.pod.namespace=" + namespace}}
}

// direction is the direction of the connection: out of a pod or the node itself, or into a pod.
func direction(r *flow.Record) hubblepb.TrafficDirection {
	switch {
	case r.Local || r.SourceNode != "" && r.SourceNode == r.Node:
		return hubblepb.TrafficDirection_EGRESS
	case r.EndpointNode != "" && r.EndpointNode == r.Node:
		return hubblepb.TrafficDirection_INGRESS
	}
	return hubblepb.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN
}

func timestamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

// uuid identifies an object of Hubble; it is deterministic. It is empty if the record has no ID.
func (c *conversation) uuid(f *hubblepb.Flow) string {
	r := c.record
	if r.ID == "" {
		return ""
	}
	var repeated uint32
	if r.Life != nil {
		repeated = r.Life.Repeated
	}
	e := f.GetEventType()
	h := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n{%d %d}\n%s\n%d", r.ID, r.Event, e.GetType(), e.GetSubType(), f.GetSummary(), repeated))
	u := h[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // RFC 9562, version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
