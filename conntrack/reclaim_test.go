package conntrack

import (
	"net/netip"
	"slices"
	"testing"
)

// TestCandidates: the client's own port comes first where it may be used, no port comes
// twice before all had their turn, and none is out of the range.
func TestCandidates(t *testing.T) {
	for _, tt := range []struct {
		own         uint16
		given       [2]uint16
		first, last uint16
	}{
		{40000, [2]uint16{}, 1024, 65535},
		{65530, [2]uint16{}, 1024, 65535}, // goes on at the beginning
		{700, [2]uint16{}, 600, 1023},
		{512, [2]uint16{}, 600, 1023},
		{99, [2]uint16{}, 1, 511},
		{40000, [2]uint16{5000, 5999}, 5000, 5999},
		{5002, [2]uint16{5000, 5003}, 5000, 5003},
		{40000, [2]uint16{5000, 5000}, 5000, 5000},
		{40000, [2]uint16{1, 65535}, 1, 65535},
	} {
		e := Entry{Tuple: Tuple{Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), tt.own), Protocol: protoTCP}, SourcePorts: tt.given}
		candidates := e.candidates()
		ports := candidates[:]
		if tt.first <= tt.own && tt.own <= tt.last && ports[0] != tt.own {
			t.Errorf("%d of %v: the first is %d", tt.own, tt.given, ports[0])
		}
		for _, p := range ports {
			if p < tt.first || p > tt.last {
				t.Errorf("%d of %v: %d is none of %d to %d", tt.own, tt.given, p, tt.first, tt.last)
			}
		}
		slices.Sort(ports)
		if got, want := len(slices.Compact(ports)), min(portsExamined, int(tt.last)-int(tt.first)+1); got != want {
			t.Errorf("%d of %v: %d ports, want %d", tt.own, tt.given, got, want)
		}
	}
}
