// Package offpolicy estimates from the flow log of a node what would have happened under another
// balancing algorithm: how long connections would have taken, how many endpoints would have
// refused or not answered, and how evenly flows would have been spread.
//
// The log has the probability of each selection. A flow counts by its weight: the probability of its endpoint
// under the other algorithm, divided by that in the log. See docs/how-to/estimate-an-algorithm.md.
package offpolicy

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// Defaults and bounds of [Config].
const (
	DefaultConfidence   = 95.0
	DefaultReplications = 20
	MaxReplications     = 1000
)

// Config is what an estimate is made with.
type Config struct {
	// Table has the services with their target algorithms. Only the flows of its node count.
	Table *decision.Table
	// Algorithms are those that the table names; nil: the built-in ones.
	Algorithms *balance.Registry
	// Replications is how many times the log is decided anew, from 1 to [MaxReplications].
	Replications int
	// Confidence is that of the intervals, in percent, above 0 and below 100.
	Confidence float64
	// Seed makes the random numbers. The same seed gives the same report.
	Seed uint64
}

// check returns an error for a value out of its range.
func (c *Config) check() error {
	switch {
	case !(c.Confidence > 0 && c.Confidence < 100):
		return fmt.Errorf("confidence %v: want percent above 0 and below 100, as 95", c.Confidence)
	case c.Replications < 1 || c.Replications > MaxReplications:
		return fmt.Errorf("replications %d: want 1 to %d", c.Replications, MaxReplications)
	}
	return nil
}

// Estimate reads a flow log and makes the report. A config out of range, a log that [replay.ReadHistory] does not
// accept, one with an impossible probability, and one without a flow that counts are errors.
func Estimate(in io.Reader, c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	h, err := replay.ReadHistory(in, c.Table.Node().Name)
	if err != nil {
		return nil, err
	}
	return estimate(h, c)
}

// estimate makes the report of flows that are read.
func estimate(h *replay.History, c Config) (*Report, error) {
	if c.Algorithms == nil {
		c.Algorithms = balance.NewRegistry()
	}
	s, err := newSample(h)
	if err != nil {
		return nil, err
	}
	for k := range c.Replications {
		r, err := replay.NewRerun(c.Table, c.Algorithms, rand.New(rand.NewPCG(c.Seed, uint64(k))))
		if err != nil {
			return nil, err
		}
		if err := r.Run(h, &replication{sample: s, algorithms: c.Algorithms, first: k == 0, open: make(map[recordedEndpoint]int)}); err != nil {
			return nil, err
		}
	}
	s.weigh()
	if len(s.flows) == 0 {
		return nil, errors.New("no flow of the log can count: " + s.why())
	}
	return s.report(h, &c), nil
}
