package conntrack_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

func TestKernelDump(t *testing.T) {
	table := open(t)
	const n = 500 // more than one datagram takes
	want := make(map[conntrack.Tuple]conntrack.Entry)
	for _, proto := range []uint8{6, 17, 132} {
		for i := range n {
			for _, e := range []conntrack.Entry{
				entry(proto, fmt.Sprintf("10.244.1.9:%d", 1000+i), "10.96.0.10:53", "10.244.0.2:5353", "172.20.0.2"),
				entry(proto, fmt.Sprintf("[fd44::9]:%d", 1000+i), "[fd96::a]:53", "[fd44::2]:5353", ""),
			} {
				e.Zone = uint16(i % 2)
				e.Mark |= uint32(i%2) * conntrack.CopyMark
				e.Tuple.Source = netip.AddrPortFrom(e.Tuple.Source.Addr(), uint16(1000+i))
				var r [1]conntrack.Result
				if table.Establish([]conntrack.Entry{e}, r[:]); r[0].Outcome != conntrack.Created {
					t.Fatal(r[0].Err)
				}
				want[e.Tuple] = e
			}
		}
	}
	for _, f := range []conntrack.Filter{
		{}, {Family: conntrack.IPv4}, {Family: conntrack.IPv6}, {Protocol: 17}, {Family: conntrack.IPv4, Protocol: 6}, {Family: conntrack.IPv6, Protocol: 132},
		{Mark: conntrack.CopyMark},
	} {
		found := make(map[conntrack.Tuple]bool)
		if err := table.Dump(f, func(s *conntrack.State) {
			found[s.Original] = true
			e := want[s.Original]
			four := s.Original.Source.Addr().Is4()
			if four && f.Family == conntrack.IPv6 || !four && f.Family == conntrack.IPv4 || f.Protocol != 0 && s.Original.Protocol != f.Protocol || s.Mark&f.Mark != f.Mark {
				t.Fatalf("%+v lets %v pass", f, s.Original)
			}
			if s.Endpoint() != e.Destination || s.Zone != e.Zone || s.Mark != e.Mark || s.Masqueraded() != e.SourceAddr.IsValid() {
				t.Fatalf("state %+v of entry %+v", s, e)
			}
		}); err != nil {
			t.Fatal(err)
		}
		wantN := n * map[bool]int{true: 3, false: 1}[f.Protocol == 0]
		if f.Family == 0 {
			wantN *= 2
		}
		if f.Mark != 0 {
			wantN /= 2
		}
		if len(found) != wantN {
			t.Errorf("%+v: %d entries, want %d", f, len(found), wantN)
		}
	}
}

// TestKernelDelete: an entry goes only as long as it is translated as it was dumped.
func TestKernelDelete(t *testing.T) {
	table := open(t)
	for name, tt := range map[string]struct{ src, dst, endpoint, masquerade, other string }{
		"ipv4":             {"10.244.1.9:1000", "10.96.0.10:53", "10.244.0.2:5353", "", "10.244.0.3:5353"},
		"ipv4 masqueraded": {"172.20.0.9:1000", "172.20.0.2:30053", "10.244.0.2:5353", "172.20.0.2", "10.244.0.3:5353"},
		"ipv6":             {"[fd44::9]:1000", "[fd96::a]:53", "[fd44::2]:5353", "", "[fd44::3]:5353"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, zone := range []uint16{0, 7} {
				e := entry(17, tt.src, tt.dst, tt.endpoint, tt.masquerade)
				e.Zone = zone
				remove := func(s conntrack.State) error {
					var errs [1]error
					table.Delete([]conntrack.State{s}, errs[:])
					return errs[0]
				}
				establish := func(e conntrack.Entry) conntrack.State {
					t.Helper()
					var r [1]conntrack.Result
					table.Establish([]conntrack.Entry{e}, r[:])
					s, err := table.Lookup(e.Tuple, zone)
					if r[0].Outcome != conntrack.Created || err != nil {
						t.Fatal(r[0], err)
					}
					return s
				}
				old := establish(e)
				if err := remove(old); err != nil {
					t.Fatal(err)
				}
				if err := remove(old); !conntrack.IsNotFound(err) {
					t.Errorf("gone already: error %v", err)
				}
				e.Destination = netip.MustParseAddrPort(tt.other)
				anew := establish(e)
				old.ID = anew.ID // as it often happens by itself
				if err := remove(old); !conntrack.IsNotFound(err) {
					t.Errorf("made anew with another translation: error %v", err)
				}
				if err := remove(anew); err != nil {
					t.Errorf("the one made anew: %v", err)
				}
			}
		})
	}
}

func BenchmarkKernelDump(b *testing.B) {
	for _, proto := range []uint8{17, 132} { // all entries, and none of them
		b.Run(fmt.Sprintf("100000 entries/protocol=%d", proto), func(b *testing.B) {
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
			entries, results := make([]conntrack.Entry, 100_000), make([]conntrack.Result, 100_000)
			for i := range entries {
				entries[i] = entry(17, "10.244.1.9:1", "10.96.0.10:53", "10.244.0.2:5353", "")
				entries[i].Tuple.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 15), 9}), uint16(1024+i%(1<<15)))
			}
			table.Establish(entries, results)
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				if err := table.Dump(conntrack.Filter{Protocol: proto}, func(*conntrack.State) { n++ }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
