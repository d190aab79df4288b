package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestRestoreAffinity: our connections of both families in the kernel's table bind their clients; others do not.
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
		e := &Engine{bound: affinity.New()}
		clients := []netip.AddrPort{netip.MustParseAddrPort("10.244.1.9:1000"), netip.MustParseAddrPort("[fd44:1::9]:1000")}
		must(t, ns.Do(func() error {
			kernel, err := conntrack.Open(new(conntrack.Locks))
			if err != nil {
				return err
			}
			defer kernel.Close()
			for i, client := range clients {
				to, endpoint := netip.AddrPortFrom(services[i].ClusterIP, 80), services[i].Endpoints[0].AddrPort
				entry := conntrack.Entry{Tuple: conntrack.Tuple{Source: client, Destination: to, Protocol: 6}, Mark: c.mark, Destination: endpoint}
				var r [1]conntrack.Result
				if kernel.Establish([]conntrack.Entry{entry}, r[:]); r[0].Err != nil {
					return r[0].Err
				}
				created, err := kernel.Lookup(entry.Tuple, 0)
				if err != nil {
					return err
				}
				defer kernel.Delete([]conntrack.State{created}, make([]error, 1))
			}
			return e.restoreAffinity(table)
		}))
		for i, client := range clients {
			if got := e.bound.Bound(services[i], services[i].Endpoints[0].AddrPort, client.Addr()); got != c.bound {
				t.Errorf("mark %#x: %s is bound: %v, want %v", c.mark, client, got, c.bound)
			}
		}
	}
}
