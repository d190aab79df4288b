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
)

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
