package traffic

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

// Arrivals is the process by which flows arrive. It is open: arrivals do not wait for replies.
type Arrivals struct {
	// Process is poisson, deterministic (at even distances), mmpp (a Poisson process whose rate changes at random), profile (one whose
	// rate changes by Counts) or trace.
	Process string `json:"process"`
	// Rate is the number of flows per second in the whole cluster; of poisson, deterministic and profile, of which it is the mean.
	Rate float64 `json:"rate"`
	// Load sets the rate instead: the share of all endpoints' workers that is busy on average. 1 is as much
	// as the endpoints can do. A profile without both has as many flows as Counts.
	Load float64 `json:"load"`
	// States are those of mmpp, one after the other; they stay for exponential times.
	States []State `json:"states"`
	// Flows bounds the number of flows; 0: the duration only.
	Flows int `json:"flows"`
	// Counts are the mean numbers of flows of profile in steps of the length Step, 0: a minute. After the last it begins again.
	Counts []float64     `json:"counts"`
	Step   time.Duration `json:"step"`
	// Trace are the flows of trace, by their times. File has one on each line: seconds, and perhaps the
	// service's name and the seconds of its work, separated by commas. Of profile it has invocations per minute in the format
	// of the Azure Functions Trace 2019.
	Trace []Traced `json:"-"`
	File  string   `json:"file"`
	// Columns are those of a Parquet file of trace; nil: their default names.
	Columns *Columns `json:"columns"`
	// Microservice is the one of a file of Alibaba's microservices whose calls are the flows; empty: all.
	Microservice string `json:"microservice"`
}

// Columns are the names of a Parquet file's columns.
type Columns struct {
	// Time and Work are of numbers or times, Service of texts. Empty: time, work and service; the latter two may be missing then.
	Time    string `json:"time"`
	Work    string `json:"work"`
	Service string `json:"service"`
	// Unit is what the number 1 stands for in columns of numbers; 0: a second.
	Unit time.Duration `json:"unit"`
}

// State is a state of an MMPP, a Markov-modulated Poisson process.
type State struct {
	Rate float64       `json:"rate"` // flows per second
	Stay time.Duration `json:"stay"` // the mean of its times
}

// Traced is a flow of a trace.
type Traced struct {
	At      time.Duration
	Service int           // in Cluster.Services; -1: by popularity
	Work    time.Duration // -1: by its distribution
}

// The processes.
const (
	poisson       = "poisson"
	deterministic = "deterministic"
	mmpp          = "mmpp"
	profile       = "profile"
	traced        = "trace"
)

var processes = []string{poisson, deterministic, mmpp, profile, traced}

// never is after all times.
const never = math.MaxInt64

// arrivals makes arrivals.
type arrivals struct {
	*Arrivals
	r    *rand.Rand
	end  int64 // no flow is needed from then on
	n    int   // that were made
	at   int64 // of the last one
	gap  float64
	rest float64 // of the time of the last one, below a nanosecond
	// state is that of mmpp, or the step of profile, and until its end. factor is from a count of a step to flows per second.
	state  int
	until  int64
	factor float64
}

// step is the length of a step of profile.
func (a *Arrivals) step() time.Duration { return cmp.Or(a.Step, time.Minute) }

// perSecond is the mean number of flows per second that Counts say.
func (a *Arrivals) perSecond() float64 {
	sum := 0.0
	for _, n := range a.Counts {
		sum += n
	}
	return sum / float64(len(a.Counts)) / a.step().Seconds()
}

// capacity is how many flows per second all endpoints can work on, with all their requests.
func (c *Config) capacity() float64 {
	workers := 0
	for i := range c.Cluster.Services {
		s := &c.Cluster.Services[i]
		workers += s.Concurrency * len(s.Endpoints)
	}
	return float64(workers) / (c.Workload.Work.average().Seconds() * c.Workload.perFlow())
}

// rate is how many flows per second arrive on average, by Rate or Load; 0: neither says.
func (c *Config) rate() float64 {
	a := &c.Workload.Arrivals
	if a.Load > 0 {
		return a.Load * c.capacity()
	}
	return a.Rate
}

// Steady is what the arrivals ask of a service on average, if their rate does not change.
type Steady struct {
	Rate float64 // flows per second
	Load float64 // the share of its endpoints' workers that is busy, if none refuses
}

// Steady returns the average of each service; nil: the rate changes.
func (c *Config) Steady() []Steady {
	a := &c.Workload.Arrivals
	if a.Process != poisson && a.Process != deterministic {
		return nil
	}
	rate, work := c.rate(), c.Workload.Work.average().Seconds()*c.Workload.perFlow()
	popularity, sum := popularities(len(c.Cluster.Services), c.Workload.Zipf)
	all := make([]Steady, len(popularity))
	for i := range all {
		s := &c.Cluster.Services[i]
		all[i].Rate = popularity[i] * (rate / sum)
		all[i].Load = all[i].Rate * work / float64(max(s.Concurrency*len(s.Endpoints), 1))
	}
	return all
}

func newArrivals(c *Config, r *rand.Rand) *arrivals {
	a := &arrivals{Arrivals: &c.Workload.Arrivals, r: r, end: int64(c.Duration)}
	rate := c.rate()
	a.gap = min(float64(time.Second)/rate, float64(longest))
	switch a.Process {
	case profile:
		if a.factor = 1 / a.step().Seconds(); rate > 0 {
			a.factor *= rate / a.perSecond()
		}
		a.enter(0)
	case mmpp:
		a.enter(0)
	}
	return a
}

// enter enters a state of mmpp, or a step of profile.
func (a *arrivals) enter(state int) {
	if a.state = state; a.Process == profile {
		a.gap = min(float64(time.Second)/(a.Counts[state]*a.factor), float64(longest))
		a.until = a.at + int64(a.step())
		return
	}
	s := &a.States[state]
	a.gap = min(float64(time.Second)/s.Rate, float64(longest))
	a.until = a.at + int64(min(float64(s.Stay)*unitExponential(a.r), float64(longest)))
}

// next is the time of the next flow, and of trace the flow; never: there is none.
func (a *arrivals) next() (int64, *Traced) {
	if a.Flows > 0 && a.n >= a.Flows {
		return never, nil
	}
	a.n++
	switch a.Process {
	case traced:
		if a.n > len(a.Trace) {
			return never, nil
		}
		t := &a.Trace[a.n-1]
		return int64(t.At), t
	case deterministic:
		a.add(a.gap)
	case mmpp, profile:
		for {
			if a.add(a.gap * unitExponential(a.r)); a.at < a.until {
				break
			}
			a.at, a.rest = a.until, 0 // the process has no memory: it begins anew in the next state
			if a.at >= a.end {
				return never, nil // states without flows would go on
			}
			a.enter((a.state + 1) % max(len(a.States), len(a.Counts)))
		}
	default:
		a.add(a.gap * unitExponential(a.r))
	}
	return a.at, nil
}

// add adds nanoseconds to the time.
func (a *arrivals) add(gap float64) {
	gap = min(gap, float64(longest)) + a.rest
	whole := math.Floor(gap)
	a.rest = gap - whole
	a.at += int64(whole)
}
