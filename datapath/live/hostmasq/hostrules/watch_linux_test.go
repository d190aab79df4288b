package hostrules

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// rig drives a watcher by hand: each of its waits is answered by the test.
type rig struct {
	t       *testing.T
	events  chan struct{}
	failed  chan error
	ticks   chan time.Time
	polls   chan bool // the answers
	waits   chan wait
	changed chan error // the answers
	ended   chan error
	end     context.CancelFunc
}

type wait struct {
	d    time.Duration
	over chan time.Time
}

func newRig(t *testing.T) *rig {
	r := &rig{
		t: t, events: make(chan struct{}), failed: make(chan error), ticks: make(chan time.Time),
		polls: make(chan bool), waits: make(chan wait), changed: make(chan error), ended: make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.end = cancel
	w := watcher{
		events: r.events, failed: r.failed, ticks: r.ticks,
		poll: func() bool { return <-r.polls },
		after: func(d time.Duration) <-chan time.Time {
			over := make(chan time.Time, 1)
			r.waits <- wait{d, over}
			return over
		},
		changed: func() error { return <-r.changed },
	}
	go func() { r.ended <- w.run(ctx) }()
	r.polls <- true
	r.changed <- nil // the first
	return r
}

func (r *rig) wait(d time.Duration) wait {
	r.t.Helper()
	w := <-r.waits
	if w.d != d {
		r.t.Errorf("waits for %s, want %s", w.d, d)
	}
	return w
}

// TestWatcherSettles: many events are one call, when it is quiet or maxWait is over.
func TestWatcherSettles(t *testing.T) {
	r := newRig(t)
	r.events <- struct{}{}
	r.wait(maxWait)
	r.wait(quiet)
	r.events <- struct{}{}
	second := r.wait(quiet)
	second.over <- time.Time{}
	r.changed <- nil

	r.events <- struct{}{}
	long := r.wait(maxWait)
	r.wait(quiet)
	r.events <- struct{}{}
	r.wait(quiet)
	long.over <- time.Time{}
	r.changed <- nil

	r.events <- struct{}{}
	r.wait(maxWait)
	r.wait(quiet)
	r.end()
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestWatcherPolls: a tick is a call only if the legacy rules differ.
func TestWatcherPolls(t *testing.T) {
	r := newRig(t)
	r.ticks <- time.Time{}
	r.polls <- false
	r.ticks <- time.Time{} // taken only if there was no call
	r.polls <- true
	r.changed <- nil
	r.ticks <- time.Time{}
	r.polls <- false
	r.end()
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestWatcherRepeats: a call that fails is repeated with each tick until one does not.
func TestWatcherRepeats(t *testing.T) {
	r := newRig(t)
	r.events <- struct{}{}
	r.wait(maxWait)
	r.wait(quiet).over <- time.Time{}
	r.changed <- errors.New("cause")
	for _, err := range []error{errors.New("again"), nil} {
		r.ticks <- time.Time{}
		r.polls <- false
		r.changed <- err
	}
	r.ticks <- time.Time{}
	r.polls <- false
	r.ticks <- time.Time{} // taken only if there was no call
	r.polls <- false
	r.end()
	if err := <-r.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestWatcherFails: without events there is no watching.
func TestWatcherFails(t *testing.T) {
	r := newRig(t)
	cause := errors.New("cause")
	r.failed <- cause
	if err := <-r.ended; !errors.Is(err, cause) {
		t.Errorf("ended with %v", err)
	}
}

// TestConcerns has the kernel report nfqproxy's own changes, and then another program's.
func TestConcerns(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n := newNode(t)
	own := fmt.Sprintf(`
add table ip6 %[1]s
add set ip6 %[1]s s { type ipv4_addr; }
add element ip6 %[1]s s { 192.0.2.1 }
add chain ip6 %[1]s c { type nat hook postrouting priority srcnat; }
add rule ip6 %[1]s c ip6 saddr fd00::1 masquerade
delete element ip6 %[1]s s { 192.0.2.1 }
add table ip6 %[1]s-probe
delete table ip6 %[1]s-probe
`, ruleset.TableName)
	others := []string{
		"add table ip other", "add table inet " + ruleset.TableName, "add table inet other", "add chain ip other c", "add rule ip other c masquerade",
		"add set ip other s { type ipv4_addr; }", "add element ip other s { 192.0.2.1 }", "delete element ip other s { 192.0.2.1 }",
		"flush chain ip other c", "delete table ip other",
	}
	if err := n.NS.Do(func() error {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
			return err
		}
		// Each transaction's last message is its generation.
		transaction := func(text string) (messages, concerning int) {
			n.Exec(text+"\n", "nft", "-f", "-")
			for {
				received, err := conn.Receive()
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range received {
					messages++
					e, err := nft.EventOf(m)
					if err != nil {
						t.Fatal(err)
					}
					if e.Kind == unix.NFT_MSG_NEWGEN {
						return messages, concerning
					}
					if concerns(e) {
						concerning++
					}
				}
			}
		}
		if all, some := transaction(own); all < 6 || some != 0 {
			t.Errorf("%d of %d messages of our own table concern us", some, all)
		}
		for _, text := range others {
			if _, some := transaction(text); some == 0 {
				t.Errorf("%s: no message concerns us", text)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestWatch has it all together: the real kernel's events and clock.
func TestWatch(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	netnstest.RequireTool(t, xtablestest.Tool(xtables.Legacy, iptables.IPv4, "restore"))
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	reads, ended := make(chan []*Table, 100), make(chan error, 1)
	go func() {
		ended <- n.NS.Do(func() error {
			return Watch(ctx, func() error {
				r, err := Read()
				if err != nil {
					t.Error(err)
					cancel()
					return err
				}
				reads <- r.Tables
				return nil
			})
		})
	}()
	// until waits for a reading with so many tables; there may be others before it.
	until := func(tables int) {
		t.Helper()
		for {
			select {
			case got := <-reads:
				if len(got) == tables {
					return
				}
			case err := <-ended:
				t.Fatalf("it ended, with %v", err)
			case <-time.After(time.Minute):
				t.Fatalf("no change to %d tables is reported", tables)
			}
		}
	}
	until(0)
	n.Exec("table ip a { chain c { type nat hook postrouting priority 0; masquerade; }; }\n", "nft", "-f", "-")
	until(1)
	n.Exec("table ip b { chain c { type nat hook postrouting priority 0; masquerade; }; }\n", "nft", "-f", "-")
	until(2)
	n.Exec("*nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n", xtablestest.Tool(xtables.Legacy, iptables.IPv4, "restore"))
	until(3)
	n.Exec("flush ruleset\n", "nft", "-f", "-")
	until(1)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
