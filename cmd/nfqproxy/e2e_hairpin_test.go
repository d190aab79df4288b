package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// newBuiltInCluster brings a built-in lab up.
func newBuiltInCluster(t *testing.T, name string, options ...func(*lab.Spec)) *cluster {
	t.Helper()
	data, err := labs.File(name)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, objects: filepath.Join(t.TempDir(), name+".yaml")}
	if err := os.WriteFile(c.objects, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return c.upFile(nil, options...)
}

// In the lab kube-dns-hairpin one pod is behind the Service metrics-server: it meets
// itself each time it asks.
const (
	hairpinPod     = "metrics-server"
	hairpinAddress = "172.18.1.20"
	hairpinService = "10.0.62.222:443"
)

// hairpinRecord waits for the decision about the pod that asks its Service.
func (c *cluster) hairpinRecord() *flow.Record {
	c.t.Helper()
	return wait(c, "the decision about the hairpin", func() (*flow.Record, bool) {
		for _, r := range c.records {
			if r.Destination == hairpinService && hostOf(r.Source) == hairpinAddress {
				return r, true
			}
		}
		return nil, false
	})
}

// resets is how many TCP connections the host's kernel has reset.
func (c *cluster) resets(host string) (n int) {
	c.t.Helper()
	if err := c.host(host).Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(snmp)) {
			fields := strings.Fields(line)
			switch {
			case fields[0] != "Tcp:":
			case names == nil:
				names = fields
			default:
				for i, name := range names {
					if name == "OutRsts" {
						n, err = strconv.Atoi(fields[i])
						return err
					}
				}
			}
		}
		return fmt.Errorf("no OutRsts in %s", snmp)
	}); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// TestHairpin: a pod that meets itself behind its Service sees an address of the node.
func TestHairpin(t *testing.T) {
	c := newBuiltInCluster(t, "kube-dns-hairpin")
	a := c.ask(c.dial(hairpinPod, "tcp", anyPort, hairpinService))
	r := c.hairpinRecord()
	if a.Pod != "kube-system/"+hairpinPod || hostOf(a.Client) != r.MasqueradeAddress || r.MasqueradeReason != "hairpin" || !r.Masquerade {
		t.Errorf("%+v answered, decided was %+v", a, *r)
	}
}

// TestHairpinWithoutMasquerade: what the rule before the DNAT is there for. Without it
// the pod gets its own packet back, and no connection opens.
func TestHairpinWithoutMasquerade(t *testing.T) {
	c := newBuiltInCluster(t, "kube-dns-hairpin", func(s *lab.Spec) { s.Proxy.NoHairpinMasquerade = true })
	unanswered := func() {
		t.Helper()
		// Where there is an answer it takes less than a millisecond.
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		conn, err := c.host(hairpinPod).Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(hairpinService))
		var timeout net.Error
		if err == nil || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Fatalf("connection %v, error %v: want none in time", conn, err)
		}
	}
	// The pod's kernel takes a packet with its own address that comes from outside
	// for a forgery (fib_validate_source in net/ipv4/fib_frontend.c).
	unanswered()
	r := c.hairpinRecord()
	if r.Verdict != "dnat" || hostOf(r.Endpoint) != hairpinAddress || r.Masquerade || r.MasqueradeReason != "" {
		t.Errorf("decided: %+v", *r)
	}
	if n := c.resets(hairpinPod); n != 0 {
		t.Errorf("the pod has reset %d connections, though nothing came to its server", n)
	}
	// Told to accept it, the server does answer, from the address the client never
	// asked, and the client's kernel resets what it knows nothing of.
	if err := c.host(hairpinPod).SetSysctl("net.ipv4.conf.eth0.accept_local", "1"); err != nil {
		t.Fatal(err)
	}
	unanswered()
	eventually(t, patience, "the pod to reset the server's answer", func() bool { return c.resets(hairpinPod) > 0 })
	// Others are served as always.
	if a := c.ask(c.dial("shell", "tcp", anyPort, hairpinService)); a.Pod != "kube-system/"+hairpinPod {
		t.Errorf("%+v answered", a)
	}
}
