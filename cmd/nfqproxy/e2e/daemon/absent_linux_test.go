package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// served are the ways in for which the kernel's copy of the service table serves as the daemon does,
// with the pods that may answer.
var served = []struct{ from, network, to, pod string }{
	{"shell", "tcp", "10.96.0.20:80", "default/web-"},
	{"shell", "tcp", "[fd00:10:96::20]:80", "default/web-"},
	{"shell", "udp", "10.96.0.20:53", "default/web-"},
	{"shell", "udp", "[fd00:10:96::20]:53", "default/web-"},
	{"outside", "tcp", "172.21.0.2:30080", "default/web-"},
	{"outside", "tcp", "[fd00:172:21::2]:30080", "default/web-"},
	{"outside", "udp", "172.21.0.2:30080", "default/web-"},
	{"outside", "udp", "[fd00:172:21::2]:30080", "default/web-"},
	{"node-a", "tcp", "10.96.0.30:80", "default/solo"},
	{"node-a", "tcp", "127.0.0.1:30090", "default/solo"},
	{"solo", "tcp", "10.96.0.30:80", "default/solo"},              // hairpin
	{"shell", "tcp", "10.244.1.2:8080", "default/web-2"},          // no service
	{"shell", "udp", "[fd00:10:244:1::2]:5353", "default/web-2"},  // no service
	{"shell", "tcp", "172.21.0.2:30110", "default/web-2"},         // policy Local, but from a pod
	{"outside", "tcp", "[fd00:172:21::3]:30110", "default/web-2"}, // policy Local, on the other node
}

// serves checks that each way in works. Without a daemon that decides, the first datagram of a flow may
// wait in the queue for ever, and a SYN for its repetition: first is how often to try.
func serves(c *e2etest.Cluster, tries int) {
	c.T.Helper()
	for _, s := range served {
		var err error
		for range tries {
			if err = answers(c, s.from, s.network, s.to, s.pod, tries > 1); err == nil {
				break
			}
		}
		if err != nil {
			c.T.Errorf("%s from %s to %s: %v", s.network, s.from, s.to, err)
		}
	}
	if _, err := c.TryDial("shell", "tcp", e2etest.AnyPort, "10.96.0.40:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		c.T.Errorf("a service without endpoints: %v, want connection refused", err)
	}
}

// answers makes a flow and checks which pod answers. A datagram that may be lost is not waited for long.
func answers(c *e2etest.Cluster, from, network, to, pod string, lossy bool) error {
	conn, err := c.TryDial(from, network, e2etest.AnyPort, to)
	if err != nil {
		return err
	}
	timeout := e2etest.Timeout
	if network == "udp" && lossy {
		timeout = 2 * time.Second
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	a, err := e2etest.Ask(conn)
	if err == nil && !strings.HasPrefix(a.Pod, pod) {
		err = fmt.Errorf("answered by %q, want %s", a.Pod, pod)
	}
	return err
}

// TestFrozenDaemon: when a daemon stops without dying, the kernel's copy of the service table takes
// over, for services and for everything else; when it goes on, it decides again.
func TestFrozenDaemon(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--queue-timeout=1s"})
	open := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	signalDaemon(c, "node-a", syscall.SIGSTOP)
	serves(c, 10) // until the switch is off
	for range 20 {
		serves(c, 1)
	}
	c.Ask(open)
	signalDaemon(c, "node-a", syscall.SIGCONT)
	decided := func() int {
		return c.Count(func(r *flow.Record) bool { return r.Node == "node-a" && r.Verdict == "dnat" })
	}
	before := decided()
	e2etest.Eventually(t, e2etest.Timeout, "a decision of the daemon", func() bool {
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
		return decided() > before
	})
	serves(c, 3)
}

// TestDeadDaemon: a daemon that is killed again and again costs no connection, and the next one knows
// those that the kernel decided meanwhile.
func TestDeadDaemon(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for range 5 {
		download := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30080")
		const size = 4 << 20
		if _, err := fmt.Fprintf(download, "GET /download?bytes=%d HTTP/1.0\r\n\r\n", size); err != nil {
			t.Fatal(err)
		}
		c.Must(c.KillDaemon("node-a"))
		serves(c, 1)
		meanwhile := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30080")
		c.Ask(meanwhile)
		if n, err := io.Copy(io.Discard, download); err != nil || n < size {
			t.Errorf("a download ended after %d bytes: %v", n, err)
		}
		c.Must(c.StartDaemon(t.Context(), "node-a"))
		serves(c, 1)
		r := c.WaitRecord("the flow that the kernel decided", func(r *flow.Record) bool {
			return r.Node == "node-a" && r.Protocol == "TCP" && r.Source == meanwhile.LocalAddr().String()
		})
		if r.Reason != "kernel-copy" || r.Service != "default/web:http" || !strings.HasPrefix(r.Pod, "default/web-") || !r.Masquerade {
			t.Errorf("record %+v", r)
		}
	}
}

// byKernel waits for the record of a flow that the kernel's copy decided.
func byKernel(c *e2etest.Cluster, from, to string) {
	c.T.Helper()
	conn := c.Dial(from, "tcp", e2etest.AnyPort, to)
	c.Ask(conn)
	r := c.WaitRecord("the record of a flow to "+to, func(r *flow.Record) bool {
		return r.Protocol == "TCP" && r.Source == conn.LocalAddr().String() && r.Service != ""
	})
	if r.Reason != "kernel-copy" || r.Queue != nil {
		c.T.Errorf("%s from %s: reason %s, want kernel-copy", to, from, r.Reason)
	}
}

// TestDecideInKernel: with --decide=kernel the kernel's copy decides all services, while the daemon runs.
func TestDecideInKernel(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--decide=kernel"})
	serves(c, 1)
	byKernel(c, "shell", "10.96.0.20:80")
	byKernel(c, "outside", "172.21.0.2:30080")
	if n := c.Count(func(r *flow.Record) bool { return r.Reason == "balanced" }); n > 0 {
		t.Errorf("the daemon decided %d flows", n)
	}
	// The counter of the rules is read once a second.
	e2etest.Eventually(t, e2etest.Timeout, "the count of packets that the copy decided", func() bool {
		return c.Metric("node-a", "nfqproxy_kernel_copy_packets_total") >= float64(len(served))/2
	})
	// The first Service whose flows are queued brings the chains for queued flows.
	c.Edit(func(text string) string {
		return strings.Replace(text, "metadata: {name: web, namespace: default", "metadata: {name: web, namespace: default, annotations: {nfqproxy.io/decide: queue}", 1)
	})
	for _, way := range []struct{ from, to string }{{"shell", "10.96.0.20:80"}, {"outside", "172.21.0.2:30080"}} {
		conn := c.Dial(way.from, "tcp", e2etest.AnyPort, way.to)
		c.Ask(conn)
		if r := c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr()); r.Reason != "balanced" {
			t.Errorf("%s from %s: reason %s, want balanced", way.to, way.from, r.Reason)
		}
	}
	serves(c, 1)
}

// TestDecideByAnnotation: a Service's annotation changes where its flows are decided.
func TestDecideByAnnotation(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	annotate := func(from, to string) {
		c.Edit(func(text string) string { return strings.Replace(text, from, to, 1) })
	}
	const name = "metadata: {name: web, namespace: default"
	const annotated = name + ", annotations: {nfqproxy.io/decide: "
	annotate(name, annotated+"kernel}")
	byKernel(c, "shell", "10.96.0.20:80")
	byKernel(c, "outside", "172.21.0.2:30080")
	annotate(annotated+"kernel}", annotated+"queue/1000000}")
	byKernel(c, "shell", "10.96.0.20:80")
	annotate(annotated+"queue/1000000}", name)
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	c.Ask(conn)
	if r := c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr()); r.Reason != "balanced" {
		t.Errorf("reason %s, want balanced", r.Reason)
	}
}

// TestAffinityWithoutDaemon: clients stay with their endpoint when the daemon dies or freezes, and those
// that come meanwhile stay with theirs when it decides again, even if their connections are over.
func TestAffinityWithoutDaemon(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--queue-timeout=1s"})
	ways := []struct{ from, network, to string }{
		{"shell", "tcp", "10.96.0.60:80"},
		{"shell", "tcp", "[fd00:10:96::60]:80"},
		{"solo", "udp", "10.96.0.60:53"},
		{"outside", "tcp", "172.21.0.2:30120"},
		{"outside", "udp", "[fd00:172:21::2]:30120"},
		{"node-a", "tcp", "127.0.0.1:30120"},
	}
	pod := func(i int) string {
		t.Helper()
		conn := c.Dial(ways[i].from, ways[i].network, e2etest.AnyPort, ways[i].to)
		defer conn.Close()
		return c.Ask(conn).Pod
	}
	bound := make([]string, len(ways))
	stay := func(what string) {
		t.Helper()
		for range 8 {
			for i, w := range ways {
				if got := pod(i); got != bound[i] {
					t.Errorf("%s: %s from %s to %s: answered by %s, bound to %s", what, w.network, w.from, w.to, got, bound[i])
				}
			}
		}
	}
	forget := func() { // as if all connections had ended long ago
		c.Must(c.Host("node-a").Do(func() error {
			conn, err := ct.Dial(nil)
			if err != nil {
				return err
			}
			defer conn.Close()
			return conn.Flush()
		}))
	}
	// Half of them are bound by the daemon, the others by the copy.
	for i := range len(ways) / 2 {
		bound[i] = pod(i)
	}
	c.Must(c.KillDaemon("node-a"))
	for i := len(ways) / 2; i < len(ways); i++ {
		bound[i] = pod(i)
	}
	stay("without a daemon")
	forget()
	c.Must(c.StartDaemon(t.Context(), "node-a"))
	stay("with the next daemon")

	signalDaemon(c, "node-a", syscall.SIGSTOP)
	// Until the switch is off. The kernel does not repeat a SYN of the node's own while that waits in a queue.
	var late string
	e2etest.Eventually(t, e2etest.Timeout, "a flow that the kernel decides", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		conn, err := c.Host("node-a").Dial(ctx, "tcp", e2etest.AnyPort, netip.MustParseAddrPort("10.96.0.60:80"))
		if err != nil {
			return false
		}
		defer conn.Close()
		late = c.Ask(conn).Pod
		return true
	})
	stay("with a frozen daemon")
	signalDaemon(c, "node-a", syscall.SIGCONT)
	e2etest.Eventually(t, e2etest.Timeout, "a decision of the daemon", func() bool {
		conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.60:80")
		c.Ask(conn)
		return c.Count(func(r *flow.Record) bool { return r.Source == conn.LocalAddr().String() && r.Reason == "affinity" }) > 0
	})
	stay("after SIGCONT")
	for range 8 {
		if got := c.Ask(c.Dial("node-a", "tcp", e2etest.AnyPort, "10.96.0.60:80")).Pod; got != late {
			t.Errorf("after SIGCONT: answered by %s, bound to %s while the daemon was frozen", got, late)
		}
	}
}
