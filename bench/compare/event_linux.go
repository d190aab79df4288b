package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// event is what happens to a proxy under load.
type event struct {
	name string
	// nfqproxy: it is for nfqproxy only.
	nfqproxy bool
	// options are those of a daemon that is started before, in the place of the usual one.
	options []string
	// perSecond is the rate of new connections to each address; 0: the usual one.
	perSecond int
	// lasts is how long the load goes on after the event began.
	lasts time.Duration
	do    func(*visit) error
}

// events are measured in this order.
var events = []event{
	{name: "nothing", lasts: 5 * time.Second, do: func(*visit) error { return nil }},
	{name: "kill -9, restart after 5 s", lasts: 12 * time.Second, do: func(v *visit) error {
		if err := v.process.Stop(); err != nil {
			return err
		}
		time.Sleep(5 * time.Second)
		return v.restart()
	}},
	{name: "SIGTERM, restart at once", lasts: 8 * time.Second, do: func(v *visit) error {
		_ = v.process.End() // kube-proxy does not handle the signal
		return v.restart()
	}},
	{name: "replaced by another daemon", nfqproxy: true, lasts: 8 * time.Second, do: func(v *visit) error {
		before := v.process
		return errors.Join(v.restart("--when-served=replace"), before.Wait())
	}},
	{name: "SIGSTOP for 30 s", lasts: 36 * time.Second, do: func(v *visit) error {
		err := syscall.Kill(v.process.PID(), syscall.SIGSTOP)
		time.Sleep(30 * time.Second)
		return errors.Join(err, syscall.Kill(v.process.PID(), syscall.SIGCONT))
	}},
	// A worker that decides 32 packets in 20 ms; more arrive.
	{name: "queue overloaded", nfqproxy: true, options: []string{"--debug-batch-delay=20ms"}, perSecond: 2500, lasts: 8 * time.Second, do: func(*visit) error { return nil }},
	{name: "nft flush ruleset", nfqproxy: true, lasts: 6 * time.Second, do: func(v *visit) error {
		return v.node.Do(func() error { return exec.Command("nft", "flush", "ruleset").Run() })
	}},
	{name: "API server away, kill -9, restart", lasts: 12 * time.Second, do: func(v *visit) error {
		err := errors.Join(v.setControl(false), v.process.Stop(), v.restart())
		time.Sleep(8 * time.Second)
		return errors.Join(err, v.setControl(true))
	}},
}

// restart starts the contestant's process again, without waiting for it.
func (v *visit) restart(options ...string) (err error) {
	if v.process, err = v.contestant.start(v.topology, v.objects, options...); err == nil {
		v.process.Drain()
	}
	return err
}

// startAgain ends the contestant's process and starts it with other options.
func (v *visit) startAgain(ctx context.Context, options ...string) error {
	_ = v.process.End()
	return errors.Join(v.restart(options...), v.awaitService(ctx))
}

// noteCopied reports how many packets the kernel's copy has decided.
func (v *visit) noteCopied(ctx context.Context) error {
	page, err := process.Get(ctx, v.node, metricsAddress, "/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(page)) {
		if n, ok := strings.CutPrefix(line, "nfqproxy_kernel_copy_packets_total "); ok {
			v.note("the kernel's copy has decided %s packets", strings.TrimSpace(n))
			return nil
		}
	}
	return errors.New("no metric of the kernel's copy")
}

// setControl connects the node with the control plane, or disconnects it.
func (v *visit) setControl(up bool) error {
	return v.node.Do(func() error {
		link, err := netlink.LinkByName("control")
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(link)
		}
		return netlink.LinkSetDown(link)
	})
}

// nodePort is that of the first service.
const nodePort = 30080

// eventTargets are what the load connects to.
var eventTargets = []string{"ClusterIP", "node port", "no service", "UDP"}

// followEvents measures all events.
func (v *visit) followEvents(ctx context.Context) error {
	for _, e := range events {
		if e.nfqproxy && !v.contestant.nfqproxy || !strings.Contains(e.name, v.loads) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		v.note("event: %s", e.name)
		if e.options != nil {
			if err := v.startAgain(ctx, e.options...); err != nil {
				return fmt.Errorf("before %s: %w", e.name, err)
			}
		}
		load := &traffic.Steady{
			From: firstClient, Sources: maxClients, Time: time.Second + e.lasts, PerSecond: cmp.Or(e.perSecond, 500), UDPSecond: 100,
			TCP: []netip.AddrPort{
				netip.AddrPortFrom(firstService, servicePort), netip.AddrPortFrom(nodeAddress.Addr(), nodePort), netip.AddrPortFrom(firstEndpoint, echoPort),
			},
			UDP: []netip.AddrPort{netip.AddrPortFrom(firstService, servicePort)},
		}
		side, err := startSide(v.client, sideSpec{Steady: load})
		if err != nil {
			return err
		}
		if err := side.Await(wordBegan); err != nil {
			return err
		}
		time.Sleep(time.Second)
		if err := e.do(v); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", e.name, err), side.Stop())
		}
		if err := side.Await(wordEnded); err != nil {
			return err
		}
		var counts []traffic.SteadyCount
		if err := errors.Join(side.Result(&counts), side.Stop()); err != nil {
			return err
		}
		for i, c := range counts {
			v.recordCount(e.name, eventTargets[i]+" ", c)
		}
		if e.options != nil {
			if err := v.noteCopied(ctx); err != nil {
				return err
			}
			if err := v.startAgain(ctx); err != nil {
				return fmt.Errorf("after %s: %w", e.name, err)
			}
		}
		if err := v.awaitService(ctx); err != nil {
			return fmt.Errorf("after %s: %w", e.name, err)
		}
	}
	return nil
}

// recordCount keeps what became of connections under a steady load. before begins the quantities.
func (v *visit) recordCount(measure, before string, c traffic.SteadyCount) {
	v.record(measure, before+"made", "", float64(c.Made))
	v.record(measure, before+"failed", "", float64(c.Failed))
	v.record(measure, before+"delayed", "", float64(c.Delayed))
}

// reportEvents is the table of events.
func (s *samples) reportEvents(services int, contestants []contestant) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### Events, at %d services: failed and delayed by more than 0.9 s, of 500 new connections a second to each of a ClusterIP, a node port and no service, and 100 UDP exchanges\n\n", services)
	b.WriteString("| event | | ClusterIP | node port | no service | UDP |\n|:--|:--|--:|--:|--:|--:|\n")
	found := false
	for _, e := range events {
		for _, c := range contestants {
			cells := ""
			for _, column := range eventTargets {
				made := s.figure(services, c.name, e.name, column+" made")
				if made.n == 0 {
					break
				}
				failed, late := s.figure(services, c.name, e.name, column+" failed"), s.figure(services, c.name, e.name, column+" delayed")
				cells += fmt.Sprintf(" %.0f + %.0f of %.0f |", failed.max, late.max, made.median)
			}
			if cells != "" {
				found = true
				fmt.Fprintf(&b, "| %s | %s |%s\n", e.name, c.name, cells)
			}
		}
	}
	if !found {
		return ""
	}
	return b.String()
}
