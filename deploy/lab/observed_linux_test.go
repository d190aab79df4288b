package lab

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	kubernetes "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
)

// TestObserver: an observer runs beside kube-proxy, the status has both, and a fault concerns kube-proxy. An observer that
// dies is reported as one.
func TestObserver(t *testing.T) {
	program := clustertest.RequireProgram(t, kubernetes.KubeProxy)
	const node = "kind-worker"
	l, err := upWith(t, "kind", "works", func(s *Spec, o *Options) {
		s.Nodes[1].Proxy, s.Nodes[1].KubeProxyMode, s.Nodes[1].Observe, o.KubeProxy = "kube-proxy", "nftables", true, program
	})
	if err != nil {
		t.Fatal(err)
	}
	status := func() string {
		t.Helper()
		var b strings.Builder
		if err := l.Status().WriteText(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if got := status(); strings.Count(got, "kube-proxy ready, observer ready\n") != 1 {
		t.Error(got)
	}
	f, err := l.AddFault(t.Context(), Fault{Kind: "freeze", Host: node})
	if err != nil {
		t.Fatal(err)
	}
	if got := status(); !strings.Contains(got, "kube-proxy frozen, observer ready\n") {
		t.Error(got)
	}
	if _, err := l.RemoveFault(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	s := l.Subscribe(100)
	defer s.Close()
	if err := unix.Kill(l.Status().Nodes[1].Observer.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := next(t, s, func(e Event) bool { return e.Died != nil })
	if died, ok := errors.AsType[*DaemonError](e.Died); !ok || died.Node != node || !strings.HasPrefix(e.Died.Error(), "the observer on node kind-worker: ") {
		t.Errorf("died: %v", e.Died)
	}
	if got := status(); !strings.Contains(got, "kube-proxy ready, observer dead\n") || !strings.Contains(got, "the observer on node kind-worker: ") {
		t.Error(got)
	}
	if err := l.StartObserver(t.Context(), "kind-control-plane"); err == nil || !strings.Contains(err.Error(), "no observe: true") {
		t.Error(err)
	}
}
