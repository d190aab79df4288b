package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

var (
	healthAddress  = netip.MustParseAddrPort("127.0.0.1:10256")
	metricsAddress = netip.MustParseAddrPort("127.0.0.1:10249")
)

const (
	pollPeriod   = 2 * time.Millisecond
	startTimeout = 2 * time.Minute
	// cpuProfile is how long the start is profiled.
	cpuProfile = 2 * time.Second
)

// daemon is a running nfqproxy.
type daemon struct {
	*process.Process
	node    *netns.Namespace
	flows   *flows
	atReady usage
}

// usage is what a process has used.
type usage struct {
	after     time.Duration // since its start
	cpu       time.Duration
	rss, peak float64 // MiB
}

// start starts the proxy and waits until it is ready.
func (w *world) start(ctx context.Context, o *options) (_ *daemon, err error) {
	path, err := filepath.Abs(o.proxy)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "--kubeconfig", w.kubeconfig, "--hostname-override", ownNode, "--cluster-cidr", podCIDR,
		"--healthz-bind-address", healthAddress.String(), "--metrics-bind-address", metricsAddress.String(), "--flow-log", "-")
	if o.profile != "" {
		cmd.Args = append(cmd.Args, "--profiling")
	}
	d := &daemon{node: w.node, flows: newFlows()}
	if d.Process, err = process.Start(w.node, cmd); err != nil {
		return nil, err
	}
	go d.flows.read(d.Process)
	profiled := d.profileStart(o.profile)
	err = d.awaitReady(ctx)
	if err == nil {
		d.atReady, err = d.usage()
	}
	err = errors.Join(err, <-profiled)
	if err == nil {
		err = d.writeHeap(o.profile, "ready")
	}
	if err != nil {
		return nil, d.stop(err)
	}
	return d, nil
}

func (d *daemon) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err := process.Get(ctx, d.node, healthAddress, "/readyz"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for nfqproxy to be ready: %w", ctx.Err())
		case <-d.flows.ended:
			return errors.New("nfqproxy ended")
		case <-time.After(pollPeriod):
		}
	}
}

// usage reads what the proxy has used until now.
func (d *daemon) usage() (u usage, err error) {
	u.after = time.Since(d.Began)
	if u.rss, u.peak, err = machine.Memory(d.PID()); err != nil {
		return u, err
	}
	u.cpu, err = machine.ProcessTime(d.PID())
	return u, err
}

// stop ends the proxy. The error is the given one or, without that, the proxy's.
func (d *daemon) stop(err error) error {
	ended := d.End()
	<-d.flows.ended
	if err == nil {
		err = ended
	}
	if err != nil {
		return fmt.Errorf("%w; standard error of nfqproxy:\n%s", err, d.Stderr())
	}
	return nil
}

// profileStart profiles the CPU from the proxy's first response on; the channel returns the
// result.
func (d *daemon) profileStart(dir string) <-chan error {
	done := make(chan error, 1)
	if dir == "" {
		done <- nil
		return done
	}
	go func() {
		page := fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(cpuProfile.Seconds()))
		for deadline := time.Now().Add(startTimeout); ; time.Sleep(pollPeriod) {
			profile, err := process.Get(context.Background(), d.node, metricsAddress, page)
			if err == nil {
				done <- os.WriteFile(filepath.Join(dir, "start.cpu"), profile, 0o644)
				return
			}
			if time.Now().After(deadline) {
				done <- err
				return
			}
		}
	}()
	return done
}

// writeHeap writes a profile of the heap after a collection.
func (d *daemon) writeHeap(dir, what string) error {
	if dir == "" {
		return nil
	}
	profile, err := process.Get(context.Background(), d.node, metricsAddress, "/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, what+".heap"), profile, 0o644)
}
