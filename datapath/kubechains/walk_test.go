package kubechains

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// drawn is a Rand that remembers what it gave.
type drawn struct {
	*rand.Rand
	n int
}

func (d *drawn) Float64() float64 { d.n++; return d.Rand.Float64() }

// TestWalkAgreesWithDecide leads many packets through many clusters both ways:
// decision.Decide, and the rules themselves.
func TestWalkAgreesWithDecide(t *testing.T) {
	t.Parallel()
	worlds := netnstest.Cases(1000, 200)
	seen := make(map[string]int)
	for seed := range uint64(worlds) {
		for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
			w := newWorld(seed, f)
			all := byChain(Rules(w.table, f, Kernel{NFAcct: seed%2 == 0}))
			for range 25 {
				p := w.packet()
				r := &drawn{Rand: w.Rand}
				d := decision.Decide(w.table, p, r, w.bound, nil)
				walk := newWalker(w.table, p, &d, w.bound)
				walk.walk()
				if got := Walk(w.table, p, &d); text(got) != text(walk.steps) {
					t.Fatalf("seed %d: Walk gives\n%sthe affinity of then gives\n%s", seed, text(got), text(walk.steps))
				}
				want := fmt.Sprintf("%s dnat=%v to %v snat=%v", walk.verdict, walk.dnat, walk.dst, walk.snat)
				// A walk through the rules of all services ends alike.
				whole := newWalker(w.table, p, &d, w.bound)
				whole.rules = all
				whole.walk()
				if got := fmt.Sprintf("%s dnat=%v to %v snat=%v", whole.verdict, whole.dnat, whole.dst, whole.snat); got != want {
					t.Fatalf("seed %d %s, packet %+v: all rules give %s, those of its services %s\n%s", seed, f, *p, got, want, text(whole.steps))
				}
				dst := p.Destination
				if d.Verdict == decision.DNAT {
					dst = d.Endpoint()
				}
				got := fmt.Sprintf("%s dnat=%v to %v snat=%v", d.Verdict, d.Verdict == decision.DNAT, dst, d.Masquerade)
				if got != want || r.n > 1 || d.Drawn != (r.n == 1) {
					t.Fatalf("seed %d %s, packet %+v: decided %s (%s, %s, %s; %d draws), the rules give %s\n%s", seed, f, *p, got, d.Reason, d.Entry, d.Mark, r.n, want, text(walk.steps))
				}
				seen[fmt.Sprintf("%s/%s", d.Verdict, d.Reason)]++
				seen["entry "+d.Entry.String()]++
				seen["branch "+d.Branch.String()]++
				seen["mark "+d.Mark.String()]++
				if len(w.table.Candidates(p)) > 1 {
					seen["claimed by several"]++
				}
				if d.Verdict == decision.DNAT && d.Endpoint().Addr() == p.Source.Addr() && d.Mark == decision.NotMarked {
					seen["hairpin left as it is"]++
				}
			}
		}
	}
	// The generator has to bring everything up, or agreeing means little.
	for _, what := range []string{
		"accept/not-a-service", "dnat/balanced", "dnat/affinity", "reject/no-endpoints", "drop/no-local-endpoints", "drop/source-not-allowed", "drop/foreign-localnet", "accept/not-filtered",
		"entry cluster-ip", "entry external-ip", "entry load-balancer-ip", "entry node-port",
		"branch internal-policy", "branch external-policy", "branch pod-short-circuit", "branch node-short-circuit",
		"mark masquerade-all", "mark source-outside-cluster", "mark external", "mark local-source", "mark hairpin", "hairpin left as it is", "claimed by several",
	} {
		if seen[what] < worlds/50 {
			t.Errorf("%s came up only %d times", what, seen[what])
		}
	}
}

func byChain(rules []Rule) map[Table]map[string][]Rule {
	chains := map[Table]map[string][]Rule{Filter: {}, NAT: {}}
	for _, r := range rules {
		chains[r.Table][r.Chain] = append(chains[r.Table][r.Chain], r)
	}
	return chains
}

func text(walk []flow.Step) string {
	var b strings.Builder
	for _, s := range walk {
		fmt.Fprintf(&b, "%s: %s -A %s %s\n    %s\n", s.Outcome, s.Table, s.Chain, s.Rule, s.Text)
	}
	return b.String()
}

// TestFamiliesMirrorEachOther: the same cluster and packet in the other family give
// the same decision, loopback aside.
func TestFamiliesMirrorEachOther(t *testing.T) {
	for seed := range uint64(500) {
		w4, w6 := newWorld(seed, decision.IPv4), newWorld(seed, decision.IPv6)
		for range 20 {
			p4, p6 := w4.packet(), w6.packet()
			d4 := decision.Decide(w4.table, p4, w4.Rand, w4.bound, nil)
			d6 := decision.Decide(w6.table, p6, w6.Rand, w6.bound, nil)
			if p4.Source.Addr().IsLoopback() || p4.Destination.Addr().IsLoopback() {
				break // their randomness has gone apart
			}
			result := func(d *decision.Decision) string {
				s := fmt.Sprint(d.Verdict, d.Reason, d.Entry, d.Branch, d.Policy, d.Mark, d.Masquerade, d.Draw)
				if d.Verdict == decision.DNAT {
					s += fmt.Sprint(d.ServicePort.Name, d.Index)
				}
				return s
			}
			if result(&d4) != result(&d6) {
				t.Fatalf("seed %d: %+v gives %s, %+v gives %s", seed, *p4, result(&d4), *p6, result(&d6))
			}
		}
	}
}

// TestSentences: every step has a rule and a sentence without a slip of fmt.
func TestSentences(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(seed, decision.IPv4)
		for range 20 {
			p := w.packet()
			d := decision.Decide(w.table, p, w.Rand, w.bound, nil)
			walk := Walk(w.table, p, &d)
			if len(walk) == 0 {
				t.Fatalf("no steps for %+v", *p)
			}
			for _, s := range walk {
				if s.Text == "" || strings.Contains(s.Text, "%!") || strings.Contains(s.Rule, "%!") {
					t.Fatalf("step %+v", s)
				}
			}
			if slices.ContainsFunc(walk, func(s flow.Step) bool { return s.Outcome == flow.StepApplied && strings.Contains(s.Rule, "-j DNAT") }) != (d.Verdict == decision.DNAT) {
				t.Fatalf("verdict %s, steps\n%s", d.Verdict, text(walk))
			}
		}
	}
}

func BenchmarkWalk(b *testing.B) {
	w := newWorld(1, decision.IPv4)
	var packets []*decision.Packet
	var decisions []decision.Decision
	for len(packets) < 64 {
		p := w.packet()
		if d := decision.Decide(w.table, p, w.Rand, w.bound, nil); d.Verdict == decision.DNAT {
			packets, decisions = append(packets, p), append(decisions, d)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		Walk(w.table, packets[i%64], &decisions[i%64])
	}
}

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
