package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// event is what happens to a proxy under load.
type event struct {
	name string
	// nfqproxy: it is for nfqproxy only.
	nfqproxy bool
	// lasts is how long the load goes on after the event began.
	lasts time.Duration
	do    func(*visit) error
}

// events are measured in this order.
var events = []event{
	{"nothing", false, 5 * time.Second, func(*visit) error { return nil }},
	{"kill -9, restart after 5 s", false, 12 * time.Second, func(v *visit) error {
		if err := v.process.Stop(); err != nil {
			return err
		}
		time.Sleep(5 * time.Second)
		return v.restart()
	}},
	{"SIGTERM, restart at once", false, 8 * time.Second, func(v *visit) error {
		_ = v.process.End() // kube-proxy does not handle the signal
		return v.restart()
	}},
	{"replaced by another daemon", true, 8 * time.Second, func(v *visit) error {
		before := v.process
		return errors.Join(v.restart("--when-served=replace"), before.Wait())
	}},
	{"SIGSTOP for 30 s", false, 36 * time.Second, func(v *visit) error {
		err := syscall.Kill(v.process.PID(), syscall.SIGSTOP)
		time.Sleep(30 * time.Second)
		return errors.Join(err, syscall.Kill(v.process.PID(), syscall.SIGCONT))
	}},
	{"nft flush ruleset", true, 6 * time.Second, func(v *visit) error {
		return v.node.Do(func() error { return exec.Command("nft", "flush", "ruleset").Run() })
	}},
	{"API server away, kill -9, restart", false, 12 * time.Second, func(v *visit) error {
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

// followEvents measures all events.
func (v *visit) followEvents(ctx context.Context) error {
	columns := []string{"ClusterIP", "node port", "no service", "UDP"}
	for _, e := range events {
		if e.nfqproxy && !v.contestant.nfqproxy {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		v.note("event: %s", e.name)
		load := &traffic.Steady{
			From: firstClient, Sources: maxClients, Time: time.Second + e.lasts, PerSecond: 500, UDPSecond: 100,
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
		line, err := side.Line()
		var counts []traffic.SteadyCount
		if err == nil {
			err = json.Unmarshal([]byte(line), &counts)
		}
		if err := errors.Join(err, side.Stop()); err != nil {
			return err
		}
		for i, c := range counts {
			v.record(e.name, columns[i]+" made", "", float64(c.Made))
			v.record(e.name, columns[i]+" failed", "", float64(c.Failed))
			v.record(e.name, columns[i]+" delayed", "", float64(c.Delayed))
		}
		if err := v.awaitService(ctx); err != nil {
			return fmt.Errorf("after %s: %w", e.name, err)
		}
	}
	return nil
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
			for _, column := range []string{"ClusterIP", "node port", "no service", "UDP"} {
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
