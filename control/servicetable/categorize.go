package servicetable

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

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
	for i, c := range candidates {
		sp.Endpoints = append(sp.Endpoints, c.Endpoint)
		for _, p := range []decision.Policy{decision.Cluster, decision.Local} {
			if c.Exclusions[p] == 0 {
				sp.Usable[p] = append(sp.Usable[p], uint32(i))
			}
		}
	}
	// It counts what there is on any node: under policy Local, packets are dropped if
	// there are usable endpoints elsewhere, and refused without any. For policy Cluster
	// it makes no difference.
	sp.HasEndpoints = slices.ContainsFunc(own, func(c *candidate) bool { return c.ready || c.fallback() })
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
