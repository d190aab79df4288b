package servicetable

import (
	"cmp"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// conditions are an endpoint's conditions, the unset ones filled in.
type conditions struct {
	ready, serving, terminating bool
}

func conditionsOf(c discoveryv1.EndpointConditions) conditions {
	return conditions{
		ready:       ptr.Deref(c.Ready, true),
		serving:     ptr.Deref(c.Serving, true),
		terminating: ptr.Deref(c.Terminating, false),
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

// categorizeEndpoints decides which endpoints get new flows under each traffic policy, and
// why not the others (kube-proxy: CategorizeEndpoints, pkg/proxy/topology.go).
// The candidates are in order.
func categorizeEndpoints(sp *decision.ServicePort, candidates []*candidate, at location) {
	own := slices.Clone(candidates)
	own = slices.DeleteFunc(own, func(c *candidate) bool { return decision.FamilyOf(c.AddrPort.Addr()) != sp.Family })

	exclude := func(p decision.Policy, used bool, why func(*candidate) decision.Exclusion) {
		for _, c := range candidates {
			switch {
			case decision.FamilyOf(c.AddrPort.Addr()) != sp.Family:
				c.Exclusions[p] = decision.OtherFamily
			case !used:
				c.Exclusions[p] = decision.Unused
			default:
				c.Exclusions[p] = why(c)
			}
		}
	}
	exclude(decision.Cluster, sp.UsesCluster(), clusterExclusion(own, at))
	exclude(decision.Local, sp.UsesLocal(), localExclusion(own))

	// Exactly as long as need be: of a large table they are the most.
	sp.Endpoints = slices.Grow(sp.Endpoints, len(candidates))
	for _, c := range candidates {
		sp.Endpoints = append(sp.Endpoints, c.Endpoint)
	}
	for p := range sp.Usable {
		sp.Usable[p] = usable(sp.Endpoints, decision.Policy(p))
	}
	// It counts what there is on any node: under policy Local, packets are dropped if
	// there are usable endpoints elsewhere, and refused without any. For policy Cluster
	// it makes no difference.
	sp.HasEndpoints = slices.ContainsFunc(own, func(c *candidate) bool { return c.ready || c.fallback() })
}

// usable are the positions of the endpoints that get new flows under the policy.
func usable(endpoints []decision.Endpoint, p decision.Policy) (list []uint32) {
	n := 0
	for i := range endpoints {
		if endpoints[i].Exclusions[p] == 0 {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case len(endpoints):
		return decision.Positions(n)
	}
	list = make([]uint32, 0, n)
	for i := range endpoints {
		if endpoints[i].Exclusions[p] == 0 {
			list = append(list, uint32(i))
		}
	}
	return list
}

// clusterExclusion returns the rule for policy Cluster: the ready endpoints, narrowed
// by topology hints; without a ready one, those that still serve while they
// terminate, whatever their hints.
func clusterExclusion(own []*candidate, at location) func(*candidate) decision.Exclusion {
	isReady := func(c *candidate) bool { return c.ready }
	if !slices.ContainsFunc(own, isReady) {
		return unready
	}
	near, why := topology(own, at)
	return func(c *candidate) decision.Exclusion {
		switch {
		case !c.ready:
			return unreadyBesideReady(c)
		case near != nil && !near(c):
			return why
		}
		return 0
	}
}

// localExclusion returns the rule for policy Local: the same among the node's own
// endpoints, without hints.
func localExclusion(own []*candidate) func(*candidate) decision.Exclusion {
	localReady := slices.ContainsFunc(own, func(c *candidate) bool { return c.Local && c.ready })
	return func(c *candidate) decision.Exclusion {
		switch {
		case !c.Local:
			return decision.NotLocal
		case localReady && !c.ready:
			return unreadyBesideReady(c)
		case localReady:
			return 0
		}
		return unready(c)
	}
}

// unready is the rule where no endpoint is ready.
func unready(c *candidate) decision.Exclusion {
	switch {
	case c.fallback():
		return 0
	case c.terminating:
		return decision.NotServing
	}
	return decision.NotReady
}

// unreadyBesideReady returns why an endpoint that is not ready is excluded where others are ready.
func unreadyBesideReady(c *candidate) decision.Exclusion {
	if c.fallback() {
		return decision.Terminating
	}
	return unready(c)
}

// topology returns which of the ready endpoints the hints keep, and why others are excluded;
// nil: all. Hints to nodes go before hints to zones. Either counts only if every
// ready endpoint has one and one of them is for here.
func topology(own []*candidate, at location) (near func(*candidate) bool, why decision.Exclusion) {
	hinted := func(hints func(*candidate) []string, here string) func(*candidate) bool {
		found := false
		for _, c := range own {
			if !c.ready {
				continue
			}
			if len(hints(c)) == 0 {
				return nil
			}
			found = found || slices.Contains(hints(c), here)
		}
		if !found {
			return nil
		}
		return func(c *candidate) bool { return slices.Contains(hints(c), here) }
	}
	if near := hinted(func(c *candidate) []string { return c.nodes }, at.node); near != nil {
		return near, decision.OtherNode
	}
	return hinted(func(c *candidate) []string { return c.zones }, at.zone), decision.OtherZone
}
