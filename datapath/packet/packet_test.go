package packet

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// serialize makes the bytes of a packet.
func serialize(t testing.TB, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, l...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func ip4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: net.IPv4(10, 244, 1, 9), DstIP: net.IPv4(10, 96, 0, 10)}
}

func ip6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, NextHeader: next, HopLimit: 64, SrcIP: net.ParseIP("fd44::9"), DstIP: net.ParseIP("fd96::10")}
}

// ext is an IPv6 extension header of 8*(1+units) bytes.
func ext(next layers.IPProtocol, units byte) gopacket.Payload {
	b := make([]byte, 8*(1+int(units)))
	b[0], b[1] = byte(next), units
	return b
}

func frag6(next layers.IPProtocol, offset uint16) gopacket.Payload {
	b := []byte{byte(next), 0, 0, 0, 1, 2, 3, 4}
	binary.BigEndian.PutUint16(b[2:], offset<<3|1)
	return b
}

var (
	tcpLayer  = &layers.TCP{SrcPort: 41000, DstPort: 53, SYN: true}
	udpLayer  = &layers.UDP{SrcPort: 41000, DstPort: 53}
	sctpInit  = gopacket.Payload{0xa0, 0x28, 0, 53, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20}
	wantTuple = "10.244.1.9:41000 10.96.0.10:53"
	wantV6    = "[fd44::9]:41000 [fd96::10]:53"
)

func TestDecode(t *testing.T) {
	options := ip4(layers.IPProtocolTCP)
	options.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}}
	fragment := ip4(layers.IPProtocolUDP)
	fragment.FragOffset = 185
	first := ip4(layers.IPProtocolUDP)
	first.Flags = layers.IPv4MoreFragments
	hop, routing, dest, auth, frag := layers.IPProtocol(0), layers.IPProtocol(43), layers.IPProtocol(60), layers.IPProtocol(51), layers.IPProtocol(44)
	authHeader := make(gopacket.Payload, 24)
	authHeader[0], authHeader[1] = byte(layers.IPProtocolTCP), 4 // (4+2)*4 bytes

	tests := []struct {
		name  string
		bytes []byte
		proto uint8
		want  string // source and destination, or empty
		err   error
	}{
		{"tcp", serialize(t, ip4(6), tcpLayer), 6, wantTuple, nil},
		{"udp", serialize(t, ip4(17), udpLayer), 17, wantTuple, nil},
		{"sctp", serialize(t, ip4(132), sctpInit), 132, wantTuple, nil},
		{"ipv4 options", serialize(t, options, tcpLayer), 6, wantTuple, nil},
		{"first fragment", serialize(t, first, udpLayer), 17, wantTuple, nil},
		{"later fragment", serialize(t, fragment, gopacket.Payload("data that looks like ports")), 0, "", ErrFragment},
		{"icmp", serialize(t, ip4(1), gopacket.Payload{8, 0, 0, 0, 0, 0, 0, 0}), 0, "", ErrNoPorts},
		{"tcp in ipv6", serialize(t, ip6(6), tcpLayer), 6, wantV6, nil},
		{"ipv6 hop-by-hop and destination options", serialize(t, ip6(hop), ext(dest, 0), ext(6, 2), tcpLayer), 6, wantV6, nil},
		{"ipv6 routing header", serialize(t, ip6(routing), ext(17, 1), udpLayer), 17, wantV6, nil},
		{"ipv6 authentication header", serialize(t, ip6(auth), authHeader, tcpLayer), 6, wantV6, nil},
		{"ipv6 first fragment", serialize(t, ip6(frag), frag6(17, 0), udpLayer), 17, wantV6, nil},
		{"ipv6 later fragment", serialize(t, ip6(frag), frag6(17, 3), udpLayer), 0, "", ErrFragment},
		{"ipv6 icmp", serialize(t, ip6(58), gopacket.Payload{128, 0, 0, 0}), 0, "", ErrNoPorts},
		{"ipv6 with too many headers", serialize(t, ip6(dest), ext(dest, 0), ext(dest, 0), ext(dest, 0), ext(dest, 0), ext(dest, 0), ext(dest, 0), ext(dest, 0), ext(6, 0), tcpLayer), 0, "", ErrExtensions},
		{"nothing", nil, 0, "", ErrTruncated},
		{"version 5", []byte{0x55, 0}, 0, "", ErrNotIP},
		{"ipv4 header length below 20", append([]byte{0x44}, make([]byte, 40)...), 0, "", ErrNotIP},
		{"28 bytes of tcp", serialize(t, ip4(6), tcpLayer)[:28], 6, wantTuple, nil},
		{"ports cut off", serialize(t, ip4(6), tcpLayer)[:23], 0, "", ErrTruncated},
		{"ipv6 cut in an extension", serialize(t, ip6(hop), ext(6, 0), tcpLayer)[:44], 0, "", ErrTruncated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Decode(tt.bytes)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			if got := p.Tuple.Source.String() + " " + p.Tuple.Destination.String(); got != tt.want || p.Tuple.Protocol != tt.proto {
				t.Errorf("got %d %s, want %d %s", p.Tuple.Protocol, got, tt.proto, tt.want)
			}
		})
	}
}

// TestExtensions: what stands between an IPv6 header and its transport.
func TestExtensions(t *testing.T) {
	header := serialize(t, ip6(17), udpLayer)
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
		{"later fragment", with(extFragment, fragment(17, 0, 0x10)), ErrFragment, true},
		{"no next header", with(59), ErrNoPorts, false},
		{"too many", with(extDestination, slices.Repeat([][]byte{options(extDestination, 0)}, 9)...), ErrExtensions, false},
		{"cut within an extension", with(extDestination, options(17, 9))[:50], ErrTruncated, false},
		{"cut before the ports", with(17)[:42], ErrTruncated, false},
		{"cut within the header", with(17)[:39], ErrTruncated, false},
		{"nothing", nil, ErrTruncated, false},
		{"neither", []byte{0x50}, ErrNotIP, false},
	} {
		p, err := Decode(tt.packet)
		if !errors.Is(err, tt.err) || p.Fragment != tt.fragment && !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v, fragment %v", tt.name, err, p.Fragment)
		}
		if err == nil && (p.Tuple.Source.String() != "[fd44::9]:41000" || p.Tuple.Destination.String() != "[fd96::10]:53") {
			t.Errorf("%s: %+v", tt.name, p.Tuple)
		}
		if tt.fragment && p.ID != 7 {
			t.Errorf("%s: identification %d", tt.name, p.ID)
		}
	}
}

func TestDecodeEveryPrefix(t *testing.T) {
	for _, whole := range [][]byte{
		serialize(t, ip4(6), tcpLayer),
		serialize(t, ip6(0), ext(60, 1), ext(6, 0), tcpLayer),
	} {
		for n := range whole {
			_, _ = Decode(whole[:n]) // must not panic
		}
	}
}

// FuzzDecode holds our decoder against gopacket's on whatever both can read.
func FuzzDecode(f *testing.F) {
	f.Add(serialize(f, ip4(6), tcpLayer))
	f.Add(serialize(f, ip4(17), udpLayer, gopacket.Payload("hello")))
	f.Add(serialize(f, ip6(6), tcpLayer))
	f.Add(serialize(f, ip6(0), ext(17, 0), udpLayer))
	f.Add(serialize(f, ip4(132), sctpInit))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil || len(b) < 1 {
			return
		}
		first := gopacket.LayerType(layers.LayerTypeIPv4)
		if b[0]>>4 == 6 {
			first = layers.LayerTypeIPv6
		}
		parsed := gopacket.NewPacket(b, first, gopacket.NoCopy)
		if parsed.ErrorLayer() != nil || parsed.Metadata().Truncated || parsed.NetworkLayer() == nil || parsed.TransportLayer() == nil {
			return // it wants more bytes to be there and right than we need
		}
		nf, tf := parsed.NetworkLayer().NetworkFlow(), parsed.TransportLayer().TransportFlow()
		src, _ := netip.AddrFromSlice(nf.Src().Raw())
		dst, _ := netip.AddrFromSlice(nf.Dst().Raw())
		want := conntrack.Tuple{
			Protocol:    p.Protocol,
			Source:      netip.AddrPortFrom(src, binary.BigEndian.Uint16(tf.Src().Raw())),
			Destination: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(tf.Dst().Raw())),
		}
		if p.Tuple != want {
			t.Errorf("decoded %+v, gopacket has %+v", p.Tuple, want)
		}
	})
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	for _, b := range [][]byte{serialize(t, ip4(6), tcpLayer), serialize(t, ip6(0), ext(6, 0), tcpLayer)} {
		if n := testing.AllocsPerRun(100, func() { _, _ = Decode(b) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// BenchmarkDecode shows why the hot path does without gopacket.
func BenchmarkDecode(b *testing.B) {
	syn := serialize(b, ip4(6), tcpLayer)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Decode(syn); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("gopacket", func(b *testing.B) {
		var ip layers.IPv4
		var tcp layers.TCP
		parser := gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &ip, &tcp)
		var decoded []gopacket.LayerType
		b.ReportAllocs()
		for b.Loop() {
			if err := parser.DecodeLayers(syn, &decoded); err != nil {
				b.Fatal(err)
			}
			src, _ := netip.AddrFromSlice(ip.SrcIP)
			dst, _ := netip.AddrFromSlice(ip.DstIP)
			_ = conntrack.Tuple{Source: netip.AddrPortFrom(src, uint16(tcp.SrcPort)), Destination: netip.AddrPortFrom(dst, uint16(tcp.DstPort))}
		}
	})
}
