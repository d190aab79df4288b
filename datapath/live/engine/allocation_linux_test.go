package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestFlowsDoNotAllocate: from the queue's message to the verdict, whatever becomes of a
// flow, there is no garbage. Queue, connection table, rules and routes are the kernel's.
// (Flow records, which no reader requests here, are another matter.)
func TestFlowsDoNotAllocate(t *testing.T) {
	const (
		few    = 500 // ports that are used again and again
		warmUp = 2_000
		// What is allocated besides: buffers that the first batch of its kind makes
		// grow, and whatever Go's runtime does in the background.
		allowed = 300
	)
	flows := netnstest.Cases(10_000, 4_000)
	for _, c := range []struct {
		name  string
		kind  int
		to    string
		ports int // how many source ports take turns
		count func(*Stats) uint64
	}{
		{"TCP translated", unix.SOCK_STREAM, "10.96.0.1:80", warmUp + flows, created},
		{"TCP translated, IPv6", unix.SOCK_STREAM, "[fd96::1]:80", warmUp + flows, created},
		{"TCP masqueraded", unix.SOCK_STREAM, "10.244.1.1:30080", warmUp + flows, created},
		{"TCP masqueraded, IPv6", unix.SOCK_STREAM, "[fd44:1::1]:30080", warmUp + flows, created},
		{"TCP masqueraded by the host's rules", unix.SOCK_STREAM, "10.96.0.2:80", warmUp + flows, created},
		{"TCP with affinity", unix.SOCK_STREAM, "10.96.0.3:80", warmUp + flows, created},
		{"TCP sent again", unix.SOCK_STREAM, "10.96.0.2:80", few, func(s *Stats) uint64 { return s.Kept }},
		{"TCP from a port used before", unix.SOCK_STREAM, "10.96.0.1:80", few, func(s *Stats) uint64 { return s.Replaced }},
		{"TCP masqueraded, from a port used before", unix.SOCK_STREAM, "10.244.1.1:30080", few, func(s *Stats) uint64 { return s.Replaced }},
		{"TCP rejected", unix.SOCK_STREAM, "10.96.0.4:80", few, func(s *Stats) uint64 { return s.Rejected }},
		{"TCP dropped", unix.SOCK_STREAM, "10.96.0.5:80", few, func(s *Stats) uint64 { return s.Dropped }},
		{"TCP to no service", unix.SOCK_STREAM, "10.244.0.2:80", few, func(s *Stats) uint64 { return s.NoService }},
		{"UDP translated", unix.SOCK_DGRAM, "10.96.0.1:80", warmUp + flows, created},
		{"UDP translated, IPv6", unix.SOCK_DGRAM, "[fd96::1]:80", warmUp + flows, created},
		{"UDP masqueraded", unix.SOCK_DGRAM, "10.244.1.1:30080", warmUp + flows, created},
		{"UDP rejected", unix.SOCK_DGRAM, "10.96.0.4:80", few, func(s *Stats) uint64 { return s.Rejected }},
		{"UDP to no service", unix.SOCK_DGRAM, "10.244.0.2:80", warmUp + flows, func(s *Stats) uint64 { return s.NoService }},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newAllocationNode(t)
			s := newSender(c.kind, netip.MustParseAddrPort(c.to), c.ports)
			var before, after runtime.MemStats
			var counted uint64
			must(t, n.client.Do(func() error {
				if err := n.send(s, warmUp); err != nil {
					return err
				}
				counted = c.count(n.stats())
				runtime.ReadMemStats(&before)
				err := n.send(s, flows)
				runtime.ReadMemStats(&after)
				return err
			}))
			if stats := n.stats(); c.count(stats)-counted < uint64(flows*9/10) {
				t.Errorf("only %d of %d flows were what they were meant to be: %+v", c.count(stats)-counted, flows, slog.AnyValue(*stats).Resolve())
			}
			allocated := after.Mallocs - before.Mallocs
			t.Logf("%d allocations in %d flows", allocated, flows)
			if allocated > allowed {
				t.Errorf("%d allocations in %d flows, want none (and allow %d)", allocated, flows, allowed)
			}
		})
	}
}

func created(s *Stats) uint64 { return s.Created }

// allocationNode is a node whose datapath decides what a client sends. It does not run as
// an Engine: that allocates a little every second.
type allocationNode struct {
	client, node *netns.Namespace
	engine       *Engine
	sent         uint64
}

func newAllocationNode(t *testing.T) *allocationNode {
	t.Helper()
	n, table := newWiredNode(t)
	n.open(t, table)
	return n
}

// newWiredNode is a node that can reach a client and pods, but decides nothing, and the
// services that it is to have.
func newWiredNode(t *testing.T) (*allocationNode, *decision.Table) {
	t.Helper()
	netnstest.Require(t)
	n := &allocationNode{}
	var node, pods *netns.Namespace
	for name, ns := range map[string]**netns.Namespace{"client": &n.client, "node": &node, "pods": &pods} {
		var err error
		*ns, err = netns.New(name)
		must(t, err)
		t.Cleanup(func() { _ = (*ns).Close() })
	}
	n.node = node
	prefix := netip.MustParsePrefix
	must(t, node.SetSysctl("net.ipv4.ip_forward", "1"), node.SetSysctl("net.ipv6.conf.all.forwarding", "1"),
		pods.SetSysctl("net.ipv4.ip_forward", "0"), pods.SetSysctl("net.ipv6.conf.all.forwarding", "0"))
	for ns, addresses := range map[*netns.Namespace][2]netip.Prefix{
		n.client: {prefix("10.244.1.1/24"), prefix("fd44:1::1/64")}, pods: {prefix("10.244.0.1/24"), prefix("fd44::1/64")},
	} {
		must(t, node.AddVeth(ns.Name(), ns, "eth0"))
		for i, p := range addresses {
			must(t, node.AddAddress(ns.Name(), p), ns.AddAddress("eth0", netip.PrefixFrom(p.Addr().Next(), p.Bits())),
				ns.AddRoute(netns.Route{Destination: prefix([]string{"0.0.0.0/0", "::/0"}[i]), Via: p.Addr(), Link: "eth0"}))
		}
	}
	// A listener makes a connection of a SYN. The client ends it with a reset, when it closes
	// its socket or, if that came first, when the answer comes: the entry stays for a while,
	// closed. Elsewhere there is no listener, and the refusal removes the entry.
	for port := range uint16(3) {
		l, err := pods.Listen(t.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), 8080+port))
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	// An address that the pods' namespace is sent but does not have: there is no answer.
	must(t, node.AddRoute(netns.Route{Destination: prefix("10.244.66.1/32"), Via: netip.MustParseAddr("10.244.0.2"), Link: "pods"}))

	var all []*decision.ServicePort
	add := func(protocol decision.Protocol, name, clusterIP string, nodePort uint16, endpoints ...string) *decision.ServicePort {
		s := servicePort("default/"+name, clusterIP, nodePort, endpoints...)
		s.Name.Port, s.Protocol = protocol.Lower(), protocol
		all = append(all, s)
		return s
	}
	for _, protocol := range []decision.Protocol{decision.TCP, decision.UDP} {
		add(protocol, "web", "10.96.0.1:80", 30080, "10.244.0.2:8080", "10.244.0.2:8081", "10.244.0.2:8082")
		add(protocol, "web", "[fd96::1]:80", 30080, "[fd44::2]:8080", "[fd44::2]:8081", "[fd44::2]:8082")
		add(protocol, "silent", "10.96.0.2:80", 0, "10.244.66.1:8080")
		add(protocol, "sticky", "10.96.0.3:80", 0, "10.244.0.2:8080", "10.244.0.2:8081").AffinitySeconds = 10800
		add(protocol, "none", "10.96.0.4:80", 0)
		private := add(protocol, "private", "10.96.0.6:80", 0, "10.244.0.2:8080")
		private.LoadBalancerIPs, private.SourceRanges = []netip.Addr{netip.MustParseAddr("10.96.0.5")}, []netip.Prefix{prefix("192.0.2.0/24")}
	}
	return n, decision.NewTable(1, time.Now(), decision.Node{
		Name:      "node",
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd44:1::1")},
		Detector:  decision.Detector{CIDRs: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd44::/16")}},
	}, all)
}

// open has the node decide.
func (n *allocationNode) open(t *testing.T, table *decision.Table) {
	t.Helper()
	n.openWorkers(t, table, 2)
}

// openWorkers is open; only the first workers run.
func (n *allocationNode) openWorkers(t *testing.T, table *decision.Table, running int) {
	t.Helper()
	must(t, n.node.Do(func() error {
		host, err := hostnet.Open()
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = host.Close() })
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		hostRules := hostmasq.Follow(hostSource{hostRule(to("10.244.66.0/24"), rules.AddrTypes{Types: 1 << 2, Negated: true}, masquerade)}, log)
		conn, err := ruleset.OpenConnection(false)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		// On a busy machine heartbeats come late; the tests are about packets that are queued.
		n.engine, err = Open(t.Context(), Config{FirstQueue: 100, Queues: 1, QueueTimeout: time.Minute, Rules: conn, HostRules: hostRules, Log: log}, host, table)
		return err
	}))
	done := make(chan error, running)
	for _, w := range n.engine.workers[:running] {
		go func() { done <- w.run() }()
	}
	t.Cleanup(func() {
		must(t, n.engine.stop())
		for range running {
			must(t, <-done)
		}
		for _, w := range n.engine.workers {
			must(t, w.connections.Close())
		}
		must(t, n.engine.lock.Close())
	})
}

func (n *allocationNode) stats() *Stats {
	s := new(Stats)
	for _, w := range n.engine.workers {
		w.counters.addTo(s)
	}
	return s
}

// received counts the packets that the daemon was given.
func (n *allocationNode) received() (packets uint64) {
	for _, w := range n.engine.workers {
		packets += w.counters.packets.Load()
	}
	return packets
}

// inFlight is how many flows wait for their decision at most: no queue or buffer overruns.
const inFlight = 2 * batchSize

// send begins flows, and waits until they are decided. It belongs to the client's thread.
func (n *allocationNode) send(s *sender, flows int) error {
	for i := 1; i <= flows; i++ {
		if err := s.next(); err != nil {
			return err
		}
		n.sent++
		if i%inFlight != 0 && i < flows {
			continue
		}
		for end := time.Now().Add(time.Minute); n.received() < n.sent; time.Sleep(20 * time.Microsecond) {
			if time.Now().After(end) {
				return fmt.Errorf("waited for %d decisions, got %d", n.sent, n.received())
			}
		}
	}
	return nil
}

// sender begins flows from one source port after the other, without allocations.
type sender struct {
	family, kind int
	from, to     unix.Sockaddr
	setPort      func(port int)
	ports, port  int
	payload      []byte
	// reset has closing a socket end its connection at once. Without it a connection that is
	// answered before the socket is closed keeps its addresses for a minute, and the port
	// cannot be used again.
	reset unix.Linger
}

func newSender(kind int, to netip.AddrPort, ports int) *sender {
	s := &sender{kind: kind, ports: ports, payload: []byte("x"), reset: unix.Linger{Onoff: 1}}
	if to.Addr().Is4() {
		from := &unix.SockaddrInet4{}
		s.family, s.from, s.to = unix.AF_INET, from, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
		s.setPort = func(port int) { from.Port = port }
	} else {
		from := &unix.SockaddrInet6{}
		s.family, s.from, s.to = unix.AF_INET6, from, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
		s.setPort = func(port int) { from.Port = port }
	}
	return s
}

// next begins a flow: a SYN or a datagram. Of the answer it hears nothing.
func (s *sender) next() error {
	const firstPort = 20_000
	s.setPort(firstPort + s.port)
	s.port = (s.port + 1) % s.ports
	fd, err := unix.Socket(s.family, s.kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err == nil && s.kind == unix.SOCK_STREAM {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &s.reset)
	}
	if err == nil {
		err = unix.Bind(fd, s.from)
	}
	if err == nil {
		err = unix.Connect(fd, s.to)
	}
	if s.kind == unix.SOCK_DGRAM && err == nil {
		_, err = unix.Write(fd, s.payload)
	}
	if e := unix.Close(fd); err == nil || err == unix.EINPROGRESS {
		err = e
	}
	return err
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
