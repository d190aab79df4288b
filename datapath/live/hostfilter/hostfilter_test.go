package hostfilter

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestFollow: which ports are open in which family.
func TestFollow(t *testing.T) {
	port := func(name, port string, f decision.Family, check uint16) *decision.ServicePort {
		ip := netip.MustParseAddr("10.96.0.1")
		if f == decision.IPv6 {
			ip = netip.MustParseAddr("fd00::1")
		}
		return &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: name, Port: port}, Family: f, ClusterIP: ip,
			Protocol: decision.TCP, Port: 80, HealthCheckNodePort: check,
		}
	}
	node := decision.Node{MasqueradeMark: 0x10}
	table := decision.NewTable(1, time.Time{}, node, []*decision.ServicePort{
		port("b", "http", decision.IPv4, 31002), port("b", "https", decision.IPv4, 31002), port("b", "http", decision.IPv6, 31002),
		port("a", "", decision.IPv4, 31001), port("none", "", decision.IPv6, 0),
	})
	service := func(name string) decision.ServiceName {
		return decision.ServiceName{Namespace: "default", Name: name}
	}
	var f follower
	expect := func(table *decision.Table, changed bool, want Spec) {
		t.Helper()
		if got := f.follow(table); got != changed || !reflect.DeepEqual(f.spec, want) {
			t.Errorf("%t %+v, want %t %+v", got, f.spec, changed, want)
		}
	}
	want := Spec{Mark: 0x10, HealthChecks: map[decision.Family][]HealthCheck{
		decision.IPv4: {{service("a"), 31001}, {service("b"), 31002}},
		decision.IPv6: {{service("b"), 31002}},
	}}
	expect(table, true, want)
	expect(table.Next(time.Time{}, node), false, want)
	next := table.Next(time.Time{}, node, decision.Change{Service: service("b"), Ports: []*decision.ServicePort{port("b", "https", decision.IPv4, 31002), port("b", "http", decision.IPv6, 31003)}})
	want = Spec{Mark: 0x10, HealthChecks: map[decision.Family][]HealthCheck{
		decision.IPv4: {{service("a"), 31001}, {service("b"), 31002}},
		decision.IPv6: {{service("b"), 31003}},
	}}
	expect(next, true, want)
	next = next.Next(time.Time{}, node, decision.Change{Service: service("none")})
	expect(next, false, want)
	next = next.Next(time.Time{}, node, decision.Change{Service: service("b")})
	want = Spec{Mark: 0x10, HealthChecks: map[decision.Family][]HealthCheck{decision.IPv4: {{service("a"), 31001}}}}
	expect(next, true, want)
	want.Mark = decision.DefaultMasqueradeMark
	expect(next.Next(time.Time{}, decision.Node{}), true, want)
}
