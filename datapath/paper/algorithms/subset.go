package algorithms

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// subset has another algorithm select among some of the endpoints: deterministic subsetting of Beyer, Jones, Petoff and Murphy, Site
// Reliability Engineering, O'Reilly 2016, chapter 20. As many nodes as there are subsets make a round, and use each endpoint
// once; those that are left over, fewer than a subset, have no flows of the round. Rounds differ by their order of endpoints.
type subset struct {
	inner     balance.Picker
	positions []uint32 // of its candidates in the whole set
}

func newSubset(r *balance.Registry, c Cluster, parameter string) (balance.Algorithm, error) {
	number, name, _ := strings.Cut(parameter, ":")
	size, err := strconv.Atoi(strings.TrimSpace(number))
	name = strings.TrimSpace(name)
	if err != nil || size < 1 || name == "" {
		return balance.Algorithm{}, errors.New("want the number of endpoints and an algorithm, as subset(20:lc)")
	}
	if strings.HasPrefix(name, "subset") {
		return balance.Algorithm{}, errors.New("subset is about another algorithm")
	}
	inner, err := r.Parse(name)
	if err != nil {
		return balance.Algorithm{}, err
	}
	a := balance.Algorithm{Name: "subset(" + strconv.Itoa(size) + ":" + inner.Name + ")", Feedback: inner.Feedback}
	a.New = func(set *balance.Set, before balance.Picker) balance.Picker {
		p := &subset{positions: members(len(set.Candidates), size, c.Client())}
		some := &balance.Set{Service: set.Service, Policy: set.Policy}
		for _, i := range p.positions {
			some.Candidates = append(some.Candidates, set.Candidates[i])
		}
		var was balance.Picker
		if b, ok := before.(*subset); ok {
			was = b.inner
		}
		p.inner = inner.New(some, was)
		return p
	}
	return a, nil
}

// members are the positions of a node's subset, in the order of the round.
func members(endpoints, size, node int) []uint32 {
	subsets := max(endpoints/size, 1)
	order := make([]uint32, endpoints)
	for i := range order {
		order[i] = uint32(i)
	}
	rand.New(rand.NewPCG(uint64(node/subsets), 0)).Shuffle(endpoints, func(i, j int) { order[i], order[j] = order[j], order[i] })
	first := node % subsets * size
	return order[first:min(first+size, endpoints)]
}

func (p *subset) Pick(f balance.Flow) decision.Pick {
	pick := p.inner.Pick(f)
	pick.Position = p.positions[min(int(pick.Position), len(p.positions)-1)]
	return pick
}

// Observe implements [balance.Observer].
func (p *subset) Observe(e balance.Event) {
	if o, ok := p.inner.(balance.Observer); ok {
		o.Observe(e)
	}
}
