// Package experiment runs experiments on balancing algorithms: one file describes a cluster, a workload,
// changes, and the algorithms to compare; a run writes a directory with all results.
//
// [Load] reads a file. [Runner] runs its cells, each an algorithm with a seed and a repeat, on a [Backend]:
// [Simulate] is the one in simulated time. [Open] reads the directory of a run.
package experiment

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// Kind is the kind of experiment files.
const Kind = "Experiment"

// Spec is an experiment file.
type Spec struct {
	Metadata Metadata `json:"metadata"`
	// Title is one line on what is compared.
	Title    string           `json:"title"`
	Cluster  Cluster          `json:"cluster"`
	Workload traffic.Workload `json:"workload"`
	Events   []traffic.Event  `json:"events"`
	// Duration and Window are as in [traffic.Config].
	Duration time.Duration `json:"duration"`
	Warmup   Warmup        `json:"warmup"`
	Window   time.Duration `json:"window"`
	// Algorithms are those to compare, as package balance spells them.
	Algorithms []string `json:"algorithms"`
	// Seeds is the number of seeds, from 1 on, and Repeats that of runs with each seed. A simulation
	// draws other random numbers in each of them. 0: 10 seeds, 1 repeat.
	Seeds   int `json:"seeds" range:"1-1000"`
	Repeats int `json:"repeats" range:"1-1000"`
	// Batches is the number of parts of each run, of equal length, by which intervals are computed (batch means); 0: by the runs.
	Batches int `json:"batches"`
	// Until adds seeds; nil: it does not.
	Until *Until `json:"until"`
	// Sweep are parameters that take several values.
	Sweep []Sweep `json:"sweep"`
	// Expect are values that the metrics should have.
	Expect []Expect `json:"expect"`
	// Columns are the metrics of the table; empty: those of [DefaultColumns] that differ from 0.
	Columns []string `json:"columns"`
}

// Metadata names an experiment.
type Metadata struct {
	Name string `json:"name"`
}

// Cluster is a generated cluster, or that of a lab.
type Cluster struct {
	// Lab is a built-in lab, or a file relative to that of the experiment. Its TCP services over IPv4 are
	// taken, with their endpoints, and its nodes.
	Lab string `json:"lab"`
	// Endpoints of a lab have these workers and this backlog.
	Concurrency int  `json:"concurrency" range:"1-1048576"` // 0: 1
	Backlog     *int `json:"backlog"`                       // nil: DefaultBacklog

	Nodes    int       `json:"nodes"`
	Zones    int       `json:"zones" range:"1-1000000"` // 0: 1
	Services []Service `json:"services"`
	// Propagation is as in [traffic.Cluster].
	Propagation *traffic.Distribution `json:"propagation"`
}

// DefaultBacklog is net.core.somaxconn of Linux.
const DefaultBacklog = 4096

// Service is a service of a generated cluster, or a number of like ones.
type Service struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"` // empty: default
	// Count is the number of services; 0: 1. Of several, NAME-1, NAME-2 and so on.
	Count int `json:"count" range:"1-100000"`
	// Endpoints is the number of endpoints. They are on the nodes in turn.
	Endpoints int `json:"endpoints"`
	// Weights are those of the endpoints in turn; empty: 1.
	Weights []uint16 `json:"weights"`
	// Algorithm is the services' own; empty: the one that is examined.
	Algorithm   string `json:"algorithm"`
	Concurrency int    `json:"concurrency" range:"1-1048576"` // 0: 1
	Backlog     *int   `json:"backlog"`                       // nil: DefaultBacklog
	SameZone    bool   `json:"sameZone"`
}

// MaxSeeds is the largest number of seeds, and of repeats.
const MaxSeeds = 1000

const (
	defaultSeeds   = 10
	defaultRepeats = 1
)

// Key is a cell: one run of an algorithm at a point.
type Key struct {
	Algorithm string `json:"algorithm"`
	Point     string `json:"point,omitempty"` // as [Point.Name]
	Seed      int    `json:"seed"`            // from 1
	Repeat    int    `json:"repeat"`          // from 1
}

func (k Key) String() string {
	text := fmt.Sprintf("%s with seed %d", label(k.Algorithm, k.Point), k.Seed)
	if k.Repeat > 1 {
		text += fmt.Sprintf(", repeat %d", k.Repeat)
	}
	return text
}

// series are the cells of an algorithm at a point.
type series struct{ algorithm, point string }

// all are the algorithms at all points, in order.
func (s *Spec) all() (all []series) {
	for _, point := range s.points() {
		for _, a := range s.Algorithms {
			all = append(all, series{a, point})
		}
	}
	return all
}

// Cells are the cells with which the experiment begins, in order. [Until] may add others.
func (s *Spec) Cells() []Key {
	seeds := make(map[series]int)
	for _, one := range s.all() {
		seeds[one] = s.Seeds
	}
	return s.cells(seeds)
}

// cells are the cells of an experiment in order, with the number of seeds for each series: by seed, repeat, point and algorithm, so
// that an interrupted run has all algorithms.
func (s *Spec) cells(seeds map[series]int) (cells []Key) {
	all := s.all()
	for seed := range MaxSeeds {
		before := len(cells)
		for repeat := range s.Repeats {
			for _, one := range all {
				if seed < seeds[one] {
					cells = append(cells, Key{one.algorithm, one.point, seed + 1, repeat + 1})
				}
			}
		}
		if len(cells) == before {
			break
		}
	}
	return cells
}

// Until adds seeds, for each algorithm at each point, until the confidence interval of a metric is narrow.
type Until struct {
	Metric string `json:"metric"`
	// Half is half of the interval's width, of the mean (as 1%) or in the metric's unit.
	Half Amount `json:"half"`
	// Max is the largest number of seeds; 0: 100.
	Max int `json:"max"`
}

const defaultMax = 100

func (p *reader) checkUntil(s *Spec) {
	u := s.Until
	if u == nil {
		return
	}
	if u.Max == 0 {
		u.Max = max(defaultMax, s.Seeds)
	}
	p.metric("until.metric", u.Metric, s)
	p.Want("until.half", u.Half.Value > 0, "want half of the interval's width, such as 1%%")
	p.Want("until.max", u.Max >= s.Seeds && u.Max <= MaxSeeds, "want %d (seeds) to %d", s.Seeds, MaxSeeds)
}

// next is how many seeds are wanted after n seeds with this interval; n: no more. It depends on nothing else, so that an interrupted
// run continues as it would have gone on.
func (u *Until) next(n int, i stats.Interval) int {
	if u == nil || n >= u.Max {
		return n
	}
	wanted := u.Half.of(i.Mean)
	switch {
	case i.N == 0: // not measured
		return n
	case i.N == 1:
		return n + 1
	case i.Half <= wanted:
		return n
	}
	// The width falls with the square root of the number. An estimate of a few values is not worth more than twice as many.
	ratio := i.Half / wanted
	estimate := math.Ceil(min(float64(float64(n)*ratio)*ratio, float64(2*n)))
	return min(max(int(estimate), n+1), u.Max)
}

// Amount is a number in a metric's unit, with seconds for times, or a share of something.
type Amount struct {
	Value    float64
	Relative bool
}

// of is the amount in the unit of v.
func (a Amount) of(v float64) float64 {
	if a.Relative {
		return a.Value * math.Abs(v)
	}
	return a.Value
}

func (a Amount) String() string {
	if a.Relative {
		return strconv.FormatFloat(a.Value*percent, 'g', 6, 64) + " %"
	}
	return number(a.Value)
}

// amount reads a number, a percentage, or a time.
func amount(_ string, value any) (any, bool, error) {
	text, ok := yamlfile.TextOf(value)
	if !ok {
		return nil, false, nil
	}
	number, relative := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil && !relative {
		var d time.Duration
		d, err = time.ParseDuration(text)
		v = d.Seconds()
	}
	if relative {
		v /= percent
	}
	if err != nil || math.IsNaN(v) || v < 0 || v > math.MaxFloat32 {
		return nil, true, errors.New("want a number, a time with its unit, or a percentage")
	}
	return Amount{v, relative}, true, nil
}

// Warmup is the part at the start whose flows are in no result: a time, or what MSER-5 finds.
type Warmup struct {
	Time time.Duration
	MSER bool
}

const mser = "mser-5"

func warmup(text string) (any, error) {
	if text == mser {
		return Warmup{MSER: true}, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("want a time with its unit, such as 30s or 5ms, or %s", mser)
	}
	return Warmup{Time: d}, nil
}
