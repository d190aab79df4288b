package balance_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// fewestFlows selects the endpoint that has had the fewest flows.
type fewestFlows struct{ set *balance.Set }

func (p fewestFlows) Pick(balance.Flow) decision.Pick {
	best, least := 0, ^uint64(0)
	for i := range p.set.Candidates {
		if flows, _, _, _ := p.set.Candidates[i].Counts(); flows < least {
			best, least = i, flows
		}
	}
	return decision.Pick{Position: uint32(best), Probability: 1, Evidence: decision.Evidence{Kind: decision.Noted, Note: "fewest flows so far"}}
}

// An algorithm of one's own, by the name "fewest".
func ExampleRegistry_Add() {
	algorithms := balance.NewRegistry()
	algorithms.Add(balance.Entry{Name: "fewest", Summary: "fewest flows so far", Make: func(string) (balance.Algorithm, error) {
		return balance.Algorithm{Name: "fewest", New: func(set *balance.Set, _ balance.Picker) balance.Picker { return fewestFlows{set} }}, nil
	}})
	web := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "shop", Name: "web"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: true, Balance: "fewest",
		Endpoints: []decision.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.2:80")}, {AddrPort: netip.MustParseAddrPort("10.244.2.2:80")}},
		Usable:    [2][]uint32{decision.Cluster: {0, 1}},
	}
	table := decision.NewTable(1, time.Time{}, decision.Node{}, []*decision.ServicePort{web})
	balancer := balance.New(algorithms, func() int64 { return 0 })
	for port := range 3 {
		d := decision.Decide(table, &decision.Packet{
			Protocol:    decision.TCP,
			Source:      netip.AddrPortFrom(netip.MustParseAddr("10.244.1.9"), uint16(40000+port)),
			Destination: netip.MustParseAddrPort("10.96.0.20:80"),
		}, rand.New(rand.NewPCG(1, 2)), nil, balancer)
		fmt.Println(d.Endpoint(), balance.Text(&d))
	}
	// Output:
	// 10.244.1.2:80 fewest flows so far
	// 10.244.2.2:80 fewest flows so far
	// 10.244.1.2:80 fewest flows so far
}
