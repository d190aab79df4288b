package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// metricsAddress is where nfqproxy serves its profiles, in the node's namespace.
var metricsAddress = netip.MustParseAddrPort("127.0.0.1:10249")

// takeProfile has 16 workers make connections and fetches a CPU profile meanwhile.
func (v *visit) takeProfile(ctx context.Context) error {
	l := &traffic.Load{
		Workers: 16, From: firstClient, FirstPort: onePort, Ports: 60000, To: v.target(false),
		WarmUp: 1000, Limit: 1 << 22, Time: v.profile,
	}
	if err := v.setTimeouts(shortTimeouts); err != nil {
		return err
	}
	fetched := make(chan error, 1)
	go func() { fetched <- v.fetchProfile(ctx) }()
	var r traffic.Result
	used, err := v.run(sideSpec{Load: l}, &r)
	if err != nil {
		return err
	}
	n := float64(r.Connections)
	v.note("%.0f connections/s; CPU per connection: process %.1f µs, machine %.1f µs", n/r.Seconds, micros(used.process)/n, micros(used.machine)/n)
	return <-fetched
}

// fetchProfile writes a CPU profile, two thirds as long as the load, to nfqproxy.pprof.
func (v *visit) fetchProfile(ctx context.Context) error {
	if !strings.HasPrefix(v.contestant.name, "nfqproxy") {
		return nil
	}
	profile, err := process.Get(ctx, v.node, metricsAddress, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(v.profile.Seconds()*2/3))))
	if err != nil {
		return err
	}
	path := filepath.Join(v.out, v.contestant.name+".pprof")
	v.note("profile: go tool pprof %s %s", v.nfqproxy, path)
	return os.WriteFile(path, profile, 0o644)
}
