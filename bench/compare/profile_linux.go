package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// Where nfqproxy serves its profiles, in the node's namespace: beside kube-proxy, which has the first of these, at the second.
var (
	metricsAddress  = netip.MustParseAddrPort("127.0.0.1:10249")
	observerAddress = netip.MustParseAddrPort("127.0.0.1:10259")
)

// takeProfile has each load make connections for a time, and fetches a CPU profile of each and, at the end, a heap profile.
func (v *visit) takeProfile(ctx context.Context) error {
	for _, w := range v.workloads() {
		if err := v.profileLoad(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.id(), err)
		}
	}
	if v.process != nil {
		resident, peak, err := machine.Memory(v.process.PID())
		if err != nil {
			return err
		}
		v.note("resident memory %.0f MiB, at most %.0f", resident, peak)
	}
	return v.fetchProfile(ctx, "heap", "/debug/pprof/heap?gc=1")
}

func (v *visit) profileLoad(ctx context.Context, w workload) error {
	l := &traffic.Load{
		UDP: w.udp, Workers: w.workers, Rate: w.rate, From: firstClient, FirstPort: onePort, Ports: 60000, To: v.target(w.udp),
		WarmUp: 1000, Limit: 1 << 22, Time: v.profile,
	}
	if err := v.setTimeouts(w.timeouts); err != nil {
		return err
	}
	fetched := make(chan error, 1)
	go func() {
		name := strings.NewReplacer(", ", "-", " ", "-").Replace(w.id())
		// Two thirds as long as the load.
		fetched <- v.fetchProfile(ctx, name, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(v.profile.Seconds()*2/3))))
	}()
	var r traffic.Result
	used, err := v.run(sideSpec{Load: l}, &r)
	if err != nil {
		return err
	}
	n := float64(r.Connections)
	v.note("%s: %.0f connections/s; CPU per connection: process %.1f µs, machine %.1f µs", w.id(), n/r.Seconds, micros(used.process)/n, micros(used.machine)/n)
	return <-fetched
}

// fetchProfile writes a profile of nfqproxy to a file.
func (v *visit) fetchProfile(ctx context.Context, name, from string) error {
	address := metricsAddress
	switch {
	case v.contestant.watched != nil:
		address = observerAddress
	case !strings.HasPrefix(v.contestant.name, "nfqproxy"):
		return nil
	}
	profile, err := process.Get(ctx, v.node, address, from)
	if err != nil {
		return err
	}
	path := filepath.Join(v.out, fmt.Sprintf("%s-%d-%s.pprof", v.contestant.name, v.objects.count, name))
	v.note("profile: go tool pprof %s %s", v.nfqproxy, path)
	return os.WriteFile(path, profile, 0o644)
}
