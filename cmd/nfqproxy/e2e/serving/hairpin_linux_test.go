package serving

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// newBuiltInCluster brings a built-in lab up.
func newBuiltInCluster(t *testing.T, name string, options ...func(*lab.Spec)) *e2etest.Cluster {
	t.Helper()
	data, err := labs.File(name)
	if err != nil {
		t.Fatal(err)
	}
	return e2etest.NewClusterOf(t, data, nil, options...)
}

// In the lab kube-dns-hairpin one pod is behind the Service metrics-server: it meets
// itself each time it asks.
const (
	hairpinPod     = "metrics-server"
	hairpinAddress = "172.18.1.20"
	hairpinService = "10.0.62.222:443"
)

// hairpinRecord waits for the decision about the pod that asks its Service.
func hairpinRecord(c *e2etest.Cluster) *flow.Record {
	c.T.Helper()
	return c.WaitRecord("the decision about the hairpin", func(r *flow.Record) bool {
		return r.Destination == hairpinService && e2etest.HostOf(r.Source) == hairpinAddress
	})
}

// resets is how many TCP connections the host's kernel has reset.
func resets(c *e2etest.Cluster, host string) int { return counter(c, host, "snmp", "Tcp:", "OutRsts") }

// counter is one of a host's kernel, in a file of /proc/net.
func counter(c *e2etest.Cluster, host, file, group, counter string) (n int) {
	c.T.Helper()
	c.Must(c.Host(host).Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(snmp)) {
			fields := strings.Fields(line)
			switch {
			case fields[0] != group:
			case names == nil:
				names = fields
			default:
				for i, name := range names {
					if name == counter {
						n, err = strconv.Atoi(fields[i])
						return err
					}
				}
			}
		}
		return fmt.Errorf("no %s in %s", counter, snmp)
	}))
	return n
}

// TestHairpin: a pod that meets itself behind its Service sees an address of the node.
func TestHairpin(t *testing.T) {
	t.Parallel()
	c := newBuiltInCluster(t, "kube-dns-hairpin")
	a := c.Ask(c.Dial(hairpinPod, "tcp", e2etest.AnyPort, hairpinService))
	r := hairpinRecord(c)
	if a.Pod != "kube-system/"+hairpinPod || e2etest.HostOf(a.Client) != r.MasqueradeAddress || r.MasqueradeReason != "hairpin" || !r.Masquerade {
		t.Errorf("%+v answered, decided was %+v", a, *r)
	}
}

// TestHairpinWithoutMasquerade: what the rule before the DNAT is there for. Without it
// the pod gets its own packet back, and no connection opens.
func TestHairpinWithoutMasquerade(t *testing.T) {
	t.Parallel()
	c := newBuiltInCluster(t, "kube-dns-hairpin", func(s *lab.Spec) { s.Proxy.NoHairpinMasquerade = true })
	unanswered := func() {
		t.Helper()
		retransmitted := func() int { return counter(c, hairpinPod, "netstat", "TcpExt:", "TCPSynRetrans") }
		before := retransmitted()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			conn, err := c.Host(hairpinPod).Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(hairpinService))
			if err == nil {
				_ = conn.Close()
			}
			ended <- err
		}()
		// The kernel sends a SYN again that had no answer.
		e2etest.Eventually(t, e2etest.Timeout, "the pod's kernel to send the SYN again", func() bool { return len(ended) > 0 || retransmitted() > before })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("the connection ended with %v: want no answer", err)
		}
	}
	// The pod's kernel takes a packet with its own address that comes from outside
	// for a forgery (fib_validate_source in net/ipv4/fib_frontend.c).
	unanswered()
	r := hairpinRecord(c)
	if r.Verdict != "dnat" || e2etest.HostOf(r.Endpoint) != hairpinAddress || r.Masquerade || r.MasqueradeReason != "" {
		t.Errorf("decided: %+v", *r)
	}
	if n := resets(c, hairpinPod); n != 0 {
		t.Errorf("the pod has reset %d connections, though nothing came to its server", n)
	}
	// Told to accept it, the server does answer, from the address the client never
	// asked, and the client's kernel resets what it knows nothing of.
	c.Must(c.Host(hairpinPod).SetSysctl("net.ipv4.conf.eth0.accept_local", "1"))
	unanswered()
	e2etest.Eventually(t, e2etest.Timeout, "the pod to reset the server's answer", func() bool { return resets(c, hairpinPod) > 0 })
	// Others are served as always.
	if a := c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, hairpinService)); a.Pod != "kube-system/"+hairpinPod {
		t.Errorf("%+v answered", a)
	}
}
