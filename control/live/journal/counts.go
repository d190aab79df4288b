package journal

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ServiceCounts are the flows of one service port.
type ServiceCounts struct {
	Flows   observe.Flows
	Refused map[string]uint64 // by reason
	// Since is when the count of draws began: when the endpoints that can be drawn last changed.
	Since time.Time
	// Draws are by policy.
	Draws     [2]uint64
	Endpoints map[netip.AddrPort]EndpointCounts
}

// EndpointCounts are the flows of one endpoint.
type EndpointCounts struct {
	Flows     observe.Flows
	Pod, Node string
	Draws     [2]uint64 // by policy, since ServiceCounts.Since
}

// Counts returns the flows of a service port of the table in force; false: it had none. Draws are included if they were
// among its present endpoints.
func (j *Journal) Counts(s *decision.ServicePort) (ServiceCounts, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	t := j.services.ports[portKey{s.Name, s.Family}]
	if t == nil {
		return ServiceCounts{}, false
	}
	same := sameChoice(t.fit, s)
	c := ServiceCounts{
		Flows: t.Flows, Refused: make(map[string]uint64, len(t.refusals)), Since: t.since,
		Endpoints: make(map[netip.AddrPort]EndpointCounts, len(t.used.endpoints)+len(t.gone)),
	}
	if same {
		c.Draws = t.draws
	}
	for why, n := range t.refusals {
		c.Refused[why.String()] = n
	}
	for at, e := range t.endpoints() {
		if e.total == 0 {
			continue
		}
		of := EndpointCounts{Flows: e.flows(), Pod: at.Pod, Node: at.NodeName}
		if same {
			of.Draws = e.drawn()
		}
		c.Endpoints[at.AddrPort] = of
	}
	return c, true
}

// Known returns the numbers of the journal's flows.
func (j *Journal) Known() observe.Known {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return observe.Known{Flows: j.flows.len(), Capacity: int(j.flows.capacity()), Open: j.open, Lost: j.Lost(), Forgotten: j.forgotten}
}

// Kernel returns the state of the conntrack event subscription.
func (j *Journal) Kernel() observe.Kernel {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.kernel.Kernel
}
