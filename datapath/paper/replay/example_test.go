package replay_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay/capturetest"
)

// Each new flow of a capture is decided by a service table.
func Example() {
	web := &decision.ServicePort{
		Name:         decision.ServicePortName{Namespace: "shop", Name: "web"},
		Protocol:     decision.TCP,
		Family:       decision.IPv4,
		ClusterIP:    netip.MustParseAddr("10.96.0.20"),
		Port:         80,
		Endpoints:    []decision.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.2:8080")}},
		HasEndpoints: true,
	}
	web.Usable[decision.Cluster] = []uint32{0} // positions in Endpoints
	table := decision.NewTable(1, time.Now(), decision.Node{Name: "node-a"}, []*decision.ServicePort{web})

	// In place of a file that tcpdump wrote.
	file, err := capturetest.Write(capturetest.Format{NG: true}, `0.0 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
0.1 TCP 10.96.0.20:80 > 10.244.1.9:40000 SYN ACK
0.2 TCP 10.244.1.9:40000 > 10.96.0.20:80 ACK
0.3 UDP 10.244.1.9:50000 > 192.0.2.53:53
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	capture, err := replay.NewCapture(bytes.NewReader(file))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := replay.New(replay.ByTable(table, rand.New(rand.NewPCG(1, 1)), false))
	err = r.Run(capture, nil, func(r *flow.Record) error {
		fmt.Printf("%s %s to %s: %s, endpoint %q\n", r.Protocol, r.Source, r.Destination, r.Verdict, r.Endpoint)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Summary().Packets, "packets,", r.Summary().Flows, "flows")
	// Output:
	// TCP 10.244.1.9:40000 to 10.96.0.20:80: dnat, endpoint "10.244.1.2:8080"
	// UDP 10.244.1.9:50000 to 192.0.2.53:53: accept, endpoint ""
	// 4 packets, 2 flows
}
