package affinity

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func servicePort(name string, endpoints ...string) *decision.ServicePort {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: name}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.1"), Port: 80, AffinitySeconds: 60, HasEndpoints: len(endpoints) > 0,
	}
	for i, e := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(e)})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	return s
}

var (
	a, b     = netip.MustParseAddrPort("10.244.0.1:80"), netip.MustParseAddrPort("10.244.0.2:80")
	someone  = netip.MustParseAddr("10.244.1.9")
	someone2 = netip.MustParseAddr("10.244.1.10")
)

// clock is a clock that stands.
type clock time.Time

func (c *clock) now() time.Time          { return time.Time(*c) }
func (c *clock) advance(d time.Duration) { *c = clock(c.now().Add(d)) }

func TestBinding(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	table := newTable(c.now, 100, 100)
	s := servicePort("web", a.String(), b.String())
	want := func(why string, ep netip.AddrPort, who netip.Addr, want bool) {
		t.Helper()
		if got := table.Bound(s, ep, who); got != want {
			t.Errorf("%s: bound %v, want %v", why, got, want)
		}
	}
	want("no client yet", a, someone, false)
	table.Bind(s, a, someone)
	want("after a flow", a, someone, true)
	want("the other endpoint", b, someone, false)
	want("another client", a, someone2, false)
	c.advance(60 * time.Second)
	want("at the timeout", a, someone, true)
	table.Bind(s, a, someone)
	c.advance(60 * time.Second)
	want("refreshed by a flow", a, someone, true)
	c.advance(time.Nanosecond)
	want("past the timeout", a, someone, false)

	other := servicePort("web2", a.String())
	table.Bind(s, a, someone)
	if table.Bound(other, a, someone) {
		t.Error("another service's binding counts")
	}
	udp := *s
	udp.Protocol = decision.UDP
	if table.Bound(&udp, a, someone) {
		t.Error("another protocol's binding counts")
	}
	table.BindAt(s, a, someone, c.now().Add(-time.Hour))
	want("an older flow learnt of later", a, someone, true)
}

func TestRetain(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	table := newTable(c.now, 100, 100)
	s := servicePort("web", a.String(), b.String())
	table.Bind(s, a, someone)
	table.Bind(s, b, someone)
	table.Bind(s, a, someone2)
	without := servicePort("web", b.String())
	before := decision.NewTable(1, time.Time{}, decision.Node{}, []*decision.ServicePort{s})
	table.Retain(before, nil)
	services := before.Next(time.Time{}, decision.Node{}, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{without}})
	table.Retain(services, before)
	if table.Bound(s, a, someone) || !table.Bound(s, b, someone) || table.count != 1 {
		t.Errorf("bindings to an endpoint that went away should go, others not (%d clients left)", table.count)
	}
	c.advance(61 * time.Second)
	table.Retain(services, services)
	if table.count != 1 {
		t.Error("nothing changed, and all the same a binding was dropped")
	}
	table.Retain(services, nil)
	if table.count != 0 {
		t.Error("an expired binding was kept")
	}
}

// TestBounded: one service port has at most its share of the clients, and goes on binding new
// ones; the client that goes is the one whose last flow is the longest ago.
func TestBounded(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	const all, each = 64, 16
	table := newTable(c.now, all, each)
	s, other := servicePort("web", a.String()), servicePort("quiet", a.String())
	table.Bind(other, a, someone)
	table.Bind(s, a, someone)
	addr := netip.MustParseAddr("10.0.0.0")
	for range 10 * all {
		addr = addr.Next()
		table.Bind(s, a, addr)
		if n := table.count; n > each+1 {
			t.Fatalf("%d clients, want at most %d", n, each+1)
		}
		if !table.Bound(s, a, addr) {
			t.Fatalf("%s was not bound", addr)
		}
		table.Bind(s, a, someone) // comes again and again
	}
	if !table.Bound(s, a, someone) || !table.Bound(other, a, someone) {
		t.Error("a client that comes often, or one of another service, was forgotten")
	}
	if got := table.Forgotten(); got != 10*all+2-each-1 {
		t.Errorf("%d clients counted as forgotten", got)
	}
}

// TestBoundedInAll: if the whole is full, the service port with the most clients loses one.
func TestBoundedInAll(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	const all, each = 64, 40
	table := newTable(c.now, all, each)
	bind := func(name string, clients int) *decision.ServicePort {
		s := servicePort(name, a.String())
		addr := netip.MustParseAddr("10.0.0.0")
		for range clients {
			addr = addr.Next()
			table.Bind(s, a, addr)
		}
		return s
	}
	bind("large", 1000)
	small := bind("small", 10)
	bind("another", 1000)
	if n := table.count; n > all || n < all/2 {
		t.Errorf("%d clients, want at most %d", n, all)
	}
	addr := netip.MustParseAddr("10.0.0.0")
	for range 10 {
		if addr = addr.Next(); !table.Bound(small, a, addr) {
			t.Errorf("%s of the small service was forgotten", addr)
		}
	}
	table.Retain(decision.NewTable(1, time.Time{}, decision.Node{}, nil), nil)
	if table.count != 0 {
		t.Errorf("%d clients of no service", table.count)
	}
}

func TestBoundDoesNotAllocate(t *testing.T) {
	table := New()
	s := servicePort("web", a.String())
	table.Bind(s, a, someone)
	if n := testing.AllocsPerRun(100, func() { table.Bound(s, a, someone); table.Bind(s, a, someone) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
