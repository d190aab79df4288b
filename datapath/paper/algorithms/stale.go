package algorithms

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// newStale is the choice by old information: Mitzenmacher, How Useful Is Old Information?, IEEE TPDS 11(1), 2000, the model of
// periodic updates (section 3). All nodes see a board with the number of connections of each endpoint, which is renewed
// each time that an age has passed, and select the fewest of a random sample, or of all; of equals one at random.
func newStale(c Cluster, parameter string) (balance.Algorithm, error) {
	text, number, sampled := strings.Cut(parameter, ":")
	age, err := duration(text)
	if err != nil {
		return balance.Algorithm{}, err
	}
	size := 0
	if sampled {
		if size, err = strconv.Atoi(strings.TrimSpace(number)); err != nil || size < 1 || size > maxSample {
			return balance.Algorithm{}, errors.New("want the age and a sample of 1 to 16, as stale(1s:2)")
		}
	}
	return balance.Algorithm{Feedback: true, New: func(set *balance.Set, _ balance.Picker) balance.Picker {
		in := set.Weighed()
		p := &stale{c, age, in, endpoints(set, c), len(in)}
		if sampled {
			p.size = min(size, len(in))
		}
		return p
	}}, nil
}

type stale struct {
	cluster   Cluster
	age       time.Duration
	in        []uint32
	endpoints []int
	size      int
}

// posted is the number of connections on the board; 0: the endpoint is newer.
func (p *stale) posted(board []int32, i uint32) int32 {
	if e := p.endpoints[i]; e < len(board) {
		return board[e]
	}
	return 0
}

func (p *stale) Pick(f balance.Flow) decision.Pick {
	var drawn [maxSample]uint32
	sample := p.in
	if p.size < len(p.in) {
		sample = balance.DrawDifferent(f.Rand, p.in, drawn[:p.size])
	}
	board := p.cluster.Posted(p.age)
	best, least, equals := sample[0], p.posted(board, sample[0]), 1
	second := int32(-1)
	for _, i := range sample[1:] {
		switch n := p.posted(board, i); {
		case n < least:
			best, least, equals, second = i, n, 1, least
		case n == least:
			second = n
			if equals++; f.Rand.Float64()*float64(equals) < 1 {
				best = i
			}
		case second < 0 || n < second:
			second = n
		}
	}
	return decision.Pick{Position: best, Evidence: decision.Evidence{Kind: decision.FewerOpen, Values: [3]uint32{uint32(least), uint32(max(second, 0)), uint32(len(sample))}}}
}
