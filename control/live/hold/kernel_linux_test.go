package hold

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// timeout is how long a test waits for what should come soon. Only a failing test waits
// that long.
const timeout = time.Minute

// lab is a client, a node with the datapath, and a host with three endpoints that answer
// with their addresses.
type lab struct {
	*testing.T
	*Holder
	client, node, pods *netns.Namespace
	engine             *engine.Engine
	connections        *conntrack.Table
	service            netip.AddrPort // TCP and UDP
	endpoints          []netip.AddrPort
	stop               func() error // stops the engine and waits for that

	mu       sync.Mutex
	received []string // what the endpoints were sent over UDP
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func inEachFamily(t *testing.T, test func(*lab)) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) { test(newLab(t, six, engine.Config{})) })
	}
}

func newLab(t *testing.T, six bool, cfg engine.Config) *lab {
	t.Helper()
	netnstest.Require(t)
	l := &lab{T: t, Holder: New(Config{Node: "node"})}
	ap, prefix := netip.MustParseAddrPort, netip.MustParsePrefix
	clients, pods, vips := prefix("10.245.0.1/24"), prefix("10.244.0.1/24"), prefix("0.0.0.0/0")
	l.service, l.endpoints = ap("10.96.0.10:80"), []netip.AddrPort{ap("10.244.0.2:8080"), ap("10.244.0.3:8080"), ap("10.244.0.4:8080")}
	if six {
		clients, pods, vips = prefix("fd45::1/64"), prefix("fd44::1/64"), prefix("::/0")
		l.service, l.endpoints = ap("[fd96::a]:80"), []netip.AddrPort{ap("[fd44::2]:8080"), ap("[fd44::3]:8080"), ap("[fd44::4]:8080")}
	}
	for name, ns := range map[string]**netns.Namespace{"client": &l.client, "node": &l.node, "pods": &l.pods} {
		var err error
		*ns, err = netns.New(name)
		must(t, err)
		t.Cleanup(func() { _ = (*ns).Close() })
	}
	must(t, l.node.SetSysctl("net.ipv4.ip_forward", "1"))
	must(t, l.node.SetSysctl("net.ipv6.conf.all.forwarding", "1"))
	for ns, p := range map[*netns.Namespace]netip.Prefix{l.client: clients, l.pods: pods} {
		must(t, l.node.AddVeth(ns.Name(), ns, "eth0"))
		must(t, l.node.AddAddress(ns.Name(), p))
		must(t, ns.AddAddress("eth0", netip.PrefixFrom(p.Addr().Next(), p.Bits())))
		must(t, ns.AddRoute(netns.Route{Destination: vips, Via: p.Addr(), Link: "eth0"}))
	}
	for i, e := range l.endpoints {
		if i > 0 {
			must(t, l.pods.AddAddress("eth0", netip.PrefixFrom(e.Addr(), pods.Bits())))
		}
		l.serve(e)
	}

	must(t, l.node.Do(func() error {
		host, err := hostnet.Open()
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = host.Close() })
		cfg.FirstQueue, cfg.Queues, cfg.Gate, cfg.Log = 100, 2, l.Holder, slog.New(slog.DiscardHandler)
		if cfg.Rules, err = ruleset.OpenConnection(false); err != nil {
			return err
		}
		t.Cleanup(func() { _ = cfg.Rules.Close() })
		if l.engine, err = engine.Open(t.Context(), cfg, host, l.table()); err != nil {
			return err
		}
		l.connections, err = conntrack.Open(new(conntrack.Locks))
		return err
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.node.Do(func() error { return l.engine.Run(ctx) }) }()
	l.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := l.stop(); err != nil {
			t.Error(err)
		}
		_ = l.connections.Close()
	})
	return l
}

func (l *lab) table() *decision.Table {
	var services []*decision.ServicePort
	for _, protocol := range []decision.Protocol{decision.TCP, decision.UDP} {
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "shop", Name: "web", Port: protocol.Lower()}, Protocol: protocol,
			Family: decision.FamilyOf(l.service.Addr()), ClusterIP: l.service.Addr(), Port: l.service.Port(), HasEndpoints: true,
		}
		for i, e := range l.endpoints {
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: e, Ready: true, Serving: true})
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
		}
		services = append(services, s)
	}
	return decision.NewTable(1, time.Now(), decision.Node{Name: "node"}, services)
}

// serve makes an endpoint, over TCP and UDP.
func (l *lab) serve(at netip.AddrPort) {
	l.Helper()
	listener, err := l.pods.Listen(context.Background(), at)
	must(l, err)
	packets, err := l.pods.ListenPacket(context.Background(), at)
	must(l, err)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, at.String())
			_ = c.Close()
		}
	})
	done.Go(func() {
		b := make([]byte, 64)
		for {
			n, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			l.mu.Lock()
			l.received = append(l.received, string(b[:n]))
			l.mu.Unlock()
			_, _ = packets.WriteTo([]byte(at.String()), from)
		}
	})
	l.Cleanup(func() { _, _ = listener.Close(), packets.Close(); done.Wait() })
}

// from is the client's address with a port.
func (l *lab) from(port uint16) netip.AddrPort {
	client := "10.245.0.2"
	if l.service.Addr().Is6() {
		client = "fd45::2"
	}
	return netip.AddrPortFrom(netip.MustParseAddr(client), port)
}

// connect connects to the service from a port (0: any) and gives the answer, which is the
// endpoint's address.
func (l *lab) connect(ctx context.Context, port uint16) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := l.client.Dial(ctx, "tcp", l.from(port), l.service)
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	b, err := io.ReadAll(c)
	return string(b), err
}

// connection is one on its way.
type connection struct {
	endpoint chan string
	failed   chan error
}

// begin connects from a port, which is held; that gives the hold, too.
func (l *lab) begin(port uint16, seconds int) (*observe.Hold, connection) {
	l.Helper()
	id := l.hold(port, "tcp", seconds)
	c := connection{make(chan string, 1), make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		endpoint, err := l.connect(ctx, port)
		if err != nil {
			c.failed <- err
			return
		}
		c.endpoint <- endpoint
	})
	l.Cleanup(func() { cancel(); done.Wait() })
	return l.await(id, "its flow", func(h *observe.Hold) bool { return h.State == observe.HoldHolding }), c
}

// answer waits for it.
func (l *lab) answer(c connection) string {
	l.Helper()
	select {
	case endpoint := <-c.endpoint:
		return endpoint
	case err := <-c.failed:
		l.Fatal(err)
	}
	return ""
}

// hold holds the next flow from a port of the client.
func (l *lab) hold(port uint16, protocol string, seconds int) string {
	l.Helper()
	h, err := l.Hold(context.Background(), observe.HoldQuery{Flow: observe.HoldFilter{Source: l.from(port).String(), Protocol: protocol, Service: "shop/web"}, Seconds: seconds})
	must(l, err)
	return h.ID
}

// await waits until it is so.
func (l *lab) await(id, what string, so func(*observe.Hold) bool) *observe.Hold {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for after := uint64(0); ; {
		h, err := l.Get(ctx, id, after)
		must(l, err)
		switch {
		case so(h):
			return h
		case ctx.Err() != nil:
			l.Fatalf("waited %s for %s; the hold is %+v", timeout, what, h)
		}
		after = h.Generation
	}
}

// counts waits until the engine has counted so: it does when the packets are on their way.
func (l *lab) counts(what string, so func(*engine.Stats) bool) {
	l.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		s := l.engine.Stats()
		if so(&s) {
			return
		}
		if time.Now().After(end) {
			l.Fatalf("waited %s for %s; the stats are %v", timeout, what, s.LogValue())
		}
	}
}

// entry is where the kernel's entry of the client's connection leads.
func (l *lab) entry(port uint16, protocol decision.Protocol) string {
	s, err := l.connections.Lookup(conntrack.Tuple{Source: l.from(port), Destination: l.service, Protocol: uint8(protocol)}, 0)
	if conntrack.IsNotFound(err) {
		return "none"
	}
	must(l, err)
	return s.Endpoint().String()
}

// TestHeldConnectionWaitsAlone: hundreds of others go on, by the same queue and others. Let
// go step by step, it comes where it was drawn.
func TestHeldConnectionWaitsAlone(t *testing.T) {
	inEachFamily(t, func(l *lab) {
		h, c := l.begin(40000, 60)
		for i := range 300 {
			if _, err := l.connect(context.Background(), 0); err != nil {
				l.Fatalf("connection %d of others: %v", i, err)
			}
		}
		select {
		case endpoint := <-c.endpoint:
			l.Fatalf("the connection that is held has an answer from %s", endpoint)
		case err := <-c.failed:
			l.Fatal(err)
		default:
		}
		if e := l.entry(40000, decision.TCP); e != "none" {
			l.Errorf("the connection that is held has an entry to %s", e)
		}
		for range len(h.Record.Steps) + 1 {
			act(l.T, l.Holder, h.ID, observe.ActStep, "")
		}
		if endpoint := l.answer(c); endpoint != h.Record.Endpoint || l.entry(40000, decision.TCP) != endpoint {
			l.Errorf("%s answered, the entry leads to %s; %s was drawn", endpoint, l.entry(40000, decision.TCP), h.Record.Endpoint)
		}
		done := get(l.T, l.Holder, h.ID)
		if r := done.Record; done.Outcome != "released" || r.Conntrack != "created" || r.Endpoint != h.Record.Endpoint || r.Stages == nil {
			l.Errorf("afterwards: %+v, record %+v", done, r)
		}
		l.counts("301 connections", func(s *engine.Stats) bool { return s.Created+s.Replaced == 301 && s.RefusedVerdicts == 0 })
	})
}

// TestChosenEndpointAnswers, whichever it is.
func TestChosenEndpointAnswers(t *testing.T) {
	inEachFamily(t, func(l *lab) {
		for i, e := range l.endpoints {
			port := uint16(41000 + i)
			h, c := l.begin(port, 60)
			act(l.T, l.Holder, h.ID, observe.ActChoose, e.String())
			done := act(l.T, l.Holder, h.ID, observe.ActRelease, "")
			want := "chosen"
			if h.Record.Endpoint == e.String() {
				want = "released"
			}
			if endpoint := l.answer(c); endpoint != e.String() || l.entry(port, decision.TCP) != e.String() || done.Record.Endpoint != e.String() || done.Outcome != want {
				l.Errorf("%s was chosen (%s drawn), %s answered, the entry leads to %s, the record has %s (%s)",
					e, h.Record.Endpoint, endpoint, l.entry(port, decision.TCP), done.Record.Endpoint, done.Outcome)
			}
		}
	})
}

// TestDroppedDatagram is never seen by an endpoint, nor are those that came while it was
// held. The next one is decided anew.
func TestDroppedDatagram(t *testing.T) {
	inEachFamily(t, func(l *lab) {
		const port = 42000
		id := l.hold(port, "udp", 60)
		c, err := l.client.Dial(context.Background(), "udp", l.from(port), l.service)
		must(l, err)
		defer c.Close()
		send := func(text string) {
			_, err := io.WriteString(c, text)
			must(l, err)
		}
		send("dropped")
		l.await(id, "the datagram", func(h *observe.Hold) bool { return h.State == observe.HoldHolding })
		for i := range 3 {
			send(fmt.Sprint("held back ", i))
		}
		l.await(id, "three more", func(h *observe.Hold) bool { return h.Retransmissions == 3 })
		if done := act(l.T, l.Holder, id, observe.ActDrop, ""); done.Outcome != "dropped" || l.entry(port, decision.UDP) != "none" {
			l.Errorf("dropped: %+v; its entry leads to %s", done, l.entry(port, decision.UDP))
		}
		send("goes on")
		_ = c.SetReadDeadline(time.Now().Add(timeout))
		_, err = c.Read(make([]byte, 64))
		must(l, err)
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := fmt.Sprint(l.received); got != "[goes on]" {
			l.Errorf("the endpoints received %s", got)
		}
		l.counts("one dropped, three held back, one created", func(s *engine.Stats) bool { return s.Dropped == 1 && s.HeldBack == 3 && s.Created == 1 })
	})
}

// TestForgottenConnectionGoesOn after its time, with the SYN that was held: those that the
// client sent meanwhile are dropped.
func TestForgottenConnectionGoesOn(t *testing.T) {
	l := newLab(t, false, engine.Config{})
	h, c := l.begin(43000, 2)
	if endpoint := l.answer(c); endpoint != h.Record.Endpoint {
		l.Errorf("%s answered, %s was drawn", endpoint, h.Record.Endpoint)
	}
	done := l.await(h.ID, "the end", func(h *observe.Hold) bool { return h.State == observe.HoldDone })
	if done.Outcome != "expired" || done.Retransmissions == 0 {
		l.Errorf("afterwards: %+v", done)
	}
	l.counts("as many held back as the hold counts, one created", func(s *engine.Stats) bool {
		return s.HeldBack == uint64(done.Retransmissions) && s.Created == 1
	})
}

// TestEndReleases: an engine that stops holds no flow back, and does not wait itself.
func TestEndReleases(t *testing.T) {
	for _, keepRules := range []bool{false, true} {
		t.Run(fmt.Sprintf("rules stay: %v", keepRules), func(t *testing.T) {
			l := newLab(t, false, engine.Config{KeepRules: keepRules})
			h, c := l.begin(44000, 600)
			stopped := make(chan error, 1)
			go func() { stopped <- l.stop() }()
			select {
			case err := <-stopped:
				must(l, err)
			case <-time.After(timeout):
				l.Fatal("the engine does not stop")
			}
			done := get(l.T, l.Holder, h.ID)
			if done.State != observe.HoldDone || done.Outcome != "cancelled" || done.Record.Conntrack != "created" || l.entry(44000, decision.TCP) != h.Record.Endpoint {
				l.Errorf("afterwards: %+v, record %+v; the entry leads to %s", done, done.Record, l.entry(44000, decision.TCP))
			}
			l.counts("one created", func(s *engine.Stats) bool { return s.Created == 1 && s.RefusedVerdicts == 0 })
			if !keepRules {
				return // nothing translates the answers
			}
			if endpoint := l.answer(c); endpoint != h.Record.Endpoint {
				l.Errorf("%s answered, %s was drawn", endpoint, h.Record.Endpoint)
			}
		})
	}
}

// TestFlushedPacket: another program removes the rules, and with them the kernel drops what waits
// in the queues. To release it does no harm, and the connection comes about when the client
// tries again.
func TestFlushedPacket(t *testing.T) {
	l := newLab(t, false, engine.Config{})
	h, c := l.begin(45000, 60)
	must(t, l.node.Do(func() error {
		n, err := nftables.New()
		if err != nil {
			return err
		}
		n.FlushRuleset()
		return n.Flush()
	}))
	l.counts("the rules installed again", func(s *engine.Stats) bool { return s.Reinstalled > 0 })
	act(t, l.Holder, h.ID, observe.ActRelease, "")
	if endpoint := l.answer(c); endpoint != h.Record.Endpoint {
		t.Errorf("%s answered, %s was drawn", endpoint, h.Record.Endpoint)
	}
	l.counts("the verdict of the flushed packet refused", func(s *engine.Stats) bool { return s.RefusedVerdicts == 1 })
}
