package offpolicy

import (
	"math"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// flowsOf are flows in the order of time, whose estimates are to be made.
type flowsOf struct {
	flows      []*counted
	confidence float64 // a share
}

// mean estimates the mean of an outcome: a ratio of two sums.
func (f *flowsOf) mean(outcome int, overlap bool) Outcome {
	ratio := func(part func(c *counted) term) Value {
		s := statistic{width: 2, add: func(i int, sums []float64) {
			t := part(f.flows[i])
			sums[0] += t.value
			sums[1] += t.count
		}, of: func(sums []float64) float64 {
			if sums[1] <= 0 {
				return math.NaN()
			}
			return sums[0] / sums[1]
		}}
		return s.estimate(len(f.flows), f.confidence)
	}
	o := Outcome{Name: names[outcome], Valid: true}
	o.Recorded = ratio(func(c *counted) term { return c.terms()[outcome] }).Value
	if !overlap {
		return o
	}
	snips := func(c *counted) term {
		t := c.terms()[outcome]
		return term{c.weight * t.value, c.weight * t.count}
	}
	o.SNIPS = ratio(snips)
	o.DR = ratio(func(c *counted) term { return c.robust[outcome] })
	o.IPS = o.SNIPS // where the number of flows with an outcome is itself an estimate
	if outcome != latency {
		o.IPS = ratio(func(c *counted) term { return term{snips(c).value, 1} })
		if *o.Recorded == 0 || *o.Recorded == 1 { // flows without differences have no interval, though others may differ
			o.IPS.Half, o.SNIPS.Half, o.DR.Half = nil, nil, nil
		}
	}
	return o
}

// imbalance estimates the flows of the fullest endpoint over the mean of all. The target's selections are known for
// each flow, so the doubly robust estimate is the replay itself.
func (f *flowsOf) imbalance(endpoints int, overlap bool) Outcome {
	// The last sum is the number of flows.
	fullest := func(of func(sums []float64) float64, add func(c *counted, sums []float64)) Value {
		s := statistic{width: endpoints + 1, of: of, add: func(i int, sums []float64) {
			add(f.flows[i], sums)
			sums[endpoints]++
		}}
		return s.estimate(len(f.flows), f.confidence)
	}
	relative := func(sums []float64) float64 { return stats.MaxOverMean(sums[:endpoints]) }
	weighted := func(c *counted, sums []float64) { sums[c.endpoint] += c.weight }
	o := Outcome{Name: Imbalance, Valid: true}
	o.Recorded = fullest(relative, func(c *counted, sums []float64) { sums[c.endpoint]++ }).Value
	o.DR = fullest(relative, func(c *counted, sums []float64) {
		for _, e := range c.picks {
			sums[e] += 1 / float64(len(c.picks))
		}
	})
	if !overlap {
		return o
	}
	o.SNIPS = fullest(relative, weighted)
	o.IPS = fullest(func(sums []float64) float64 {
		return relative(sums) * stats.Mean(sums[:endpoints]) * float64(endpoints) / sums[endpoints]
	}, weighted)
	return o
}

// weights summarizes the weights.
func (f *flowsOf) weights() Weights {
	sum, squares, largest := 0.0, 0.0, 0.0
	for _, c := range f.flows {
		sum += c.weight
		squares += c.weight * c.weight
		largest = max(largest, c.weight)
	}
	if sum == 0 {
		return Weights{}
	}
	return Weights{Mean: sum / float64(len(f.flows)), Effective: sum * sum / squares, Largest: largest / sum}
}

// folds is how many parts the model is fitted in: each flow is predicted by the other part, so that it does not
// predict itself.
const folds = 2

// robust computes the flows' parts of the doubly robust means. The model of an outcome is its mean of each endpoint.
func (s *service) robust() {
	n := len(s.flows)
	fold := func(i int) int { return blockOf(i, n) % folds }
	var models [folds]model
	for k := range models {
		models[k].endpoints = make([][outcomes]fit, len(s.endpoints))
	}
	for i, c := range s.flows {
		models[1-fold(i)].learn(c)
	}
	for i, c := range s.flows {
		m := &models[fold(i)]
		for k, t := range c.terms() {
			here := m.predict(c.endpoint, k)
			sum := term{c.weight * (t.value - here.value), c.weight * (t.count - here.count)}
			for _, e := range c.picks {
				p := m.predict(e, k)
				sum.value += p.value / float64(len(c.picks))
				sum.count += p.count / float64(len(c.picks))
			}
			c.robust[k] = sum
		}
	}
}

// model predicts the terms of flows by their endpoint.
type model struct {
	endpoints [][outcomes]fit
	all       [outcomes]fit
}

// fit is the mean of terms.
type fit struct {
	term
	n int
}

func (m *model) learn(c *counted) {
	for k, t := range c.terms() {
		for _, f := range []*fit{&m.endpoints[c.endpoint][k], &m.all[k]} {
			f.value += t.value
			f.count += t.count
			f.n++
		}
	}
}

// predict is the mean of the endpoint, or of the service for an endpoint without flows; 0 without any.
func (m *model) predict(endpoint, outcome int) term {
	f := &m.endpoints[endpoint][outcome]
	if f.n == 0 {
		f = &m.all[outcome]
	}
	n := float64(max(f.n, 1))
	return term{f.value / n, f.count / n}
}
