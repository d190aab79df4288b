package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const conversation = `0.000001 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
0.5 TCP 10.96.0.20:80 > 10.244.1.9:40000 SYN ACK
1   UDP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:53 payload=odd interface=1
2   TCP 10.244.1.9:40001 > 10.96.0.80:80 SYN
`

// formats are all in which a capture may come.
var formats = []string{
	"pcap", "pcap nanoseconds", "pcapng", "pcap raw", "pcap cooked", "pcap cooked2", "pcap null",
	"pcapng raw", "pcapng cooked", "pcapng cooked2", "pcapng null",
}

// TestFormats: the same packets in whatever file, in either byte order, and the file comes out
// as it went in.
func TestFormats(t *testing.T) {
	table := cluster(t, nil)
	for _, format := range formats {
		little := capture(t, format, conversation)
		for order, capture := range map[string][]byte{"little": little, "big": swapped(t, little)} {
			t.Run(format+" "+order, func(t *testing.T) {
				lines, out := run(t, New(ByTable(table, draws(), false)), capture)
				wantLines(t, lines, "1µs TCP 10.244.1.9:40000 -> 10.96.0.20:80  default/web:http", "1s UDP [fd00:10:244:1::9]:40000", "2s TCP")
				if !bytes.Equal(out, capture) {
					t.Errorf("%x became\n%x", capture, out)
				}
			})
		}
	}
}

// swapped gives a capture the other byte order. Options of pcapng keep theirs: gopacket
// writes resolutions, of one byte, and texts.
func swapped(t *testing.T, b []byte) []byte {
	t.Helper()
	b = slices.Clone(b)
	s16 := func(at int) { slices.Reverse(b[at : at+2]) }
	s32 := func(at int) { slices.Reverse(b[at : at+4]) }
	if b[0] == 0x0a {
		for at := 0; at < len(b); {
			length := int(binary.LittleEndian.Uint32(b[at+4:]))
			typ := binary.LittleEndian.Uint32(b[at:])
			s32(at)
			s32(at + 4)
			s32(at + length - 4)
			options := 0
			switch typ {
			case magicSection:
				s32(at + 8)
				s16(at + 12)
				s16(at + 14)
				options = at + 24
			case blockInterface:
				s16(at + 8)
				s32(at + 12)
				options = at + 16
			case blockEnhanced:
				for i := 8; i < 28; i += 4 {
					s32(at + i)
				}
			default:
				t.Fatalf("block type %d", typ)
			}
			for options > 0 && options < at+length-4 {
				n := int(binary.LittleEndian.Uint16(b[options+2:]))
				s16(options)
				s16(options + 2)
				options += 4 + (n+3)&^3
			}
			at += length
		}
		return b
	}
	for _, at := range []int{0, 8, 12, 16, 20} {
		s32(at)
	}
	s16(4)
	s16(6)
	for at := 24; at < len(b); {
		n := int(binary.LittleEndian.Uint32(b[at+8:]))
		for i := 0; i < 16; i += 4 {
			s32(at + i)
		}
		at += 16 + n
	}
	return b
}

// readAll reads a capture to its end.
func readAll(b []byte) (blocks []*Block, err error) {
	c, err := NewCapture(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		b, err := c.Next()
		if errors.Is(err, io.EOF) {
			return blocks, nil
		}
		if err != nil {
			return blocks, err
		}
		blocks = append(blocks, b)
	}
}

// TestCutOff: a file that ends early is an error, unless it ends between blocks.
func TestCutOff(t *testing.T) {
	for _, format := range []string{"pcap", "pcapng"} {
		whole := capture(t, format, conversation)
		blocks, err := readAll(whole)
		if err != nil {
			t.Fatal(err)
		}
		ends := map[int]bool{}
		at := 0
		for _, b := range blocks {
			at += len(b.Raw)
			ends[at] = true
		}
		for n := range len(whole) {
			_, err := readAll(whole[:n])
			switch {
			case ends[n] && err != nil:
				t.Errorf("%s: %d bytes, a file of whole blocks: %v", format, n, err)
			case ends[n]:
			case err == nil:
				t.Errorf("%s: cut off at %d and no error", format, n)
			case n >= 4 && !strings.Contains(err.Error(), "cut off at byte"):
				t.Errorf("%s: cut off at %d: %v", format, n, err)
			}
		}
	}
}

// TestDamage: a fault is reported with its place.
func TestDamage(t *testing.T) {
	pcap, ng := capture(t, "pcap", conversation), capture(t, "pcapng", conversation)
	blocks, err := readAll(ng)
	if err != nil {
		t.Fatal(err)
	}
	at := []int{0} // where the blocks of ng begin
	for _, b := range blocks {
		at = append(at, at[len(at)-1]+len(b.Raw))
	}
	with := func(b []byte, at int, bytes ...byte) []byte {
		b = slices.Clone(b)
		copy(b[at:], bytes)
		return b
	}
	packet := at[3] // behind a section and two interfaces
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "it is empty"},
		{"short", []byte("abc"), "not a capture: it has only 3 bytes"},
		{"text", []byte("hello world, this is text"), "not a capture: it begins with 68656c6c"},
		{"gzip", []byte{0x1f, 0x8b, 8, 0, 0}, "it is compressed: unpack it first"},
		{"version", with(pcap, 4, 3), "pcap version 3"},
		{"link type", with(pcap, 20, 127), "link type 127, which is not known here"},
		{"length", with(pcap, 24+8, 0, 0, 0, 1), "packet 1 claims to have 16777216 captured bytes: the file is damaged from byte 24 on"},
		{"byte order", with(ng, 8, 0, 0, 0, 0), "the section at byte 0 has no byte order"},
		{"section version", with(ng, 12, 2), "pcapng version 2"},
		{"block length", with(ng, packet+4, 13), "the block behind packet 0 claims a length of 13: the file is damaged from byte"},
		{"block of any length", with(ng, packet+4, 0, 0, 0, 0x7f), "claims a length of 2130706432"},
		{"length behind", with(ng, at[4]-4, 8), "and 8 behind: the file is damaged"},
		{"interface", with(ng, packet+8, 9), "a packet of interface 9, but only 2 are described before it"},
		{"captured length", with(ng, packet+20, 0xff, 0xff), "a packet that claims 65535 bytes in a block for 60"},
		{"interface's link type", with(ng, at[1]+8, 9), "link type 9"},
		{"option", with(ng, at[1]+18, 0xff), "goes past the end of the block"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readAll(tt.file)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q in one line", err, tt.want)
			}
		})
	}
}

// TestInterfaceTime: time stamps of all resolutions.
func TestInterfaceTime(t *testing.T) {
	for _, tt := range []struct {
		resolution byte
		stamp      uint64
		offset     time.Duration
		want       string
		ok         bool
	}{
		{6, 1_500_000, 0, "1970-01-01T00:00:01.5Z", true},
		{9, 1_500_000_000, 5 * time.Second, "1970-01-01T00:00:06.5Z", true},
		{0, 7, 0, "1970-01-01T00:00:07Z", true},
		{19, 15_000_000_000_000_000_000, 0, "1970-01-01T00:00:01.5Z", true},
		{0x80 | 1, 3, 0, "1970-01-01T00:00:01.5Z", true},
		{0x80 | 63, 3 << 62, 0, "1970-01-01T00:00:01.5Z", true},
		{20, 0, 0, "", false},
		{0x80 | 64, 0, 0, "", false},
	} {
		perUnit, ok := resolution(tt.resolution)
		if ok != tt.ok {
			t.Errorf("resolution %#x: %v", tt.resolution, ok)
		}
		if !ok {
			continue
		}
		i := captureInterface{perUnit: perUnit, offset: tt.offset}
		if got := i.time(tt.stamp).Format(time.RFC3339Nano); got != tt.want {
			t.Errorf("%d of resolution %#x: %s, want %s", tt.stamp, tt.resolution, got, tt.want)
		}
	}
}

// TestTags: what stands between Ethernet and IP.
func TestTags(t *testing.T) {
	for _, format := range []string{"pcap", "pcap cooked", "pcap cooked2"} {
		lines, _ := run(t, New(ByTable(cluster(t, nil), draws(), false)), capture(t, format, "0 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN vlan=42"))
		wantLines(t, lines, "0s TCP 10.244.1.9:40000 -> 10.96.0.20:80  default/web:http")
	}
}

// TestSections: capture files of pcapng may be put one behind the other, each with its
// own interfaces.
func TestSections(t *testing.T) {
	both := slices.Concat(capture(t, "pcapng", "0 TCP 10.244.1.9:1 > 10.96.0.20:80 SYN"), capture(t, "pcapng raw", "1 TCP 10.244.1.9:2 > 10.96.0.20:80 SYN"))
	lines, _ := run(t, New(ByTable(cluster(t, nil), draws(), false)), both)
	wantLines(t, lines, "0s TCP 10.244.1.9:1 -> 10.96.0.20:80", "1s TCP 10.244.1.9:2 -> 10.96.0.20:80")
}

// TestSimplePacket: a block without time stamp and captured length.
func TestSimplePacket(t *testing.T) {
	ng := capture(t, "pcapng raw", conversation)
	blocks, err := readAll(ng)
	if err != nil {
		t.Fatal(err)
	}
	frame := blocks[3].Frame
	simple := func(original uint32, data []byte) []byte {
		length := uint32(16 + (len(data)+3)&^3)
		b := binary.LittleEndian.AppendUint32(nil, blockSimple)
		b = binary.LittleEndian.AppendUint32(b, length)
		b = binary.LittleEndian.AppendUint32(b, original)
		b = append(b, data...)
		b = append(b, make([]byte, int(length)-4-len(b))...)
		return binary.LittleEndian.AppendUint32(b, length)
	}
	whole := slices.Concat(ng, simple(uint32(len(frame)), frame))
	blocks, err = readAll(whole)
	if err != nil {
		t.Fatal(err)
	}
	last, before := blocks[len(blocks)-1], blocks[len(blocks)-2]
	if !bytes.Equal(last.Frame, frame) || !last.Time.Equal(before.Time) || last.Interface != "eth0" || last.Number != 5 {
		t.Errorf("%+v, want the frame %x", last, frame)
	}
	// Of a packet longer than the snap length, as much is there as its value: 65535.
	if _, err := readAll(slices.Concat(ng, simple(70000, make([]byte, 65535)))); err != nil {
		t.Error(err)
	}
}

var update = flag.Bool("update", false, "write the sample capture anew")

// TestSample: the capture that README.md shows is made of the text beside it.
func TestSample(t *testing.T) {
	text, err := os.ReadFile("testdata/node-a.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := capture(t, "pcap", string(text))
	if *update {
		if err := os.WriteFile("testdata/node-a.pcap", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile("testdata/node-a.pcap"); err != nil || !bytes.Equal(have, want) {
		t.Errorf("testdata/node-a.pcap differs from testdata/node-a.txt (%v): run this test with -update", err)
	}
}
