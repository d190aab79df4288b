package servicetable

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// cluster is a random service port with its endpoints, seen from a random node.
type cluster struct {
	traffic
	at  location
	raw []discoveryv1.Endpoint // each with an address of its own
}

func randomCluster(r *rand.Rand) cluster {
	flip := func() bool { return r.IntN(2) == 0 }
	pick := func(names ...string) string { return names[r.IntN(len(names))] }
	c := cluster{
		traffic: traffic{decision.Policy(r.IntN(2)), decision.Policy(r.IntN(2)), flip()},
		at:      location{node: pick("n1", "n2", "n3", ""), zone: pick("a", "b", "c", "")},
	}
	// Some clusters have hints on all endpoints, else hints would hardly ever count;
	// some have no ready ones, else the fallback would not.
	zones, nodes, unready := r.IntN(3), r.IntN(3), r.IntN(3) == 0
	for i := range r.IntN(7) {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", 3*i+7)}, Hints: new(discoveryv1.EndpointHints)}
		if r.IntN(6) == 0 {
			e.Addresses[0] = fmt.Sprintf("fd00::%x", 3*i+7)
		}
		for _, condition := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if r.IntN(4) != 0 {
				*condition = new(flip())
			}
		}
		if unready {
			e.Conditions.Ready = new(false)
		}
		if node := pick("n1", "n2", "n3", "", "missing"); node != "missing" {
			e.NodeName = &node
		}
		for range hints(r, zones) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: pick("a", "b", "c", "d")})
		}
		for range hints(r, nodes) {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: pick("n1", "n2", "n3", "n4")})
		}
		if r.IntN(8) == 0 {
			e.Hints = nil
		}
		c.raw = append(c.raw, e)
	}
	return c
}

// hints is how many hints an endpoint has: none, some or none, some.
func hints(r *rand.Rand, kind int) int { return []int{0, r.IntN(3), 1 + r.IntN(2)}[kind] }

// build makes the service port, of endpoints spread over the given number of slices
// in a random order.
func (c *cluster) build(r *rand.Rand, slicesOfEach int) *decision.ServicePort {
	var all []*discoveryv1.EndpointSlice
	for range slicesOfEach {
		all = append(all, v4(80), slice("web6", discoveryv1.AddressTypeIPv6, 80))
	}
	for _, i := range r.Perm(len(c.raw)) {
		n := 2 * r.IntN(slicesOfEach)
		if strings.Contains(c.raw[i].Addresses[0], ":") {
			n++
		}
		all[n].Endpoints = append(all[n].Endpoints, c.raw[i])
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	sp := c.entry()
	setEndpoints(sp, compact(all...), nil, c.at)
	return sp
}

// fact is an endpoint as the naive rules see it.
type fact struct {
	addrPort         string
	ready, fallback  bool
	here             bool
	zones, nodes     []string
	serving, leaving bool
	otherFamily      bool
}

func (c *cluster) facts() map[string]fact {
	is := func(b *bool, unset bool) bool {
		if b == nil {
			return unset
		}
		return *b
	}
	facts := make(map[string]fact)
	for _, e := range c.raw {
		f := fact{
			addrPort: e.Addresses[0] + ":80",
			ready:    is(e.Conditions.Ready, true), serving: is(e.Conditions.Serving, true), leaving: is(e.Conditions.Terminating, false),
			here: e.NodeName != nil && *e.NodeName != "" && *e.NodeName == c.at.node,
		}
		if strings.Contains(e.Addresses[0], ":") {
			f.addrPort, f.otherFamily = "["+e.Addresses[0]+"]:80", true
		}
		f.fallback = !f.ready && f.serving && f.leaving
		if e.Hints != nil {
			for _, z := range e.Hints.ForZones {
				f.zones = append(f.zones, z.Name)
			}
			for _, n := range e.Hints.ForNodes {
				f.nodes = append(f.nodes, n.Name)
			}
		}
		facts[f.addrPort] = f
	}
	return facts
}

// naive computes by other means which endpoints are usable: of several sets, in the
// order of preference, the first that is not empty.
func (c *cluster) naive() (usable [2][]string, has bool) {
	var own []fact
	for _, f := range c.facts() {
		if !f.otherFamily {
			own = append(own, f)
		}
	}
	slices.SortFunc(own, func(a, b fact) int { return cmp.Compare(a.addrPort, b.addrPort) })
	set := func(in []fact, keep func(fact) bool) (out []fact) {
		for _, f := range in {
			if keep(f) {
				out = append(out, f)
			}
		}
		return out
	}
	first := func(sets ...[]fact) (names []string) {
		for _, s := range sets {
			for _, f := range s {
				names = append(names, f.addrPort)
			}
			if len(names) > 0 {
				break
			}
		}
		return names
	}
	isHere := func(f fact) bool { return f.here }
	ready, fallback := set(own, func(f fact) bool { return f.ready }), set(own, func(f fact) bool { return f.fallback })
	var forNode, forZone []fact
	if len(set(ready, func(f fact) bool { return len(f.nodes) > 0 })) == len(ready) {
		forNode = set(ready, func(f fact) bool { return slices.Contains(f.nodes, c.at.node) })
	}
	if len(set(ready, func(f fact) bool { return len(f.zones) > 0 })) == len(ready) {
		forZone = set(ready, func(f fact) bool { return slices.Contains(f.zones, c.at.zone) })
	}
	if c.internal == decision.Cluster || c.nodePort {
		usable[decision.Cluster] = first(forNode, forZone, ready, fallback)
	}
	if c.internal == decision.Local || c.external == decision.Local && c.nodePort {
		usable[decision.Local] = first(set(ready, isHere), set(fallback, isHere))
	}
	return usable, len(ready)+len(fallback) > 0
}

// usableOf gives the text of the usable endpoints of a policy.
func usableOf(sp *decision.ServicePort, p decision.Policy) (names []string) {
	for _, i := range sp.Usable[p] {
		names = append(names, sp.Endpoints[i].AddrPort.String())
	}
	return names
}

func TestRandomEndpoints(t *testing.T) {
	properties := []struct {
		name  string
		check func(c *cluster, sp *decision.ServicePort, r *rand.Rand) error
	}{
		{"usable are those that the naive rules give", func(c *cluster, sp *decision.ServicePort, _ *rand.Rand) error {
			want, has := c.naive()
			for _, p := range []decision.Policy{decision.Cluster, decision.Local} {
				if got := usableOf(sp, p); !slices.Equal(got, want[p]) {
					return fmt.Errorf("policy %s: %v, want %v", p, got, want[p])
				}
			}
			if sp.HasEndpoints != has {
				return fmt.Errorf("HasEndpoints %t, want %t", sp.HasEndpoints, has)
			}
			return nil
		}},
		{"usable are those that are not excluded, in order", func(_ *cluster, sp *decision.ServicePort, _ *rand.Rand) error {
			for p, usable := range sp.Usable {
				var want []uint32
				for i, e := range sp.Endpoints {
					if e.Exclusions[p] == 0 {
						want = append(want, uint32(i))
					}
				}
				if !slices.Equal(usable, want) {
					return fmt.Errorf("policy %s: %v, want %v", decision.Policy(p), usable, want)
				}
			}
			return nil
		}},
		{"all endpoints are there, once, sorted by their text", func(c *cluster, sp *decision.ServicePort, _ *rand.Rand) error {
			var got, want []string
			for _, e := range sp.Endpoints {
				got = append(got, e.AddrPort.String())
			}
			for name := range c.facts() {
				want = append(want, name)
			}
			if slices.Sort(want); !slices.Equal(got, want) {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		}},
		{"exclusions are true", exclusionsAreTrue},
		{"a ready endpoint anywhere makes policy Cluster work", func(c *cluster, sp *decision.ServicePort, _ *rand.Rand) error {
			for _, f := range c.facts() {
				if f.ready && !f.otherFamily && sp.UsesCluster() && len(sp.Usable[decision.Cluster]) == 0 {
					return fmt.Errorf("%s is ready", f.addrPort)
				}
			}
			return nil
		}},
		{"there are endpoints where some are usable", func(_ *cluster, sp *decision.ServicePort, _ *rand.Rand) error {
			if n := len(sp.Usable[decision.Cluster]) + len(sp.Usable[decision.Local]); n > 0 && !sp.HasEndpoints {
				return fmt.Errorf("%d usable", n)
			}
			if sp.UsesCluster() && sp.HasEndpoints != (len(sp.Usable[decision.Cluster]) > 0) {
				return fmt.Errorf("HasEndpoints %t", sp.HasEndpoints)
			}
			return nil
		}},
		{"order and distribution over slices do not matter", func(c *cluster, sp *decision.ServicePort, r *rand.Rand) error {
			if other := c.build(r, 1+r.IntN(3)); !reflect.DeepEqual(sp, other) {
				return fmt.Errorf("%+v", *other)
			}
			return nil
		}},
		{"hints make no difference to policy Local, nor to HasEndpoints", func(c *cluster, sp *decision.ServicePort, r *rand.Rand) error {
			plain := cluster{traffic: c.traffic, at: c.at, raw: slices.Clone(c.raw)}
			for i := range plain.raw {
				plain.raw[i].Hints = nil
			}
			other := plain.build(r, 1)
			if !slices.Equal(sp.Usable[decision.Local], other.Usable[decision.Local]) || sp.HasEndpoints != other.HasEndpoints {
				return fmt.Errorf("%v and %v", sp.Usable, other.Usable)
			}
			return nil
		}},
		{"the other family makes no difference", func(c *cluster, sp *decision.ServicePort, r *rand.Rand) error {
			own := cluster{traffic: c.traffic, at: c.at}
			for _, e := range c.raw {
				if !strings.Contains(e.Addresses[0], ":") {
					own.raw = append(own.raw, e)
				}
			}
			other := own.build(r, 1)
			for _, p := range []decision.Policy{decision.Cluster, decision.Local} {
				if a, b := usableOf(sp, p), usableOf(other, p); !slices.Equal(a, b) {
					return fmt.Errorf("%v and %v", a, b)
				}
			}
			return nil
		}},
	}
	for _, property := range properties {
		t.Run(property.name, func(t *testing.T) {
			for seed := range uint64(3000) {
				r := rand.New(rand.NewPCG(seed, 0))
				c := randomCluster(r)
				sp := c.build(r, 1+r.IntN(3))
				if err := property.check(&c, sp, r); err != nil {
					t.Fatalf("seed %d: %v\nfrom %+v, %+v\nfacts %+v\nendpoints %+v", seed, err, c.at, c.traffic, c.facts(), sp.Endpoints)
				}
			}
		})
	}
}

// exclusionsAreTrue checks each reason against what is known of the endpoint.
func exclusionsAreTrue(c *cluster, sp *decision.ServicePort, _ *rand.Rand) error {
	facts := c.facts()
	uses := []bool{decision.Cluster: sp.UsesCluster(), decision.Local: sp.UsesLocal()}
	for _, e := range sp.Endpoints {
		f := facts[e.AddrPort.String()]
		if e.Local != f.here {
			return fmt.Errorf("%s: local %t", e.AddrPort, e.Local)
		}
		for p, got := range e.Exclusions {
			isTrue := map[decision.Exclusion]bool{
				0:                    f.ready || f.fallback,
				decision.NotReady:    !f.ready && !f.leaving,
				decision.NotServing:  !f.ready && f.leaving && !f.serving,
				decision.Terminating: f.fallback,
				decision.OtherZone:   f.ready && !slices.Contains(f.zones, c.at.zone) && p == int(decision.Cluster),
				decision.OtherNode:   f.ready && !slices.Contains(f.nodes, c.at.node) && p == int(decision.Cluster),
				decision.NotLocal:    !f.here && p == int(decision.Local),
				decision.OtherFamily: f.otherFamily,
				decision.Unused:      !uses[p],
			}
			// Some go before others.
			if !isTrue[got] || f.otherFamily != (got == decision.OtherFamily) || (!uses[p] && !f.otherFamily) != (got == decision.Unused) {
				return fmt.Errorf("%s under policy %s: %s", e.AddrPort, decision.Policy(p), got)
			}
		}
	}
	return nil
}
