package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/process"
)

// changeTimeout is how long a change may take.
const changeTimeout = 30 * time.Second

// record is what is read of the flow log.
type record struct {
	Time        time.Time `json:"time"`
	Destination string    `json:"destination"`
	Endpoint    string    `json:"endpoint"`
	Generation  uint64    `json:"generation"`
}

// flows is the proxy's flow log.
type flows struct {
	records chan record
	ended   chan struct{} // closed when the proxy has closed it
}

func newFlows() *flows { return &flows{make(chan record, 1<<16), make(chan struct{})} }

func (f *flows) read(from *process.Process) {
	defer close(f.ended)
	for {
		line, err := from.Line()
		if err != nil {
			return
		}
		var r record
		if json.Unmarshal([]byte(line), &r) == nil {
			f.records <- r
		}
	}
}

// probe changes slices and finds out when that is in force.
type probe struct {
	world    *world
	daemon   *daemon
	interval time.Duration
}

// latency of a change is the time until the verdict of the first flow that obeys it.
type latency struct {
	sent     time.Duration // since the request
	answered time.Duration // since the API server's answer; below 0: before it
}

// change replaces the endpoints of a Service.
func (p *probe) change(ctx context.Context) (latency, error) {
	// Not in step with anything.
	time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
	r, first, err := p.awaitReplacement(ctx, rand.IntN(len(p.world.addresses)))
	return latency{first.Time.Sub(r.sent), first.Time.Sub(r.answered)}, err
}

// burst is the result of many changes at once.
type burst struct {
	slices int
	api    time.Duration // from the first request to the last answer
	obeyed time.Duration // from the last answer to the first flow that obeys the last change
	tables uint64
}

// burst changes many slices as fast as the API server takes it. The last one is
// changed when all others are: changes come in order, so what obeys it obeys all.
func (p *probe) burst(ctx context.Context, n int) (burst, error) {
	some := rand.Perm(len(p.world.addresses))[:n]
	last := some[n-1]
	_, before, err := p.awaitReplacement(ctx, last)
	if err != nil {
		return burst{}, err
	}
	began := time.Now()
	err = cluster.Each(ctx, 0, n-1, func(ctx context.Context, i int) error {
		_, err := p.world.replace(ctx, some[i])
		return err
	})
	if err != nil {
		return burst{}, err
	}
	r, first, err := p.awaitReplacement(ctx, last)
	return burst{n, r.answered.Sub(began), first.Time.Sub(r.answered), first.Generation - before.Generation}, err
}

// awaitReplacement replaces the endpoints of a Service and gives the record of the first flow
// that went to a new one.
func (p *probe) awaitReplacement(ctx context.Context, service int) (replacement, record, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	to := p.world.addresses[service]
	knocking, stop := context.WithCancel(ctx)
	knocked := make(chan error, 1)
	go func() { knocked <- p.world.node.Do(func() error { return connectEvery(knocking, to, p.interval) }) }()
	defer func() { stop(); <-knocked }()
	// The flow log has flows of this Service before the change begins.
	if _, err := p.await(ctx, to, knocked, func(record) bool { return true }); err != nil {
		return replacement{}, record{}, err
	}
	type outcome struct {
		replacement
		err error
	}
	done := make(chan outcome, 1)
	// The addresses are drawn before the request is sent: records may come first.
	go func() {
		r, err := p.world.replace(ctx, service)
		done <- outcome{r, err}
	}()
	var seen []record
	var o outcome
	for pending := true; pending; {
		select {
		case o = <-done:
			pending = false
		case r := <-p.daemon.flows.records:
			seen = append(seen, r)
		}
	}
	if o.err != nil {
		return replacement{}, record{}, o.err
	}
	obeys := func(r record) bool { return o.has(r.Endpoint) }
	if i := slices.IndexFunc(seen, obeys); i >= 0 {
		return o.replacement, seen[i], nil
	}
	first, err := p.await(ctx, to, knocked, obeys)
	return o.replacement, first, err
}

// await waits for a record of a Service's flow.
func (p *probe) await(ctx context.Context, to netip.AddrPort, knocked <-chan error, wanted func(record) bool) (record, error) {
	for {
		select {
		case <-ctx.Done():
			return record{}, fmt.Errorf("flows to %s did not obey a change: %w", to, ctx.Err())
		case err := <-knocked:
			return record{}, fmt.Errorf("connections to %s: %w", to, err)
		case <-p.daemon.flows.ended:
			return record{}, errors.New("nfqproxy ended")
		case r := <-p.daemon.flows.records:
			if r.Destination == to.String() && wanted(r) {
				return r, nil
			}
		}
	}
}

// connectEvery begins a connection from a fresh port at each interval. It gets no reply and is
// closed at once: only its first packet counts.
func connectEvery(ctx context.Context, to netip.AddrPort, interval time.Duration) error {
	pause := unix.NsecToTimespec(interval.Nanoseconds())
	address := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	for ctx.Err() == nil {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = unix.Connect(s, address)
		_ = unix.Close(s)
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		_ = unix.Nanosleep(&pause, nil)
	}
	return nil
}
