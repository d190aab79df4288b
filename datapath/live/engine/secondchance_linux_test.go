package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/tracking"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
)

const (
	chanceClient  = "10.244.1.9:1000"
	chanceService = "10.96.0.20:80"
)

// retryHarness has a service with endpoints, and second chances.
func retryHarness(t *testing.T, endpoints ...string) *harness {
	h := newHarness(t)
	h.table.Store(h.table.Load().Next(time.Time{}, *h.table.Load().Node(), decision.Change{
		Service: decision.ServiceName{Namespace: "default", Name: "several"},
		Ports:   []*decision.ServicePort{servicePort("default/several", chanceService, 0, endpoints...)},
	}))
	h.retries = newRetries()
	return h
}

// now processes packets, and returns their verdicts.
func (h *harness) now(t *testing.T, packets ...nfqueue.Packet) []nfqueue.Verdict {
	t.Helper()
	h.queue.verdicts = nil
	h.queue.batches = [][]nfqueue.Packet{packets}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	return h.queue.verdicts
}

// reply makes a queued packet of an endpoint to a client.
func reply(t testing.TB, id uint32, src, dst string, change func(*layers.TCP)) nfqueue.Packet {
	t.Helper()
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: s.Addr().AsSlice(), DstIP: d.Addr().AsSlice()}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(s.Port()), DstPort: layers.TCPPort(d.Port()), RST: true, ACK: true, Ack: 12346}
	change(tcp)
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, ip, tcp); err != nil {
		t.Fatal(err)
	}
	return nfqueue.Packet{ID: id, Hook: nfqueue.Prerouting, Payload: b.Bytes()}
}

func refusal(t testing.TB, src string) nfqueue.Packet {
	return reply(t, 9, src, chanceClient, func(*layers.TCP) {})
}

// endpoint is where the client's connection goes; empty: it has none.
func (h *harness) endpoint() string {
	s, ok := h.kernel.Get(chanceTuple())
	if !ok {
		return ""
	}
	return s.Endpoint().String()
}

func chanceTuple() conntrack.Tuple {
	return conntrack.Tuple{Source: netip.MustParseAddrPort(chanceClient), Destination: netip.MustParseAddrPort(chanceService), Protocol: 6}
}

// sent has the kernel see the client's SYN.
func (h *harness) sent(change ...func(*conntrack.State)) {
	h.kernel.Change(chanceTuple(), func(s *conntrack.State) {
		s.TCP = conntrack.TCPSynSent
		for _, c := range change {
			c(s)
		}
	})
}

// TestSecondChance: each refusal but the last is dropped, and each SYN after it goes to another
// endpoint.
func TestSecondChance(t *testing.T) {
	endpoints := []string{"10.244.1.2:80", "10.244.2.2:80", "10.244.2.3:80", "10.244.2.4:80"}
	h := retryHarness(t, endpoints...)
	var went []string
	for attempt := range maxAttempts {
		h.now(t, syn(t, 1, 0, chanceClient, chanceService))
		h.sent()
		went = append(went, h.endpoint())
		last := attempt == maxAttempts-1
		if v := h.now(t, refusal(t, h.endpoint())); v[0].Drop == last {
			t.Fatalf("attempt %d: the refusal is dropped: %v", attempt, v[0].Drop)
		}
		if exists := h.endpoint() != ""; exists != last {
			t.Fatalf("attempt %d: the entry exists: %v", attempt, exists)
		}
	}
	slices.Sort(went)
	if len(slices.Compact(went)) != maxAttempts {
		t.Errorf("endpoints %s", went)
	}
	last := h.records[len(h.records)-1]
	if len(last.Earlier) != 2 || last.Earlier[0].Outcome.String() != "refused" || last.Earlier[0].Endpoint == last.Endpoint || last.Earlier[0].Time.IsZero() {
		t.Errorf("record %+v", last.Earlier)
	}
	if given := h.retries.given.Load(); given != maxAttempts-1 {
		t.Errorf("%d second chances", given)
	}
}

// TestNoSecondChance: where there is no other endpoint, or an answer was seen, refusals pass.
func TestNoSecondChance(t *testing.T) {
	two := []string{"10.244.1.2:80", "10.244.2.2:80"}
	for _, tt := range []struct {
		name      string
		endpoints []string
		change    func(*conntrack.State)
		packet    func(*layers.TCP)
	}{
		{"one endpoint", two[:1], nil, nil},
		{"an answer was seen", two, func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply }, nil},
		{"established", two, func(s *conntrack.State) { s.TCP = conntrack.TCPEstablished }, nil},
		{"not our entry", two, func(s *conntrack.State) { s.Mark = 0 }, nil},
		{"a sequence number", two, nil, func(p *layers.TCP) { p.Seq = 1 }},
		{"no RST", two, nil, func(p *layers.TCP) { p.RST = false }},
		{"no ACK", two, nil, func(p *layers.TCP) { p.ACK = false }},
		{"with SYN", two, nil, func(p *layers.TCP) { p.SYN = true }},
		{"another client", two, nil, func(p *layers.TCP) { p.DstPort++ }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := retryHarness(t, tt.endpoints...)
			h.now(t, syn(t, 1, 0, chanceClient, chanceService))
			h.sent()
			if tt.change != nil {
				h.sent(tt.change)
			}
			before := h.endpoint()
			change := func(*layers.TCP) {}
			if tt.packet != nil {
				change = tt.packet
			}
			if v := h.now(t, reply(t, 9, before, chanceClient, change)); len(v) != 1 || v[0].Drop || h.endpoint() != before {
				t.Errorf("verdicts %+v, endpoint %q after %q", v, h.endpoint(), before)
			}
		})
	}
}

// TestUnansweredChance: a SYN that is sent again goes to another endpoint, as long as there is no answer.
func TestUnansweredChance(t *testing.T) {
	h := retryHarness(t, "10.244.1.2:80", "10.244.2.2:80")
	h.now(t, syn(t, 1, 0, chanceClient, chanceService))
	h.sent()
	first := h.endpoint()
	h.now(t, syn(t, 2, 0, chanceClient, chanceService))
	second := h.endpoint()
	if r := h.records[1]; second == first || r.Conntrack != "replaced" || len(r.Earlier) != 1 || r.Earlier[0].Outcome.String() != "unanswered" || r.Earlier[0].Endpoint != first {
		t.Fatalf("first %s, second %s, record %+v", first, second, r)
	}
	h.sent()
	h.now(t, syn(t, 3, 0, chanceClient, chanceService))
	if third := h.endpoint(); third != second {
		t.Errorf("both have failed: the flow stays at the second, got %s after %s", third, second)
	}
	h = retryHarness(t, "10.244.1.2:80", "10.244.2.2:80")
	h.now(t, syn(t, 1, 0, chanceClient, chanceService))
	h.sent(func(s *conntrack.State) { s.TCP, s.Status = conntrack.TCPSynRecv, s.Status|conntrack.StatusSeenReply })
	first = h.endpoint()
	h.now(t, syn(t, 2, 0, chanceClient, chanceService))
	if h.endpoint() != first {
		t.Errorf("after an answer the flow moved")
	}
}

// TestUnansweredChanceOfHeldFlow: a SYN that is sent again and held goes to another endpoint, too, when it is released.
func TestUnansweredChanceOfHeldFlow(t *testing.T) {
	h := retryHarness(t, "10.244.1.2:80", "10.244.2.2:80")
	h.now(t, syn(t, 1, 0, chanceClient, chanceService))
	h.sent()
	first := h.endpoint()
	g := h.gated(netip.MustParseAddrPort(chanceClient).Port())
	h.now(t, syn(t, 2, 0, chanceClient, chanceService))
	held := g.held[netip.MustParseAddrPort(chanceClient).Port()]
	d := held.Flow().Decision
	at := slices.IndexFunc(d.ServicePort.Endpoints, func(e decision.Endpoint) bool { return e.AddrPort.String() == first })
	d, _ = decision.Choose(h.table.Load(), &held.Flow().Packet, &d, uint32(at))
	gone := held.Release(d, flow.Hold{Action: flow.HoldReleased})
	if gone == nil || gone.Err != nil || gone.Outcome != conntrack.Replaced || h.endpoint() == first {
		t.Errorf("released to %s after %s: %+v", h.endpoint(), first, gone)
	}
}

// TestChancesAreBounded: of many flows that fail at once, and of old ones.
func TestChancesAreBounded(t *testing.T) {
	c, now := newRetries(), time.Now()
	tuple := func(i int) conntrack.Tuple {
		return conntrack.Tuple{Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1), Destination: netip.MustParseAddrPort(chanceService), Protocol: 6}
	}
	endpoint := netip.MustParseAddrPort("10.244.1.2:80")
	for i := range maxRetriedFlows {
		if !c.add(tuple(i), endpoint, 1, now) {
			t.Fatalf("flow %d has no chance", i)
		}
	}
	if c.add(tuple(maxRetriedFlows), endpoint, 1, now) {
		t.Error("one too many has a chance")
	}
	later := now.Add(retryLifetime + time.Second)
	if got := c.of(tuple(0), later); got != nil {
		t.Errorf("an old one: %v", got)
	}
	if !c.add(tuple(maxRetriedFlows), endpoint, 1, later) || !c.add(tuple(maxRetriedFlows+1), endpoint, 1, later) || len(c.flows) != 2 {
		t.Errorf("%d flows remain", len(c.flows))
	}
}

// TestSecondChanceIsCounted: for algorithms the connection counts at its new endpoint only.
func TestSecondChanceIsCounted(t *testing.T) {
	for _, refuses := range []bool{true, false} {
		h := retryHarness(t)
		s := servicePort("default/several", chanceService, 0, "10.244.1.2:80", "10.244.2.2:80")
		s.Balance = "lc"
		for i := range s.Endpoints {
			s.Endpoints[i].Weight = 1
		}
		h.table.Store(h.table.Load().Next(time.Time{}, *h.table.Load().Node(), decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}}))
		clock := tracking.NewClock()
		b := tracking.New(balance.New(balance.NewRegistry(), clock.Now), nil, clock)
		b.Follow(h.table.Load())
		h.balancer = b
		h.now(t, syn(t, 1, 0, chanceClient, chanceService))
		h.sent()
		if refuses {
			h.now(t, refusal(t, h.endpoint()))
		}
		h.now(t, syn(t, 2, 0, chanceClient, chanceService))
		b.Failed(&decision.Packet{}, false) // takes the flows over
		var got []string
		for _, e := range b.States()[0].Endpoints {
			flows, _, refused, unanswered := e.Counts()
			got = append(got, fmt.Sprint(e.Open(), flows, refused, unanswered))
		}
		want := "0 1 1 0, 1 1 0 0"
		if !refuses {
			want = "0 1 0 1, 1 1 0 0"
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("refuses: %v: open, flows, refused, unanswered: %s; want %s", refuses, all, want)
		}
	}
}
