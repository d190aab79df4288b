package conntrack_test

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
)

// An entry translates a flow to a service: its packets go to an endpoint, from an address of
// the node. The packet that comes again finds the entry.
func ExampleTable_Establish() {
	// With CAP_NET_ADMIN: conntrack.Open(new(conntrack.Locks)).
	table := conntracktest.NewFake().Table()
	defer table.Close()

	entries := []conntrack.Entry{{
		Tuple: conntrack.Tuple{
			Protocol:    6, // TCP
			Source:      netip.MustParseAddrPort("192.0.2.7:40000"),
			Destination: netip.MustParseAddrPort("10.96.0.20:80"),
		},
		Mark:        conntrack.DefaultMark,
		Destination: netip.MustParseAddrPort("10.244.1.2:8080"),
		SourceAddr:  netip.MustParseAddr("172.20.0.2"),
	}}
	results := make([]conntrack.Result, len(entries))
	for range 2 {
		table.Establish(entries, results)
		fmt.Println(results[0].Outcome)
	}

	state, err := table.Lookup(entries[0].Tuple, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("original", state.Original)
	fmt.Println("reply   ", state.Reply)
	// Output:
	// created
	// kept
	// original 6 192.0.2.7:40000->10.96.0.20:80
	// reply    6 10.244.1.2:8080->172.20.0.2:40000
}

// A Watcher receives the changes of entries.
func ExampleWatcher_Receive() {
	// With CAP_NET_ADMIN: conntrack.Open and conntrack.Watch.
	kernel := conntracktest.NewFake()
	table, watcher := kernel.Table(), kernel.Watch(100)
	defer watcher.Close()

	tuple := conntrack.Tuple{
		Protocol:    6, // TCP
		Source:      netip.MustParseAddrPort("10.244.1.9:40000"),
		Destination: netip.MustParseAddrPort("10.96.0.20:80"),
	}
	table.Establish([]conntrack.Entry{{Tuple: tuple, Destination: netip.MustParseAddrPort("10.244.1.2:8080")}}, make([]conntrack.Result, 1))
	// What packets would do.
	kernel.Change(tuple, func(s *conntrack.State) { s.TCP = conntrack.TCPSynSent })
	kernel.Change(tuple, func(s *conntrack.State) { s.TCP = conntrack.TCPEstablished })
	kernel.End(tuple)

	events := make([]conntrack.Event, 16)
	n, err := watcher.Receive(events)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range events[:n] {
		fmt.Println(e.Kind, e.State.TCP, "to", e.State.Endpoint())
	}
	// Output:
	// UPDATE SYN_SENT to 10.244.1.2:8080
	// UPDATE ESTABLISHED to 10.244.1.2:8080
	// DESTROY ESTABLISHED to 10.244.1.2:8080
}
