package netfilter_test

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

const rules = `*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.1.2:8080
-A PREROUTING -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.2:8080
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -d 10.244.1.0/24 -j ACCEPT
COMMIT
`

// A packet walks through the rules that iptables-save printed. Explore follows all ways that
// the rules leave to chance.
func ExampleMachine_Explore() {
	dump, err := iptables.Parse(strings.NewReader(rules), iptables.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	host := new(netfilter.Host) // a router
	host.AddAddress("eth0", netip.MustParsePrefix("10.244.0.1/16"))
	host.AddAddress("eth1", netip.MustParsePrefix("192.0.2.1/24"))
	machine, err := netfilter.New([]*iptables.Dump{dump}, nil, host, netfilter.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	packet := iptables.Packet{
		Protocol:    6, // TCP
		Flags:       iptables.SYN,
		Source:      netip.MustParseAddrPort("192.0.2.7:40000"),
		Destination: netip.MustParseAddrPort("10.96.0.20:80"),
		InInterface: "eth1",
		TTL:         64,
		Length:      60,
	}
	ways, _ := machine.Explore(packet, nil, 100)
	for _, way := range ways {
		fmt.Println(way.Probability, way.Packet.DestinationText(), way.Verdict)
		for _, rule := range way.Path {
			fmt.Printf("  line %d: %s\n", rule.Line, rule)
		}
	}
	// Output:
	// 0.5 10.244.1.2:8080 sent
	//   line 3: -A PREROUTING -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.1.2:8080
	//   line 8: -A FORWARD -d 10.244.1.0/24 -j ACCEPT
	// 0.5 10.244.2.2:8080 dropped
	//   line 4: -A PREROUTING -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.2:8080
}
