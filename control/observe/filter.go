package observe

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
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
	return f, p.error()
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
	return f, p.error()
}

// Parse validates the query, as [FlowQuery.Parse] does, and returns the timeout for waiting and for
// holding. The filter follows and matches no past flows.
func (q HoldQuery) Parse() (*Filter, time.Duration, error) {
	f, err := q.Flow.Parse()
	if err != nil {
		return nil, 0, err
	}
	switch {
	case q.Seconds < 0 || q.Seconds > MaxHoldSeconds:
		return nil, 0, &Error{http.StatusBadRequest, "seconds", "seconds " + strconv.Itoa(q.Seconds) + ": want 1 to " + strconv.Itoa(MaxHoldSeconds)}
	case q.Seconds == 0:
		q.Seconds = DefaultHoldSeconds
	}
	return f, time.Duration(q.Seconds) * time.Second, nil
}

// Parse validates the filter, as [HoldQuery.Parse] does. Fields of errors are named as in a
// HoldQuery: flow.protocol.
func (h HoldFilter) Parse() (*Filter, error) {
	if h == (HoldFilter{}) {
		return nil, &Error{http.StatusBadRequest, "flow", "flow: no filter: give service, namespace, pod, node, source, destination, port or protocol"}
	}
	q := FlowQuery{
		Follow:  true,
		Service: h.Service, Namespace: h.Namespace, Pod: h.Pod, Node: h.Node,
		Source: h.Source, Destination: h.Destination, Port: h.Port, Protocol: h.Protocol,
	}
	f, err := q.Parse(time.Time{}) // now does not count without Since
	if e, ok := errors.AsType[*Error](err); ok {
		e.Field = "flow." + e.Field
	}
	return f, err
}

// Check reports an unknown action, or an endpoint that is missing or not allowed. The error
// is an [*Error].
func (a Act) Check() error {
	switch a.Action {
	case ActStep, ActBack, ActRelease, ActDrop:
		if a.Endpoint != "" {
			return &Error{http.StatusBadRequest, "endpoint", "endpoint: only the action choose has one"}
		}
		return nil
	case ActChoose:
		if a.Endpoint == "" {
			return &Error{http.StatusBadRequest, "endpoint", "endpoint is missing: want one of the record's candidates"}
		}
		return nil
	}
	return &Error{http.StatusBadRequest, "action", "action " + strconv.Quote(a.Action) + ": want step, back, choose, release or drop"}
}
