package shadow_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// port is a service port with endpoints 10.244.1.1 and so on.
func port(name string, endpoints int) *decision.ServicePort {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "shop", Name: name}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: true,
	}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: endpoint(i), Weight: 1})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	return s
}

func endpoint(i int) netip.AddrPort {
	return netip.MustParseAddrPort(fmt.Sprintf("10.244.1.%d:8080", i+1))
}

func tableOf(generation uint64, ports ...*decision.ServicePort) *decision.Table {
	return decision.NewTable(generation, time.Time{}, decision.Node{}, ports)
}

// newShadows are those of a list, with a clock that stands still.
func newShadows(t *testing.T, list string, table *decision.Table) *shadow.Shadows {
	t.Helper()
	algorithms, err := shadow.Parse(balance.NewRegistry(), list)
	if err != nil {
		t.Fatal(err)
	}
	s := shadow.New(algorithms, func() int64 { return 1 })
	s.Follow(table)
	return s
}

// open decides a flow by the table at random, and by the shadows.
func open(s *shadow.Shadows, table *decision.Table, n int, r decision.Rand) (selected []netip.AddrPort, real netip.AddrPort, c shadow.Connection) {
	p := decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), uint16(n)), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
	d := decision.Decide(table, &p, r, nil, nil)
	picks, c := s.Decide(&p, &d)
	for _, pick := range picks {
		selected = append(selected, d.ServicePort.Endpoints[d.ServicePort.Usable[d.Policy][pick.Pick.Position]].AddrPort)
	}
	return selected, d.Endpoint(), c
}

// always is a Rand.
type always float64

func (a always) Float64() float64 { return float64(a) }

// loads are flows and open connections of all endpoints, by algorithm.
func loads(s *shadow.Shadows) string {
	var b strings.Builder
	for _, r := range s.Report() {
		fmt.Fprintf(&b, "%s %d", r.Service.Name, r.Flows)
		for i, l := range r.Loads {
			b.WriteString(" |")
			if i > 0 {
				fmt.Fprintf(&b, " =%d", r.Agree[i-1])
			}
			for _, e := range l {
				fmt.Fprintf(&b, " %d/%d", e.Flows, e.Open)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestOwnConnections: a shadow decides by the connections that its endpoints would have, which are open for as long as
// the real ones.
func TestOwnConnections(t *testing.T) {
	table := tableOf(1, port("web", 2))
	s := newShadows(t, "lc,rr", table)
	var conns []shadow.Connection
	for i := range 4 { // all go to the first endpoint
		selected, real, c := open(s, table, i, always(0))
		if want := endpoint(i % 2); real != endpoint(0) || selected[0] != want {
			t.Errorf("flow %d: really %s, lc %s, want %s", i, real, selected[0], want)
		}
		conns = append(conns, c)
	}
	if got, want := loads(s), "web 4 | 4/4 0/0 | =2 2/2 2/2 | =2 2/2 2/2\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, i := range []int{0, 2} { // of lc, both are of the first endpoint
		conns[i].Observe(balance.Event{Kind: balance.Inactive})
		conns[i].Observe(balance.Event{Kind: balance.Ended})
	}
	for i := range 2 {
		if selected, _, _ := open(s, table, 10+i, always(0.9)); selected[0] != endpoint(0) {
			t.Errorf("lc selects %s, which has more open connections", selected[0])
		}
	}
	actual, totals := s.Totals()
	// Really 2 and 2 connections are open, and lc has 2 and 2.
	if actual != 1 || totals[0].Imbalance != 1 || totals[0].Agree != 2 || totals[0].Other != 4 || totals[0].Algorithm != "lc" {
		t.Errorf("actual %v, totals %+v", actual, totals)
	}
}

// TestRealAnswers: what shadows know of an endpoint is what happened to the flows that were really sent to it.
func TestRealAnswers(t *testing.T) {
	table := tableOf(1, port("web", 2))
	s := newShadows(t, "eject(rr)", table)
	for i := range 3 {
		_, _, c := open(s, table, i, always(0))
		c.Observe(balance.Event{Kind: balance.Refused, At: 1})
	}
	for i := range 3 {
		if selected, _, _ := open(s, table, 10+i, always(0)); selected[0] != endpoint(1) {
			t.Errorf("eject selects %s, which refused three flows", selected[0])
		}
	}
}

// TestOtherFlows: flows without a choice are not compared, and count at their real endpoint.
func TestOtherFlows(t *testing.T) {
	one := tableOf(1, port("web", 1))
	s := newShadows(t, "p2c", one)
	open(s, one, 1, always(0))
	sticky := port("web", 2)
	sticky.AffinitySeconds = 10
	table := tableOf(2, sticky)
	s.Follow(table)
	p := decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort("10.244.9.9:1"), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
	d := decision.Decide(table, &p, always(0), bound(endpoint(1)), nil)
	if picks, c := s.Decide(&p, &d); len(picks) != 1 || picks[0].Pick.Position != 1 || len(c) != 2 {
		t.Errorf("picks %+v", picks)
	}
	none := p
	none.Destination = netip.MustParseAddrPort("10.96.0.21:80")
	d = decision.Decide(table, &none, always(0), nil, nil)
	if picks, c := s.Decide(&none, &d); picks != nil || c != nil {
		t.Errorf("a flow to no service: %+v", picks)
	}
	if s.Adopt(sticky, endpoint(7)) != nil {
		t.Error("a connection to an endpoint that there is not was adopted")
	}
	s.Adopt(sticky, endpoint(0)).Observe(balance.Event{Kind: balance.Answered})
	if got, want := loads(s), "web 0 | 1/2 1/1 | =0 1/2 1/1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// bound is an affinity of all clients.
type bound netip.AddrPort

func (b bound) Bound(_ *decision.ServicePort, endpoint netip.AddrPort, _ netip.Addr) bool {
	return endpoint == netip.AddrPort(b)
}

// TestTables: counts outlive a change of endpoints, and end with the service.
func TestTables(t *testing.T) {
	other := port("other", 1)
	other.ClusterIP = netip.MustParseAddr("10.96.0.21")
	first := tableOf(1, port("web", 2), other)
	s := newShadows(t, "maglev", first)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 100 {
		open(s, first, i, r)
	}
	second := tableOf(2, port("web", 3))
	s.Follow(second)
	for i := range 100 {
		open(s, second, i, r)
	}
	report := s.Report()
	if len(report) != 1 || report[0].Flows != 200 || len(report[0].Loads) != 2 || len(report[0].Loads[1]) != 3 {
		t.Fatalf("report %+v", report)
	}
	for _, l := range report[0].Loads {
		sum := 0
		for _, e := range l {
			sum += e.Open
		}
		if sum != 200 {
			t.Errorf("%d open connections, want 200", sum)
		}
	}
	for i := range uint64(3) { // a table later, flows of the one before may still come
		s.Follow(tableOf(3 + i))
	}
	if report := s.Report(); len(report) != 0 {
		t.Errorf("report of a service that has gone: %+v", report)
	}
	if _, totals := s.Totals(); totals[0].Agree+totals[0].Other != 200 || totals[0].Imbalance != 0 {
		t.Errorf("totals %+v", totals)
	}
}

// TestLateFlows: a service that comes back begins anew, though flows of the table that had it came after it had gone.
func TestLateFlows(t *testing.T) {
	first := tableOf(1, port("web", 2))
	s := newShadows(t, "lc", first)
	open(s, first, 0, always(0))
	s.Follow(tableOf(2))
	open(s, first, 1, always(0))
	s.Follow(tableOf(3))
	again := tableOf(4, port("web", 2))
	s.Follow(again)
	open(s, again, 2, always(0))
	if got, want := loads(s), "web 1 | 1/1 0/0 | =1 1/1 0/0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestParse: each mistake has its message.
func TestParse(t *testing.T) {
	r := balance.NewRegistry()
	for text, want := range map[string]string{
		"":                                  "an algorithm is empty",
		"lc,":                               "an algorithm is empty",
		"lc,leastconn":                      `balancing algorithm "leastconn": unknown`,
		"lc,rr,lc":                          "lc is there twice",
		"lc,rr,wrr,wlc,sed,nq,sh,dh,maglev": "9 algorithms: at most 8",
	} {
		if _, err := shadow.Parse(r, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if list, err := shadow.Parse(r, "eject(maglev(4093)), jsq(3)"); err != nil || len(list) != 2 || list[0].Name != "eject(maglev(4093))" {
		t.Errorf("%v, %v", list, err)
	}
}

// BenchmarkDecide is the cost that shadows add to a flow.
func BenchmarkDecide(b *testing.B) {
	for _, list := range []string{"random", "p2c", "p2c,maglev,lc"} {
		for _, n := range []int{2, 100} {
			b.Run(fmt.Sprintf("%s/%d", list, n), func(b *testing.B) {
				algorithms, err := shadow.Parse(balance.NewRegistry(), list)
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now()
				s, table := shadow.New(algorithms, func() int64 { return int64(time.Since(began)) }), tableOf(1, port("web", n))
				s.Follow(table)
				p := decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort("10.244.9.9:1"), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
				d := decision.Decide(table, &p, always(0.3), nil, nil)
				b.ReportAllocs()
				for b.Loop() {
					_, c := s.Decide(&p, &d)
					c.Observe(balance.Event{Kind: balance.Inactive})
					c.Observe(balance.Event{Kind: balance.Ended})
				}
			})
		}
	}
}
