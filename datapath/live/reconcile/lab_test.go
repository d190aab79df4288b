package reconcile_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/reconcile"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// testTimeout is how long a test waits for what should come at once.
const testTimeout = time.Minute

// lab is a client, a node with the datapath, and a host with two endpoints.
type lab struct {
	t                   *testing.T
	client, node, pods  *netns.Namespace
	engine              *engine.Engine
	reconciler          *reconcile.Reconciler
	connections         *conntrack.Table
	rules               *ruleset.Connection
	generation          uint64
	service, one, other netip.AddrPort
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newLab(t *testing.T, six bool) *lab {
	t.Helper()
	netnstest.Require(t)
	l := &lab{t: t}
	ap, prefix := netip.MustParseAddrPort, netip.MustParsePrefix
	clients, pods, vips := prefix("10.245.0.1/24"), prefix("10.244.0.1/24"), prefix("0.0.0.0/0")
	l.service, l.one, l.other = ap("10.96.0.10:53"), ap("10.244.0.2:5353"), ap("10.244.0.3:5353")
	if six {
		clients, pods, vips = prefix("fd45::1/64"), prefix("fd44::1/64"), prefix("::/0")
		l.service, l.one, l.other = ap("[fd96::a]:53"), ap("[fd44::2]:5353"), ap("[fd44::3]:5353")
	}
	for name, ns := range map[string]**netns.Namespace{"client": &l.client, "node": &l.node, "pods": &l.pods} {
		var err error
		*ns, err = netns.New(name)
		must(t, err)
		t.Cleanup(func() { _ = (*ns).Close() })
	}
	must(t, l.node.SetSysctl("net.ipv4.ip_forward", "1"))
	must(t, l.node.SetSysctl("net.ipv6.conf.all.forwarding", "1"))
	// One refusal a second for each host is what the kernel grants otherwise.
	must(t, l.node.SetSysctl("net.ipv4.icmp_ratelimit", "0"))
	must(t, l.node.SetSysctl("net.ipv6.icmp.ratelimit", "0"))
	for ns, p := range map[*netns.Namespace]netip.Prefix{l.client: clients, l.pods: pods} {
		must(t, l.node.AddVeth(ns.Name(), ns, "eth0"))
		must(t, l.node.AddAddress(ns.Name(), p))
		own := netip.PrefixFrom(p.Addr().Next(), p.Bits())
		must(t, ns.AddAddress("eth0", own))
		must(t, ns.AddRoute(netns.Route{Destination: vips, Via: p.Addr(), Link: "eth0"}))
	}
	must(t, l.pods.AddAddress("eth0", netip.PrefixFrom(l.other.Addr(), pods.Bits())))
	// So that what is not translated goes somewhere, too.
	must(t, l.node.AddRoute(netns.Route{Destination: netip.PrefixFrom(l.service.Addr(), l.service.Addr().BitLen()), Via: l.one.Addr(), Link: "pods"}))

	must(t, l.node.Do(func() error {
		host, err := hostnet.Open()
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = host.Close() })
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		// Engine and reconciler change the tables by one connection, as in the daemon.
		if l.rules, err = ruleset.OpenConnection(true); err != nil {
			return err
		}
		if l.engine, err = engine.Open(t.Context(), engine.Config{FirstQueue: 100, Queues: 2, Rules: l.rules, Log: log}, host, l.table()); err != nil {
			return err
		}
		l.connections, err = conntrack.Open(new(conntrack.Locks))
		return err
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.node.Do(func() error { return l.engine.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_, _ = l.rules.Close(), l.connections.Close()
	})
	l.reconciler = reconcile.New(reconcile.Config{Connections: l.connections, Seen: l.rules})
	return l
}

// table has the service with these endpoints.
func (l *lab) table(endpoints ...netip.AddrPort) *decision.Table {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: "dns"}, Protocol: decision.UDP,
		Family: decision.FamilyOf(l.service.Addr()), ClusterIP: l.service.Addr(), Port: l.service.Port(),
	}
	for i, e := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: e, Ready: true, Serving: true})
		s.Usable[decision.Cluster], s.HasEndpoints = append(s.Usable[decision.Cluster], uint32(i)), true
	}
	return l.tableOf(s)
}

func (l *lab) tableOf(services ...*decision.ServicePort) *decision.Table {
	l.generation++
	return decision.NewTable(l.generation, time.Now(), decision.Node{Name: "node"}, services)
}

// follow puts a table into force and makes a pass.
func (l *lab) follow(table *decision.Table) reconcile.Result {
	l.t.Helper()
	l.engine.Apply(table)
	result, err := l.reconciler.Run(table)
	if err != nil || result.Failed > 0 {
		l.t.Fatal(result, err)
	}
	return result
}

// receiver is an endpoint. It remembers which datagrams it had from each sender.
type receiver struct {
	conn    *net.UDPConn
	answers bool
	got     [senders]atomic.Int64 // how many
	last    [senders]atomic.Int64 // the latest number
}

const (
	senders = 4
	window  = 32 // how many datagrams of a sender may be on the way
	// probeInterval is the time between datagrams while none arrives: what was on the way
	// may be lost. Whether it is does not matter: the next one that arrives has a number.
	probeInterval = 100 * time.Millisecond
)

func (l *lab) receive(at netip.AddrPort, answers bool) *receiver {
	l.t.Helper()
	conn, err := l.pods.ListenPacket(context.Background(), at)
	must(l.t, err)
	r := &receiver{conn: conn.(*net.UDPConn), answers: answers}
	_ = r.conn.SetReadBuffer(4 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 64)
		for {
			n, from, err := r.conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if n != 9 {
				continue
			}
			i := b[0]
			r.last[i].Store(int64(binary.BigEndian.Uint64(b[1:])))
			r.got[i].Add(1)
			if r.answers {
				_, _ = r.conn.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	l.t.Cleanup(func() { _ = r.conn.Close(); <-done })
	return r
}

// sender sends numbered datagrams to the service from one socket, as fast as they
// arrive: a few may be on the way. The number of the latest that arrived is arrived's.
type sender struct {
	sent    atomic.Int64
	refused atomic.Int64 // how often the socket got the error that there is no listener
	stop    func()       // ends it and waits for that
}

func (l *lab) send(i int, arrived func() int64) *sender {
	l.t.Helper()
	conn, err := l.client.Dial(context.Background(), "udp", netip.AddrPort{}, l.service)
	must(l.t, err)
	s := &sender{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // reads answers, and errors
		b := make([]byte, 64)
		for {
			if _, err := conn.Read(b); errors.Is(err, syscall.ECONNREFUSED) {
				s.refused.Add(1)
			} else if err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(done)
		seen, quiet := int64(0), time.Now()
		b := []byte{byte(i), 8: 0}
		for ctx.Err() == nil {
			if n := arrived(); n != seen {
				seen, quiet = n, time.Now()
			}
			if s.sent.Load()-seen >= window && time.Since(quiet) < probeInterval {
				time.Sleep(50 * time.Microsecond)
				continue
			}
			quiet = time.Now()
			binary.BigEndian.PutUint64(b[1:], uint64(s.sent.Add(1)))
			if _, err := conn.Write(b); errors.Is(err, syscall.ECONNREFUSED) {
				s.refused.Add(1)
			}
		}
	}()
	s.stop = func() { cancel(); <-done }
	l.t.Cleanup(func() { s.stop(); _ = conn.Close() })
	return s
}

// eventually waits until f returns true.
func (l *lab) eventually(what string, f func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("waited %s for %s", testTimeout, what)
		}
	}
}
