package conntrack_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// open opens the connection tracking table of a new namespace.
func open(t *testing.T) *conntrack.Table {
	t.Helper()
	table, _ := openWith(t)
	return table
}

// openWith gives another program's way to the table, too.
func openWith(t *testing.T) (table *conntrack.Table, other *ct.Conn) {
	t.Helper()
	netnstest.Require(t)
	ns, err := netns.New("host")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() (err error) {
		if err = conntrack.Probe(); err == nil {
			table, err = conntrack.Open(new(conntrack.Locks))
		}
		if err == nil {
			other, err = ct.Dial(nil)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close(); _ = other.Close(); _ = ns.Close() })
	return table, other
}

func entry(proto uint8, src, dst, endpoint, masquerade string) conntrack.Entry {
	e := conntrack.Entry{
		Tuple:       conntrack.Tuple{Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst), Protocol: proto},
		Mark:        conntrack.DefaultMark,
		Destination: netip.MustParseAddrPort(endpoint),
	}
	if masquerade != "" {
		e.SourceAddr = netip.MustParseAddr(masquerade)
	}
	return e
}

// TestKernelTakesEntries creates an entry of every kind and reads back what the
// kernel made of it.
func TestKernelTakesEntries(t *testing.T) {
	table := open(t)
	for _, proto := range []uint8{6, 17, 132} {
		for _, tt := range []struct {
			name  string
			entry conntrack.Entry
			reply string
		}{
			{"ipv4", entry(proto, "10.244.1.9:1000", "10.96.0.10:53", "10.244.0.2:5353", ""), "10.244.0.2:5353->10.244.1.9:1000"},
			{"ipv4 masqueraded", entry(proto, "172.20.0.9:1000", "172.20.0.2:30053", "10.244.0.2:5353", "172.20.0.2"), "10.244.0.2:5353->172.20.0.2:1000"},
			{"ipv6", entry(proto, "[fd44::9]:1000", "[fd96::a]:53", "[fd44::2]:5353", ""), "[fd44::2]:5353->[fd44::9]:1000"},
			{"ipv6 masqueraded", entry(proto, "[fd20::9]:1000", "[fd20::2]:30053", "[fd44::2]:5353", "fd44::1"), "[fd44::2]:5353->[fd44::1]:1000"},
		} {
			t.Run(fmt.Sprintf("%s proto %d", tt.name, proto), func(t *testing.T) {
				var r [1]conntrack.Result
				table.Establish([]conntrack.Entry{tt.entry}, r[:])
				if r[0].Outcome != conntrack.Created {
					t.Fatalf("outcome %v: %v", r[0].Outcome, r[0].Err)
				}
				s, err := table.Lookup(tt.entry.Tuple, 0)
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("%d %s", proto, tt.reply); s.Reply.String() != want {
					t.Errorf("reply tuple %s, want %s", s.Reply, want)
				}
				if s.Original != tt.entry.Tuple || s.Mark != conntrack.DefaultMark || s.Masqueraded() != tt.entry.SourceAddr.IsValid() ||
					s.Status&conntrack.StatusDestinationNAT == 0 || s.Endpoint() != tt.entry.Destination {
					t.Errorf("state %+v", s)
				}
				// The same again: a retransmission.
				table.Establish([]conntrack.Entry{tt.entry}, r[:])
				if r[0].Outcome != conntrack.Kept || r[0].Existing.Endpoint() != tt.entry.Destination {
					t.Errorf("second time: outcome %v (%v), endpoint %v", r[0].Outcome, r[0].Err, r[0].Existing.Endpoint())
				}
			})
		}
	}
}

// TestKernelRereads: of several connections those that are there are found, at their positions.
func TestKernelRereads(t *testing.T) {
	table := open(t)
	const clients = 70
	var states []*conntrack.State
	for i := range clients {
		e := entry(6, fmt.Sprintf("10.244.1.9:%d", 1000+i), "10.96.0.10:53", "10.244.0.2:5353", "")
		if i%3 > 0 {
			var r [1]conntrack.Result
			if table.Establish([]conntrack.Entry{e}, r[:]); r[0].Outcome != conntrack.Created {
				t.Fatal(r[0].Err)
			}
		}
		states = append(states, &conntrack.State{Original: e.Tuple})
	}
	next := 1
	if err := table.Reread(states, func(i int, s *conntrack.State) {
		if i != next || s.Original != states[i].Original || s.Endpoint() != netip.MustParseAddrPort("10.244.0.2:5353") {
			t.Errorf("position %d, want %d: %+v", i, next, s)
		}
		if next++; next%3 == 0 {
			next++
		}
	}); err != nil || next < clients-1 {
		t.Errorf("%v, up to %d of %d", err, next, clients)
	}
}

// TestKernelObeysSourcePorts: a port within the range stays, another one is moved into it.
func TestKernelObeysSourcePorts(t *testing.T) {
	table := open(t)
	for _, tt := range []struct {
		source string
		stays  bool
	}{{"10.244.1.9:5005", true}, {"10.244.1.9:40000", false}, {"[fd44::9]:40000", false}} {
		e := entry(6, tt.source, "10.96.0.10:53", "10.244.0.2:80", "172.20.0.2")
		if e.Tuple.Source.Addr().Is6() {
			e = entry(6, tt.source, "[fd96::a]:53", "[fd44::2]:80", "fd44::1")
		}
		e.SourcePorts = [2]uint16{5000, 5010}
		var r [1]conntrack.Result
		table.Establish([]conntrack.Entry{e}, r[:])
		if r[0].Outcome != conntrack.Created {
			t.Fatalf("%s: outcome %v: %v", tt.source, r[0].Outcome, r[0].Err)
		}
		s, err := table.Lookup(e.Tuple, 0)
		if err != nil {
			t.Fatal(err)
		}
		port := s.Reply.Destination.Port()
		if port < 5000 || port > 5010 || tt.stays != (port == e.Tuple.Source.Port()) || s.Reply.Destination.Addr() != e.SourceAddr {
			t.Errorf("%s became %s", tt.source, s.Reply.Destination)
		}
	}
}

// TestKernelFindsAFreePort: two clients with the same source port, masqueraded to
// one address and sent to one endpoint, must not collide.
func TestKernelFindsAFreePort(t *testing.T) {
	table := open(t)
	ports := make(map[uint16]bool)
	for i := range 20 {
		e := entry(6, fmt.Sprintf("172.20.0.%d:40000", i+100), "172.20.0.2:30080", "10.244.0.2:80", "10.244.0.1")
		var r [1]conntrack.Result
		table.Establish([]conntrack.Entry{e}, r[:])
		s, err := table.Lookup(e.Tuple, 0)
		if r[0].Outcome != conntrack.Created || err != nil {
			t.Fatal(r[0], err)
		}
		p := s.Reply.Destination.Port()
		if i == 0 && p != 40000 {
			t.Errorf("the first client's port became %d though it was free", p)
		}
		if ports[p] || p < 1024 || s.Reply.Destination.Addr().String() != "10.244.0.1" {
			t.Errorf("client %d is masqueraded to %v, ports taken: %v", i, s.Reply.Destination, ports)
		}
		ports[p] = true
	}
}

// TestKernelExtends: a datagram of a flow whose entry has little time left finds the entry
// when it gets there.
func TestKernelExtends(t *testing.T) {
	table, other := openWith(t)
	e := entry(17, "10.244.1.9:1000", "10.96.0.10:53", "10.244.0.2:53", "")
	for _, tt := range []struct {
		left     uint32
		extended bool
	}{{1, true}, {12, false}} {
		var r [1]conntrack.Result
		table.Establish([]conntrack.Entry{e}, r[:])
		flow := ct.NewFlow(17, 0, e.Tuple.Source.Addr(), e.Tuple.Destination.Addr(), 1000, 53, tt.left, 0)
		flow.TupleReply = ct.Tuple{}
		if err := other.Update(flow); err != nil {
			t.Fatal(err)
		}
		table.Establish([]conntrack.Entry{e}, r[:])
		s, err := table.Lookup(e.Tuple, 0)
		if err != nil {
			t.Fatal(err)
		}
		if r[0].Outcome != conntrack.Kept || s.Endpoint() != e.Destination || (s.Timeout > tt.left) != tt.extended {
			t.Errorf("an entry with %d s left: %v, %d s left, endpoint %v", tt.left, r[0].Outcome, s.Timeout, s.Endpoint())
		}
	}
}

// TestKernelBatch distinguishes successes and refusals in one datagram.
func TestKernelBatch(t *testing.T) {
	table := open(t)
	const n = 200
	entries, results := make([]conntrack.Entry, n), make([]conntrack.Result, n)
	for i := range entries {
		// Every fifth tuple is that of the entry before.
		entries[i] = entry(17, fmt.Sprintf("10.244.1.9:%d", 1000+i-(i%5)/4), "10.96.0.10:53", "10.244.0.2:53", "")
	}
	table.Establish(entries, results)
	for i, r := range results {
		want := conntrack.Created
		if i%5 == 4 {
			want = conntrack.Kept
		}
		if r.Outcome != want {
			t.Errorf("entry %d: outcome %v (%v), want %v", i, r.Outcome, r.Err, want)
		}
	}
}

func TestKernelHasNoSuchEntry(t *testing.T) {
	table := open(t)
	if _, err := table.Lookup(entry(6, "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3", "").Tuple, 0); !conntrack.IsNotFound(err) {
		t.Errorf("error %v, want not found", err)
	}
}

func BenchmarkKernelEstablish(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			ns, err := netns.New("bench")
			if err != nil {
				b.Skip(err)
			}
			defer ns.Close()
			var table *conntrack.Table
			if err := ns.Do(func() (err error) { table, err = conntrack.Open(new(conntrack.Locks)); return err }); err != nil {
				b.Fatal(err)
			}
			defer table.Close()
			entries, results := make([]conntrack.Entry, batch), make([]conntrack.Result, batch)
			n := 0
			for b.Loop() {
				for i := range entries {
					n++
					src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 20), byte(n >> 12), byte(n >> 4)}), uint16(1024+n%16))
					entries[i] = conntrack.Entry{
						Tuple:       conntrack.Tuple{Source: src, Destination: netip.MustParseAddrPort("10.96.0.10:53"), Protocol: 17},
						Destination: netip.MustParseAddrPort("10.244.0.2:53"),
					}
				}
				table.Establish(entries, results)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
		})
	}
}

// BenchmarkKernelReplace: all tuples are taken, by connections that may be replaced.
// Making those is not counted.
func BenchmarkKernelReplace(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			ns, err := netns.New("bench")
			if err != nil {
				b.Skip(err)
			}
			defer ns.Close()
			var table *conntrack.Table
			if err := ns.Do(func() (err error) { table, err = conntrack.Open(new(conntrack.Locks)); return err }); err != nil {
				b.Fatal(err)
			}
			defer table.Close()
			plain, entries, results := make([]conntrack.Entry, batch), make([]conntrack.Entry, batch), make([]conntrack.Result, batch)
			n := 0
			for b.Loop() {
				b.StopTimer()
				for i := range entries {
					n++
					src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 20), byte(n >> 12), byte(n >> 4)}), uint16(1024+n%16))
					plain[i] = conntrack.Entry{Tuple: conntrack.Tuple{Source: src, Destination: netip.MustParseAddrPort("10.96.0.10:53"), Protocol: 17}}
					entries[i] = plain[i]
					entries[i].Destination = netip.MustParseAddrPort("10.244.0.2:53")
				}
				table.Establish(plain, results)
				b.StartTimer()
				table.Establish(entries, results)
				b.StopTimer()
				for i := range entries { // or the table would be full soon
					state, err := table.Lookup(entries[i].Tuple, 0)
					if err != nil {
						b.Fatal(err)
					}
					table.Delete([]conntrack.State{state}, make([]error, 1))
				}
				b.StartTimer()
			}
			b.StopTimer()
			for i := range results {
				if results[i].Outcome != conntrack.Replaced {
					b.Fatalf("outcome %v, error %v", results[i].Outcome, results[i].Err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
		})
	}
}

// TestKernelRace: several workers settle the same taken tuple at the same time. One
// replaces the old entry; the others get the kernel's entry as their result.
func TestKernelRace(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New("race")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var locks conntrack.Locks
	var tables [4]*conntrack.Table
	if err := ns.Do(func() (err error) {
		for i := range tables {
			if tables[i], err = conntrack.Open(&locks); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for round := range 1000 {
		src := fmt.Sprintf("10.244.1.9:%d", 10000+round)
		untranslated := conntrack.Entry{Tuple: entry(17, src, "10.96.0.10:53", "10.244.0.1:53", "").Tuple}
		var results [4][1]conntrack.Result
		tables[0].Establish([]conntrack.Entry{untranslated}, results[0][:])
		var wg sync.WaitGroup
		for i, table := range tables {
			wg.Go(func() {
				table.Establish([]conntrack.Entry{entry(17, src, "10.96.0.10:53", fmt.Sprintf("10.244.0.%d:53", i+2), "")}, results[i][:])
			})
		}
		wg.Wait()
		s, err := tables[0].Lookup(untranslated.Tuple, 0)
		if err != nil {
			t.Fatal(err)
		}
		won := 0
		for i := range results {
			r := &results[i][0]
			endpoint := netip.MustParseAddrPort(fmt.Sprintf("10.244.0.%d:53", i+2))
			switch r.Outcome {
			case conntrack.Kept:
				endpoint = r.Existing.Endpoint()
			case conntrack.Failed:
				t.Fatalf("round %d: %v", round, r.Err)
			default:
				won++
			}
			if endpoint != s.Endpoint() {
				t.Errorf("round %d: worker %d got %v (%v), the flow goes to %v", round, i, endpoint, r.Outcome, s.Endpoint())
			}
		}
		if won != 1 {
			t.Errorf("round %d: %d workers think they set the flow up", round, won)
		}
	}
}
