package tracking_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/tracking"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// node is a Tracker that follows a fake connection table, with one service port and two endpoints.
type node struct {
	*tracking.Tracker
	t      *testing.T
	kernel *conntracktest.Fake
	table  *decision.Table
	rand   *rand.Rand
}

const eventRoom = 1000

func newNode(t *testing.T) *node {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "shop", Name: "web"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: true, Balance: "lc",
	}
	for i, a := range []string{"10.244.1.1:8080", "10.244.1.2:8080"} {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(a), Weight: 1})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	clock := tracking.NewClock()
	n := &node{
		Tracker: tracking.New(balance.New(balance.NewRegistry(), clock.Now), nil, clock), t: t, kernel: conntracktest.NewFake(),
		table: decision.NewTable(1, time.Time{}, decision.Node{}, []*decision.ServicePort{s}), rand: rand.New(rand.NewPCG(1, 1)),
	}
	n.Follow(n.table)
	return n
}

// follow follows the kernel until the test ends. When it returns, what was there before is known: one connection, which
// it ends.
func (n *node) follow(room int, want ...string) {
	n.t.Helper()
	n.establish(60000, netip.MustParseAddrPort("10.244.1.1:8080"), conntrack.DefaultMark)
	n.is(60000, conntrack.TCPEstablished)
	defer func() {
		n.want(want...)
		n.kernel.End(tuple(60000))
	}()
	ctx, cancel := context.WithCancel(n.t.Context())
	events, done := n.kernel.Watch(room), make(chan error)
	go func() { done <- n.Run(ctx, events, n.kernel.Table()) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
}

func tuple(port int) conntrack.Tuple {
	return conntrack.Tuple{Source: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.9"), uint16(port)), Destination: netip.MustParseAddrPort("10.96.0.20:80"), Protocol: 6}
}

// open decides a flow as a worker does, and writes its entry.
func (n *node) open(port int) {
	n.t.Helper()
	p := decision.Packet{Protocol: decision.TCP, Source: tuple(port).Source, Destination: tuple(port).Destination}
	d := decision.Decide(n.table, &p, n.rand, nil, n)
	n.establish(port, d.Endpoint(), conntrack.DefaultMark)
	n.Opened(0, &p, &d, time.Now())
}

func (n *node) establish(port int, endpoint netip.AddrPort, mark uint32) {
	n.t.Helper()
	r := make([]conntrack.Result, 1)
	n.kernel.Table().Establish([]conntrack.Entry{{Tuple: tuple(port), Mark: mark, Destination: endpoint}}, r)
	if r[0].Err != nil {
		n.t.Fatal(r[0].Err)
	}
}

// is changes the state of a connection.
func (n *node) is(port int, state conntrack.TCPState) {
	n.kernel.Change(tuple(port), func(s *conntrack.State) {
		if s.TCP = state; state != conntrack.TCPSynSent {
			s.Status |= conntrack.StatusSeenReply
		}
	})
}

// want waits until the endpoints have these counts: open, inactive, flows, answered, refused, unanswered.
func (n *node) want(want ...string) {
	n.t.Helper()
	var got []string
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = nil
		for _, s := range n.States() {
			for _, e := range s.Endpoints {
				flows, answered, refused, unanswered := e.Counts()
				got = append(got, fmt.Sprint(e.Open(), e.Inactive(), flows, answered, refused, unanswered))
			}
		}
		if slices.Equal(got, want) {
			return
		}
	}
	n.t.Fatalf("got %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
}

// TestLife: a connection counts at its endpoint, as long as it is open, and what became of it.
func TestLife(t *testing.T) {
	n := newNode(t)
	n.follow(eventRoom, "1 0 0 0 0 0", "0 0 0 0 0 0")
	n.want("0 0 0 0 0 0", "0 0 0 0 0 0")
	n.open(1000)
	n.open(1001)
	n.open(1002)
	n.want("2 0 2 0 0 0", "1 0 1 0 0 0")
	n.is(1000, conntrack.TCPSynSent)
	n.is(1000, conntrack.TCPSynRecv)
	n.is(1000, conntrack.TCPEstablished)
	n.want("2 0 2 1 0 0", "1 0 1 0 0 0")
	n.is(1000, conntrack.TCPFinWait)
	n.is(1000, conntrack.TCPTimeWait)
	n.want("1 1 2 1 0 0", "1 0 1 0 0 0")
	n.kernel.End(tuple(1000))
	n.want("1 0 2 1 0 0", "1 0 1 0 0 0")
	// A refusal is known by its end only: in state CLOSE, with a packet that came back.
	n.kernel.Change(tuple(1001), func(s *conntrack.State) {
		s.TCP, s.HasCounters, s.Received = conntrack.TCPClose, true, conntrack.Counters{Packets: 1, Bytes: 40}
	})
	n.kernel.End(tuple(1001))
	n.want("1 0 2 1 0 0", "0 0 1 0 1 0")
	// Without any packet back, the flow is unanswered after some seconds.
	n.is(1002, conntrack.TCPSynSent)
	n.want("1 0 2 1 0 1", "0 0 1 0 1 0")
	n.kernel.End(tuple(1002))
	n.want("0 0 2 1 0 1", "0 0 1 0 1 0")
	if n.Lost() != 0 {
		t.Errorf("%d connections lost", n.Lost())
	}
}

// TestEarlierConnections: those that were there before, and those of the kernel's copy, count as well.
func TestEarlierConnections(t *testing.T) {
	n := newNode(t)
	first, second := netip.MustParseAddrPort("10.244.1.1:8080"), netip.MustParseAddrPort("10.244.1.2:8080")
	n.establish(1000, first, conntrack.DefaultMark)
	n.is(1000, conntrack.TCPEstablished)
	n.establish(1001, first, conntrack.DefaultMark)
	n.is(1001, conntrack.TCPTimeWait)
	n.establish(1002, netip.MustParseAddrPort("10.244.9.9:1"), conntrack.DefaultMark) // to an endpoint that has gone
	n.establish(1003, first, 0)                                                       // another program's
	n.follow(eventRoom, "2 1 0 0 0 0", "0 0 0 0 0 0")
	n.want("1 1 0 0 0 0", "0 0 0 0 0 0")
	n.establish(1004, second, conntrack.DefaultMark|conntrack.CopyMark)
	n.is(1004, conntrack.TCPEstablished)
	n.want("1 1 0 0 0 0", "1 0 0 0 0 0")
	n.kernel.End(tuple(1000))
	n.kernel.End(tuple(1004))
	n.want("0 1 0 0 0 0", "0 0 0 0 0 0")
}

// TestLostEvents: after a loss of events the connection table tells which connections are left.
func TestLostEvents(t *testing.T) {
	n := newNode(t)
	for i := range 4 {
		n.open(1000 + i)
	}
	events := n.kernel.Watch(1)
	n.is(1000, conntrack.TCPSynSent)
	for i := range 3 { // the events are lost, as none is received yet
		n.is(1000+i, conntrack.TCPEstablished)
		n.kernel.End(tuple(1000 + i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, events, n.kernel.Table()) }()
	n.want("0 0 2 0 0 0", "1 0 2 0 0 0")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestSameTuple: a connection whose tuple is used again has ended.
func TestSameTuple(t *testing.T) {
	n := newNode(t)
	n.follow(eventRoom, "1 0 0 0 0 0", "0 0 0 0 0 0")
	n.want("0 0 0 0 0 0", "0 0 0 0 0 0")
	n.open(1000)
	n.is(1000, conntrack.TCPTimeWait)
	n.want("0 1 1 1 0 0", "0 0 0 0 0 0")
	n.open(1000)
	n.want("0 0 1 1 0 0", "1 0 1 0 0 0")
}

// during is a connection table with something that happens before and after it is dumped.
type during struct {
	tracking.Connections
	before, after func()
}

func (d during) Dump(f conntrack.Filter, each func(*conntrack.State)) error {
	d.before()
	defer d.after()
	return d.Connections.Dump(f, each)
}

// TestDecidedMeanwhile: a flow that a worker decides while the connections are dumped counts once at any time.
func TestDecidedMeanwhile(t *testing.T) {
	n := newNode(t)
	open := make(chan int, 1)
	connections := during{n.kernel.Table(), func() { n.open(1000) }, func() {
		sum := 0
		for _, e := range n.States()[0].Endpoints {
			sum += e.Open()
		}
		open <- sum
	}}
	ctx, cancel := context.WithCancel(t.Context())
	events, done := n.kernel.Watch(eventRoom), make(chan error)
	go func() { done <- n.Run(ctx, events, connections) }()
	if sum := <-open; sum != 1 {
		t.Errorf("%d open connections, want one", sum)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
