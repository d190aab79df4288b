package algorithms

import (
	"math"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The parameters of Prequal: those of the authors' baseline, as far as we know, if not otherwise stated.
const (
	poolSize   = 16          // answers that a node keeps
	oldestKept = time.Second // of an answer
	removed    = 1           // answers for each flow
	surplus    = 1           // δ, by which the pool would grow without removals for other reasons
	// hotAbove is the quantile of the connections in flight above which an endpoint is hot: 2^-0.25.
	hotAbove = 0.84
	// seen is from how many answers the quantile is made; ours.
	seen = 64
)

// prequal is Prequal with asynchronous probes: Wydrowski, Kleinberg, Rumble and Archer, Load is Not What You Should Balance:
// Introducing Prequal, NSDI 2024, section 4. For each flow some random endpoints are probed. Their answers, with the
// connections in flight and the latency at such a number of them, go to a pool, and the flow goes to the best of those that are there: of the
// cold ones, the one with the lowest latency; if all are hot, the one with the fewest connections.
type prequal struct {
	set       *balance.Set
	cluster   Cluster
	in        []uint32
	positions map[*balance.Endpoint]uint32
	endpoints []int
	rate      int
	uses      float64 // of each answer
	*pool
}

// pool has the answers of a node: one for all sets of a service.
type pool struct {
	answers []answer // the oldest first
	open    [seen]int
	n       int // of all
	worst   bool
}

type answer struct {
	endpoint *balance.Endpoint
	open     int
	latency  time.Duration
	at       int64
	left     int // uses
}

func newPrequal(c Cluster) func(rate int) newPicker {
	return func(rate int) newPicker {
		return func(set *balance.Set, before balance.Picker) balance.Picker {
			p := &prequal{set: set, cluster: c, in: set.Weighed(), positions: make(map[*balance.Endpoint]uint32), endpoints: endpoints(set, c)}
			for _, i := range p.in {
				p.positions[set.Candidates[i].Endpoint] = i
			}
			p.rate, p.uses = min(rate, len(p.in)), reuse(len(p.in), rate)
			if b, ok := before.(*prequal); ok {
				p.pool = b.pool
				p.answers = slices.DeleteFunc(p.answers, func(a answer) bool { _, ok := p.positions[a.endpoint]; return !ok })
			} else {
				p.pool = &pool{answers: make([]answer, 0, poolSize)}
			}
			return p
		}
	}
}

// reuse is how often an answer is used on average, so that the pool does not become empty: equation 1. It has no limit if
// there are too few endpoints for the pool to fill with new ones.
func reuse(endpoints, rate int) float64 {
	fresh := float64((1-float64(poolSize)/float64(endpoints))*float64(rate)) - removed // not fused: the same on all machines
	if fresh <= 0 {
		return math.MaxInt32
	}
	return max(1, (1+surplus)/fresh)
}

func (p *prequal) Pick(f balance.Flow) decision.Pick {
	now := f.Now()
	p.answers = slices.DeleteFunc(p.answers, func(a answer) bool { return now-a.at > int64(oldestKept) })
	pick, ok := p.best(f.Rand)
	if !ok {
		pick = drawn(f.Rand, p.in)
	}
	for range removed {
		p.remove()
	}
	var sample [maxSample]uint32
	for _, i := range balance.DrawDifferent(f.Rand, p.in, sample[:p.rate]) {
		p.cluster.Probe(p.endpoints[i], p.set.Candidates[i].Endpoint, p)
	}
	return pick
}

// best uses the best answer.
func (p *prequal) best(r decision.Rand) (decision.Pick, bool) {
	if len(p.answers) == 0 {
		return decision.Pick{}, false
	}
	hot, best := p.hot(), 0
	for k := range p.answers {
		if p.better(&p.answers[k], &p.answers[best], hot) {
			best = k
		}
	}
	a := &p.answers[best]
	position, note := p.positions[a.endpoint], "the lowest latency of the probed endpoints without many connections"
	if a.open > hot {
		note = "the fewest connections of the probed endpoints, which all have many"
	}
	a.open++ // the answer does not know of this flow
	if a.left == 0 {
		a.left = int(p.uses) // rounded at random
		if r.Float64() < p.uses-float64(a.left) {
			a.left++
		}
	}
	if a.left--; a.left == 0 {
		p.answers = slices.Delete(p.answers, best, best+1)
	}
	return decision.Pick{Position: position, Evidence: decision.Evidence{Kind: decision.Noted, Note: note}}, true
}

// better is the rule: cold before hot, cold ones by latency, hot ones by connections.
func (p *prequal) better(a, b *answer, hot int) bool {
	aHot, bHot := a.open > hot, b.open > hot
	switch {
	case aHot != bHot:
		return bHot
	case aHot:
		return a.open < b.open
	}
	return a.latency < b.latency
}

// remove removes the oldest answer and the worst one by turns, so that the pool does not fill with those that are never used.
func (p *prequal) remove() {
	if p.worst = !p.worst; len(p.answers) == 0 {
		return
	}
	k := 0
	if p.worst {
		hot := p.hot()
		for i := range p.answers {
			if p.better(&p.answers[k], &p.answers[i], hot) {
				k = i
			}
		}
	}
	p.answers = slices.Delete(p.answers, k, k+1)
}

// hot is the number of connections above which an endpoint is hot.
func (p *pool) hot() int {
	sorted := p.open
	all := sorted[:min(p.n, seen)]
	slices.Sort(all)
	if len(all) == 0 {
		return math.MaxInt
	}
	return all[min(int(hotAbove*float64(len(all))), len(all)-1)]
}

// Answer implements [Prober]. A new answer replaces the one before of its endpoint, or the oldest.
func (p *prequal) Answer(e *balance.Endpoint, r Report, now int64) {
	p.open[p.n%seen] = r.Open
	p.n++
	if _, ok := p.positions[e]; !ok {
		return
	}
	k := max(slices.IndexFunc(p.answers, func(a answer) bool { return a.endpoint == e }), 0)
	if len(p.answers) == poolSize || len(p.answers) > 0 && p.answers[k].endpoint == e {
		p.answers = slices.Delete(p.answers, k, k+1)
	}
	p.answers = append(p.answers, answer{endpoint: e, open: r.Open, latency: r.Latency, at: now})
}
