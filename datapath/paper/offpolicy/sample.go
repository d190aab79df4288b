package offpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// sample are the flows that count.
type sample struct {
	flows    []*counted       // in the order of time
	by       map[int]*counted // by replay.Recorded.Number
	services map[string]*service
	leftOut  map[string]int // by reason
}

// service is a service with flows that count.
type service struct {
	name      string
	algorithm string // the target
	feedback  bool   // it depends on load
	endpoints []netip.AddrPort
	index     map[netip.AddrPort]int
	flows     []*counted // in the order of time
}

// counted is a flow that counts.
type counted struct {
	service     *service
	endpoint    int     // in service.endpoints
	probability float64 // of the endpoint, in the log
	result
	picks  []int   // endpoints that the target selected, one for each replication that selected one
	weight float64 // probability under the target divided by that in the log
	open   int     // connections of the endpoint that were open at the decision, as recorded, and had an answer
	robust [outcomes]term
}

// newSample selects the flows that count.
func newSample(h *replay.History) (*sample, error) {
	s := &sample{by: make(map[int]*counted), services: make(map[string]*service), leftOut: make(map[string]int)}
	for _, f := range h.Flows {
		c, reason, err := s.count(f.Record)
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", f.Line, err)
		case c == nil:
			s.leftOut[reason]++
		default:
			s.flows, s.by[f.Number] = append(s.flows, c), c
		}
	}
	return s, nil
}

// count gives the flow of a record, or the reason why it does not count.
func (s *sample) count(r *flow.Record) (*counted, string, error) {
	if reason := unsuited(r); reason != "" {
		return nil, reason, nil
	}
	p, reason, err := probability(r)
	if err != nil || reason != "" {
		return nil, reason, err
	}
	result, reason := resultOf(r)
	if reason != "" {
		return nil, reason, nil
	}
	if l := r.Life.AnsweredAfter; l < 0 || l > longestLatency {
		return nil, "", fmt.Errorf("life.answeredAfter %v: want seconds from 0 to %v", l, longestLatency)
	}
	endpoint, err := netip.ParseAddrPort(r.Endpoint)
	if err != nil {
		return nil, "", fmt.Errorf("endpoint %q: want an address with a port", r.Endpoint)
	}
	of := s.services[r.Service]
	if of == nil {
		of = &service{name: r.Service, index: make(map[netip.AddrPort]int)}
		s.services[r.Service] = of
	}
	for i := range r.Candidates {
		candidate, err := netip.ParseAddrPort(r.Candidates[i].Endpoint)
		if err != nil {
			return nil, "", fmt.Errorf("candidate %q: want an address with a port", r.Candidates[i].Endpoint)
		}
		of.number(candidate)
	}
	return &counted{service: of, endpoint: of.number(endpoint), probability: p, result: result}, "", nil
}

// number gives the position of an endpoint, and adds one that is new.
func (s *service) number(endpoint netip.AddrPort) int {
	i, ok := s.index[endpoint]
	if !ok {
		i = len(s.endpoints)
		s.endpoints, s.index[endpoint] = append(s.endpoints, endpoint), i
	}
	return i
}

// unsuited is why a record cannot count, whatever its probability and result; empty: it can.
func unsuited(r *flow.Record) string {
	switch {
	case r.Verdict != decision.DNAT.String() || r.State() == flow.Failed:
		return "sent to no endpoint"
	case r.Conntrack == "kept":
		return "its connection entry was there before"
	case r.Reason == decision.Bound.String():
		return "session affinity selected the endpoint"
	case r.Reason == decision.ByKernel.String():
		return "the kernel's copy of the service table selected the endpoint"
	case r.Held != nil && r.Held.Action == flow.HoldChosen:
		return "a user selected the endpoint of a held flow"
	case len(r.Earlier) > 0:
		return "a second chance: an endpoint failed before"
	}
	return ""
}

// leastProbability keeps weights finite. Services have fewer endpoints than its inverse.
const leastProbability = 1e-9

// probability is the recorded one of a record's endpoint, or the reason why there is none.
func probability(r *flow.Record) (p float64, reason string, err error) {
	if i := slices.IndexFunc(r.Candidates, func(c flow.Candidate) bool { return c.Endpoint == r.Endpoint }); i >= 0 {
		p = r.Candidates[i].Probability
	}
	if r.Balance != nil && p == 0 {
		p = r.Balance.Probability
	}
	if n := len(r.Candidates); n > 0 && p == 0 && r.Balance == nil {
		p = 1 / float64(n) // kube-proxy's draw
	}
	switch {
	case p < 0 || p > 1 || p > 0 && p < leastProbability:
		return 0, "", fmt.Errorf("endpoint %s has the probability %v: want 0, or %v to 1", r.Endpoint, p, leastProbability)
	case p == 0:
		return 0, "the probability of the endpoint is not recorded", nil
	case p == 1 && len(r.Candidates) > 1:
		return 0, "a deterministic algorithm selected the endpoint", nil
	}
	return p, "", nil
}

// why lists the reasons of flows that are left out.
func (s *sample) why() string {
	var reasons []string
	for _, l := range s.reasons() {
		reasons = append(reasons, fmt.Sprintf("%s (%d)", l.Reason, l.Flows))
	}
	return strings.Join(reasons, ", ")
}

// reasons counts the flows that are left out, the most frequent reason first.
func (s *sample) reasons() []LeftOut {
	list := []LeftOut{} // never null in JSON
	for reason, n := range s.leftOut {
		list = append(list, LeftOut{reason, n})
	}
	slices.SortFunc(list, func(a, b LeftOut) int { return cmp.Or(b.Flows-a.Flows, strings.Compare(a.Reason, b.Reason)) })
	return list
}

// result is what happened to a flow.
type result struct {
	refused, unanswered bool
	latency             float64 // seconds to the reply; 0: it did not connect, or the time is not known
}

// longestLatency keeps sums finite: eleven days.
const longestLatency = 1e6

// resultOf gives what happened to the flow of a record, or the reason why that is not known.
func resultOf(r *flow.Record) (result, string) {
	l := r.Life
	if l == nil {
		return result{}, "the record has no life (nfqproxy flows -o jsonl has it)"
	}
	switch l.State {
	case flow.Refused:
		return result{refused: true}, ""
	case flow.Answered, flow.Established, flow.Closing, flow.Closed, flow.Reset, flow.Expired:
		return result{latency: l.AnsweredAfter}, ""
	}
	switch {
	case l.Answered:
		return result{latency: l.AnsweredAfter}, ""
	case l.State == flow.Unanswered && !l.Incomplete:
		return result{unanswered: true}, ""
	}
	return result{}, "its answer is not known yet, or was lost"
}

// term is one flow's part of a mean: the sum of values divided by the sum of counts.
type term struct{ value, count float64 }

// The outcomes that are means.
const (
	latency = iota
	refused
	unanswered
	outcomes
)

var names = [outcomes]string{Latency, Refused, Unanswered}

// terms are the flow's parts of the recorded means. Connect latency is a mean of connections only.
func (r *result) terms() (t [outcomes]term) {
	if r.latency > 0 {
		t[latency] = term{r.latency, 1}
	}
	t[refused] = term{one(r.refused), 1}
	t[unanswered] = term{one(r.unanswered), 1}
	return t
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
