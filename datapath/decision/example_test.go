package decision_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// draw is a random source that draws one number.
type draw float64

func (d draw) Float64() float64 { return float64(d) }

// A service with two endpoints: the draw chooses one. A flow from outside the cluster is
// masqueraded.
func ExampleDecide() {
	web := &decision.ServicePort{
		Name:      decision.ServicePortName{Namespace: "shop", Name: "web"},
		Protocol:  decision.TCP,
		Family:    decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"),
		Port:      80,
		Endpoints: []decision.Endpoint{
			{AddrPort: netip.MustParseAddrPort("10.244.1.2:8080")},
			{AddrPort: netip.MustParseAddrPort("10.244.2.2:8080")},
		},
		HasEndpoints: true,
	}
	web.Usable[decision.Cluster] = []uint32{0, 1} // positions in Endpoints
	node := decision.Node{
		Name:     "node-a",
		Detector: decision.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}
	table := decision.NewTable(1, time.Now(), node, []*decision.ServicePort{web})

	for _, first := range []struct {
		source string
		random decision.Rand
	}{
		{"10.244.1.9:40000", draw(0.3)},
		{"10.244.1.9:40001", draw(0.8)},
		{"192.0.2.7:40000", draw(0.8)},
	} {
		d := decision.Decide(table, &decision.Packet{
			Protocol:    decision.TCP,
			Source:      netip.MustParseAddrPort(first.source),
			Destination: netip.MustParseAddrPort("10.96.0.20:80"),
		}, first.random, nil, nil)
		fmt.Println(first.source, d.Verdict, d.ServicePort.Name, d.Endpoint(), "masquerade:", d.Masquerade)
	}
	// Output:
	// 10.244.1.9:40000 dnat shop/web 10.244.1.2:8080 masquerade: false
	// 10.244.1.9:40001 dnat shop/web 10.244.2.2:8080 masquerade: false
	// 192.0.2.7:40000 dnat shop/web 10.244.2.2:8080 masquerade: true
}
