package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/theory"
)

// formula is what theory says about a metric. Its parameters are those of the simulation.
type formula struct {
	name, metric string
	source       string
	// of is the value in the metric's unit; an error: the theory is about something else.
	of func(c *traffic.Config, algorithm string) (float64, error)
}

var formulas = []formula{
	{"mm1-time", "response_mean", "M/M/1: Kleinrock, Queueing Systems 1 (1975)", func(c *traffic.Config, a string) (float64, error) {
		q, err := queueOf(c, a, 1)
		return q.time(theory.MMcTime(1, q.load)), err
	}},
	{"mm1-number", "open_mean", "M/M/1: Kleinrock, Queueing Systems 1 (1975)", func(c *traffic.Config, a string) (float64, error) {
		q, err := queueOf(c, a, 1)
		return q.endpoints * theory.MMcNumber(1, q.load), err
	}},
	{"mmc-time", "response_mean", "M/M/c: Kleinrock, Queueing Systems 1 (1975)", func(c *traffic.Config, a string) (float64, error) {
		q, err := queueOf(c, a, 0)
		return q.time(theory.MMcTime(q.workers, q.load)), err
	}},
	{"mmc-number", "open_mean", "M/M/c: Kleinrock, Queueing Systems 1 (1975)", func(c *traffic.Config, a string) (float64, error) {
		q, err := queueOf(c, a, 0)
		return q.endpoints * theory.MMcNumber(q.workers, q.load), err
	}},
	{"mmc-waited", "waited", "Erlang C: Kleinrock, Queueing Systems 1 (1975)", func(c *traffic.Config, a string) (float64, error) {
		q, err := queueOf(c, a, 0)
		return theory.ErlangC(q.workers, q.load), err
	}},
	{"mm1-deadline", "deadline_errors", "M/M/1: Kleinrock (1975); with cancel, a finite dam: Takács (1967)", deadline},
	{"power-of-d-time", "response_mean", "limit of many endpoints: Mitzenmacher (2001)", powerOfD},
	{"stale-time", "response_mean", "limit of many endpoints: Mitzenmacher (2000)", staleTime},
	{"idle-queue-time", "response_mean", "limit of many nodes: Lu et al. (2011)", idleQueue},
	{"balls-into-bins", "flows_max_mean", "Mitzenmacher (1999); Gonnet (1981)", ballsIntoBins},
	{"selection-jain", "flows_jain", "variance of a multinomial distribution, and of rotations that begin at random", selectionJain},
	{"maglev-disruption", "remapped", "construction of Eisenbud et al. (2016)", maglevDisruption},
	{"ring-max-mean", "flows_max_mean", "consistent hashing with one point for each endpoint: Holst (1980)", func(c *traffic.Config, a string) (float64, error) {
		s, err := oneService(c)
		if name, _ := script.Path(a); err == nil && !strings.HasPrefix(name, "script:") && a != "ring(1)" {
			err = fmt.Errorf("%s is not a consistent-hashing ring", a)
		}
		return theory.RingMaxOverMean(len(s.Endpoints)), err
	}},
}

func formulaNames() (names []string) {
	for i := range formulas {
		names = append(names, formulas[i].name)
	}
	return names
}

func formulaOf(name string) *formula {
	if i := slices.IndexFunc(formulas, func(f formula) bool { return f.name == name }); i >= 0 {
		return &formulas[i]
	}
	return nil
}

// oneService is the service of a cluster, whose endpoints are all alike. With an error it is an empty one.
func oneService(c *traffic.Config) (*traffic.Service, error) {
	if len(c.Cluster.Services) != 1 {
		return new(traffic.Service), fmt.Errorf("wants one service, not %d", len(c.Cluster.Services))
	}
	s := &c.Cluster.Services[0]
	if s.Algorithm != "" || s.SameZone {
		return new(traffic.Service), errors.New("wants a service without an algorithm of its own and without sameZone")
	}
	for _, e := range s.Endpoints {
		if e.Weight != s.Endpoints[0].Weight {
			return new(traffic.Service), errors.New("wants endpoints of the same weight")
		}
	}
	return s, nil
}

// station is what the queues of a service have in common.
type station struct {
	workers   int
	endpoints float64
	load      float64
	work      float64 // seconds
	roundTrip float64
}

func (q station) time(services float64) float64 { return q.work*services + q.roundTrip }

// queues is the station of a service with Poisson arrivals and exponential work; workers is how many each endpoint must have, 0: any.
func queues(c *traffic.Config, workers int) (q station, err error) {
	s, err := oneService(c)
	if err != nil {
		return q, err
	}
	w := &c.Workload
	if w.Arrivals.Process != "poisson" {
		return q, errors.New("wants Poisson arrivals (process: poisson)")
	}
	load := c.Steady()[0].Load
	switch {
	case w.Work.Kind != "exponential" || w.Work.Max != 0:
		err = errors.New("wants exponential work without max")
	case w.Requests != nil:
		err = errors.New("wants no requests: each connection has one, and nobody gives up")
	case w.Idle != nil:
		err = errors.New("wants connections that end with their work (no idle)")
	case len(c.Events) > 0:
		err = errors.New("wants no events")
	case load >= 1:
		err = fmt.Errorf("wants a load below 1, not %.3g", load)
	case workers > 0 && s.Concurrency != workers:
		err = fmt.Errorf("wants endpoints with %d worker, not %d (concurrency)", workers, s.Concurrency)
	}
	return station{s.Concurrency, float64(len(s.Endpoints)), load, w.Work.Mean.Seconds(), w.RoundTrip.Seconds()}, err
}

// queueOf is the station whose endpoints are independent queues.
func queueOf(c *traffic.Config, algorithm string, workers int) (station, error) {
	q, err := queues(c, workers)
	if err == nil && algorithm != "random" && q.endpoints > 1 {
		err = fmt.Errorf("wants algorithm random, or one endpoint: the queues under %s are not independent", algorithm)
	}
	return q, err
}

// deadline is the share of late requests that have one attempt each.
func deadline(c *traffic.Config, algorithm string) (float64, error) {
	w := c.Workload.Requests
	if w == nil || w.Deadline == 0 || w.Attempts > 1 || w.Timeout > 0 || w.PerConnection != nil {
		return 0, errors.New("wants requests with a deadline, and without perConnection, timeout and further attempts")
	}
	plain := *c
	plain.Workload.Requests = nil
	q, err := queueOf(&plain, algorithm, 1)
	if err != nil {
		return 0, err
	}
	return theory.MM1Late(q.load, (w.Deadline.Seconds()-q.roundTrip)/q.work, w.Cancel), nil
}

// choices is how many endpoints an algorithm compares.
func choices(c *traffic.Config, algorithm string) (int, error) {
	d := 0
	switch {
	case algorithm == "random", algorithm == "hrw", algorithm == "jump": // independent hashes are draws
		return 1, nil
	case algorithm == "p2c":
		d = 2
	default:
		d, _ = argument(algorithm, "jsq")
	}
	if d == 0 {
		return 0, fmt.Errorf("wants algorithm random, hrw, jump, p2c or jsq(N), not %s", algorithm)
	}
	if len(c.Cluster.Nodes) > 1 {
		return 0, fmt.Errorf("wants one node, not %d: each node counts its own connections only", len(c.Cluster.Nodes))
	}
	return d, nil
}

// argument is the number in NAME(NUMBER).
func argument(algorithm, name string) (int, bool) {
	rest, ok := strings.CutPrefix(algorithm, name+"(")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(rest, ")"))
	return n, err == nil
}

func powerOfD(c *traffic.Config, algorithm string) (float64, error) {
	d, err := choices(c, algorithm)
	if err != nil {
		return 0, err
	}
	q, err := queues(c, 1)
	return q.time(theory.SupermarketTime(d, q.load)), err
}

// staleTime is for a board that all nodes see, so the number of nodes does not matter.
func staleTime(c *traffic.Config, algorithm string) (float64, error) {
	d, age := 1, time.Duration(0)
	if algorithm != "random" {
		rest, ok := strings.CutPrefix(algorithm, "stale(")
		text, number, sampled := strings.Cut(strings.TrimSuffix(rest, ")"), ":")
		var err1, err2 error
		age, err1 = time.ParseDuration(text)
		d, err2 = strconv.Atoi(number)
		if !ok || !sampled || err1 != nil || err2 != nil {
			return 0, fmt.Errorf("wants algorithm random or stale(AGE:N), not %s", algorithm)
		}
	}
	q, err := queues(c, 1)
	if err != nil {
		return 0, err
	}
	const most = 64
	if units := age.Seconds() / q.work; units > most {
		return 0, fmt.Errorf("wants an age of up to %d times the mean work, not %.3g", most, units)
	} else if d > 1 {
		return q.time(theory.StaleTime(d, q.load, units)), nil
	}
	return q.time(theory.MMcTime(1, q.load)), nil
}

func idleQueue(c *traffic.Config, algorithm string) (float64, error) {
	if algorithm != "jiq" {
		return 0, fmt.Errorf("wants algorithm jiq, not %s", algorithm)
	}
	q, err := queues(c, 1)
	return q.time(theory.IdleQueueTime(q.endpoints/float64(len(c.Cluster.Nodes)), q.load)), err
}

func ballsIntoBins(c *traffic.Config, algorithm string) (float64, error) {
	d, err := choices(c, algorithm)
	if err != nil {
		return 0, err
	}
	s, err := oneService(c)
	if err != nil {
		return 0, err
	}
	w := &c.Workload
	switch {
	case !allWithin(c):
		return 0, errors.New("wants a number of flows within the duration (process: deterministic, flows)")
	case w.Work.Kind != "constant" || w.Work.Mean < c.Duration:
		return 0, errors.New("wants connections that last beyond the duration (distribution: constant)")
	case w.Requests != nil:
		return 0, errors.New("wants no requests: each connection has one")
	case len(c.Events) > 0 || c.Warmup > 0:
		return 0, errors.New("wants neither events nor a warm-up")
	}
	balls := float64(w.Arrivals.Flows) / float64(len(s.Endpoints))
	const most = 100
	if balls > most {
		return 0, fmt.Errorf("wants at most %d flows for each endpoint", most)
	}
	return theory.FullestBin(len(s.Endpoints), d, balls) / balls, nil
}

// selectionJain is for a fixed number of flows in all, each of which comes to a random node.
func selectionJain(c *traffic.Config, algorithm string) (float64, error) {
	s, err := oneService(c)
	if err != nil {
		return 0, err
	}
	w := &c.Workload
	switch {
	case !allWithin(c):
		return 0, errors.New("wants a number of flows within the duration (process: deterministic, flows)")
	case len(c.Events) > 0 || c.Warmup > 0 || w.Requests != nil:
		return 0, errors.New("wants neither events, nor a warm-up, nor requests")
	case algorithm == "random":
		return theory.DrawsJain(w.Arrivals.Flows, len(s.Endpoints)), nil
	case algorithm == "rr-random":
		return theory.RotationsJain(w.Arrivals.Flows, len(s.Endpoints), len(c.Cluster.Nodes)), nil
	}
	return 0, fmt.Errorf("wants algorithm random or rr-random, not %s", algorithm)
}

// allWithin reports whether there is a number of flows, all within the duration.
func allWithin(c *traffic.Config) bool {
	a := &c.Workload.Arrivals
	return a.Flows > 0 && a.Process == "deterministic" && float64(a.Flows) <= c.Steady()[0].Rate*c.Duration.Seconds()
}

// maglevDisruption is about changes of the number of endpoints. New ones take their share, also of an ideal table.
func maglevDisruption(c *traffic.Config, algorithm string) (float64, error) {
	slots, ok := argument(algorithm, "maglev")
	if algorithm == "maglev" {
		slots, ok = balance.DefaultMaglevSize, true
	}
	if !ok {
		return 0, fmt.Errorf("wants algorithm maglev, not %s", algorithm)
	}
	s, err := oneService(c)
	if err != nil {
		return 0, err
	}
	n, sum, changes := len(s.Endpoints), 0.0, 0
	for _, e := range c.Events {
		if e.Scale == nil || e.Scale.To == n {
			continue
		}
		switch to := e.Scale.To; {
		case slots <= max(n, to):
			return 0, fmt.Errorf("wants fewer endpoints than slots, not %d", max(n, to))
		case to < n:
			sum += theory.MaglevDisruption(slots, n, n-to)
		default:
			taken := float64(to-n) / float64(to)
			sum += taken + float64((1-taken)*theory.MaglevDisruption(slots, to, to-n))
		}
		n, changes = e.Scale.To, changes+1
	}
	if changes == 0 || n == 0 {
		return 0, errors.New("wants events that scale the service")
	}
	return sum / float64(changes), nil
}
