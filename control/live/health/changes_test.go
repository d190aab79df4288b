package health

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestChanges(t *testing.T) {
	name := func(n string) decision.ServiceName { return decision.ServiceName{Namespace: "default", Name: n} }
	port := func(n, portName, clusterIP string, check uint16, endpoints ...decision.Endpoint) *decision.ServicePort {
		a := netip.MustParseAddr(clusterIP)
		return &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: n, Port: portName}, Protocol: decision.TCP,
			Family: decision.FamilyOf(a), ClusterIP: a, Port: 80, HealthCheckNodePort: check, Endpoints: endpoints,
		}
	}
	endpoint := func(at string, local, ready bool) decision.Endpoint {
		return decision.Endpoint{AddrPort: netip.MustParseAddrPort(at), Local: local, Ready: ready}
	}
	next := func(from *decision.Table, changes ...decision.Change) *decision.Table {
		return from.Next(time.Time{}, decision.Node{}, changes...)
	}
	first := next(new(decision.Table),
		decision.Change{Service: name("web"), Ports: []*decision.ServicePort{
			port("web", "http", "10.96.0.1", 30000, endpoint("10.0.0.1:80", true, true), endpoint("10.0.0.2:80", true, false), endpoint("10.0.0.3:80", false, true), endpoint("[fd00::1]:80", true, true)),
			// The same pod by another port counts once, another one besides.
			port("web", "admin", "10.96.0.1", 30000, endpoint("10.0.0.1:81", true, true), endpoint("10.0.0.4:81", true, true)),
			port("web", "http", "fd96::1", 30000, endpoint("[fd00::1]:80", false, true)),
		}},
		decision.Change{Service: name("plain"), Ports: []*decision.ServicePort{port("plain", "", "10.96.0.2", 0, endpoint("10.0.0.1:80", true, true))}},
		decision.Change{Service: name("gone"), Ports: []*decision.ServicePort{port("gone", "", "10.96.0.3", 30001)}})
	key := func(n string) types.NamespacedName { return types.NamespacedName(name(n)) }
	want := map[types.NamespacedName]*Service{
		key("web"):  {Port: 30000, LocalEndpoints: map[decision.Family]int{decision.IPv4: 2, decision.IPv6: 0}},
		key("gone"): {Port: 30001, LocalEndpoints: map[decision.Family]int{decision.IPv4: 0}},
	}
	if got := Changes(first, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("at first: %v, want %v", got, want)
	}
	second := next(first, decision.Change{Service: name("gone")}, decision.Change{Service: name("plain")})
	if got := Changes(second, first); !reflect.DeepEqual(got, map[types.NamespacedName]*Service{key("gone"): nil}) {
		t.Errorf("then: %v", got)
	}
}
