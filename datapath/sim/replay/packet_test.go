package replay

import (
	"errors"
	"slices"
	"testing"
)

// TestExtensions: what stands between an IPv6 header and its transport.
func TestExtensions(t *testing.T) {
	header := captured(t, "pcap raw", "0 UDP [fd00::1]:1000 > [fd00::2]:53 payload=x")[24+16:]
	udp := header[40:]
	// with builds a packet of extension headers, each with the number of the next.
	with := func(first byte, extensions ...[]byte) []byte {
		b := slices.Clone(header[:40])
		b[6] = first
		for _, e := range extensions {
			b = append(b, e...)
		}
		b = append(b, udp...)
		b[4], b[5] = 0, byte(len(b)-40)
		return b
	}
	options := func(next byte, units int) []byte {
		return append([]byte{next, byte(units)}, make([]byte, 6+8*units)...)
	}
	auth := func(next byte) []byte { return append([]byte{next, 4}, make([]byte, 22)...) }
	fragment := func(next, high, low byte) []byte { return []byte{next, 0, high, low, 0, 0, 0, 7} }
	for _, tt := range []struct {
		name     string
		packet   []byte
		err      error
		fragment bool
	}{
		{"none", with(17), nil, false},
		{"options", with(extHopByHop, options(extDestination, 0), options(17, 2)), nil, false},
		{"authentication", with(extAuth, auth(17)), nil, false},
		{"whole packet with a fragment header", with(extFragment, fragment(17, 0, 0)), nil, false},
		{"first fragment", with(extFragment, fragment(17, 0, 1)), nil, true},
		{"later fragment", with(extFragment, fragment(17, 0, 0x10)), errFragment, true},
		{"no next header", with(59), errNoPorts, false},
		{"too many", with(extDestination, slices.Repeat([][]byte{options(extDestination, 0)}, 9)...), errNoPorts, false},
		{"cut within an extension", with(extDestination, options(17, 9))[:50], errCut, false},
		{"cut before the ports", with(17)[:42], errCut, false},
		{"cut within the header", with(17)[:39], errCut, false},
		{"nothing", nil, errCut, false},
		{"neither", []byte{0x50}, errNotIP, false},
	} {
		p, err := decode(tt.packet)
		if !errors.Is(err, tt.err) || p.fragment != tt.fragment && err != errCut {
			t.Errorf("%s: %v, fragment %v", tt.name, err, p.fragment)
		}
		if err == nil && (p.tuple.Source.String() != "[fd00::1]:1000" || p.tuple.Destination.String() != "[fd00::2]:53") {
			t.Errorf("%s: %+v", tt.name, p.tuple)
		}
		if tt.fragment && p.id != 7 {
			t.Errorf("%s: identification %d", tt.name, p.id)
		}
	}
}
