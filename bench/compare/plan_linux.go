package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// plan is what is measured, and how long.
type plan struct {
	sizes        []int // numbers of services
	endpoints    int   // of each service: even, at most maxEndpoints
	rounds       int   // visits to each contestant at each size
	time         time.Duration
	stream       time.Duration // measured at the first size only
	changes      int           // of EndpointSlices in one visit
	timeouts     []timeouts
	loads        string        // part of the names of the only loads to measure
	only         []string      // contestants; empty: all
	out          string        // directory
	nfqproxy     []string      // programs
	floor        string        // directory of the C programs
	startTimeout time.Duration // with a proxy until it serves
	profile      time.Duration // 0: no profile
	events       bool          // measure events instead of loads
	halt         bool          // let idle CPUs halt
	rolling      int           // pods of a rolling update, which is measured instead of loads; 0: none
}

// timeouts are conntrack's, in seconds, for TCP connections that are over.
type timeouts struct {
	name            string
	timeWait, close int
}

var (
	shortTimeouts   = timeouts{"short timeouts", 1, 1}
	defaultTimeouts = timeouts{"default timeouts", 120, 10}
)

// quickContestants are one of each kind.
var quickContestants = []string{"direct", "nfqproxy", "iptables-nft", "nftables", "accept-2q", "translate-2q"}

func parsePlan(args []string) (*plan, error) {
	p := &plan{timeouts: []timeouts{shortTimeouts, defaultTimeouts}}
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "run for about two minutes: one round, 1 and 1,000 services, short timeouts only, and unless -only is given "+strings.Join(quickContestants, ","))
	sizes := flags.String("services", "", "numbers of services, ascending (default 1,1000,10000)")
	flags.IntVar(&p.endpoints, "endpoints", maxEndpoints, fmt.Sprintf("number of endpoints of each service: 2 to %d, even", maxEndpoints))
	only := flags.String("only", "", "contestants, by name (default: all)")
	flags.StringVar(&p.loads, "loads", "", "measure only starts, and loads or events whose names contain this, such as \"16 workers, short\", \"stream\" or \"changes\"")
	flags.IntVar(&p.rounds, "rounds", 0, "visits to each contestant at each number of services (default 3)")
	flags.DurationVar(&p.time, "time", 0, "duration of each load (default 2s)")
	flags.DurationVar(&p.stream, "stream", 0, "duration of the established connection (default 10s)")
	flags.IntVar(&p.changes, "changes", 0, "number of EndpointSlice changes in a visit (default 6)")
	flags.DurationVar(&p.startTimeout, "start-timeout", 5*time.Minute, "maximum time until a proxy serves; a slower one is not measured at that number of services")
	flags.StringVar(&p.out, "out", "bench/results", "directory for results.csv and results.md")
	nfqproxy := flags.String("nfqproxy", "bin/nfqproxyd", "path of nfqproxyd; further paths, separated by commas, are contestants named after their files")
	flags.StringVar(&p.floor, "floor", "bench/floor/bin", "directory of the C programs")
	flags.DurationVar(&p.profile, "profile", 0, "with one contestant: run each load (see -loads) for this time, and write CPU profiles and a heap profile from its port 10249")
	flags.BoolVar(&p.events, "events", false, "measure what restarts, kills and other events cost under a steady load, instead of loads")
	flags.BoolVar(&p.halt, "halt", false, "let idle CPUs halt, as they usually do; by default they poll, as waking a CPU of a virtual machine takes longer than most of what is measured")
	flags.IntVar(&p.rolling, "rolling", 0, fmt.Sprintf("measure how soon rules and flows follow a rolling update of this number of pods (at most %d) under a steady load, instead of loads; unless -only is given, of %s", maxReplicas, strings.Join(rollingContestants, ",")))
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	d := plan{sizes: []int{1, 1000, 10000}, rounds: 3, time: 2 * time.Second, stream: 10 * time.Second, changes: 6}
	if *quick {
		d = plan{sizes: []int{1, 1000}, rounds: 1, time: 500 * time.Millisecond, stream: 2 * time.Second, changes: 3}
		p.timeouts = p.timeouts[:1]
		p.only = quickContestants
	}
	p.sizes = d.sizes
	p.rounds, p.changes = cmp.Or(p.rounds, d.rounds), cmp.Or(p.changes, d.changes)
	p.time, p.stream = cmp.Or(p.time, d.time), cmp.Or(p.stream, d.stream)
	if *sizes != "" {
		p.sizes = nil
		for s := range strings.SplitSeq(*sizes, ",") {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > maxServices || len(p.sizes) > 0 && n <= p.sizes[len(p.sizes)-1] {
				return nil, fmt.Errorf("-services %s: want ascending numbers from 1 to %d", *sizes, maxServices)
			}
			p.sizes = append(p.sizes, n)
		}
	}
	p.nfqproxy = strings.Split(*nfqproxy, ",")
	if p.rolling > 0 {
		p.only = rollingContestants
	}
	if *only != "" {
		p.only = strings.Split(*only, ",")
	}
	if p.rolling < 0 || p.rolling > maxReplicas {
		return nil, fmt.Errorf("-rolling %d: want a number from 0 to %d", p.rolling, maxReplicas)
	}
	if p.endpoints < 2 || p.endpoints > maxEndpoints || p.endpoints%2 != 0 {
		return nil, fmt.Errorf("-endpoints %d: want an even number from 2 to %d", p.endpoints, maxEndpoints)
	}
	if p.rounds < 1 || p.time <= 0 || p.stream <= 0 || p.changes < 0 {
		return nil, errors.New("-rounds, -time, -stream, -changes: want more than 0")
	}
	return p, nil
}

// workload is a load of short connections.
type workload struct {
	udp      bool
	workers  int
	timeouts timeouts
	rate     int // connections in a second; 0: as many as possible
}

// id names the workload in the table of samples.
func (w workload) id() string {
	proto := "tcp"
	if w.udp {
		proto = "udp"
	}
	if w.rate > 0 {
		return fmt.Sprintf("%s, %d a second, %s", proto, w.rate, w.timeouts.name)
	}
	return fmt.Sprintf("%s, %d workers, %s", proto, w.workers, w.timeouts.name)
}

// steadyRate is that of a load with a pace, in connections a second.
const steadyRate = 1000

// workloads lists them in the order in which they run. Conntrack's TCP timeouts do not
// matter to UDP.
func (p *plan) workloads() (all []workload) {
	for _, t := range p.timeouts {
		all = append(all, workload{workers: 1, timeouts: t}, workload{workers: 16, timeouts: t})
	}
	all = append(all,
		workload{udp: true, workers: 1, timeouts: shortTimeouts}, workload{udp: true, workers: 16, timeouts: shortTimeouts},
		workload{workers: 16, timeouts: shortTimeouts, rate: steadyRate})
	return slices.DeleteFunc(all, func(w workload) bool { return !strings.Contains(w.id(), p.loads) })
}
