package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
)

// next waits for an event that is wanted.
func next(t *testing.T, s *Subscription, want func(Event) bool) Event {
	t.Helper()
	for e := range s.C {
		if want(e) {
			return e
		}
	}
	t.Fatal("the subscription ended without the event")
	return Event{}
}

func TestDaemons(t *testing.T) {
	l, err := upWith(t, "kind", "well", func(s *Spec, o *Options) {
		seed := uint64(7)
		s.Proxy = Proxy{Seed: &seed, Queues: 2, MasqueradeAll: true, NoHairpinMasquerade: true, NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")}}
		o.NoDaemons = true
		o.Arguments = []string{"-v"}
	})
	if err != nil {
		t.Fatal(err)
	}
	const node = "kind-worker"
	ctx := t.Context()
	s := l.Subscribe(1000)
	if state, pid, err := l.daemons[node].state(); state != Stopped || pid != 0 || err != nil {
		t.Errorf("before the start: %s, %d, %v", state, pid, err)
	}
	if err := l.StartDaemon(ctx, node); err != nil {
		t.Fatal(err)
	}
	want := "--hostname-override kind-worker --ready-fd 3 " +
		"--flow-api unix:" + l.daemons[node].socket + " --flow-api-token-file " + l.tokenFile() + " " +
		strings.Join(apiserver.DaemonFlags(l.daemons[node].kubeconfig()), " ") + " --cluster-cidr=10.244.0.0/16 --nodeport-addresses=172.20.0.0/16 --masquerade-all --flow-api-holds --queues 2 --seed 7 --masquerade-hairpin=false -v"
	if e := next(t, s, func(e Event) bool { return strings.HasPrefix(e.Log, "--hostname-override") }); e.Log != want || e.Node != node {
		t.Errorf("command line on %s\ngot  %s\nwant %s", e.Node, e.Log, want)
	}
	if err := l.StartDaemon(ctx, node); err == nil {
		t.Error("started twice")
	}
	if v, err := l.topology.find(node).Sysctl("net.netfilter.nf_conntrack_acct"); v != "1" || err != nil {
		t.Errorf("connection accounting: %s, %v", v, err)
	}
	if err := l.StopDaemon(ctx, node); err != nil {
		t.Error(err)
	}
	if err := l.StopDaemon(ctx, node); err != nil {
		t.Errorf("stopping a stopped one: %v", err)
	}
	if err := l.StartDaemon(ctx, node); err != nil {
		t.Fatal(err)
	}
	if err := l.KillDaemon(node); err != nil {
		t.Error(err)
	}
	if state, _, err := l.daemons[node].state(); state != Stopped || err != nil {
		t.Errorf("killed: %s, %v", state, err)
	}
	if err := l.StartDaemon(ctx, node); err != nil {
		t.Fatal(err)
	}
	// Killed by someone else, it is dead.
	state, pid, _ := l.daemons[node].state()
	if state != Ready {
		t.Errorf("started: %s", state)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := next(t, s, func(e Event) bool { return e.Died != nil })
	var died *DaemonError
	if !errors.As(e.Died, &died) || died.Node != node || !strings.Contains(e.Died.Error(), "killed") || !strings.Contains(e.Died.Error(), "msg=hello") {
		t.Errorf("died: %v", e.Died)
	}
	if state, _, err := l.daemons[node].state(); state != Dead || err == nil {
		t.Errorf("dead: %s, %v", state, err)
	}
	if err := l.StartDaemon(ctx, "nobody"); err == nil || !strings.Contains(err.Error(), "kind-worker2") {
		t.Errorf("a node that there is not: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := <-s.C; ok {
		t.Error("the subscription outlives the lab")
	}
	if _, ok := <-l.Subscribe(1).C; ok {
		t.Error("a subscription to a lab that is no more")
	}
	if err := l.StartDaemon(ctx, node); !errors.Is(err, os.ErrClosed) {
		t.Errorf("starting after Close: %v", err)
	}
}

func TestUpFailsWithItsDaemons(t *testing.T) {
	_, err := upWith(t, "dual-stack", "dies", nil)
	var died *DaemonError
	if !errors.As(err, &died) || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such kernel feature") {
		t.Errorf("got %v, want the exit status and the log", err)
	}
	_, err = upWith(t, "dual-stack", "well", func(_ *Spec, o *Options) { o.Executable = "/no/such/program" })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

func TestDaemonThatIsNeverReady(t *testing.T) {
	l, err := upWith(t, "dual-stack", "silent", func(_ *Spec, o *Options) { o.NoDaemons = true })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := l.Subscribe(100)
	go func() {
		for range s.C { // it runs: it logs
			cancel(errors.New("enough"))
		}
	}()
	if err := l.StartDaemon(ctx, "node-a"); err == nil || !strings.Contains(err.Error(), "not ready: enough") {
		t.Errorf("got %v", err)
	}
}

func TestDaemonThatDoesNotEndWell(t *testing.T) {
	l := mustUp(t, "dual-stack", "bad end")
	if err := l.StopDaemon(t.Context(), "node-a"); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("stop: %v", err)
	}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "node-b") {
		t.Errorf("close: %v", err)
	}
	l = mustUp(t, "dual-stack", "stubborn")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time"))
	if err := l.StopDaemon(ctx, "node-a"); err == nil || !strings.Contains(err.Error(), "no time") {
		t.Errorf("stop: %v", err)
	}
	if err := l.KillDaemon("node-b"); err != nil {
		t.Error(err)
	}
}

// Subscriptions lose events rather than hold anything up.
func TestSlowSubscription(t *testing.T) {
	var h hub
	s := h.subscribe(2)
	for range 5 {
		h.publish(Event{Log: "x"})
	}
	if s.Lost() != 3 || len(s.C) != 2 {
		t.Errorf("lost %d, have %d", s.Lost(), len(s.C))
	}
	s.Close()
	s.Close()
	h.publish(Event{})
	h.close()
	s.Close()
}

// The processes of a closed lab are gone.
func TestCloseLeavesNothing(t *testing.T) {
	l := mustUp(t, "kind", "well")
	var pids []int
	for _, d := range l.daemons {
		_, pid, _ := d.state()
		pids = append(pids, pid)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("daemon %d is still there: %v", pid, err)
		}
	}
}
