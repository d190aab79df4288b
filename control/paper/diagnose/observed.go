package diagnose

import (
	"fmt"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// seen is what became of the recent flows to an endpoint.
type seen struct {
	answered, refused, unanswered int
	latest                        flow.State
	age                           time.Duration // of the latest
}

// Observe adds records of flows, the oldest first: what endpoints did counts for more than what objects
// declare. Findings say how long before now it was; zero: they do not.
func (c *Cluster) Observe(records []*flow.Record, now time.Time) {
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
		default:
			continue
		}
		if r.Time != nil && !now.IsZero() {
			s.age = now.Sub(*r.Time)
		}
		c.seen[r.Endpoint+r.Protocol] = s
	}
}

func (s *seen) all() int { return s.answered + s.refused + s.unanswered }

// recently is the age up to which a flow shows the present state.
const recently = 30 * time.Second

// ago is ", the latest 130 s ago"; empty: it was recently.
func (s *seen) ago() string {
	if s.age < recently {
		return ""
	}
	return fmt.Sprintf(", the latest %.0f s ago", s.age.Seconds())
}

// Blame makes a finding the reason why recent flows to an endpoint got no answer.
func (c *Cluster) Blame(endpoint, protocol string, f Finding) { c.blamed[endpoint+protocol] = f }

// flows are the recent ones to an endpoint that have come to a result; nil: there are none.
func (c *Cluster) flows(endpoint string, protocol decision.Protocol) *Flows {
	s := c.seen[endpoint+protocol.String()]
	if s.all() == 0 {
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
			Code: Refuses, Text: fmt.Sprintf("%s refuses connections (%d of the last %d%s): nothing listens on this port", endpoint, s.refused, s.all(), s.ago()),
			Do: "start the program that should listen there, or set targetPort to the port it listens on",
		}, true
	case flow.Unanswered:
		if f, ok := c.blamed[endpoint+protocol.String()]; ok {
			return &f, true
		}
		return &Finding{
			Code: Silent, Text: fmt.Sprintf("%s does not answer (%d of the last %s%s): a firewall or a network policy drops the packets, or the route to it is broken", endpoint, s.unanswered, quantity.Count(s.all(), "flow"), s.ago()),
			Do: "check network policies, and whether the node reaches the endpoint directly, without the Service",
		}, true
	}
	return nil, false
}
