package experiment

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// Cell is the result of a cell.
type Cell struct {
	Key
	// Values are those of [Metrics] by name, in seconds and shares: without those that this backend cannot
	// measure.
	Values  map[string]float64 `json:"values"`
	Windows []traffic.Window   `json:"windows"`
	Changes []traffic.Change   `json:"changes"`
	// Batches are the values of some of the metrics in the parts of the run, see [Spec.Batches].
	Batches map[string][]float64 `json:"batches,omitempty"`
	// Warmup is the time that MSER-5 has cut, in seconds; 0 with a fixed warm-up. Short: it found no end of the warm-up in the first
	// half of the connections.
	Warmup float64 `json:"warmup,omitempty"`
	Short  bool    `json:"short,omitempty"`
	// ScriptErrors are the failures of balancing scripts, each different one once, and ScriptFailures is their number; a
	// live run does not count them. The endpoints of such flows were drawn at random.
	ScriptErrors   []string `json:"scriptErrors,omitempty"`
	ScriptFailures uint64   `json:"scriptFailures,omitempty"`
}

// Cost is the time of decisions in a cell. It depends on the machine, so it is not in the cell.
type Cost struct {
	Key
	P50 time.Duration `json:"p50"` // nanoseconds
	P99 time.Duration `json:"p99"`
	N   int           `json:"n"` // decisions that were measured
}

// Backend runs cells. It is safe for concurrent use.
type Backend interface {
	// Name is in the results: simulate or live.
	Name() string
	// Parallel is how many cells may run at the same time.
	Parallel() int
	// Run runs a cell. It calls progress now and then with the share that is done, and ends with the
	// context.
	Run(ctx context.Context, x *Experiment, k Key, progress func(done float64)) (*Cell, *Cost, error)
}

// Simulate is the Backend in simulated time: each cell depends on the experiment and its key only.
type Simulate struct {
	// Cells is how many run at the same time; each uses one CPU.
	Cells int
	// Stopwatch returns nanoseconds, to measure the time of decisions; nil: they are not measured.
	Stopwatch func() int64
}

// Name implements [Backend].
func (Simulate) Name() string { return "simulate" }

// Parallel implements [Backend].
func (b Simulate) Parallel() int { return max(b.Cells, 1) }

// Run implements [Backend].
func (b Simulate) Run(ctx context.Context, x *Experiment, k Key, progress func(float64)) (*Cell, *Cost, error) {
	algorithms, failed, err := x.algorithms()
	if err != nil {
		return nil, nil, err
	}
	point := x.At(k.Point)
	config, before, passes := point.Config, 0.0, 1.0
	o := traffic.Options{Algorithms: algorithms}
	o.Progress = func(at time.Duration) bool {
		progress((before + float64(at)/float64(config.Duration)) / passes)
		return ctx.Err() == nil
	}
	var cut time.Duration
	short := false
	if point.MSER {
		// The same flows twice: all metrics are without the warm-up, not only those of the series.
		passes, o.Series = 2, true
		r, err := run(ctx, config, k, o)
		if err != nil {
			return nil, nil, err
		}
		cut, short = warmupOf(r.Series)
		without := *config
		without.Warmup = cut
		config, before = &without, 1
	}
	o.Series = x.Batches > 0
	o.Stopwatch = b.Stopwatch
	r, err := run(ctx, config, k, o)
	if err != nil {
		return nil, nil, err
	}
	c := cellOf(k, r, liveOnly)
	c.Warmup, c.Short = cut.Seconds(), short
	if x.Batches > 0 {
		c.Batches = batchesOf(r, config, x.Batches, c.Values)
	}
	failed.report(c)
	return c, costOf(k, &r.Costs), nil
}

func run(ctx context.Context, config *traffic.Config, k Key, o traffic.Options) (*traffic.Result, error) {
	r, err := traffic.Run(config, k.Algorithm, k.FlowSeed(), o)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return r, err
}

// warmupOf is the end of the warm-up that MSER-5 finds. The series are at most 5,000 means of as many consecutive connections
// each: connections of many endpoints at the same time differ more from each other than from those after the warm-up.
func warmupOf(all []traffic.Served) (cut time.Duration, short bool) {
	const most = 5000
	each := max((len(all)+most-1)/most, 1)
	means := make([]float64, len(all)/each)
	for i := range means {
		for _, c := range all[i*each : (i+1)*each] {
			means[i] += c.Response.Seconds() / float64(each)
		}
	}
	n, short := stats.MSER5(means)
	if n == 0 {
		return 0, short
	}
	return all[n*each].Arrived, short
}

// cellOf makes the cell of a result. It leaves out the given metrics, and those that the run has not measured.
func cellOf(k Key, r *traffic.Result, without []string) *Cell {
	c := &Cell{Key: k, Values: make(map[string]float64), Windows: r.Windows, Changes: r.Changes}
	for i := range Metrics {
		if m := &Metrics[i]; !slices.Contains(without, m.Name) && lacks(m.Name, r.Requests != nil, r.Endpoints > 0) == "" {
			if v := m.of(r); !math.IsNaN(v) {
				c.Values[m.Name] = v
			}
		}
	}
	return c
}

// LiveCell is the cell of a live run: without the metrics that it cannot measure.
func LiveCell(k Key, r *traffic.Result) *Cell {
	return cellOf(k, r, simulatedOnly)
}

// FlowSeed is the seed of the flows of a cell, for [traffic.Config.Flows].
func (k Key) FlowSeed() uint64 { return uint64(k.Seed) + uint64(k.Repeat-1)<<32 }

func costOf(k Key, costs *stats.Times) *Cost {
	return &Cost{k, time.Duration(costs.Percentile(500)), time.Duration(costs.Percentile(990)), costs.N()}
}
