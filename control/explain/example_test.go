package explain_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// What happens to a packet that a pod sends to its own service, and which of kube-proxy's
// rules it meets. The Text of a step explains the rule.
func ExampleSimulator_Decide() {
	web := &decision.ServicePort{
		Name:      decision.ServicePortName{Namespace: "shop", Name: "web"},
		Protocol:  decision.TCP,
		Family:    decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"),
		Port:      80,
		Endpoints: []decision.Endpoint{
			{AddrPort: netip.MustParseAddrPort("10.244.1.2:8080"), Pod: "shop/web-1"},
			{AddrPort: netip.MustParseAddrPort("10.244.2.2:8080"), Pod: "shop/web-2"},
		},
		HasEndpoints: true,
	}
	web.Usable[decision.Cluster] = []uint32{0, 1} // positions in Endpoints
	table := decision.NewTable(1, time.Now(), decision.Node{Name: "node-a"}, []*decision.ServicePort{web})

	names := resolve.NamesOf(table, nil)
	packet, err := names.Packet(flow.Question{Protocol: "tcp", Source: "shop/web-1", Destination: "service/shop/web"})
	if err != nil {
		fmt.Println(err)
		return
	}
	simulator := explain.New(table, rand.New(rand.NewPCG(1, 1)), nil)
	record := simulator.Decide(&packet)
	fmt.Printf("%s to %s, masqueraded: %v (%s)\n", record.Service, record.Endpoint, record.Masquerade, record.MasqueradeReason)
	for _, step := range record.Steps {
		fmt.Println(step.Chain, step.Rule)
	}
	// Output:
	// shop/web to 10.244.1.2:8080, masqueraded: true (hairpin)
	// KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-E3PXEPMWAWIUT6ZV
	// KUBE-SVC-E3PXEPMWAWIUT6ZV -m comment --comment "shop/web -> 10.244.1.2:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-QIUCSNVBF37BQB4U
	// KUBE-SEP-QIUCSNVBF37BQB4U -s 10.244.1.2/32 -m comment --comment "shop/web" -j KUBE-MARK-MASQ
	// KUBE-SEP-QIUCSNVBF37BQB4U -p tcp -m comment --comment "shop/web" -m tcp -j DNAT --to-destination 10.244.1.2:8080
	// KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
}
