package flow_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// client is the client in the generated clusters: no pod and no node.
var client = netip.MustParseAddrPort("192.0.2.10:40000")

var nodeIP = netip.MustParseAddr("172.20.0.2")

// generate makes a cluster with one service of random policies and endpoints, as node
// here sees it.
func generate(t *testing.T, r *rand.Rand) *decision.Table {
	t.Helper()
	chance := func() *bool { b := r.IntN(3) > 0; return &b }
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}},
		},
	}
	policy := corev1.ServiceInternalTrafficPolicy([]string{"Cluster", "Local"}[r.IntN(2)])
	svc.Spec.InternalTrafficPolicy = &policy
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy([]string{"Cluster", "Local"}[r.IntN(2)])
	if r.IntN(2) == 0 {
		seconds := int32(600)
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	none, number, tcp := "", int32(8080), corev1.ProtocolTCP
	slice := func(typ discoveryv1.AddressType) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-" + string(typ), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: typ, Ports: []discoveryv1.EndpointPort{{Name: &none, Port: &number, Protocol: &tcp}},
		}
	}
	v4, v6 := slice(discoveryv1.AddressTypeIPv4), slice(discoveryv1.AddressTypeIPv6)
	for i := range r.IntN(6) {
		node := []string{"here", "there"}[r.IntN(2)]
		ready := chance()
		e := discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.244.1.%d", i+1)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: chance()},
		}
		if terminating := !*ready && r.IntN(2) == 0; terminating {
			e.Conditions.Terminating = &terminating
		}
		if r.IntN(8) > 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: []string{"a", "b"}[r.IntN(2)]}}}
		}
		v4.Endpoints = append(v4.Endpoints, e)
	}
	if r.IntN(3) == 0 {
		v6.Endpoints = append(v6.Endpoints, discoveryv1.Endpoint{Addresses: []string{"fd00::1"}})
	}
	table, warnings := servicetable.Table(
		&kube.Objects{Services: []*corev1.Service{svc}, EndpointSlices: []*discoveryv1.EndpointSlice{v4, v6}},
		servicetable.NodeConfig{Name: "here", Zone: "a", IPs: []netip.Addr{nodeIP}},
	)
	if len(warnings) > 0 {
		t.Fatalf("warnings: %q", warnings)
	}
	return table
}

// boundTo is an Affinity that knows one endpoint for everyone.
type boundTo netip.AddrPort

func (b boundTo) Bound(_ *decision.ServicePort, endpoint netip.AddrPort, _ netip.Addr) bool {
	return endpoint == netip.AddrPort(b)
}

// TestCandidatesAreWhatCanBeDrawn: over many draws, a flow gets the endpoints named as
// candidates and no others; every endpoint is a candidate or excluded with a reason.
func TestCandidatesAreWhatCanBeDrawn(t *testing.T) {
	verdicts, reasons := make(map[string]int), make(map[string]int)
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		table := generate(t, r)
		sp := table.Services()[0]
		for _, dst := range []string{"10.96.0.20:80", "172.20.0.2:30080"} {
			p := decision.Packet{Protocol: decision.TCP, Source: client, Destination: netip.MustParseAddrPort(dst)}
			var first *flow.Record
			drawn := make(map[string]int)
			for range 200 {
				d := decision.Decide(table, &p, r, nil, nil)
				record := flow.New(table, &p, &d)
				if first == nil {
					first = record
				}
				if !slices.Equal(record.Candidates, first.Candidates) || !slices.Equal(record.Excluded, first.Excluded) {
					t.Fatalf("seed %d: the draw changes the candidates: %v, %v", seed, record.Candidates, first.Candidates)
				}
				if record.Verdict == "dnat" {
					drawn[record.Endpoint]++
				}
			}
			checkEndpoints(t, seed, first, sp)
			if len(drawn) != len(first.Candidates) {
				t.Fatalf("seed %d: drawn %v, candidates %v", seed, drawn, first.Candidates)
			}
			for _, c := range first.Candidates {
				if drawn[c.Endpoint] == 0 {
					t.Fatalf("seed %d: %s is never drawn", seed, c.Endpoint)
				}
			}
			verdicts[first.Verdict]++
			for _, e := range first.Excluded {
				reasons[e.Reason]++
			}
			if len(first.Candidates) == 0 || sp.AffinitySeconds == 0 {
				continue
			}
			bound := first.Candidates[r.IntN(len(first.Candidates))].Endpoint
			d := decision.Decide(table, &p, r, boundTo(netip.MustParseAddrPort(bound)), nil)
			record := flow.New(table, &p, &d)
			if want := []flow.Candidate{{Endpoint: bound, Probability: 1}}; !slices.Equal(record.Candidates, want) || record.Endpoint != bound || record.Reason != "affinity" || record.Draw != nil {
				t.Fatalf("seed %d: bound to %s: %+v", seed, bound, record)
			}
			checkEndpoints(t, seed, record, sp)
			for _, e := range record.Excluded {
				reasons[e.Reason]++
			}
		}
	}
	// The generator has to bring everything up, or the above means little.
	for _, v := range []string{"dnat", "reject", "drop"} {
		if verdicts[v] < 20 {
			t.Errorf("verdict %s came up %d times", v, verdicts[v])
		}
	}
	for _, e := range []string{"not-ready", "not-serving", "terminating", "other-zone", "not-local", "other-family", "affinity"} {
		if reasons[e] < 20 {
			t.Errorf("exclusion %s came up %d times", e, reasons[e])
		}
	}
}

// checkEndpoints: each endpoint is named once, and what is to add up does.
func checkEndpoints(t *testing.T, seed uint64, r *flow.Record, sp *decision.ServicePort) {
	t.Helper()
	var named, all []string
	sum := 0.0
	for _, c := range r.Candidates {
		named = append(named, c.Endpoint)
		sum += c.Probability
	}
	for _, e := range r.Excluded {
		named = append(named, e.Endpoint)
		if e.Reason == "" || e.Reason == "used" || e.Reason == "unknown" {
			t.Fatalf("seed %d: %s is excluded for %q", seed, e.Endpoint, e.Reason)
		}
	}
	for _, e := range sp.Endpoints {
		all = append(all, e.AddrPort.String())
	}
	slices.Sort(named)
	slices.Sort(all)
	if !slices.Equal(named, all) {
		t.Fatalf("seed %d: of %v these are named: %v", seed, all, named)
	}
	if (r.Verdict == "dnat") != (len(r.Candidates) > 0) || r.Verdict == "dnat" && math.Abs(sum-1) > 1e-12 {
		t.Fatalf("seed %d: verdict %s, candidates %v", seed, r.Verdict, r.Candidates)
	}
}
