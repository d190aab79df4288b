package affinity

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func service(name string, seconds uint32, endpoints ...string) *decision.ServicePort {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: name}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.1"), Port: 80, AffinitySeconds: seconds, HasEndpoints: len(endpoints) > 0,
	}
	for i, e := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(e)})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	return s
}

var (
	a, b    = netip.MustParseAddrPort("10.244.0.1:80"), netip.MustParseAddrPort("10.244.0.2:80")
	client  = netip.MustParseAddr("10.244.1.9")
	client2 = netip.MustParseAddr("10.244.1.10")
)

// clock is a clock that stands.
type clock time.Time

func (c *clock) now() time.Time          { return time.Time(*c) }
func (c *clock) advance(d time.Duration) { *c = clock(c.now().Add(d)) }

func TestBinding(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	table := newTable(c.now, 100)
	s := service("web", 60, a.String(), b.String())
	want := func(why string, ep netip.AddrPort, who netip.Addr, want bool) {
		t.Helper()
		if got := table.Bound(s, ep, who); got != want {
			t.Errorf("%s: bound %v, want %v", why, got, want)
		}
	}
	want("nobody yet", a, client, false)
	table.Bind(s, a, client)
	want("after a flow", a, client, true)
	want("the other endpoint", b, client, false)
	want("another client", a, client2, false)
	c.advance(60 * time.Second)
	want("at the timeout", a, client, true)
	table.Bind(s, a, client)
	c.advance(60 * time.Second)
	want("refreshed by a flow", a, client, true)
	c.advance(time.Nanosecond)
	want("past the timeout", a, client, false)

	other := service("web2", 60, a.String())
	table.Bind(s, a, client)
	if table.Bound(other, a, client) {
		t.Error("another service's binding counts")
	}
	udp := *s
	udp.Protocol = decision.UDP
	if table.Bound(&udp, a, client) {
		t.Error("another protocol's binding counts")
	}
	table.BindAt(s, a, client, c.now().Add(-time.Hour))
	want("an older flow learnt of later", a, client, true)
}

func TestRetain(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	table := newTable(c.now, 100)
	s := service("web", 60, a.String(), b.String())
	table.Bind(s, a, client)
	table.Bind(s, b, client)
	table.Bind(s, a, client2)
	without := service("web", 60, b.String())
	before := decision.NewTable(1, time.Time{}, decision.Node{}, []*decision.ServicePort{s})
	table.Retain(before, nil)
	services := before.Next(time.Time{}, decision.Node{}, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{without}})
	table.Retain(services, before)
	if table.Bound(s, a, client) || !table.Bound(s, b, client) || table.Len() != 1 {
		t.Errorf("bindings to an endpoint that went away should go, others not (%d clients left)", table.Len())
	}
	c.advance(61 * time.Second)
	table.Retain(services, services)
	if table.Len() != 1 {
		t.Error("nothing changed, and all the same a binding was dropped")
	}
	table.Retain(services, nil)
	if table.Len() != 0 {
		t.Error("an expired binding was kept")
	}
}

func TestBounded(t *testing.T) {
	c := clock(time.Unix(1000, 0))
	const limit = 64
	table := newTable(c.now, limit)
	s := service("web", 60, a.String())
	addr := netip.MustParseAddr("10.0.0.0")
	for range 10 * limit {
		addr = addr.Next()
		table.Bind(s, a, addr)
		if n := table.Len(); n > limit {
			t.Fatalf("%d clients, want at most %d", n, limit)
		}
		if !table.Bound(s, a, addr) {
			t.Fatalf("%s was not bound", addr)
		}
	}
}

func TestBoundDoesNotAllocate(t *testing.T) {
	table := New()
	s := service("web", 60, a.String())
	table.Bind(s, a, client)
	if n := testing.AllocsPerRun(100, func() { table.Bound(s, a, client); table.Bind(s, a, client) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
