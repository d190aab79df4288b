package observe

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// All is the Limit of a [Filter] for all known flows.
const All = -1

// DefaultLimit is the default limit of a query that does not follow.
const DefaultLimit = 100

// MaxHoldSeconds and DefaultHoldSeconds bound a hold, see [HoldQuery].
const (
	MaxHoldSeconds     = 600
	DefaultHoldSeconds = 60
)

// Filter is a validated [FlowQuery], with typed values. A flow must match one value of each list;
// an empty list matches all.
type Filter struct {
	Follow, Steps bool
	// ServicesOnly leaves out flows with [flow.Flow.NoService].
	ServicesOnly bool

	Services                         []ServicePattern
	Namespaces                       []string
	Pods                             []PodPattern
	Nodes                            []string
	Sources, Destinations, Endpoints []AddressPattern
	Ports                            []uint16 // none is 0
	Protocols                        []decision.Protocol
	Verdicts                         []decision.Verdict
	Reasons                          []decision.Reason
	States                           []flow.State
	Events                           []flow.Event // empty unless Follow

	// Since leaves out flows decided before it, Until those decided then or later; the zero time: none.
	Since, Until time.Time
	// Limit is the maximum number of flows: the newest or, with Follow, those to send first; 0: none of these; [All]:
	// all.
	Limit int
	// Rate is the maximum number of records per second of a stream; 0: the node's limit.
	Rate int
}

// ServicePattern matches service ports. Empty fields match all.
type ServicePattern struct {
	Namespace, Name, Port string
}

// PodPattern matches pods. An empty namespace matches all.
type PodPattern struct {
	Namespace, Name string
}

// AddressPattern matches addresses with ports.
type AddressPattern struct {
	// Prefix contains the address. It is masked and never IPv4-mapped; valid iff Name is empty.
	Prefix netip.Prefix
	// Name is the owner of the address: a pod ([NAMESPACE/]NAME), a node or a machine outside the
	// cluster.
	Name string
	Port uint16 // 0: any
}

// ServiceFilter is a validated [ServiceQuery], as [Filter] is a [FlowQuery].
type ServiceFilter struct {
	Services   []ServicePattern
	Namespaces []string
	Active     bool
	Limit      int // 0: all
	After      ServiceKey
}

// Parse validates the query. Ages count from now. The error is an [*Error], for the first invalid field.
func (q FlowQuery) Parse(now time.Time) (*Filter, error) {
	var p parser
	f := &Filter{
		Follow:       q.Follow,
		Steps:        q.Steps,
		ServicesOnly: q.ServicesOnly,
		Services:     list(&p, "service", q.Service, parseService),
		Namespaces:   list(&p, "namespace", q.Namespace, parseName("namespace")),
		Pods:         list(&p, "pod", q.Pod, parsePod),
		Nodes:        list(&p, "node", q.Node, parseName("node")),
		Sources:      list(&p, "source", q.Source, ParseEnd),
		Destinations: list(&p, "destination", q.Destination, parseDestination),
		Endpoints:    list(&p, "endpoint", q.Endpoint, ParseEnd),
		Ports:        list(&p, "port", q.Port, parsePort),
		Protocols:    list(&p, "protocol", q.Protocol, parseProtocol),
		Verdicts:     list(&p, "verdict", q.Verdict, oneOf(flow.Verdicts())),
		Reasons:      list(&p, "reason", q.Reason, oneOf(flow.Reasons())),
		States:       list(&p, "state", q.State, oneOf(flow.States())),
		Events:       list(&p, "event", q.Event, oneOf(flow.Events())),
	}
	if q.Event != "" && !q.Follow {
		p.fail("event", "event %q: only streams have events: use follow, or filter by state", q.Event)
	}
	f.Since, f.Until = p.time("since", q.Since, now), p.time("until", q.Until, now)
	if q.Until != "" && (q.Follow || !f.Since.Before(f.Until)) {
		p.fail("until", "until %q: want a time after since, and no follow", q.Until)
	}
	f.Limit = p.limit(q)
	if q.Rate != "" {
		f.Rate = p.number("rate", q.Rate, "without it, the rate is limited by the nodes only")
	}
	if q.Rate != "" && !q.Follow {
		p.fail("rate", "rate %q: only streams have a rate: use follow, or limit", q.Rate)
	}
	return f, p.err
}

// Parse validates the query, as [FlowQuery.Parse] does.
func (q ServiceQuery) Parse() (*ServiceFilter, error) {
	var p parser
	f := &ServiceFilter{
		Services:   list(&p, "service", q.Service, parseService),
		Namespaces: list(&p, "namespace", q.Namespace, parseName("namespace")),
		Active:     q.Active,
		After:      p.serviceKey("after", q.After),
	}
	if q.Limit != "" && q.Limit != "0" {
		f.Limit = p.number("limit", q.Limit, "0 is all")
	}
	return f, p.err
}

// Parse validates the query, as [FlowQuery.Parse] does, and returns the timeout for waiting and for
// holding. The filter follows and matches no past flows. Fields of errors are named as in JSON: flow.protocol.
func (q HoldQuery) Parse() (*Filter, time.Duration, error) {
	h := q.Flow
	if h == (HoldFilter{}) {
		return nil, 0, badParameter("flow", "flow: no filter: give service, namespace, pod, node, source, destination, port or protocol")
	}
	f, err := FlowQuery{
		Follow:  true,
		Service: h.Service, Namespace: h.Namespace, Pod: h.Pod, Node: h.Node,
		Source: h.Source, Destination: h.Destination, Port: h.Port, Protocol: h.Protocol,
	}.Parse(time.Time{}) // now does not count without Since
	if e, ok := errors.AsType[*Error](err); ok {
		e.Field = "flow." + e.Field
	}
	switch {
	case err != nil:
		return nil, 0, err
	case q.Seconds < 0 || q.Seconds > MaxHoldSeconds:
		return nil, 0, badParameter("seconds", "seconds %d: want 1 to %d", q.Seconds, MaxHoldSeconds)
	case q.Seconds == 0:
		q.Seconds = DefaultHoldSeconds
	}
	return f, time.Duration(q.Seconds) * time.Second, nil
}

// Check reports an unknown action, or an endpoint that is missing or not allowed. The error
// is an [*Error].
func (a Act) Check() error {
	switch a.Action {
	case ActStep, ActBack, ActRelease, ActDrop:
		if a.Endpoint != "" {
			return badParameter("endpoint", "endpoint: only the action choose has one")
		}
	case ActChoose:
		if a.Endpoint == "" {
			return badParameter("endpoint", "endpoint is missing: want one of the record's candidates")
		}
	default:
		return badParameter("action", "action %q: want step, back, choose, release or drop", a.Action)
	}
	return nil
}

// Match reports whether a flow of the node passes the filter: at an event or, without one, in its present state;
// without a state, in any. It ignores Nodes (see [Filter.MatchNode]) and ServicesOnly: the caller counts the flows that
// it leaves out.
func (f *Filter) Match(fl *flow.Flow, s flow.State, e flow.Event, names flow.Names) bool {
	return f.matchPacket(&fl.Packet, names) && f.matchDecision(fl, names) && f.matchPods(fl, names) &&
		one(f.States, s) && (e == 0 || one(f.Events, e)) && f.MatchTime(fl.Time)
}

// MatchTime reports whether flows decided at a time can pass.
func (f *Filter) MatchTime(at time.Time) bool {
	return !at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until))
}

// MatchNode reports whether any flow of the node can pass.
func (f *Filter) MatchNode(name string) bool { return one(f.Nodes, name) }

// Match reports whether a service port passes the filter. It ignores Active, Limit and After.
func (f *ServiceFilter) Match(name decision.ServicePortName) bool {
	return some(f.Services, func(x ServicePattern) bool { return x.Match(name) }) && one(f.Namespaces, name.Namespace)
}

// some reports whether one of the list matches; an empty list always does.
func some[T any](list []T, match func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, match)
}

// one reports whether the value is in the list; an empty list has all.
func one[T comparable](list []T, value T) bool { return len(list) == 0 || slices.Contains(list, value) }

func (f *Filter) matchPacket(p *decision.Packet, names flow.Names) bool {
	return one(f.Protocols, p.Protocol) && one(f.Ports, p.Destination.Port()) &&
		some(f.Sources, func(x AddressPattern) bool { return x.Match(p.Source, names.Owner(p.Source.Addr())) }) &&
		some(f.Destinations, func(x AddressPattern) bool { return x.Match(p.Destination, flow.Owner{}) })
}

// Match reports whether the address of an owner passes.
func (x AddressPattern) Match(a netip.AddrPort, o flow.Owner) bool {
	switch {
	case x.Port != 0 && x.Port != a.Port():
		return false
	case x.Name == "":
		return x.Prefix.Contains(a.Addr().Unmap())
	case o.Pod != "": // the pod has the address, not its node
		return o.Pod == x.Name || strings.HasSuffix(o.Pod, "/"+x.Name)
	}
	return o.Host == x.Name || o.Node == x.Name
}

// endpointPod is the pod of the selected endpoint; empty: not known, or the flow went to another.
func endpointPod(fl *flow.Flow) string {
	d := &fl.Decision
	if !d.HasEndpoint() || fl.Endpoint() != d.Endpoint() {
		return ""
	}
	return d.ServicePort.Endpoints[d.Index].Pod
}

func (f *Filter) matchDecision(fl *flow.Flow, names flow.Names) bool {
	d := &fl.Decision
	if !one(f.Verdicts, d.Verdict) || !one(f.Reasons, d.Reason) {
		return false
	}
	if len(f.Endpoints) > 0 {
		to := fl.Endpoint()
		o := names.Owner(to.Addr())
		o.Pod = cmp.Or(endpointPod(fl), o.Pod)
		if !to.IsValid() || !some(f.Endpoints, func(x AddressPattern) bool { return x.Match(to, o) }) {
			return false
		}
	}
	return len(f.Services) == 0 || d.ServicePort != nil && some(f.Services, func(x ServicePattern) bool { return x.Match(d.ServicePort.Name) })
}

// Match reports whether the service port passes.
func (x ServicePattern) Match(name decision.ServicePortName) bool {
	return (x.Namespace == "" || x.Namespace == name.Namespace) && (x.Name == "" || x.Name == name.Name) && (x.Port == "" || x.Port == name.Port)
}

// matchPods matches the names of the pods, and namespaces.
func (f *Filter) matchPods(fl *flow.Flow, names flow.Names) bool {
	if len(f.Pods) == 0 && len(f.Namespaces) == 0 {
		return true
	}
	pods := [2]string{names.Owner(fl.Packet.Source.Addr()).Pod, endpointPod(fl)}
	d := &fl.Decision
	of := func(namespace string) bool {
		return d.ServicePort != nil && d.ServicePort.Name.Namespace == namespace ||
			strings.HasPrefix(pods[0], namespace+"/") || strings.HasPrefix(pods[1], namespace+"/")
	}
	return some(f.Namespaces, of) && some(f.Pods, func(x PodPattern) bool { return x.Match(pods[0]) || x.Match(pods[1]) })
}

// Match reports whether the pod, NAMESPACE/NAME, passes.
func (x PodPattern) Match(pod string) bool {
	namespace, name, ok := strings.Cut(pod, "/")
	return ok && name == x.Name && (x.Namespace == "" || x.Namespace == namespace)
}

// MatchRecord is [Filter.Match] for a record, with the names that it has; Nodes count, too.
func (f *Filter) MatchRecord(r *flow.Record) bool {
	return f.MatchNode(r.Node) && f.MatchTime(*r.Time) &&
		named(f.Protocols, r.Protocol) && named(f.Verdicts, r.Verdict) && named(f.Reasons, r.Reason) &&
		one(f.States, r.State()) && f.matchAddresses(r) && f.matchNames(r)
}

// named reports whether the value with the name is in the list; an empty list has all.
func named[T fmt.Stringer](list []T, name string) bool {
	return some(list, func(v T) bool { return v.String() == name })
}

func (f *Filter) matchAddresses(r *flow.Record) bool {
	if len(f.Sources)+len(f.Destinations)+len(f.Ports)+len(f.Endpoints) == 0 {
		return true
	}
	of := func(list []AddressPattern, address string, o flow.Owner) bool {
		a, err := netip.ParseAddrPort(address)
		return some(list, func(x AddressPattern) bool { return err == nil && x.Match(a, o) })
	}
	destination, _ := netip.ParseAddrPort(r.Destination) // 0 is no port of a filter
	return of(f.Sources, r.Source, flow.Owner{Pod: r.SourcePod, Node: r.SourceNode, Host: r.SourceHost}) &&
		of(f.Destinations, r.Destination, flow.Owner{}) && one(f.Ports, destination.Port()) &&
		of(f.Endpoints, r.Endpoint, flow.Owner{Pod: r.Pod, Node: r.EndpointNode})
}

func (f *Filter) matchNames(r *flow.Record) bool {
	namespace, rest, isService := strings.Cut(r.Service, "/")
	name, port, _ := strings.Cut(rest, ":")
	service := decision.ServicePortName{Namespace: namespace, Name: name, Port: port}
	return some(f.Services, func(x ServicePattern) bool { return isService && x.Match(service) }) &&
		some(f.Pods, func(x PodPattern) bool { return x.Match(r.SourcePod) || x.Match(r.Pod) }) &&
		some(f.Namespaces, func(n string) bool {
			return isService && namespace == n || strings.HasPrefix(r.SourcePod, n+"/") || strings.HasPrefix(r.Pod, n+"/")
		})
}
