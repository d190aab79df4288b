package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
)

// settle is the pause before a change: kube-proxy waits a second between two syncs, and may
// sync twice, which is not measured.
const settle = 3 * time.Second

// followChanges measures memory and rules, and the time from the API server's answer
// to a change of an EndpointSlice to the first connection that obeys it: half of the
// endpoints are ready, and then the other half.
func (v *visit) followChanges(ctx context.Context) error {
	mib, _, err := machine.Memory(v.process.PID())
	if err != nil {
		return err
	}
	v.record("memory", "resident", "MiB", mib)
	if v.round == 0 {
		if err := v.countRules(ctx); err != nil {
			return err
		}
	}
	services := v.changed()
	for _, i := range services {
		if _, err := v.change(ctx, i, 0); err != nil {
			return err
		}
	}
	for k := range v.changes {
		i := services[k%len(services)]
		time.Sleep(settle)
		took, err := v.change(ctx, i, (k/len(services)+1)%2)
		if err != nil {
			return err
		}
		v.record("change", "until obeyed", "ms", float64(took)/float64(time.Millisecond))
	}
	for _, i := range services {
		if err := v.objects.setReady(ctx, i, everyEndpoint); err != nil {
			return err
		}
	}
	return nil
}

// changed picks the first service, one in the middle and the one that came last.
func (v *visit) changed() []int {
	n := v.objects.count
	if n < 3 {
		return []int{0}
	}
	return []int{0, n / 2, n - 1}
}

// change has one half of a service's endpoints ready and waits until connections obey.
func (v *visit) change(ctx context.Context, i, which int) (took time.Duration, err error) {
	ready := v.objects.half(which)
	to := v.target(false).At(uint32(i))
	if err := v.objects.setReady(ctx, i, ready); err != nil {
		return 0, err
	}
	start := time.Now()
	failures := map[string]int{}
	defer func() { v.recordFailures("change", failures) }()
	// The first one may be chance where all were ready before.
	for obeyed := 0; obeyed < 20; {
		who, err := v.request(to, time.Second)
		now := time.Since(start)
		switch {
		case err != nil:
			// All endpoints live all the time.
			failures[err.Error()]++
		case !ready.answers(i, who):
			obeyed = 0
		default:
			if obeyed == 0 {
				took = now
			}
			obeyed++
		}
		if now > time.Minute || ctx.Err() != nil {
			return 0, fmt.Errorf("a change of the endpoints of %s was not obeyed within %v", to, now)
		}
		if now > 50*time.Millisecond && obeyed == 0 {
			time.Sleep(2 * time.Millisecond) // leave the CPU to the proxy
		}
	}
	return took, nil
}

// ruleLine matches a rule as iptables-save prints it, or nft with handles. Chains, sets
// and tables with handles end in an opening brace and the handle.
var (
	iptablesRule = regexp.MustCompile(`^-A `)
	nftRule      = regexp.MustCompile(`[^{] # handle \d+$`)
)

func (v *visit) countRules(ctx context.Context) error {
	argv := v.contestant.rules
	program, err := exec.LookPath(argv[0])
	if err != nil {
		v.note("rules are not counted: %v", err)
		return nil
	}
	pattern := nftRule
	if argv[0] != "nft" {
		pattern = iptablesRule
	}
	var out []byte
	if err := v.node.Do(func() (err error) {
		out, err = exec.CommandContext(ctx, program, argv[1:]...).Output()
		return err
	}); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		if pattern.MatchString(strings.TrimSpace(line)) {
			n++
		}
	}
	v.record("rules", "in the kernel", "", float64(n))
	return nil
}
