package replay

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// translated replays a text and describes each packet that comes out, read by gopacket, which
// also makes all checksums anew.
func translated(t *testing.T, table *decision.Table, format, text string) (lines []string, s *Summary) {
	t.Helper()
	r := New(ByTable(table, draws(), false))
	r.Translate = true
	_, out := run(t, r, capture(t, format, text))
	blocks, err := readAll(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if b.Frame == nil {
			continue
		}
		line, err := describe(b.Frame)
		if err != nil {
			t.Fatalf("packet %d: %v", b.Number, err)
		}
		lines = append(lines, line)
	}
	return lines, r.Summary()
}

// describe describes a frame, with "bad" for a checksum that is not as gopacket makes it.
func describe(frame []byte) (string, error) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	n := p.NetworkLayer()
	if n == nil {
		return "no IP", nil
	}
	line := ""
	switch l := p.Layers()[2].(type) {
	case *layers.TCP, *layers.UDP, *layers.SCTP:
		ports := l.(gopacket.TransportLayer).TransportFlow()
		line = fmt.Sprintf("%s %s > %s", l.LayerType(), at(n.NetworkFlow().Src(), ports.Src()), at(n.NetworkFlow().Dst(), ports.Dst()))
	case *layers.ICMPv4:
		line = fmt.Sprintf("ICMP %s > %s about %s", n.NetworkFlow().Src(), n.NetworkFlow().Dst(), about(l.Payload))
	case *layers.ICMPv6:
		line = fmt.Sprintf("ICMP %s > %s about %s", n.NetworkFlow().Src(), n.NetworkFlow().Dst(), about(l.Payload[4:]))
	default:
		return "", fmt.Errorf("layer %s", l.LayerType())
	}
	var all []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(n)
			all = append(all, l, gopacket.Payload(l.Payload))
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(n)
			all = append(all, l, gopacket.Payload(l.Payload))
		case *layers.SCTP:
			all = append(all, l, gopacket.Payload(l.Payload))
		case *layers.ICMPv4:
			all = append(all, l, gopacket.Payload(l.Payload))
		case *layers.ICMPv6:
			_ = l.SetNetworkLayerForChecksum(n)
			all = append(all, l, gopacket.Payload(l.Payload))
		case *layers.Ethernet:
			all = append(all, l)
		case *layers.IPv4:
			all = append(all, l)
		case *layers.IPv6:
			all = append(all, l)
		}
		if len(all) >= 4 {
			break
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{ComputeChecksums: true}, all...); err != nil {
		return "", err
	}
	if want := b.Bytes(); !bytes.Equal(frame[:min(len(want), len(frame))], want[:min(len(want), len(frame))]) {
		line += " bad"
	}
	return line, nil
}

func at(addr, port gopacket.Endpoint) string {
	p := uint16(port.Raw()[0])<<8 | uint16(port.Raw()[1])
	a, _ := netip.AddrFromSlice(addr.Raw())
	return netip.AddrPortFrom(a, p).String()
}

// about describes the packet in an ICMP error.
func about(b []byte) string {
	p, err := decoded(b)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s > %s", p.Tuple.Source, p.Tuple.Destination)
}

func TestTranslate(t *testing.T) {
	table := cluster(t, nil)
	for _, tt := range []struct {
		name, text string
		want       []string
		leftOut    int
	}{
		{"answers on either side", `0 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
1 TCP 10.96.0.20:80 > 10.244.1.9:40000 SYN ACK
2 TCP 10.244.1.2:8080 > 10.244.1.9:40000 ACK payload=odd
3 TCP 10.244.1.9:40000 > 10.96.0.20:80 ACK payload=even`,
			[]string{"TCP 10.244.1.9:40000 > 10.244.1.2:8080", "TCP 10.244.1.2:8080 > 10.244.1.9:40000",
				"TCP 10.96.0.20:80 > 10.244.1.9:40000", "TCP 10.244.1.9:40000 > 10.244.1.2:8080"}, 0},
		{"masqueraded, and two clients with one port", `0 UDP 192.0.2.10:40000 > 172.20.0.2:30053 payload=q
1 UDP 10.244.1.2:5353 > 172.20.0.2:40000 payload=a
2 TCP 192.0.2.11:65535 > 10.96.0.70:80 SYN
3 TCP 192.0.2.12:65535 > 10.96.0.70:80 SYN
4 TCP 10.244.1.2:8080 > 172.20.0.2:1024 SYN ACK`,
			[]string{"UDP 172.20.0.2:40000 > 10.244.1.2:5353", "UDP 172.20.0.2:30053 > 192.0.2.10:40000",
				"TCP 172.20.0.2:65535 > 10.244.1.2:8080", "TCP 172.20.0.2:1024 > 10.244.1.2:8080", "TCP 10.96.0.70:80 > 192.0.2.12:65535"}, 0},
		{"IPv6", `0 UDP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:53 payload=que
1 TCP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:80 SYN payload=x
2 UDP [fd00:10:96::20]:53 > [fd00:10:244:1::9]:40000 payload=answer`,
			[]string{"UDP [fd00:10:244:1::9]:40000 > [fd00:10:244:1::2]:5353", "TCP [fd00:10:244:1::9]:40000 > [fd00:10:244:2::2]:8080",
				"UDP [fd00:10:244:1::2]:5353 > [fd00:10:244:1::9]:40000"}, 0},
		{"refused and dropped flows are left out, others stay", `0 TCP 10.244.1.9:40000 > 10.96.0.80:80 SYN id=1
1 TCP 10.244.1.9:40000 > 10.96.0.80:80 SYN id=2
2 TCP 10.96.0.80:80 > 10.244.1.9:40000 RST ACK
3 TCP 192.0.2.10:40000 > 172.20.0.2:30030 SYN
4 TCP 10.244.1.9:1 > 192.0.2.1:80 SYN
5 ARP
6 ICMP 10.244.1.1 > 10.244.1.9 about=1`,
			[]string{"TCP 10.244.1.9:1 > 192.0.2.1:80", "no IP"}, 5},
		{"packets seen behind another translation are left out", `0      TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=7 seq=5
0.001  TCP 10.244.1.9:40000 > 10.244.2.2:8080 SYN id=7 seq=5
0.002  TCP 10.244.2.2:8080 > 10.244.1.9:40000 SYN ACK
0.003  TCP 10.96.0.20:80 > 10.244.1.9:40000 SYN ACK`,
			[]string{"TCP 10.244.1.9:40000 > 10.244.1.2:8080", "TCP 10.244.1.2:8080 > 10.244.1.9:40000"}, 2},
		{"ICMP errors", `0 UDP 192.0.2.10:40000 > 172.20.0.2:30053 payload=q
1 UDP 172.20.0.2:40000 > 10.244.1.2:5353 payload=q absent
2 ICMP 10.244.1.2 > 172.20.0.2 about=2
3 ICMP 10.244.9.9 > 172.20.0.2 about=2
4 ICMP 172.20.0.2 > 192.0.2.10 about=1
5 ICMP 10.244.9.9 > 10.244.1.9 about=3`,
			[]string{"UDP 172.20.0.2:40000 > 10.244.1.2:5353",
				"ICMP 172.20.0.2 > 192.0.2.10 about 192.0.2.10:40000 > 172.20.0.2:30053",
				"ICMP 172.20.0.2 > 192.0.2.10 about 192.0.2.10:40000 > 172.20.0.2:30053", // the router's address is lost, as in the kernel
				"ICMP 10.244.1.2 > 172.20.0.2 about 172.20.0.2:40000 > 10.244.1.2:5353",
				"ICMP 10.244.9.9 > 10.244.1.9 about protocol without ports"}, 0},
		{"ICMP errors of IPv6", `0 TCP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:80 SYN
1 TCP [fd00:10:244:1::9]:40000 > [fd00:10:244:1::2]:8080 SYN absent
2 ICMP fd00:10:244:1::2 > fd00:10:244:1::9 about=2`,
			[]string{"TCP [fd00:10:244:1::9]:40000 > [fd00:10:244:1::2]:8080",
				"ICMP fd00:10:96::20 > fd00:10:244:1::9 about [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:80"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines, s := translated(t, table, "pcap", tt.text)
			if strings.Join(lines, "\n") != strings.Join(tt.want, "\n") || s.LeftOut != tt.leftOut {
				t.Errorf("%d left out, have\n  %s\nwant %d and\n  %s", s.LeftOut, strings.Join(lines, "\n  "), tt.leftOut, strings.Join(tt.want, "\n  "))
			}
		})
	}
}

// TestNoNodeAddress: a masqueraded packet needs an address; a description of it does not.
func TestNoNodeAddress(t *testing.T) {
	node := *cluster(t, nil).Node()
	node.IPs = nil
	table := cluster(t, nil).Next(cluster(t, nil).Built(), node)
	capture := capture(t, "pcap", "0 TCP 192.0.2.10:40000 > 10.96.0.20:80 SYN")
	r := New(ByTable(table, draws(), false))
	lines, _ := run(t, r, capture)
	wantLines(t, lines, "0s TCP 192.0.2.10:40000 -> 10.96.0.20:80  default/web:http  => 10.244.1.2:8080 (1 of 2, draw 0.24)  masq: (source-outside-cluster)")

	r = New(ByTable(table, draws(), false))
	r.Translate = true
	c, err := NewCapture(bytes.NewReader(capture))
	if err != nil {
		t.Fatal(err)
	}
	err = r.Run(c, &bytes.Buffer{}, func(*flow.Record) error { return nil })
	const want = "packet 1: TCP 192.0.2.10:40000 -> 10.96.0.20:80 is masqueraded, but the node has no known IPv4 address: set --node-ip, or add its Node object"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestPartialChecksums: those of packets that are not all there are changed, not made
// anew: the whole packet has the right one.
func TestPartialChecksums(t *testing.T) {
	to := conntrack.Tuple{Source: netip.MustParseAddrPort("172.20.0.2:1024"), Destination: netip.MustParseAddrPort("10.244.1.2:8080")}
	for _, protocol := range []string{"TCP", "UDP"} {
		frame := capture(t, "pcap raw", "0 "+protocol+" 192.0.2.10:40000 > 10.96.0.20:80 SYN payload=some-odd-payload.")[24+16:]
		whole, cut, fragment := bytes.Clone(frame), bytes.Clone(frame[:len(frame)-5]), bytes.Clone(frame)
		fragment[6] |= 0x20 // more fragments
		for _, b := range [][]byte{whole, cut, fragment} {
			p, err := decoded(b)
			if err != nil {
				t.Fatal(err)
			}
			to.Protocol = p.Tuple.Protocol
			p.rewrite(to)
		}
		if !bytes.Equal(whole[20:len(cut)], cut[20:]) || !bytes.Equal(whole[20:], fragment[20:]) {
			t.Errorf("%s: whole    %x\ncut      %x\nfragment %x", protocol, whole[20:], cut[20:], fragment[20:])
		}
		// One a network card was to fill in.
		unfinished := bytes.Clone(frame)
		offset := map[string]int{"TCP": 36, "UDP": 26}[protocol]
		unfinished[offset], unfinished[offset+1] = 0x12, 0x34
		p, _ := decoded(unfinished)
		p.rewrite(to)
		if !bytes.Equal(whole, unfinished) {
			t.Errorf("%s: %x, want %x", protocol, unfinished, whole)
		}
	}
	// A datagram without a checksum stays without.
	frame := capture(t, "pcap raw", "0 UDP 192.0.2.10:40000 > 10.96.0.20:80")[24+16:]
	frame[26], frame[27] = 0, 0
	p, _ := decoded(frame)
	to.Protocol = packet.UDP
	p.rewrite(to)
	if frame[26]|frame[27] != 0 {
		t.Errorf("a datagram got the checksum %x", frame[26:28])
	}
}

// TestSCTPChecksum: it covers all of the packet, and stays where not all is there.
func TestSCTPChecksum(t *testing.T) {
	frame := capture(t, "pcap", "0 SCTP 192.0.2.10:40000 > 10.96.0.20:99 INIT payload=1234")[24+16:]
	cut := bytes.Clone(frame[:len(frame)-6]) // also what fills the frame up
	to := conntrack.Tuple{Source: netip.MustParseAddrPort("172.20.0.2:1024"), Destination: netip.MustParseAddrPort("10.244.1.2:9999"), Protocol: packet.SCTP}
	for _, b := range [][]byte{frame, cut} {
		p, err := decoded(b[14:])
		if err != nil {
			t.Fatal(err)
		}
		p.rewrite(to)
	}
	if line, err := describe(frame); err != nil || line != "SCTP 172.20.0.2:1024 > 10.244.1.2:9999" {
		t.Errorf("%s, %v", line, err)
	}
	original := capture(t, "pcap", "0 SCTP 192.0.2.10:40000 > 10.96.0.20:99 INIT payload=1234")[24+16:]
	if !bytes.Equal(cut[42:46], original[42:46]) || bytes.Equal(cut[34:38], original[34:38]) {
		t.Errorf("cut: %x, before %x", cut[34:46], original[34:46])
	}
}

// TestZeroChecksum: a datagram whose checksum comes out as 0 has 0xffff (RFC 768).
func TestZeroChecksum(t *testing.T) {
	frame := capture(t, "pcap raw", "0 UDP 192.0.2.10:40000 > 10.96.0.20:80 payload=xx")[24+16:]
	to := conntrack.Tuple{Source: netip.MustParseAddrPort("172.20.0.2:1024"), Destination: netip.MustParseAddrPort("10.244.1.2:8080"), Protocol: packet.UDP}
	found := false
	for v := range 1 << 16 {
		b := bytes.Clone(frame)
		b[28], b[29] = byte(v>>8), byte(v)
		p, err := decoded(b)
		if err != nil {
			t.Fatal(err)
		}
		p.rewrite(to)
		if b[26]|b[27] == 0 {
			t.Fatalf("payload %x: the checksum is 0", v)
		}
		found = found || b[26]&b[27] == 0xff
	}
	if !found {
		t.Error("no payload gives 0xffff")
	}
}

// TestFragments: later ones follow the first.
func TestFragments(t *testing.T) {
	first := capture(t, "pcap raw", "0 UDP 192.0.2.10:40000 > 172.20.0.2:30053 id=9 payload=01234567")
	second := bytes.Clone(first[24:])
	first[24+16+6] |= 0x20            // more to come
	second[16+6], second[16+7] = 0, 2 // from byte 16 on
	late := bytes.Clone(second)
	late[0] += 31
	other := bytes.Clone(second) // of another packet
	other[16+5] = 10             // id
	capture := bytes.Join([][]byte{first, second, other, late}, nil)
	r := New(ByTable(cluster(t, nil), draws(), false))
	r.Translate = true
	lines, out := run(t, r, capture)
	wantLines(t, lines, "0s UDP 192.0.2.10:40000 -> 172.20.0.2:30053  default/web:dns")
	blocks, err := readAll(out)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "172.20.0.2 10.244.1.2", "172.20.0.2 10.244.1.2", "192.0.2.10 172.20.0.2", "192.0.2.10 172.20.0.2"} {
		if i == 0 {
			continue
		}
		p, _ := decoded(blocks[i].Frame)
		source, destination := pairOf(&p)
		if got := source.String() + " " + destination.String(); got != want {
			t.Errorf("packet %d: %s, want %s", i, got, want)
		}
	}
	if r.Summary().Fragments != 4 {
		t.Errorf("%d fragments", r.Summary().Fragments)
	}
}
