package traffic

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Problem is a mistake in a [Config]. Field is as in experiment files: events[0].scale.to.
type Problem struct{ Field, Text string }

// checker collects problems.
type checker struct {
	c        *Config
	problems []Problem
}

// want notes a problem unless ok.
func (k *checker) want(ok bool, field, format string, args ...any) {
	if !ok {
		k.problems = append(k.problems, Problem{field, fmt.Sprintf(format, args...)})
	}
}

// within notes a problem of a time that is out of its range.
func (k *checker) within(d, least time.Duration, field string) {
	k.want(d >= least && d <= longest, field, "want a time from %s to %s, not %s", least, longest, d)
}

// number notes a problem of a number that is out of its range.
func (k *checker) number(v, least, most float64, field string) {
	k.want(v >= least && v <= most, field, "want a number from %v to %v, not %v", least, most, v)
}

// Limits of a simulation.
const (
	MaxNodes     = 5000
	MaxServices  = 100_000
	MaxEndpoints = 1_000_000
)

// Validate returns the mistakes, in the order of the fields; none: the config can be run.
func (c *Config) Validate() []Problem {
	k := &checker{c: c}
	k.cluster()
	k.workload()
	for i := range c.Events {
		k.event(&c.Events[i], fmt.Sprintf("events[%d]", i))
	}
	k.within(c.Duration, 1, "duration")
	k.want(c.Warmup >= 0 && c.Warmup < max(c.Duration, 1), "warmup", "want a time below the duration %s, not %s", c.Duration, c.Warmup)
	const mostRows = 100_000
	length := c.WindowLength()
	k.want(c.Window >= 0 && c.Duration/length <= mostRows, "window", "want at most %d windows in %s, not one each %s", mostRows, c.Duration, c.Window)
	k.want(c.Duration < 1 || c.Duration/length*length > c.Warmup, "window", "want one that ends after the warm-up %s and within the duration %s, not one each %s", c.Warmup, c.Duration, length)
	return k.problems
}

func (k *checker) cluster() {
	c := &k.c.Cluster
	endpoints := 0
	for i := range c.Services {
		s := &c.Services[i]
		endpoints += len(s.Endpoints)
		field := fmt.Sprintf("cluster.services[%d]", i)
		if s.Concurrency < 1 || s.Concurrency > 1<<20 || s.Backlog < 0 || s.Backlog > 1<<30 {
			k.want(false, field, "want a concurrency from 1 to %d and a backlog from 0 to %d, not %d and %d", 1<<20, 1<<30, s.Concurrency, s.Backlog)
		}
		if !s.ClusterIP.IsValid() || s.Port == 0 {
			k.want(false, field, "want a cluster IP and a port")
		}
		for _, e := range s.Endpoints {
			if e.Node < 0 || e.Node >= len(c.Nodes) || !e.AddrPort.IsValid() {
				k.want(false, field, "endpoint %s: want an address, and a node of the cluster", e.AddrPort)
			}
		}
	}
	k.want(len(c.Nodes) > 0 && len(c.Nodes) <= MaxNodes, "cluster.nodes", "want 1 to %d nodes, not %d", MaxNodes, len(c.Nodes))
	k.want(len(c.Services) > 0 && len(c.Services) <= MaxServices, "cluster.services", "want 1 to %d services, not %d", MaxServices, len(c.Services))
	k.want(endpoints > 0 && endpoints <= MaxEndpoints, "cluster.services", "want 1 to %d endpoints in all services, not %d", MaxEndpoints, endpoints)
	k.distribution(c.Propagation, "cluster.propagation")
}

func (k *checker) workload() {
	w := &k.c.Workload
	k.arrivals(&w.Arrivals, "workload.arrivals")
	k.number(w.Zipf, 0, 10, "workload.zipf")
	clients := cmp.Or(w.Clients.PerNode, defaultClients)
	k.want(clients > 0 && clients*max(len(k.c.Cluster.Nodes), 1) < maxClients-64, "workload.clients.perNode", "want 1 client or more on each node, and less than %d in all", maxClients-64)
	k.number(float64(w.Clients.Ports), 0, portRange, "workload.clients.ports")
	k.distribution(&w.Work, "workload.work")
	k.want(w.Work.average() > 0 || w.Work.Kind == "" || w.Work.Mean < 0, "workload.work.mean", "missing")
	if w.Requests != nil {
		k.requests(w.Requests, "workload.requests")
	}
	k.distribution(w.Idle, "workload.idle")
	k.within(w.RoundTrip, 0, "workload.roundTrip")
	k.oneOf(w.Accept, "workload.accept", []string{"", ByWorker, ByKernel})
	k.within(w.GiveUp, 0, "workload.giveUp")
	k.within(w.TimeWait, 0, "workload.timeWait")
}

// oneOf notes a problem of a text that is none of those.
func (k *checker) oneOf(text, field string, all []string) bool {
	ok := slices.Contains(all, text)
	switch {
	case ok:
	case text == "":
		k.want(false, field, "missing: want %s", strings.Join(all, ", "))
	default:
		k.want(false, field, "want one of %s, not %q", strings.TrimPrefix(strings.Join(all, ", "), ", "), text)
	}
	return ok
}

func (k *checker) arrivals(a *Arrivals, field string) {
	if !k.oneOf(a.Process, field+".process", processes) {
		return
	}
	const mostRate = 1e9
	rated := a.Process == poisson || a.Process == deterministic || a.Process == profile
	switch {
	case a.Process == profile && a.Load == 0 && a.Rate == 0:
	case rated && a.Load == 0:
		k.want(a.Rate > 0 && a.Rate <= mostRate, field+".rate", "want flows per second above 0 and up to 1e9, not %v; or a load", a.Rate)
	case rated:
		k.number(a.Load, 1e-6, 100, field+".load")
		k.want(a.Rate == 0, field+".rate", "rate and load cannot be used together")
	default:
		k.want(a.Rate == 0, field+".rate", "only poisson, deterministic and profile have a rate")
		k.want(a.Load == 0, field+".load", "only poisson, deterministic and profile have a load")
	}
	k.want(a.Flows >= 0, field+".flows", "want a number of 0 or more, not %d", a.Flows)
	k.want((a.Process == mmpp) == (len(a.States) > 0), field+".states", "want states with mmpp, and with nothing else")
	flows := func(s State) bool { return s.Rate > 0 }
	k.want(len(a.States) == 0 || slices.ContainsFunc(a.States, flows), field+".states", "want a state with a rate above 0")
	for i, s := range a.States {
		k.number(s.Rate, 0, mostRate, fmt.Sprintf("%s.states[%d].rate", field, i))
		k.within(s.Stay, time.Microsecond, fmt.Sprintf("%s.states[%d].stay", field, i))
	}
	k.want(a.Process == profile || len(a.Counts) == 0 && a.Step == 0, field+".counts", "only profile has counts and a step")
	if a.Process == profile {
		most := 0.0
		for i, n := range a.Counts {
			k.number(n, 0, mostRate, fmt.Sprintf("%s.counts[%d]", field, i))
			most = max(most, n)
		}
		k.want(most > 0, field+".counts", "missing: want numbers of flows, of which one is above 0, or a file")
		k.within(a.step(), time.Millisecond, field+".step")
	}
	k.want(a.Process == traced || a.Process == profile || a.File == "", field+".file", "only trace and profile have a file")
	k.want(a.Process != traced || len(a.Trace) > 0, field+".file", "missing: a trace with flows")
	for i := 1; i < len(a.Trace); i++ {
		if a.Trace[i].At < a.Trace[i-1].At {
			k.want(false, field+".file", "flow %d is before the flow that precedes it: want them in the order of time", i+1)
			break
		}
	}
}

// distribution checks a distribution; nil is right.
func (k *checker) distribution(d *Distribution, field string) {
	if d == nil || !k.oneOf(d.Kind, field+".distribution", distributions) {
		return
	}
	if d.Kind == empirical {
		k.want(len(d.Values) > 0, field+".values", "missing: want times, or a file with one on each line")
		for i, v := range d.Values {
			k.within(v, 0, fmt.Sprintf("%s.values[%d]", field, i))
		}
		k.want(d.Mean == 0, field+".mean", "the values of empirical have their own mean")
	} else {
		k.within(d.Mean, 0, field+".mean")
		k.want(len(d.Values) == 0 && d.File == "", field+".values", "only empirical has values")
	}
	k.want(d.Kind != pareto || d.Shape > 1 && d.Shape <= 1000, field+".shape", "want a number above 1, with which the mean exists, and up to 1000, not %v", d.Shape)
	k.want(d.Kind == pareto || d.Shape == 0, field+".shape", "only pareto has a shape")
	k.want(d.Kind != lognormal || d.Sigma > 0 && d.Sigma <= 10, field+".sigma", "want a number above 0 and up to 10, not %v", d.Sigma)
	k.want(d.Kind == lognormal || d.Sigma == 0, field+".sigma", "only lognormal has a sigma")
	k.within(d.Max, 0, field+".max")
	k.want(d.Max <= 0 || d.Max >= d.Mean, field+".max", "want a time of the mean %s or more, not %s", d.Mean, d.Max)
}

func (k *checker) requests(q *Requests, field string) {
	roundTrip := k.c.Workload.RoundTrip
	limit := func(d time.Duration, field string) {
		k.want(d == 0 || d > roundTrip && d <= longest, field, "want a time above the round trip %s, not %s", roundTrip, d)
	}
	if d := q.PerConnection; d != nil && k.oneOf(d.Kind, field+".perConnection.distribution", counts) {
		if d.Kind == empirical {
			k.want(len(d.Values) > 0, field+".perConnection.values", "missing: want whole numbers from 1 on")
			for i, v := range d.Values {
				k.number(float64(v), 1, maxCount, fmt.Sprintf("%s.perConnection.values[%d]", field, i))
			}
			k.want(d.Mean == 0, field+".perConnection.mean", "the values of empirical have their own mean")
		} else {
			k.number(d.Mean, 1, maxCount, field+".perConnection.mean")
			k.want(d.Kind != constant || d.Mean == math.Trunc(d.Mean), field+".perConnection.mean", "want a whole number, not %v", d.Mean)
			k.want(len(d.Values) == 0, field+".perConnection.values", "only empirical has values")
		}
	}
	k.distribution(q.Think, field+".think")
	k.want(q.Think == nil || q.PerConnection != nil, field+".think", "want perConnection beside it: a single request has no next one")
	limit(q.Deadline, field+".deadline")
	limit(q.Timeout, field+".timeout")
	k.want(q.Attempts >= 0 && q.Attempts <= MaxAttempts, field+".attempts", "want 1 to %d, not %d", MaxAttempts, q.Attempts)
	k.distribution(q.Backoff, field+".backoff")
	k.within(q.Hedge, 0, field+".hedge")
	k.number(q.Budget, 0, MaxAttempts, field+".budget")
	for _, one := range []struct {
		given bool
		field string
	}{{q.Backoff != nil, ".backoff"}, {q.Hedge > 0, ".hedge"}, {q.Budget > 0, ".budget"}, {q.SameWork, ".sameWork"}} {
		k.want(!one.given || q.Attempts > 1, field+one.field, "want attempts of 2 or more beside it")
	}
	k.want(!q.Cancel || q.Attempts > 1 || q.Deadline > 0 || q.Timeout > 0, field+".cancel", "want a deadline, a timeout or attempts of 2 or more beside it")
}

func (k *checker) event(e *Event, field string) {
	k.want(e.At >= 0 && e.At < max(k.c.Duration, 1), field+".at", "want a time below the duration %s, not %s", k.c.Duration, e.At)
	set := 0
	for _, is := range []bool{e.Scale != nil, e.Autoscale != nil, e.RollingUpdate != nil, e.Slow != nil, e.Antagonist != nil, e.NodeLoss != nil, e.Flush != nil, e.Away != nil} {
		if is {
			set++
		}
	}
	k.want(set == 1, field, "want one of scale, autoscale, rollingUpdate, slow, antagonist, nodeLoss, conntrackFlush and apiServerAway, not %d of them", set)
	nodes := func(n int, field string) {
		k.number(float64(n), 0, float64(len(k.c.Cluster.Nodes)), field+".nodes")
	}
	factor := func(f float64, field string) {
		k.want(f > 0 && f <= 1e6 && !math.IsNaN(f), field+".factor", "want a number above 0 and up to 1e6, not %v", f)
	}
	switch {
	case e.Scale != nil:
		k.lifecycle(&e.Scale.Lifecycle, field+".scale")
		k.number(float64(e.Scale.To), 0, MaxEndpoints, field+".scale.to")
	case e.Autoscale != nil:
		a, field := e.Autoscale, field+".autoscale"
		k.lifecycle(&a.Lifecycle, field)
		k.want(a.Target > 0 && a.Target <= 1, field+".target", "want a share of the workers above 0 and up to 1, not %v", a.Target)
		k.number(float64(a.Min), 0, MaxEndpoints, field+".min")
		k.number(float64(a.Max), float64(max(a.Min, 1)), MaxEndpoints, field+".max")
		k.want(a.Interval == 0 || a.Interval >= time.Millisecond && a.Interval <= longest, field+".interval", "want a time from 1ms on, not %s", a.Interval)
		k.number(a.Tolerance, 0, 1, field+".tolerance")
		if a.Stabilization != nil {
			k.within(*a.Stabilization, 0, field+".stabilization")
		}
	case e.RollingUpdate != nil:
		k.lifecycle(&e.RollingUpdate.Lifecycle, field+".rollingUpdate")
		k.within(e.RollingUpdate.Every, 0, field+".rollingUpdate.every")
	case e.Slow != nil:
		k.service(e.Slow.Service, field+".slow")
		k.number(float64(e.Slow.Endpoints), 0, MaxEndpoints, field+".slow.endpoints")
		factor(e.Slow.Factor, field+".slow")
		k.within(e.Slow.For, 0, field+".slow.for")
	case e.Antagonist != nil:
		nodes(e.Antagonist.Nodes, field+".antagonist")
		factor(e.Antagonist.Factor, field+".antagonist")
		k.within(e.Antagonist.For, 0, field+".antagonist.for")
	case e.NodeLoss != nil:
		nodes(e.NodeLoss.Nodes, field+".nodeLoss")
		k.within(e.NodeLoss.Noticed, 0, field+".nodeLoss.noticed")
	case e.Flush != nil:
		nodes(e.Flush.Nodes, field+".conntrackFlush")
	case e.Away != nil:
		k.within(e.Away.For, 1, field+".apiServerAway.for")
	}
}

func (k *checker) lifecycle(l *Lifecycle, field string) {
	k.service(l.Service, field)
	k.within(l.Ready, 0, field+".ready")
	k.within(l.Listens, 0, field+".listens")
	k.within(l.PreStop, 0, field+".preStop")
	k.within(l.Grace, 0, field+".grace")
	k.want(l.PreStop <= l.Grace, field+".preStop", "want at most the grace period %s, not %s", l.Grace, l.PreStop)
}

func (k *checker) service(name, field string) {
	_, ok := k.c.service(name)
	k.want(ok, field+".service", "the cluster has no service %q", name)
}
