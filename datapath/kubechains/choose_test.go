package kubechains

import (
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestWalkFollowsChoice: whatever endpoint is chosen of those that a flow could have got,
// the chains lead there with the draw that the choice made of it, and what goes with the
// endpoint is as the chains have it.
func TestWalkFollowsChoice(t *testing.T) {
	chosen, other := 0, 0
	for seed := range uint64(300) {
		w := newWorld(seed, decision.IPv4)
		for range 25 {
			p := w.packet()
			d := decision.Decide(w.table, p, w.Rand, w.bound, nil)
			if d.Verdict != decision.DNAT {
				if _, ok := decision.Choose(w.table, p, &d, 0); ok {
					t.Fatalf("seed %d: %+v goes to no endpoint (%s), but one could be chosen", seed, *p, d.Reason)
				}
				continue
			}
			for i := range uint32(len(d.ServicePort.Endpoints)) {
				want := i == d.Index || d.Reason == decision.Balanced && slices.Contains(d.ServicePort.Usable[d.Policy], i)
				c, ok := decision.Choose(w.table, p, &d, i)
				if ok != want {
					t.Fatalf("seed %d: endpoint %d of %+v (%s, usable %v): choosable %v", seed, i, *p, d.Reason, d.ServicePort.Usable[d.Policy], ok)
				}
				if !ok {
					continue
				}
				chosen++
				walk := newWalker(w.table, p, &c, remembered{&c})
				walk.walk()
				if c.Index != i || walk.dst != c.Endpoint() || walk.snat != c.Masquerade || c.Entry != d.Entry || c.Branch != d.Branch || c.Generation != d.Generation {
					t.Fatalf("seed %d: of %+v endpoint %d (%s, masqueraded: %v) was chosen, the chains lead to %s (%v)\n%s",
						seed, *p, i, c.Endpoint(), c.Masquerade, walk.dst, walk.snat, text(walk.steps))
				}
				if i != d.Index && c.Mark != d.Mark {
					other++
				}
				if i != d.Index && !slices.ContainsFunc(Walk(w.table, p, &c), func(s flow.Step) bool { return strings.Contains(s.Rule, c.Endpoint().String()) }) {
					t.Fatalf("seed %d: no step to %s", seed, c.Endpoint())
				}
			}
		}
	}
	if chosen < 1000 || other < 10 {
		t.Errorf("%d endpoints chosen, with %d another mark: too few to mean anything", chosen, other)
	}
}
