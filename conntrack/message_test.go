package conntrack

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	ct "github.com/ti-mo/conntrack"

	"github.com/mdlayher/netlink"
)

func tuple(proto uint8, src, dst string) Tuple {
	return Tuple{Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst), Protocol: proto}
}

// golden joins commented hex lines into bytes.
func golden(t testing.TB, lines ...string) []byte {
	t.Helper()
	var s strings.Builder
	for _, l := range lines {
		l, _, _ = strings.Cut(l, "#")
		s.WriteString(strings.ReplaceAll(l, " ", ""))
	}
	b, err := hex.DecodeString(s.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func compare(t *testing.T, got, want []byte) {
	t.Helper()
	if string(got) != string(want) {
		t.Errorf("message differs\n got %x\nwant %x", got, want)
	}
}

func skipBigEndian(t testing.TB) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("golden bytes are those of a little-endian machine")
	}
}

func TestCreateMessageIPv4(t *testing.T) {
	skipBigEndian(t)
	e := Entry{
		Tuple:       tuple(protoTCP, "10.244.1.9:41000", "10.96.118.136:80"),
		Mark:        DefaultMark,
		Destination: netip.MustParseAddrPort("10.244.2.2:8080"),
		SourceAddr:  netip.MustParseAddr("172.20.0.2"),
	}
	compare(t, appendCreate(nil, 7, &e), golden(t,
		"c8000000 0001 0106 07000000 00000000 # nlmsghdr: length 200, CT_NEW, REQUEST|CREATE|EXCL, sequence 7",
		"02 00 0000                           # nfgenmsg: AF_INET",
		"3400 0180                            # CTA_TUPLE_ORIG",
		" 1400 0180 0800 0100 0af40109 0800 0200 0a607688",
		" 1c00 0280 0500 0100 06000000 0600 0200 a0280000 0600 0300 00500000",
		"3400 0280                            # CTA_TUPLE_REPLY, the plain inverse",
		" 1400 0180 0800 0100 0a607688 0800 0200 0af40109",
		" 1c00 0280 0500 0100 06000000 0600 0200 00500000 0600 0300 a0280000",
		"0800 0700 0000001e                   # CTA_TIMEOUT 30",
		"0800 0800 00002000                   # CTA_MARK",
		"2800 0d80                            # CTA_NAT_DST",
		" 0800 0100 0af40202 0800 0200 0af40202",
		" 1400 0380 0600 0100 1f900000 0600 0200 1f900000",
		"1400 0680                            # CTA_NAT_SRC",
		" 0800 0100 ac140002 0800 0200 ac140002",
	))
}

func TestCreateMessageIPv6WithZone(t *testing.T) {
	skipBigEndian(t)
	e := Entry{
		Tuple:       tuple(protoUDP, "[fd00::1]:53", "[fd00::a]:53"),
		Zone:        5,
		Destination: netip.MustParseAddrPort("[fd00::b]:54"),
	}
	compare(t, appendCreate(nil, 1, &e), golden(t,
		"04010000 0001 0106 01000000 00000000",
		"0a 00 0000 # AF_INET6",
		"4c00 0180",
		" 2c00 0180 1400 0300 fd000000000000000000000000000001 1400 0400 fd00000000000000000000000000000a",
		" 1c00 0280 0500 0100 11000000 0600 0200 00350000 0600 0300 00350000",
		"0600 1200 00050000 # CTA_ZONE",
		"4c00 0280",
		" 2c00 0180 1400 0300 fd00000000000000000000000000000a 1400 0400 fd000000000000000000000000000001",
		" 1c00 0280 0500 0100 11000000 0600 0200 00350000 0600 0300 00350000",
		"0800 0700 0000001e",
		"0800 0800 00000000",
		"4000 0d80          # CTA_NAT_DST",
		" 1400 0400 fd00000000000000000000000000000b 1400 0500 fd00000000000000000000000000000b",
		" 1400 0380 0600 0100 00360000 0600 0200 00360000",
	))
}

func TestGetAndDeleteMessages(t *testing.T) {
	skipBigEndian(t)
	tp := tuple(protoSCTP, "10.0.0.1:1", "10.0.0.2:2")
	orig := "3400 0180 1400 0180 0800 0100 0a000001 0800 0200 0a000002 1c00 0280 0500 0100 84000000 0600 0200 00010000 0600 0300 00020000"
	compare(t, appendGet(nil, 2, tp, 0), golden(t, "48000000 0101 0100 02000000 00000000 02000000", orig))
	compare(t, appendDelete(nil, 3, ctaTupleOrig, tp, 0, 0xabcd), golden(t, "50000000 0201 0100 03000000 00000000 02000000", orig, "0800 0c00 0000abcd"))
}

func TestDumpAndDeleteByReplyMessages(t *testing.T) {
	skipBigEndian(t)
	compare(t, appendDump(nil, 2, Filter{Family: IPv4, Protocol: protoUDP}), golden(t,
		"30000000 0101 0103 02000000 00000000 02000000 # CT_GET, REQUEST|DUMP, AF_INET",
		"1000 0180 0c00 0280 0500 0100 11000000        # CTA_TUPLE_ORIG: the protocol",
		"0c00 1980 0800 0100 08000000                  # CTA_FILTER: CTA_FILTER_F_CTA_PROTO_NUM"))
	compare(t, appendDump(nil, 2, Filter{Family: IPv4, Mark: 0x2000}), golden(t,
		"24000000 0101 0103 02000000 00000000 02000000",
		"0800 0800 00002000 0800 1500 00002000         # CTA_MARK, CTA_MARK_MASK"))
	compare(t, appendDump(nil, 2, Filter{Family: IPv6}), golden(t, "14000000 0101 0103 02000000 00000000 0a000000"))
	compare(t, appendDump(nil, 2, Filter{Protocol: protoUDP}), golden(t, "14000000 0101 0103 02000000 00000000 00000000"))
	s := State{Reply: tuple(protoSCTP, "10.0.0.1:1", "10.0.0.2:2"), Zone: 5, ID: 0xabcd}
	compare(t, appendDelete(nil, 3, ctaTupleReply, s.Reply, s.Zone, s.ID), golden(t,
		"58000000 0201 0100 03000000 00000000 02000000",
		"3400 0280 1400 0180 0800 0100 0a000001 0800 0200 0a000002 1c00 0280 0500 0100 84000000 0600 0200 00010000 0600 0300 00020000",
		"0600 1200 00050000 0800 0c00 0000abcd"))
}

// TestCreateMessageReadByOthers has another implementation read our message.
func TestCreateMessageReadByOthers(t *testing.T) {
	e := Entry{Tuple: tuple(protoUDP, "[fd00::1]:1053", "[fd00::a]:53"), Mark: 0x2000}
	var m netlink.Message
	if err := m.UnmarshalBinary(appendCreate(nil, 9, &e)); err != nil {
		t.Fatal(err)
	}
	var ev ct.Event
	if err := ev.Unmarshal(m); err != nil {
		t.Fatal(err)
	}
	o, r := ev.Flow.TupleOrig, ev.Flow.TupleReply
	if o.IP.SourceAddress != e.Tuple.Source.Addr() || o.IP.DestinationAddress != e.Tuple.Destination.Addr() ||
		o.Proto.SourcePort != 1053 || o.Proto.DestinationPort != 53 || o.Proto.Protocol != protoUDP ||
		r.IP.SourceAddress != e.Tuple.Destination.Addr() || r.Proto.DestinationPort != 1053 || ev.Flow.Mark != 0x2000 {
		t.Errorf("read back as %+v", ev.Flow)
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 3, 0, 1, 0})
	for _, m := range eventMessages(f) {
		f.Add(m.message[nlmsgHdrLen:])
	}
	f.Fuzz(func(t *testing.T, b []byte) { _, _, _ = parseState(b) })
}

func BenchmarkEncodeCreate(b *testing.B) {
	e := Entry{
		Tuple:       tuple(protoTCP, "10.244.1.2:40000", "10.96.0.10:53"),
		Mark:        DefaultMark,
		Destination: netip.MustParseAddrPort("10.244.0.2:5353"),
		SourceAddr:  netip.MustParseAddr("172.20.0.2"),
	}
	var buf []byte
	for b.Loop() {
		buf = appendCreate(buf[:0], 1, &e)
	}
}
