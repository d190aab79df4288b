package servicetable

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The node that the tests look from.
var here = location{node: "here", zone: "a"}

// traffic is what decides which policies a service port uses.
type traffic struct {
	internal, external decision.Policy
	nodePort           bool
}

// The traffic of most tests.
var (
	clusterOnly = traffic{decision.Cluster, decision.Cluster, false}
	localOnly   = traffic{decision.Local, decision.Cluster, false}
	mixed       = traffic{decision.Cluster, decision.Local, true} // uses both policies
)

func (tr traffic) entry() *decision.ServicePort {
	return entry("10.96.0.20", func(sp *decision.ServicePort) {
		sp.InternalPolicy, sp.ExternalPolicy = tr.internal, tr.external
		if tr.nodePort {
			sp.NodePort = 30080
		}
	})
}

// endpointOf makes an endpoint from words: a state; "here" or "there", its node;
// "zones=a,b" and "nodes=here,there", its hints.
func endpointOf(t *testing.T, address, words string) discoveryv1.Endpoint {
	t.Helper()
	states := map[string]conditions{
		"ready":          {ready: true, serving: true},
		"unready":        {},
		"serving":        {serving: true}, // and neither ready nor terminating
		"stopping":       {serving: true, terminating: true},
		"stopped":        {terminating: true},
		"ready+stopping": {ready: true, serving: true, terminating: true}, // publishNotReadyAddresses
		"ready-only":     {ready: true},
	}
	var e discoveryv1.Endpoint
	for i, w := range strings.Fields(words) {
		what, names, _ := strings.Cut(w, "=")
		c, isState := states[w]
		switch {
		case i == 0 && isState:
			e = endpoint(address, c.ready, c.serving, c.terminating)
			e.Hints = &discoveryv1.EndpointHints{}
		case w == "here" || w == "there":
			e.NodeName = &w
		case what == "zones":
			for name := range strings.SplitSeq(names, ",") {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
			}
		case what == "nodes":
			for name := range strings.SplitSeq(names, ",") {
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
			}
		case w == "v6": // of the other family: see slicesOf
		default:
			t.Fatalf("endpoint %q: what is %q?", words, w)
		}
	}
	return e
}

// row is an endpoint and its expected category.
type row struct {
	words   string
	cluster decision.Exclusion // under policy Cluster; 0: used
	local   decision.Exclusion
}

// slicesOf makes slices of the rows; their endpoints are sorted as the rows are if
// those of IPv6 are last.
func slicesOf(t *testing.T, rows []row) []*discoveryv1.EndpointSlice {
	t.Helper()
	if len(rows) > 9 {
		t.Fatal("more than 9 rows would be sorted otherwise")
	}
	a, b := v4(80), slice("web6", discoveryv1.AddressTypeIPv6, 80)
	for i, r := range rows {
		if strings.Contains(r.words, "v6") {
			b.Endpoints = append(b.Endpoints, endpointOf(t, fmt.Sprintf("fd00::%d", i+1), r.words))
		} else {
			a.Endpoints = append(a.Endpoints, endpointOf(t, fmt.Sprintf("10.0.0.%d", i+1), r.words))
		}
	}
	return []*discoveryv1.EndpointSlice{a, b}
}

// checkCategories checks the categories of the endpoints, and the lists made of it.
func checkCategories(t *testing.T, tr traffic, at location, rows []row, hasEndpoints bool) {
	t.Helper()
	sp := tr.entry()
	setEndpoints(sp, compact(slicesOf(t, rows)...), nil, at)
	if len(sp.Endpoints) != len(rows) {
		t.Fatalf("%d endpoints, want %d", len(sp.Endpoints), len(rows))
	}
	var usable [2][]uint32
	for i, r := range rows {
		for p, want := range []decision.Exclusion{r.cluster, r.local} {
			if got := sp.Endpoints[i].Exclusions[p]; got != want {
				t.Errorf("%q under policy %s: %s, want %s", r.words, decision.Policy(p), got, want)
			}
			if want == 0 {
				usable[p] = append(usable[p], uint32(i))
			}
		}
	}
	for p, want := range usable {
		if !slices.Equal(sp.Usable[p], want) {
			t.Errorf("usable under policy %s: %v, want %v", decision.Policy(p), sp.Usable[p], want)
		}
	}
	if sp.HasEndpoints != hasEndpoints {
		t.Errorf("HasEndpoints %t, want %t", sp.HasEndpoints, hasEndpoints)
	}
}

// Every combination of policies, over the same endpoints.
func TestWhichPoliciesAreUsed(t *testing.T) {
	const (
		cluster = decision.Cluster
		local   = decision.Local
	)
	tests := []struct {
		traffic
		usesCluster, usesLocal bool
	}{
		{traffic{cluster, cluster, false}, true, false},
		{traffic{cluster, cluster, true}, true, false},
		{traffic{cluster, local, false}, true, false}, // no client uses the external policy
		{traffic{cluster, local, true}, true, true},   // Cluster for the node's own and pods' packets, too
		{traffic{local, cluster, false}, false, true},
		{traffic{local, cluster, true}, true, true},
		{traffic{local, local, false}, false, true},
		{traffic{local, local, true}, true, true}, // Cluster for the node's own and pods' packets
	}
	rows := []row{
		{"ready here", 0, 0},
		{"ready there", 0, decision.NotLocal},
		{"ready", 0, decision.NotLocal},
		{"unready here", decision.NotReady, decision.NotReady},
		{"ready here v6", decision.OtherFamily, decision.OtherFamily},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("internal %s, external %s, node port %t", tt.internal, tt.external, tt.nodePort), func(t *testing.T) {
			want := slices.Clone(rows)
			for i := range want[:4] {
				if !tt.usesCluster {
					want[i].cluster = decision.Unused
				}
				if !tt.usesLocal {
					want[i].local = decision.Unused
				}
			}
			checkCategories(t, tt.traffic, here, want, true)
		})
	}
}

func TestEachExternalAddressMakesTheExternalPolicyCount(t *testing.T) {
	for name, change := range map[string]func(*decision.ServicePort){
		"node port":        func(sp *decision.ServicePort) { sp.NodePort = 30080 },
		"external IP":      func(sp *decision.ServicePort) { sp.ExternalIPs = addrs("192.0.2.1") },
		"load balancer IP": func(sp *decision.ServicePort) { sp.LoadBalancerIPs = addrs("192.0.2.1") },
	} {
		t.Run(name, func(t *testing.T) {
			for _, internal := range []decision.Policy{decision.Cluster, decision.Local} {
				sp := traffic{internal: internal, external: decision.Local}.entry()
				change(sp)
				setEndpoints(sp, compact(slicesOf(t, []row{{words: "ready there"}, {words: "ready here"}})...), nil, here)
				if !slices.Equal(sp.Usable[decision.Cluster], []uint32{0, 1}) || !slices.Equal(sp.Usable[decision.Local], []uint32{1}) {
					t.Errorf("internal policy %s: usable %v", internal, sp.Usable)
				}
			}
		})
	}
}

func TestReadinessUnderPolicyCluster(t *testing.T) {
	const (
		notReady    = decision.NotReady
		notServing  = decision.NotServing
		terminating = decision.Terminating
		unused      = decision.Unused
	)
	tests := []struct {
		name string
		rows []row
		has  bool
	}{
		{"no endpoints", nil, false},
		{"all ready", []row{{"ready", 0, unused}, {"ready here", 0, unused}}, true},
		{"some ready", []row{{"unready", notReady, unused}, {"ready", 0, unused}, {"serving", notReady, unused}}, true},
		{"none ready", []row{{"unready", notReady, unused}, {"unready here", notReady, unused}}, false},
		{"serving, but neither ready nor terminating, is never used", []row{{"serving", notReady, unused}}, false},
		{"ready counts, not serving", []row{{"ready-only", 0, unused}, {"stopping", terminating, unused}}, true},
		{"the stopping give way to the ready", []row{{"stopping", terminating, unused}, {"ready", 0, unused}, {"stopped", notServing, unused}}, true},
		{"the stopping step in where none is ready", []row{
			{"stopping", 0, unused}, {"unready", notReady, unused}, {"serving", notReady, unused}, {"stopped", notServing, unused}, {"stopping there", 0, unused}}, true},
		{"the stopped do not", []row{{"stopped", notServing, unused}, {"unready", notReady, unused}}, false},
		{"ready while terminating is ready", []row{{"ready+stopping", 0, unused}, {"stopping", terminating, unused}}, true},
		{"the other family does not count", []row{{"stopping", 0, unused}, {"ready v6", decision.OtherFamily, decision.OtherFamily}}, true},
		{"the other family alone", []row{{"ready here v6", decision.OtherFamily, decision.OtherFamily}, {"stopping v6", decision.OtherFamily, decision.OtherFamily}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkCategories(t, clusterOnly, here, tt.rows, tt.has) })
	}
}

func TestReadinessUnderPolicyLocal(t *testing.T) {
	const (
		notReady    = decision.NotReady
		notServing  = decision.NotServing
		notLocal    = decision.NotLocal
		terminating = decision.Terminating
		unused      = decision.Unused
	)
	tests := []struct {
		name string
		rows []row
		has  bool
	}{
		{"no endpoints", nil, false},
		{"some here", []row{{"ready here", unused, 0}, {"ready there", unused, notLocal}, {"ready", unused, notLocal}, {"ready here", unused, 0}}, true},
		{"all elsewhere: dropped, not refused", []row{{"ready there", unused, notLocal}, {"ready", unused, notLocal}}, true},
		{"all elsewhere and stopping: dropped, not refused", []row{{"stopping there", unused, notLocal}}, true},
		{"all elsewhere and of no use: refused", []row{{"unready there", unused, notLocal}, {"stopped there", unused, notLocal}, {"serving there", unused, notLocal}}, false},
		{"here, but of no use", []row{{"unready here", unused, notReady}, {"serving here", unused, notReady}, {"stopped here", unused, notServing}}, false},
		{"here of no use, elsewhere ready", []row{{"unready here", unused, notReady}, {"ready there", unused, notLocal}}, true},
		{"the stopping give way to the ready", []row{{"stopping here", unused, terminating}, {"ready here", unused, 0}, {"stopped here", unused, notServing}, {"unready here", unused, notReady}}, true},
		{"the stopping step in where none here is ready", []row{
			{"stopping here", unused, 0}, {"ready there", unused, notLocal}, {"unready here", unused, notReady}, {"stopped here", unused, notServing}, {"stopping there", unused, notLocal}}, true},
		{"the other family does not count", []row{{"stopping here", unused, 0}, {"ready here v6", decision.OtherFamily, decision.OtherFamily}}, true},
		{"the other family alone", []row{{"ready here v6", decision.OtherFamily, decision.OtherFamily}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkCategories(t, localOnly, here, tt.rows, tt.has) })
	}
}

// Of a service port that uses both policies, each falls back to the stopping
// endpoints for itself.
func TestPoliciesFallBackIndependently(t *testing.T) {
	const (
		notReady    = decision.NotReady
		notLocal    = decision.NotLocal
		terminating = decision.Terminating
	)
	tests := []struct {
		name string
		rows []row
		has  bool
	}{
		{"neither", []row{{"ready here", 0, 0}, {"ready there", 0, notLocal}, {"stopping here", terminating, terminating}, {"stopping there", terminating, notLocal}}, true},
		{"Local only", []row{{"ready there", 0, notLocal}, {"stopping here", terminating, 0}, {"stopping there", terminating, notLocal}}, true},
		{"both", []row{{"unready there", notReady, notLocal}, {"stopping here", 0, 0}, {"stopping there", 0, notLocal}}, true},
		{"Cluster only: there is none here to fall back to", []row{{"unready here", notReady, notReady}, {"stopping there", 0, notLocal}}, true},
		{"no use", []row{{"unready here", notReady, notReady}, {"unready there", notReady, notLocal}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkCategories(t, mixed, here, tt.rows, tt.has) })
	}
}
