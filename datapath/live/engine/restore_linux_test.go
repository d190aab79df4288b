package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestRestoreAffinity: our connections of both families bind their clients, even if the table is resized meanwhile;
// others do not.
func TestRestoreAffinity(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New("host") // without a copy of the service table
	must(t, err)
	defer ns.Close()
	services := []*decision.ServicePort{
		servicePort("default/web", "10.96.0.10:80", 0, "10.244.0.2:8080"), servicePort("default/web", "[fd96::a]:80", 0, "[fd44::2]:8080"),
	}
	for _, s := range services {
		s.AffinitySeconds = 10800
	}
	table := decision.NewTable(1, time.Time{}, decision.Node{Name: "node"}, services)
	for _, c := range []struct {
		mark  uint32
		bound bool
	}{{conntrack.DefaultMark, true}, {conntrack.DefaultMark | conntrack.CopyMark, true}, {conntrack.CopyMark, false}} {
		kernel := conntracktest.NewFake()
		for i, client := range []string{"10.244.1.9:1000", "[fd44:1::9]:1000"} {
			var r [1]conntrack.Result
			kernel.Table().Establish([]conntrack.Entry{{
				Tuple: conntrack.Tuple{Source: netip.MustParseAddrPort(client), Destination: netip.AddrPortFrom(services[i].ClusterIP, 80), Protocol: 6},
				Mark:  c.mark, Destination: services[i].Endpoints[0].AddrPort,
			}}, r[:])
			must(t, r[0].Err)
		}
		e := &Engine{flows: kernel.Table(), bound: affinity.New()}
		must(t, ns.Do(func() error { return e.restoreAffinity(table) }))
		for i, client := range []string{"10.244.1.9", "fd44:1::9"} {
			if got := e.bound.Bound(services[i], services[i].Endpoints[0].AddrPort, netip.MustParseAddr(client)); got != c.bound {
				t.Errorf("mark %#x: %s is bound: %v, want %v", c.mark, client, got, c.bound)
			}
		}
		kernel.Interrupt = 2
		must(t, ns.Do(func() error { return e.restoreAffinity(table) }))
	}
}
