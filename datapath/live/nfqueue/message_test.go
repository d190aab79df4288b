package nfqueue

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	library "github.com/florianl/go-nfqueue/v2"
)

func fromHex(t testing.TB, lines ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(lines, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func skipBigEndian(t testing.TB) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("golden bytes are those of a little-endian machine")
	}
}

// packetMessage is what Linux sends for a UDP datagram on loopback, cut to the
// attributes that matter and one that does not.
func packetMessage(t testing.TB) []byte {
	return fromHex(t,
		"58000000 0003 0000 00000000 00000000", // nlmsghdr: length 88, NFQNL_MSG_PACKET
		"02 00 0064",                           // nfgenmsg: AF_INET, queue 100
		"0b00 0100 00000007 0800 03 00",        // NFQA_PACKET_HDR: id 7, IP, output
		"0800 0600 00000001",                   // NFQA_IFINDEX_OUTDEV
		"0800 0300 00004010",                   // NFQA_MARK
		"2300 0a00 4500001f000040004011000a7f0000017f000001 9c40 0009 000b fe1e 616263 00", // NFQA_PAYLOAD, 31 bytes
	)
}

func TestParsePacket(t *testing.T) {
	skipBigEndian(t)
	b := packetMessage(t)
	p, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != 7 || p.Hook != Output || p.Mark != 0x4010 || len(p.Payload) != 31 || !bytes.HasSuffix(p.Payload, []byte("abc")) {
		t.Errorf("parsed %+v", p)
	}
	// Cut anywhere, it must not panic, and never make up an id.
	for n := range b {
		if p, err := parse(b[:n]); err == nil && p.ID != 7 {
			t.Errorf("cut at %d: id %d", n, p.ID)
		}
	}
}

// stampedMessage is what Linux sends for a UDP datagram that arrived by veth0 while
// packets were stamped.
func stampedMessage(t testing.TB) []byte {
	return fromHex(t,
		"79000000 0003 0000 00000000 00000000 02 00 0064",
		"0b00 0100 00000001 0800 00 00",                  // id 1, IP, prerouting
		"0800 0500 01000110",                             // NFQA_IFINDEX_INDEV
		"1000 0900 0006 0000 06ee4371a7bf 0000",          // NFQA_HWADDR
		"1400 0400 000000006b01c17f 000000000008da99",    // NFQA_TIMESTAMP
		"0800 0e00 00000001 2500 0a00 45000021810940004", // NFQA_SKB_INFO, NFQA_PAYLOAD
		"0116558c6336402c63364019fb60035000d548968656c6c6f",
	)
}

func TestParseArrived(t *testing.T) {
	skipBigEndian(t)
	b := stampedMessage(t)
	p, err := parse(b)
	if want := time.Unix(0x6b01c17f, 0x8da99*1000); err != nil || p.Arrived != want || p.InInterface != 0x1000110 || p.Hook != Prerouting {
		t.Errorf("parsed %+v, error %v; want one that arrived at %v", p, err, want)
	}
	if n := testing.AllocsPerRun(100, func() { p, err = parse(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if p, err := parse(packetMessage(t)); err != nil || !p.Arrived.IsZero() {
		t.Errorf("a packet without a stamp arrived at %v, error %v", p.Arrived, err)
	}
	const length = 20 + 12 + 8 + 16 // of NFQA_TIMESTAMP
	b[length] = 19
	if p, err := parse(b); err == nil && !p.Arrived.IsZero() {
		t.Errorf("from a stamp of 15 bytes: %v", p.Arrived)
	}
}

func TestParseRefusal(t *testing.T) {
	skipBigEndian(t)
	_, err := parse(fromHex(t, "24000000 0200 0000 00000000 00000000", "feffffff", "2c000000 0103 0100 07000000 00000000"))
	if !errors.Is(err, answer(syscall.ENOENT)) {
		t.Errorf("error %v; want the answer ENOENT", err)
	}
}

func TestVerdictMessage(t *testing.T) {
	skipBigEndian(t)
	got := appendVerdict(nil, 100, Verdict{ID: 7, Mark: 0x8000})
	want := fromHex(t,
		"28000000 0103 0100 07000000 00000000", // nlmsghdr: length 40, NFQNL_MSG_VERDICT, REQUEST
		"00 00 0064",                           // nfgenmsg: queue 100
		"0c00 0200 00000001 00000007",          // NFQA_VERDICT_HDR: NF_ACCEPT
		"0800 0300 00008000",                   // NFQA_MARK
	)
	if !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
	drop := appendVerdict(nil, 100, Verdict{ID: 7, Drop: true})
	if v := binary.BigEndian.Uint32(drop[24:]); v != library.NfDrop {
		t.Errorf("verdict %d, want %d", v, library.NfDrop)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(packetMessage(f))
	f.Add(stampedMessage(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parse(b); err == nil && len(p.Payload) > len(b) {
			t.Errorf("payload of %d bytes in %d", len(p.Payload), len(b))
		}
	})
}

func BenchmarkParse(b *testing.B) {
	m := packetMessage(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parse(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeVerdict(b *testing.B) {
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = appendVerdict(buf[:0], 100, Verdict{ID: 7, Mark: 0x8000})
	}
}
