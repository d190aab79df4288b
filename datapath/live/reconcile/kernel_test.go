package reconcile

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// openConnections opens the connection table of a new namespace.
func openConnections(t testing.TB) *conntrack.Table {
	t.Helper()
	netnstest.Require(t)
	ns, err := netns.New("host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	var table *conntrack.Table
	if err := ns.Do(func() (err error) { table, err = conntrack.Open(new(conntrack.Locks)); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return table
}

// TestNoFlowContradictsTheTableInTheKernel is the same with the kernel's own table.
func TestNoFlowContradictsTheTableInTheKernel(t *testing.T) {
	for seed := range uint64(20) {
		runProperty(t, openConnections(t), seed, 200)
	}
}

// BenchmarkPass: 100,000 UDP flows to 1,000 services, and 10,000 services of TCP.
func BenchmarkPass(b *testing.B) {
	table := openConnections(b)
	var services []string
	for i := range 11_000 {
		proto := "tcp"
		if i%11 == 0 {
			proto = "udp"
		}
		services = append(services, fmt.Sprintf("%s 10.96.%d.%d:53 10.244.0.2:53 10.244.0.3:53", proto, i>>8, i&255))
	}
	entries := make([]conntrack.Entry, 100_000)
	for i := range entries {
		to := i % 1000 * 11
		entries[i] = conntrack.Entry{
			Tuple: conntrack.Tuple{
				Source:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(1 + i>>15), 9}), uint16(1024+i%(1<<15))),
				Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(to >> 8), byte(to)}), 53), Protocol: 17,
			},
			Mark: conntrack.DefaultMark, Destination: netip.MustParseAddrPort("10.244.0.2:53"),
		}
	}
	table.Establish(entries, make([]conntrack.Result, len(entries)))
	r := New(Config{Connections: table, Seen: noSets{}})
	now := tableOf(node(), services...)
	b.ReportAllocs()
	for b.Loop() {
		if result, err := r.Run(now); err != nil || result.Examined != len(entries) || result.Total() != 0 {
			b.Fatal(result, err)
		}
	}
}
