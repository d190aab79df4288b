package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
)

// portGate takes the flows from some source ports.
type portGate struct {
	ports []uint16
	open  bool // not armed

	mu       sync.Mutex
	held     map[uint16]HeldFlow
	repeated map[uint16]int
	calls    int
	closed   bool
	forgets  bool // what it holds, at the end
}

func newPortGate(ports ...uint16) *portGate {
	return &portGate{ports: ports, held: make(map[uint16]HeldFlow), repeated: make(map[uint16]int)}
}

func (g *portGate) Armed() bool { return !g.open }

func (g *portGate) Take(f HeldFlow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	for _, p := range g.ports {
		if p == f.Flow().Packet.Source.Port() && !g.closed {
			g.held[p] = f
			return true
		}
	}
	return false
}

func (g *portGate) Repeated(f HeldFlow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.repeated[f.Flow().Packet.Source.Port()]++
}

func (g *portGate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, f := range g.held {
		if !g.forgets {
			f.Release(f.Flow().Decision, flow.Hold{Action: flow.HoldCancelled})
		}
	}
}

// gated gives the harness a gate that takes the flows from the source ports.
func (h *harness) gated(ports ...uint16) *portGate {
	g := newPortGate(ports...)
	h.heldFlows = newHeldFlows(g, &worker{connections: h.kernel.Table(), router: fakeRouter{}, sink: &h.records})
	return g
}

// verdictIDs lists the packets that have their verdicts.
func (h *harness) verdictIDs() (ids []uint32) {
	for _, v := range h.queue.verdicts {
		ids = append(ids, v.ID)
	}
	return ids
}

func (h *harness) entry(source, destination string) string {
	s, ok := h.kernel.Get(conntrack.Tuple{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination), Protocol: 6})
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%s masqueraded=%v", s.Endpoint(), s.Masqueraded())
}

// TestHeldFlowWaits while all others go on, and goes as it was decided: with its entry,
// its verdict, its record, and counted once.
func TestHeldFlowWaits(t *testing.T) {
	h := newHarness(t)
	g := h.gated(1001, 1002, 1003)
	h.queue.batches = [][]nfqueue.Packet{{
		syn(t, 1, 0x10, "10.244.1.9:1000", "10.96.0.10:53"),
		syn(t, 2, 0x10, "172.20.0.9:1001", "172.20.0.2:30053"), // to be translated and masqueraded
		syn(t, 3, 0x10, "10.244.1.9:1002", "10.96.0.11:53"),    // to be rejected
		syn(t, 4, 0x10, "10.244.1.9:1004", "10.96.0.10:53"),
	}, {
		syn(t, 5, 0x10, "10.244.1.9:1003", "8.8.8.8:53"), // to no service: alone in its batch
	}, {
		syn(t, 6, 0x10, "172.20.0.9:1001", "172.20.0.2:30053"), // again
		syn(t, 7, 0x10, "10.244.1.9:1005", "10.96.0.10:53"),
		{ID: 8, Payload: []byte{0x45}}, // not readable
	}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(h.queue.verdicts); got != "[{1 false 16} {4 false 16} {6 true 16} {7 false 16} {8 false 0}]" {
		t.Errorf("verdicts while three are held: %s", got)
	}
	if len(g.held) != 3 || len(g.repeated) != 1 || g.repeated[1001] != 1 {
		t.Fatalf("%d flows held, repeated %v; want 3, of them the one from port 1001 once", len(g.held), g.repeated)
	}
	if e := h.entry("172.20.0.9:1001", "172.20.0.2:30053"); e != "none" {
		t.Errorf("the flow that is held has the entry %s", e)
	}
	if len(h.records) != 3 {
		t.Errorf("%d records while three are held, want those of the 3 others", len(h.records))
	}
	var s Stats
	h.counters.addTo(&s)
	if s.Packets != 5 || s.HeldBack != 1 || s.Undecodable != 1 || s.Created != 3 || s.Rejected != 0 || s.VerdictTime.Total() != 5 {
		t.Errorf("stats while three are held: %+v", s)
	}
	if g.held[1001].(*heldFlow).packet.Payload != nil {
		t.Error("the queue's buffer is kept")
	}
	f := g.held[1001].Flow()
	if f.Decision.Endpoint().String() != "10.244.0.2:8080" || f.Queue != 100 || f.Time.IsZero() || f.Table != h.table.Load() || f.Held != nil {
		t.Errorf("held flow %+v", f)
	}

	h.queue.verdicts, h.records = nil, nil
	for _, port := range []uint16{1001, 1002, 1003} {
		held := g.held[port]
		gone := held.Release(held.Flow().Decision, flow.Hold{ID: "x", Seconds: 2, Action: flow.HoldReleased})
		if gone == nil || gone.Held == nil || *gone.Held != (flow.Hold{ID: "x", Seconds: 2, Action: flow.HoldReleased}) {
			t.Errorf("from port %d went %+v", port, gone)
		}
		if again := held.Release(held.Flow().Decision, flow.Hold{}); again != nil {
			t.Errorf("from port %d it went twice", port)
		}
	}
	if got := fmt.Sprint(h.queue.verdicts); got != "[{2 false 16400} {3 false 1852207474} {5 false 16}]" {
		t.Errorf("verdicts of what was held: %s", got)
	}
	if e := h.entry("172.20.0.9:1001", "172.20.0.2:30053"); e != "10.244.0.2:8080 masqueraded=true" {
		t.Errorf("entry %s", e)
	}
	var got []string
	for _, r := range h.records {
		got = append(got, fmt.Sprint(r.Verdict, " ", r.Source, " ", r.Conntrack, " ", r.MasqueradeAddress, " ", *r.Queue, " ", r.Held.Action))
	}
	if want := "dnat 172.20.0.9:1001 created 172.20.0.2 100 released|reject 10.244.1.9:1002   100 released|accept 10.244.1.9:1003   100 released"; strings.Join(got, "|") != want {
		t.Errorf("records\n got %s\nwant %s", strings.Join(got, "|"), want)
	}
	s = Stats{}
	h.counters.addTo(&s)
	if s.Packets != 8 || s.HeldBack != 1 || s.Created != 4 || s.Rejected != 1 || s.NoService != 1 || s.VerdictTime.Total() != 8 || s.DecisionTime.Total() != 8 {
		t.Errorf("stats: %+v", s)
	}
	// The tuple is free.
	if h.heldFlows.count.Load() != 0 || len(h.heldFlows.waiting) != 0 {
		t.Errorf("%d flows wait (%d counted) when all have gone", len(h.heldFlows.waiting), h.heldFlows.count.Load())
	}
	h.queue.verdicts = nil
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 9, 0, "172.20.0.9:1004", "172.20.0.2:30053")}}
	if err := h.run(); err != nil || len(h.queue.verdicts) != 1 {
		t.Errorf("after all: %v, verdicts %+v", err, h.queue.verdicts)
	}
}

// TestOtherDecisionIsCarriedOut: another endpoint's, with the result of the host's own rules for
// that one, and its affinity; or none at all.
func TestOtherDecisionIsCarriedOut(t *testing.T) {
	h := newHarness(t)
	sticky := servicePort("default/sticky", "10.96.0.40:80", 0, "10.244.0.2:80", "10.244.0.3:80", "10.244.1.9:80")
	sticky.AffinitySeconds = 60
	table := decision.NewTable(4, h.table.Load().Built(), *h.table.Load().Node(), []*decision.ServicePort{sticky})
	h.table.Store(table)
	rules := hostmasq.Follow(hostSource{hostRule(to("10.244.0.3/32"), masquerade)}, slog.New(slog.DiscardHandler))
	g := h.gated(1000, 1001, 1002)
	h.hostRules, h.heldFlows.releaser.hostRules = rules.Translator(), rules.Translator()
	for i := range uint32(3) {
		h.queue.batches = append(h.queue.batches, []nfqueue.Packet{syn(t, 1+i, 0, fmt.Sprint("10.244.1.9:", 1000+i), "10.96.0.40:80")})
	}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	release := func(port uint16, endpoint uint32) *flow.Flow {
		f := g.held[port].Flow()
		d, ok := decision.Choose(f.Table, &f.Packet, &f.Decision, endpoint)
		if !ok {
			t.Fatalf("endpoint %d cannot be chosen of %+v", endpoint, f.Decision)
		}
		return g.held[port].Release(d, flow.Hold{Action: flow.HoldChosen})
	}
	// Newer tables do not matter to what was decided.
	newer := decision.Node{Name: "worker1", Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.3")}, MasqueradeMark: 0x10000}
	h.table.Store(decision.NewTable(5, table.Built(), newer, nil))
	if f := release(1000, 1); f.HostRule == nil || f.SourceAddr.String() != "172.20.0.2" || f.Decision.Generation != 4 || f.Table != table {
		t.Errorf("to the endpoint that the host's rules masquerade: %+v", f)
	}
	if f := release(1001, 2); f.HostRule != nil || f.Decision.Mark != decision.MarkHairpin || f.SourceAddr.String() != "172.20.0.2" {
		t.Errorf("to itself: %+v", f)
	}
	if got, want := h.entry("10.244.1.9:1000", "10.96.0.40:80")+", "+h.entry("10.244.1.9:1001", "10.96.0.40:80"), "10.244.0.3:80 masqueraded=true, 10.244.1.9:80 masqueraded=true"; got != want {
		t.Errorf("entries %s, want %s", got, want)
	}
	if !h.affinity.Bound(sticky, netip.MustParseAddrPort("10.244.1.9:80"), netip.MustParseAddr("10.244.1.9")) {
		t.Error("the client is not bound to the endpoint that was chosen")
	}
	f := g.held[1002]
	d := f.Flow().Decision
	d.Verdict, d.Reason = decision.Drop, decision.DroppedByHand
	f.Release(d, flow.Hold{Action: flow.HoldDropped})
	if got := fmt.Sprint(h.queue.verdicts); got != "[{1 false 0} {2 false 16384} {3 true 0}]" {
		t.Errorf("verdicts %s", got)
	}
	if r := h.records[2]; r.Verdict != "drop" || r.Reason != "dropped-by-hand" || r.Endpoint != "" || r.Conntrack != "" || h.entry(r.Source, r.Destination) != "none" {
		t.Errorf("record of the dropped one: %+v", r)
	}
	var s Stats
	h.counters.addTo(&s)
	if s.Dropped != 1 || s.Created != 2 || s.HostMasqueraded != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestUnarmedGateIsNotCalled, but held flows are still recognised.
func TestUnarmedGateIsNotCalled(t *testing.T) {
	h := newHarness(t)
	g := h.gated(1000)
	g.open = true
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53")}}
	if err := h.run(); err != nil || g.calls > 0 || len(h.queue.verdicts) != 1 {
		t.Errorf("error %v, %d calls, verdicts %+v", err, g.calls, h.queue.verdicts)
	}
	g.open = false
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 2, 0, "10.244.1.9:1000", "10.96.0.11:53")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	g.open, g.calls = true, 0
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 3, 0, "10.244.1.9:1000", "10.96.0.11:53"), syn(t, 4, 0, "10.244.1.9:1001", "10.96.0.11:53")}}
	if err := h.run(); err != nil || g.calls > 0 || g.repeated[1000] != 1 {
		t.Errorf("error %v, %d calls, repeated %v", err, g.calls, g.repeated)
	}
	if got := fmt.Sprint(h.verdictIDs()); got != "[1 3 4]" {
		t.Errorf("verdicts for %s", got)
	}
}

// quickGate releases what it takes before it has returned.
type quickGate struct{ *portGate }

func (g quickGate) Take(f HeldFlow) bool {
	return g.portGate.Take(f) && f.Release(f.Flow().Decision, flow.Hold{}) != nil
}

func TestGateMayBeQuick(t *testing.T) {
	h := newHarness(t)
	g := h.gated(1000)
	h.heldFlows.gate = quickGate{g}
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53"), syn(t, 2, 0, "10.244.1.9:1001", "10.96.0.10:53")}, {syn(t, 3, 0, "10.244.1.9:1000", "10.96.0.10:53")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(h.verdictIDs()); got != "[1 2 3]" || len(h.heldFlows.waiting) != 0 || h.heldFlows.count.Load() != 0 {
		t.Errorf("verdicts for %s, %d wait", got, len(h.heldFlows.waiting))
	}
}

// TestEmptyRoom: when all had to go, they have, and no flow waits any more; not even if the
// gate forgets its flows, or takes one too late.
func TestEmptyRoom(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		h := newHarness(t)
		g := h.gated(1000, 1001)
		g.forgets = forgets
		h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53"), syn(t, 2, 0, "10.244.1.9:1001", "10.96.0.11:53")}}
		if err := h.run(); err != nil {
			t.Fatal(err)
		}
		h.heldFlows.empty()
		if len(h.queue.verdicts) != 2 || !g.closed || len(h.records) != 2 || h.records[0].Held.Action != "cancelled" {
			t.Errorf("the gate forgets: %v; verdicts %+v, %d records", forgets, h.queue.verdicts, len(h.records))
		}
		g.closed = false // too late
		h.queue.batches = [][]nfqueue.Packet{{syn(t, 3, 0, "10.244.1.9:1000", "10.96.0.11:53")}}
		if err := h.run(); err != nil || len(h.queue.verdicts) != 3 {
			t.Errorf("after the end: %v, verdicts %+v", err, h.queue.verdicts)
		}
		if f := g.held[1000]; f.Release(f.Flow().Decision, flow.Hold{}) != nil || len(h.queue.verdicts) != 3 {
			t.Error("what was not held was released")
		}
	}
	var none *heldFlows
	none.empty() // no gate holds flows
}

// TestPanicLeavesHeldFlows: they have no verdict by it, and can still be released.
func TestPanicLeavesHeldFlows(t *testing.T) {
	h := newHarness(t)
	g := h.gated(1000)
	h.connections = panickingConnections{}
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53"), syn(t, 2, 0, "10.244.1.9:1001", "10.96.0.10:53")}}
	if err := h.run(); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("error %v, want the panic", err)
	}
	if got := fmt.Sprint(h.verdictIDs()); got != "[2]" {
		t.Errorf("verdicts for %s, want 2", got)
	}
	if f := g.held[1000].Release(g.held[1000].Flow().Decision, flow.Hold{}); f.Outcome != conntrack.Created {
		t.Errorf("the held flow's entry: %s", f.Outcome)
	}
	if got := fmt.Sprint(h.verdictIDs()); got != "[2 1]" {
		t.Errorf("verdicts for %s, want 2 and 1", got)
	}
}

// TestFailureOfLettingGoEndsTheEngine, as a worker's does; the packet has its verdict.
func TestFailureOfLettingGoEndsTheEngine(t *testing.T) {
	h := newHarness(t)
	g := h.gated(1000)
	h.heldFlows.releaser.connections = panickingConnections{}
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	e := &Engine{
		apply: make(chan application), ended: make(chan struct{}), bound: affinity.New(), log: slog.New(slog.DiscardHandler), lock: noLock{}, heldFlows: h.heldFlows, flows: conntracktest.NewFake().Table(),
		rules: &lostRules{lost: make(chan struct{})}, // and no workers
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(context.Background()) }()
	gone := g.held[1000].Release(g.held[1000].Flow().Decision, flow.Hold{Action: flow.HoldReleased})
	if gone == nil || gone.Held.Action != flow.HoldReleased || gone.Err == nil || gone.Outcome != conntrack.Failed {
		t.Errorf("went %+v", gone)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "queue 100: panic: boom") {
		t.Errorf("the engine ended with %v, want the panic", err)
	}
	if got := fmt.Sprint(h.verdictIDs()); got != "[1]" {
		t.Errorf("verdicts for %s, want 1", got)
	}
}

// TestHeldFlowsOfManyWorkers come and go at once, each once.
func TestHeldFlowsOfManyWorkers(t *testing.T) {
	const workers, batches = 4, 50
	first := newHarness(t)
	all := []*harness{first}
	var ports []uint16
	for i := range uint16(batches) {
		ports = append(ports, 2000+i)
	}
	g := first.gated(ports...)
	first.heldFlows.releaser.sink = noSink{} // the harnesses' sinks are not for several goroutines
	for range workers - 1 {
		h := newHarness(t)
		h.table, h.kernel, h.connections, h.heldFlows = first.table, first.kernel, first.kernel.Table(), first.heldFlows
		all = append(all, h)
	}
	for i, h := range all {
		h.sink = nil
		for k := range batches {
			source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 2000+uint16(k))
			held, other := syn(t, uint32(3*k+1), 0, source.String(), "10.96.0.10:53"), syn(t, uint32(3*k+2), 0, fmt.Sprintf("10.244.1.%d:%d", i, 5000+k), "10.96.0.10:53")
			again := held
			again.ID = uint32(3*k + 3)
			h.queue.batches = append(h.queue.batches, []nfqueue.Packet{held, other, again})
		}
	}
	var running, leaving sync.WaitGroup
	released := make(chan HeldFlow, workers*batches)
	first.heldFlows.gate = channelGate{g, released}
	for range 3 {
		leaving.Go(func() {
			for f := range released {
				f.Release(f.Flow().Decision, flow.Hold{})
			}
		})
	}
	errs := make([]error, workers)
	for i, h := range all {
		running.Go(func() { errs[i] = h.run() })
	}
	running.Wait()
	close(released)
	leaving.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, h := range all {
		seen := make(map[uint32]int)
		for _, id := range h.verdictIDs() {
			seen[id]++
		}
		for id := uint32(1); id <= 3*batches; id++ {
			if seen[id] != 1 {
				t.Errorf("worker %d: packet %d has %d verdicts", i, id, seen[id])
			}
		}
	}
	if first.heldFlows.count.Load() != 0 || len(first.heldFlows.waiting) != 0 {
		t.Errorf("%d flows wait, %d counted", len(first.heldFlows.waiting), first.heldFlows.count.Load())
	}
}

// channelGate passes on what it takes.
type channelGate struct {
	*portGate
	taken chan HeldFlow
}

func (g channelGate) Take(f HeldFlow) bool {
	if !g.portGate.Take(f) {
		return false
	}
	g.taken <- f
	return true
}
