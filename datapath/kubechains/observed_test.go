package kubechains

import (
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestWalkOfProxy: the rules of a flow that kube-proxy decided lead to its endpoint, with probabilities whose product is the
// endpoint's share.
func TestWalkOfProxy(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(300) {
		w := newWorld(seed, decision.IPv4)
		for range 25 {
			p := w.packet()
			d := decision.Decide(w.table, p, w.Rand, nil, nil)
			if d.Verdict != decision.DNAT || d.Reason != decision.Balanced {
				continue
			}
			of, ok := decision.ToEndpoint(w.table, p, d.Endpoint(), decision.ByProxy)
			if !ok {
				t.Fatalf("seed %d: no way to %s", seed, d.Endpoint())
			}
			for _, proxy := range []string{"kube-proxy (iptables)", "kube-proxy (nftables)", "Cilium"} {
				steps := WalkOfProxy(w.table, p, &of, proxy)
				if none := of.ServicePort.AffinitySeconds > 0 || proxy == "Cilium"; none {
					if steps != nil {
						t.Fatalf("seed %d: %s has steps: %+v", seed, proxy, steps)
					}
					seen["none"]++
					continue
				}
				share := 1.0
				for _, s := range steps {
					if s.Probability > 0 {
						share *= s.Probability
					}
				}
				if want := 1 / float64(len(of.ServicePort.Usable[of.Policy])); share < want-1e-9 || share > want+1e-9 {
					t.Fatalf("seed %d, %s: share %g, want %g: %+v", seed, proxy, share, want, steps)
				}
				if !slices.ContainsFunc(steps, func(s flow.Step) bool { return strings.Contains(s.Rule+s.Text, of.Endpoint().String()) }) {
					t.Fatalf("seed %d, %s: no step to %s: %+v", seed, proxy, of.Endpoint(), steps)
				}
				seen[proxy]++
			}
		}
	}
	if seen["none"] < 100 || seen["kube-proxy (iptables)"] < 100 || seen["kube-proxy (nftables)"] < 100 {
		t.Errorf("too few to mean anything: %v", seen)
	}
}
