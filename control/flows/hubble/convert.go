package hubble

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Flows converts a record to Hubble's flows, in the order of their events. The error names the
// invalid field of the record.
func Flows(r *flow.Record) ([]Response, error) {
	c, err := newConversation(r)
	if err != nil {
		return nil, err
	}
	var flows []*Flow
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
			flows = []*Flow{c.event(r.Event)}
		}
	}
	responses := make([]Response, len(flows))
	for i, f := range flows {
		f.UUID = c.uuid(f)
		responses[i] = Response{Flow: f, NodeName: f.NodeName, Time: f.Time}
	}
	return responses, nil
}

// Missing reports missing flows. Their time is not known.
func Missing(m *observe.Missed) Response {
	r := Response{NodeName: m.Node}
	if m.Missed == 0 { // number not known: the node is unreachable
		r.NodeStatus = &NodeStatus{Change: "NODE_UNAVAILABLE", Nodes: []string{m.Node}, Message: m.Why}
		return r
	}
	r.LostEvents = &LostEvents{Lost: m.Missed}
	switch m.Why {
	case observe.MissedSlow:
		r.LostEvents.Source = "HUBBLE_RING_BUFFER"
	case observe.MissedLost:
		r.LostEvents.Source = "OBSERVER_EVENTS_QUEUE"
	}
	return r
}

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
	service                     *ServiceName
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
		c.service = &ServiceName{Name: name, Namespace: namespace}
	}
	return c, nil
}

// decision is what happens to the first packet.
func (c *conversation) decision(t *time.Time) []*Flow {
	r, first := c.record, first[c.record.Protocol]
	notYet := c.sent(t, first, c.destination)
	switch {
	case r.Verdict == decision.Reject.String() || r.Verdict == decision.Drop.String():
		return []*Flow{drop(notYet, dropReason(r.Reason), r.Reason)}
	case r.Conntrack == "failed":
		return []*Flow{drop(notYet, ConntrackFailed, r.Error)}
	case r.Verdict == decision.Accept.String():
		return []*Flow{forward(notYet, "NEW")}
	case r.Verdict != decision.DNAT.String():
		return []*Flow{notice(notYet, "verdict of the rules not known")}
	}
	last := forward(c.sent(t, first, c.server), "NEW")
	if r.Conntrack == "kept" {
		return []*Flow{last}
	}
	before := translation(c.sent(t, packet{}, c.destination), Traced, "PRE", 1)
	after := translation(c.sent(t, packet{}, c.server), Translated, "POST", 2)
	after.Summary += "; " + r.Reason
	if r.Draw != nil {
		after.Summary += fmt.Sprintf(", one of %d", len(r.Candidates))
	}
	return []*Flow{before, after, last}
}

// event is an event after the decision.
func (c *conversation) event(e flow.Event) *Flow {
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
func (c *conversation) sent(t *time.Time, p packet, to netip.AddrPort) *Flow {
	f, no := c.flow(t, p, c.client, to), false
	f.IsReply, f.DestService = &no, c.service
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
func (c *conversation) received(t *time.Time, p packet) *Flow {
	f, yes := c.flow(t, p, c.server, c.client), true
	f.IsReply, f.SourceService = &yes, c.service
	f.Source = pod(c.record.Pod)
	f.Destination, f.DestNames = c.clientEndpoint()
	return f
}

func (c *conversation) flow(t *time.Time, p packet, from, to netip.AddrPort) *Flow {
	r := c.record
	f := &Flow{
		Time: timestamp(t), NodeName: r.Node, Type: "L3_L4", Direction: direction(r),
		IP: &IP{Source: from.Addr().String(), Destination: to.Addr().String(), Version: "IPv6"},
	}
	if to.Addr().Is4() {
		f.IP.Version = "IPv4"
	}
	ports := &Ports{Source: from.Port(), Destination: to.Port()}
	f.L4, f.Summary = p.layer4(r.Protocol, ports)
	return f
}

// clientEndpoint is the client, and its name if it is not a pod.
func (c *conversation) clientEndpoint() (*Endpoint, []string) {
	const host, world, remoteNode = 1, 2, 6 // pkg/identity's reserved ones
	r := c.record
	switch {
	case r.SourcePod != "":
		return pod(r.SourcePod), nil
	case r.Local, r.SourceNode != "" && r.SourceNode == r.Node:
		return &Endpoint{Identity: host, Labels: []string{"reserved:host"}}, names(r.Node)
	case r.SourceNode != "":
		return &Endpoint{Identity: remoteNode, Labels: []string{"reserved:remote-node"}}, names(r.SourceNode)
	case r.SourceHost != "":
		return &Endpoint{Identity: world, Labels: []string{"reserved:world"}}, names(r.SourceHost)
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
func pod(name string) *Endpoint {
	namespace, name, ok := strings.Cut(name, "/")
	if !ok {
		return nil
	}
	return &Endpoint{Namespace: namespace, PodName: name, Labels: []string{"k8s:io.kubernetes.pod.namespace=" + namespace}}
}

// direction is that of the connection: out of a pod or the node itself, or into a pod.
func direction(r *flow.Record) string {
	switch {
	case r.Local || r.SourceNode != "" && r.SourceNode == r.Node:
		return "EGRESS"
	case r.EndpointNode != "" && r.EndpointNode == r.Node:
		return "INGRESS"
	}
	return ""
}

func timestamp(t *time.Time) *Time {
	if t == nil {
		return nil
	}
	return &Time{t.UTC()}
}
