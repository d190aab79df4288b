package ruleset

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// manyServices are n TCP services of IPv4 with ten endpoints each.
func manyServices(n int) []*decision.ServicePort {
	all := make([]*decision.ServicePort, n)
	for i := range all {
		s := &decision.ServicePort{
			Name:     decision.ServicePortName{Namespace: "default", Name: fmt.Sprint(i)},
			Protocol: decision.TCP, Family: decision.IPv4, ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80,
		}
		withEndpoints(s, i, 10)
		all[i] = s
	}
	return all
}

func withEndpoints(s *decision.ServicePort, first, n int) {
	s.HasEndpoints, s.Endpoints, s.Usable = true, nil, [2][]uint32{}
	for k := range n {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{NodeName: "other", AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte((first + k) >> 8), byte(first + k)}), uint16(8080+k))})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(k))
	}
}

// BenchmarkFollow: a table of 10,000 services with ten endpoints each, the change of an endpoint of one of
// them, a thorough audit, and the adoption by another process.
func BenchmarkFollow(b *testing.B) {
	ns, err := netns.New("bench")
	if err != nil {
		b.Skip(err)
	}
	defer ns.Close()
	node := decision.Node{Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2")}}
	table := decision.NewTable(1, time.Time{}, node, manyServices(10000))
	onNode := func(f func() error) {
		if err := ns.Do(f); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			onNode(func() error {
				r, err := installFor(b, spec(), table, false)
				if err != nil {
					return err
				}
				return r.Remove()
			})
		}
	})
	b.Run("audit", func(b *testing.B) {
		onNode(func() error {
			r, err := install(b, spec())
			if err != nil {
				return err
			}
			defer r.Remove() //nolint:errcheck // the namespace goes anyway
			if err := r.Follow(table); err != nil {
				return err
			}
			b.ReportAllocs()
			for b.Loop() {
				if done, err := r.Audit(table, true); err != nil || !done.None() {
					return fmt.Errorf("found %v: %w", done.Found, err)
				}
			}
			return nil
		})
	})
	b.Run("adopt", func(b *testing.B) {
		onNode(func() error {
			r, err := installFor(b, spec(), table, false)
			if err != nil {
				return err
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Close(); err != nil {
					return err
				}
				if r, err = installFor(b, spec(), table, false); err != nil {
					return err
				}
			}
			return r.Remove()
		})
	})
	b.Run("change", func(b *testing.B) {
		onNode(func() error {
			r, err := install(b, spec())
			if err != nil {
				return err
			}
			defer r.Remove() //nolint:errcheck // the namespace goes anyway
			if err := r.Follow(table); err != nil {
				return err
			}
			for i := 0; b.Loop(); i++ {
				s := *table.Services()[7]
				withEndpoints(&s, i, 10+i%2)
				table = table.Next(time.Time{}, node, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{&s}})
				if err := r.Follow(table); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
