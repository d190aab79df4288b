package diagnose

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// seen is what became of the recent flows to an endpoint.
type seen struct {
	answered, refused, unanswered int
	latest                        flow.State
}

// Observe adds records of flows, the oldest first: what endpoints did counts for more than what objects
// declare.
func (c *Cluster) Observe(records []*flow.Record) {
	for _, r := range records {
		if r.Endpoint == "" || r.Life == nil {
			continue
		}
		s := c.seen[r.Endpoint+r.Protocol]
		switch {
		case r.Life.State == flow.Refused:
			s.refused++
			s.latest = flow.Refused
		case r.Life.State == flow.Unanswered:
			s.unanswered++
			s.latest = flow.Unanswered
		case r.Life.Answered:
			s.answered++
			s.latest = flow.Answered
		}
		c.seen[r.Endpoint+r.Protocol] = s
	}
}

// Blame makes a finding the reason why recent flows to an endpoint got no answer.
func (c *Cluster) Blame(endpoint, protocol string, f Finding) { c.blamed[endpoint+protocol] = f }

// flows are the recent ones to an endpoint that have come to a result; nil: there are none.
func (c *Cluster) flows(endpoint string, protocol decision.Protocol) *Flows {
	s := c.seen[endpoint+protocol.String()]
	if s.answered+s.refused+s.unanswered == 0 {
		return nil
	}
	return &Flows{Answered: s.answered, Refused: s.refused, Unanswered: s.unanswered}
}

// observed is what recent flows say about an endpoint. known: they decide whether it answers.
func (c *Cluster) observed(endpoint string, protocol decision.Protocol) (problem *Finding, known bool) {
	s := c.seen[endpoint+protocol.String()]
	switch s.latest {
	case flow.Answered:
		return nil, true
	case flow.Refused:
		return &Finding{
			Code: Refuses, Text: fmt.Sprintf("%s refuses connections (%d of the last %d): nothing listens on this port", endpoint, s.refused, s.refused+s.unanswered+s.answered),
			Do: "start the program that should listen there, or set targetPort to the port it listens on",
		}, true
	case flow.Unanswered:
		if f, ok := c.blamed[endpoint+protocol.String()]; ok {
			return &f, true
		}
		return &Finding{
			Code: Silent, Text: fmt.Sprintf("%s does not answer (%d of the last %s): a firewall or a network policy drops the packets, or the route to it is broken", endpoint, s.unanswered, quantity.Count(s.refused+s.unanswered+s.answered, "flow")),
			Do: "check network policies, and whether the node reaches the endpoint directly, without the Service",
		}, true
	}
	return nil, false
}
