package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// visit starts a contestant on a topology of its own, measures it and stops it.
type visit struct {
	*bench
	*topology
	contestant *contestant
	process    *process.Process // nil: there is none
	watched    *process.Process // that it observes; nil: there is none
	round      int
	started    bool // it has served
}

func (b *bench) visit(ctx context.Context, c *contestant, round int) (err error) {
	v := &visit{bench: b, contestant: c, round: round}
	b.visits++
	if v.topology, err = newTopology(b.control, b.visits); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.process.Stop(), v.watched.Stop(), v.topology.close()) }()
	if err := v.awaitLinks(ctx); err != nil {
		return err
	}
	if b.rolling > 0 {
		if err := b.objects.update(ctx, b.rolling, roll{}); err != nil {
			return err
		}
	}
	if c.watched != nil {
		if v.watched, err = c.watched(v.topology, b.objects); err != nil {
			return err
		}
		v.watched.Drain()
		if err := v.awaitService(ctx); err != nil {
			return err
		}
	}
	if c.start != nil {
		if v.process, err = c.start(v.topology, b.objects); err != nil {
			return err
		}
		v.process.Drain()
	}
	defer func() {
		if err != nil && v.process != nil {
			err = fmt.Errorf("%w; its standard error:\n%s", err, v.process.Stderr())
		}
	}()
	if err := v.awaitService(ctx); err != nil {
		return err
	}
	if c.watched != nil {
		if err := v.awaitTable(ctx); err != nil {
			return err
		}
	}
	readers, err := v.followFlows(ctx)
	if err != nil {
		return err
	}
	defer readers.close()
	if b.profile > 0 {
		return v.takeProfile(ctx)
	}
	if b.events {
		if !c.proxy {
			return nil
		}
		return v.followEvents(ctx)
	}
	if b.rolling > 0 {
		if !c.proxy && c.watched == nil {
			return nil
		}
		return v.roll(ctx)
	}
	for _, w := range b.workloads() {
		if c.freshOnly && w.timeouts == defaultTimeouts || w.rate > 0 && c.watched == nil {
			continue
		}
		if err := v.load(w); err != nil {
			return fmt.Errorf("%s: %w", w.id(), err)
		}
	}
	if c.watched != nil {
		if err := v.observed(ctx); err != nil {
			return err
		}
	}
	if (c.start == nil || c.proxy) && strings.Contains("stream", b.loads) {
		if err := v.streamOnce(); err != nil {
			return err
		}
	}
	if c.proxy && strings.Contains("changes", b.loads) {
		return v.followChanges(ctx)
	}
	return nil
}

// record keeps a sample.
func (v *visit) record(measure, quantity, unit string, value float64) {
	v.samples.add(sample{v.objects.count, v.contestant.name, measure, quantity, unit, v.round, value})
}

// target gives where clients turn to.
func (v *visit) target(udp bool) traffic.Targets {
	n := uint32(v.objects.count)
	t := traffic.Targets{First: netip.AddrPortFrom(firstService, servicePort), Count: n, Step: 1}
	if udp {
		t.Count, t.Step = (n+udpEvery-1)/udpEvery, udpEvery
	}
	if v.contestant.direct {
		t = traffic.Targets{First: netip.AddrPortFrom(firstEndpoint, echoPort), Count: n * maxEndpoints, Step: 1}
	}
	return t
}

// awaitLinks waits until the client reaches endpoints and the node the API server: on
// fresh links that takes up to a second, which does not belong to a contestant's start.
func (v *visit) awaitLinks(ctx context.Context) error {
	server, err := url.Parse(v.objects.cluster.URL(controlAddress.Addr()))
	if err != nil {
		return err
	}
	control, err := netip.ParseAddrPort(server.Host)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		_, err1 := v.request(netip.AddrPortFrom(firstEndpoint, echoPort), 50*time.Millisecond)
		err2 := v.reaches(ctx, control)
		if err1 == nil && err2 == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("no connection through fresh links: %w", errors.Join(err1, err2, ctx.Err()))
		}
	}
}

// reaches connects from the node.
func (v *visit) reaches(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	c, err := v.node.Dial(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		return err
	}
	return c.Close()
}

var errNotServing = errors.New("does not serve")

// awaitService waits until services spread over all of them have answered once; that
// of the last is the time from the start of the process to serving.
func (v *visit) awaitService(ctx context.Context) error {
	const probes = 8
	t := v.target(false)
	deadline := time.Now().Add(v.startTimeout)
	var attempts sync.WaitGroup // including abandoned ones
	defer attempts.Wait()
	var answered time.Time
	for i := range uint32(probes) {
		to := t.At(uint32(uint64(t.Count-1) * uint64(i) / (probes - 1)))
		var err error
		if answered, err = v.firstAnswer(ctx, &attempts, to, deadline); err != nil {
			return errors.Join(fmt.Errorf("%w within %v: %s: %w", errNotServing, v.startTimeout, to, err), ctx.Err())
		}
	}
	if v.contestant.proxy && !v.started {
		v.started = true
		v.record("start", "until it serves", "s", answered.Sub(v.process.Began).Seconds())
	}
	return nil
}

// A connection whose SYN came too early would be served only when TCP sends it again, a
// second later. So there is a new attempt every few milliseconds, which is how exact a
// start is known, and attempts overlap: on a busy machine a reply may take longer.
const (
	attemptPeriod  = 3 * time.Millisecond
	attemptTimeout = 100 * time.Millisecond
)

// firstAnswer gives the time when an endpoint first answered.
func (v *visit) firstAnswer(ctx context.Context, attempts *sync.WaitGroup, to netip.AddrPort, deadline time.Time) (time.Time, error) {
	type answer struct {
		at  time.Time
		err error
	}
	answers := make(chan answer)
	over, stop := context.WithCancel(ctx)
	defer stop()
	attempt := func() {
		_, err := v.request(to, attemptTimeout)
		select {
		case answers <- answer{time.Now(), err}:
		case <-over.Done():
		}
	}
	tick := time.NewTicker(attemptPeriod)
	defer tick.Stop()
	attempts.Go(attempt)
	for err := errors.New("no reply"); ; {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.at, nil
			}
			err = a.err
		case <-tick.C:
			attempts.Go(attempt)
		case <-over.Done():
			return time.Time{}, err
		}
		if time.Now().After(deadline) {
			return time.Time{}, err
		}
	}
}

// request makes one connection from the client, which may take as long as limit.
func (v *visit) request(to netip.AddrPort, limit time.Duration) (who byte, err error) {
	err = v.client.Do(func() error {
		who, err = traffic.Request(to, limit)
		return err
	})
	return who, err
}

// Source ports. Loads of one visit have different ones, so that none meets what the one
// before has left, except where that is what is measured: there a few are used over and
// over, and each has an old entry when it is measured.
const (
	onePort, onePorts     = 1024, 43000  // with one worker
	manyPort, manyPorts   = 45000, 16000 // with many, for each
	reusedPort, reusedAll = 30000, 28000 // of all workers together, if there are many
	reusedOne             = 16000        // with one worker
)

// warmUp is the number of connections before those that are measured: more than the records that nfqproxy keeps, for which it takes
// memory as they come.
const warmUp = 20_000

func (v *visit) load(w workload) error {
	l := &traffic.Load{
		UDP: w.udp, Workers: w.workers, Rate: w.rate, From: firstClient, FirstPort: onePort, Ports: onePorts, To: v.target(w.udp), Time: v.time,
	}
	switch {
	case w.timeouts == defaultTimeouts:
		l.FirstPort, l.Ports = reusedPort, min(reusedOne, reusedAll/w.workers)
		l.WarmUp, l.Limit = l.Ports, 1<<20
	case w.workers > 1:
		l.FirstPort, l.Ports = manyPort, manyPorts
		fallthrough
	default:
		l.WarmUp = warmUp / w.workers
		l.Limit = l.Ports - l.WarmUp
	}
	if v.contestant.name != "direct" {
		if err := errors.Join(v.setTimeouts(w.timeouts), v.forget()); err != nil {
			return err
		}
	}
	var r traffic.Result
	used, err := v.run(sideSpec{Load: l}, &r)
	if err != nil {
		return err
	}
	n := float64(r.Connections)
	v.record(w.id(), "rate", "1/s", n/r.Seconds)
	v.record(w.id(), "p50", "µs", float64(r.P50)/1e3)
	v.record(w.id(), "p99", "µs", float64(r.P99)/1e3)
	v.record(w.id(), "p99.9", "µs", float64(r.P999)/1e3)
	v.record(w.id(), "process", "µs", micros(used.process)/n)
	v.record(w.id(), "machine", "µs", micros(used.machine)/n)
	v.recordFailures(w.id(), r.Failures)
	v.record(w.id(), "retransmitted", "", float64(r.Retransmitted))
	return nil
}

// recordFailures keeps how many connections failed, and of which kind they were.
func (v *visit) recordFailures(measure string, kinds map[string]int) {
	n := 0
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		v.note("%s: %d connections failed: %s", measure, kinds[kind], kind)
		v.record(measure, failedBy+kind, "", float64(kinds[kind]))
		n += kinds[kind]
	}
	v.record(measure, "failed", "", float64(n))
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// run runs a side of the traffic in the client's namespace and returns the CPU time used
// between its beginning and its end.
func (v *visit) run(s sideSpec, result any) (used usage, err error) {
	p, err := startSide(v.client, s)
	if err != nil {
		return used, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	pid := 0
	if v.process != nil {
		pid = v.process.PID()
	}
	if err := p.Await(wordBegan); err != nil {
		return used, err
	}
	before, err := usageOf(pid)
	if err != nil {
		return used, err
	}
	if err := p.Await(wordEnded); err != nil {
		return used, err
	}
	after, err := usageOf(pid)
	if err != nil {
		return used, err
	}
	return after.since(before), p.Result(result)
}

// usage is CPU time up to now.
type usage struct {
	process time.Duration // of a process, user and system, all threads
	machine time.Duration // of all CPUs, whatever it was for
}

func (u usage) since(before usage) usage {
	return usage{u.process - before.process, u.machine - before.machine}
}

// usageOf reads the clocks. pid 0: no process.
func usageOf(pid int) (u usage, err error) {
	if u.machine, err = machine.Time(); err == nil && pid != 0 {
		u.process, err = machine.ProcessTime(pid)
	}
	return u, err
}

// streamSpec is one established connection.
type streamSpec struct {
	To   netip.AddrPort
	Time time.Duration
}

// streamOnce measures it, at the first number of services only: it does not meet any
// rule after its first packet.
func (v *visit) streamOnce() error {
	if v.objects.count != v.sizes[0] {
		return nil
	}
	var rate float64
	used, err := v.run(sideSpec{Stream: &streamSpec{v.target(false).At(0), v.stream}}, &rate)
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	v.record("stream", "rate", "Gbit/s", rate*8/1e9)
	v.record("stream", "process", "ms/s", 1e3*used.process.Seconds()/v.stream.Seconds())
	v.record("stream", "machine", "ms/GB", 1e3*used.machine.Seconds()/(rate*v.stream.Seconds()/1e9))
	return nil
}
