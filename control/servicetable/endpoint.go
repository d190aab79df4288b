package servicetable

import (
	"cmp"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// conditions are an endpoint's conditions, the unset ones filled in.
type conditions struct {
	ready, serving, terminating bool
}

func conditionsOf(c discoveryv1.EndpointConditions) conditions {
	return conditions{
		ready:       c.Ready == nil || *c.Ready,
		serving:     c.Serving == nil || *c.Serving,
		terminating: c.Terminating != nil && *c.Terminating,
	}
}

// supersedes reports whether, of two endpoints with the same address and port, the first
// counts. They are seen when an endpoint moves between slices, or
// when a new pod has the address of one that is still terminating: then the one
// that is not terminating counts. Between two of the same kind kube-proxy takes
// any; here the ready one counts.
func (c conditions) supersedes(d conditions) bool {
	if c.terminating != d.terminating {
		return !c.terminating
	}
	return c.ready && !d.ready
}

// location is where a node is, which makes endpoints local or near, and what its configuration adds to Services.
type location struct {
	node, zone string // empty: not known
	// kernelDecides and ignoreExternalIPs: see NodeConfig.
	kernelDecides, ignoreExternalIPs bool
	// balance and algorithms: see NodeConfig. balanceFixed: annotations do not count.
	balance      string
	balanceFixed bool
	algorithms   *balance.Registry
}

// weights are the weights of pods, by namespace/name, that have one of their own.
type weights map[string]uint16

// candidate is an endpoint of a service port before its categorization.
type candidate struct {
	decision.Endpoint
	conditions
	text         string // of the address and port, which kube-proxy sorts by
	zones, nodes []string
}

// fallback reports whether the endpoint takes flows where none is ready.
func (c *candidate) fallback() bool { return c.serving && c.terminating }

// setEndpoints finds the endpoints of a service port in the slices of its Service.
// Only the port's name, protocol and family matter; the port number is that of
// the slice, and may differ between slices.
func setEndpoints(sp *decision.ServicePort, from []*EndpointSlice, of weights, at location) {
	most := 0
	for _, s := range from {
		most += len(s.endpoints)
	}
	all := make([]candidate, 0, most)
	for _, s := range from {
		for _, p := range s.ports {
			if p.name != sp.Name.Port || p.protocol != sp.Protocol {
				continue
			}
			for i := range s.endpoints {
				c := newCandidate(&s.endpoints[i], s.hintsOf(i), p.number, at)
				c.Weight = s.weight
				if w, ok := of[s.endpoints[i].pod]; ok {
					c.Weight = w
				}
				all = append(all, c)
			}
		}
	}
	candidates := make([]*candidate, len(all))
	for i := range all {
		candidates[i] = &all[i]
	}
	slices.SortStableFunc(candidates, func(a, b *candidate) int { return cmp.Compare(a.text, b.text) })
	categorizeEndpoints(sp, merge(candidates), at)
}

// merge leaves one of those with the same address and port, which are side by side.
func merge(candidates []*candidate) []*candidate {
	kept := candidates[:0]
	for _, c := range candidates {
		switch last := len(kept) - 1; {
		case last < 0 || kept[last].AddrPort != c.AddrPort:
			kept = append(kept, c)
		case c.supersedes(kept[last].conditions):
			kept[last] = c
		}
	}
	return kept
}

func newCandidate(e *sliceEndpoint, hints sliceHints, port uint16, at location) candidate {
	node := e.node.Value()
	c := candidate{
		Endpoint: decision.Endpoint{
			AddrPort: netip.AddrPortFrom(e.address(), port),
			NodeName: node,
			Pod:      e.pod,
			Local:    at.node != "" && node == at.node,
			Ready:    e.ready,
			Serving:  e.serving,
		},
		conditions: e.conditions,
		zones:      hints.zones, nodes: hints.nodes,
	}
	c.text = c.AddrPort.String()
	return c
}
