package iptables

import (
	"net/netip"
	"testing"
)

// tcpPacket has a maximum segment size, a no operation and a timestamp.
func tcpPacket() Packet {
	p := Packet{Protocol: protoTCP, Source: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddrPort("10.0.0.2:2"), TTL: 64}
	p.Bytes = append([]byte{0x45, 0, 0, 56, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, byte(SYN), 0, 9, 0, 0, 0, 0)
	p.Bytes = append(p.Bytes, 2, 4, 5, 0xb4, 1, 1, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 0)
	p.Length = uint16(len(p.Bytes))
	p.ReadTCPHeader()
	return p
}

func TestTCPOptions(t *testing.T) {
	p := tcpPacket()
	if b, there := p.TCPOption(8); !there || len(b) != 10 || b[5] != 0xe8 {
		t.Errorf("timestamp: %v %v", b, there)
	}
	if _, there := p.TCPOption(3); there {
		t.Error("it has no window scale")
	}
	p.WriteTCPOption(8, 2, []byte{0, 0, 0, 5})
	p.WriteTCPOption(8, 9, []byte{1, 1}) // does not fit
	if b, _ := p.TCPOption(8); b[5] != 5 || b[9] != 0 {
		t.Errorf("written: %v", b)
	}
	p.StripTCPOption(8)
	if _, there := p.TCPOption(8); there || len(p.TCPOptions) != 1 {
		t.Errorf("stripped: %v", p.TCPOptions)
	}
	if b, there := (&Packet{Protocol: protoTCP, TCPOptions: []uint8{8}}).TCPOption(8); !there || b != nil {
		t.Errorf("without bytes: %v %v", b, there)
	}
}

func TestWriteHeader(t *testing.T) {
	p := tcpPacket()
	for _, tt := range []struct {
		transport bool
		offset    int
		b         []byte
		ok        bool
	}{
		{true, 2, []byte{0, 80}, true}, {true, 13, []byte{byte(ACK)}, true}, {true, 14, []byte{1, 2}, true}, {false, 8, []byte{9}, true},
		{false, 16, []byte{10, 0, 0, 3}, true}, {false, 4, []byte{0, 7}, true}, {false, 9, []byte{17}, false}, {true, 12, []byte{0x50}, false}, {true, 200, []byte{1}, true},
	} {
		if ok := p.WriteHeader(tt.transport, tt.offset, tt.b); ok != tt.ok {
			t.Errorf("%+v: %v", tt, ok)
		}
	}
	if p.Destination.String() != "10.0.0.3:80" || p.Flags != ACK || p.TTL != 9 || p.Bytes[5] != 7 || p.Bytes[35] != 2 {
		t.Errorf("%+v", p)
	}
	bare := Packet{Protocol: protoUDP, Source: p.Source, Destination: p.Destination, Length: 40}
	if bare.WriteHeader(true, 0, []byte{0, 53}); bare.Source.Port() != 53 || bare.Bytes != nil {
		t.Errorf("without bytes: %+v", bare)
	}
}

// TestExtensionHeaders: a hop-by-hop header in front of a fragment.
func TestExtensionHeaders(t *testing.T) {
	p := Packet{Protocol: protoUDP, Source: netip.MustParseAddrPort("[fd00::1]:1"), Destination: netip.MustParseAddrPort("[fd00::2]:2")}
	p.Bytes = append(make([]byte, lengthIPv6), 44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 7)
	if b, there := p.Extension(44); !there || b[7] != 7 {
		t.Errorf("fragment: %v %v", b, there)
	}
	if _, there := p.Extension(43); there {
		t.Error("it has no routing header")
	}
	four := tcpPacket()
	four.Bytes = append([]byte{0x46, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, 148, 4, 0, 0)
	if b, there := four.IPOption(148); !there || len(b) != 4 {
		t.Errorf("router alert: %v %v", b, there)
	}
}
