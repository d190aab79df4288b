// Package capturetest makes captures for tests from a text with one packet per line:
//
//	0.000 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=7
//	0.001 UDP [fd00::9]:40000 > [fd00::10]:53 payload=query
//	3.5   SCTP 10.244.1.9:40000 > 10.96.0.30:99 INIT
//	4     ICMP 10.244.2.2 > 10.244.1.9 about=2
//	5     ARP
//
// First the time in seconds, then what packet: with TCP flags or an SCTP chunk (INIT, DATA, ABORT,
// SHUTDOWN-COMPLETE), and with payload, id (IPv4), ttl, seq (TCP, SCTP tag), vlan and interface
// (the number, in pcapng). about is the line number of the packet an ICMP error is about. cut=N
// keeps N bytes of the frame only; a packet that is absent is not in the capture, but others may
// refer to it. Lines that begin with # and empty ones are not packets, but count.
package capturetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Format is the format of a capture.
type Format struct {
	NG          bool // pcapng, with two interfaces, eth0 and eth1; else pcap
	Nanoseconds bool // pcap: nanoseconds in place of microseconds
	Link        layers.LinkType
	Snap        int // bytes of each frame that are kept; 0: all
}

// ParseFormat reads words such as "pcapng" and "raw".
func ParseFormat(words []string) (Format, error) {
	f := Format{Link: layers.LinkTypeEthernet}
	for _, w := range words {
		switch w {
		case "pcap":
		case "pcapng":
			f.NG = true
		case "nanoseconds":
			f.Nanoseconds = true
		case "ethernet":
		case "raw":
			f.Link = layers.LinkTypeRaw
		case "cooked":
			f.Link = layers.LinkTypeLinuxSLL
		case "cooked2":
			f.Link = LinkTypeCooked2
		case "null":
			f.Link = layers.LinkTypeNull
		default:
			return f, fmt.Errorf("format %q: want pcap, pcapng, nanoseconds, ethernet, raw, cooked, cooked2 or null", w)
		}
	}
	return f, nil
}

// LinkTypeCooked2 is LINKTYPE_LINUX_SLL2, which gopacket does not know.
const LinkTypeCooked2 layers.LinkType = 20 // a stand-in: the true 276 does not fit a byte

// Epoch is the time 0 of captures.
var Epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Write makes a capture of the text.
func Write(f Format, text string) ([]byte, error) {
	var b bytes.Buffer
	w, err := newWriter(&b, f)
	if err != nil {
		return nil, err
	}
	packets := make(map[int][]byte) // by line
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		p, err := parse(words, packets)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		packets[i+1] = p.ip
		if p.absent {
			continue
		}
		frame := p.frame(f.Link)
		info := gopacket.CaptureInfo{
			Timestamp: Epoch.Add(p.time), Length: len(frame), CaptureLength: len(frame), InterfaceIndex: p.iface,
		}
		if cut := cmp.Or(p.cut, f.Snap); cut > 0 && cut < len(frame) {
			frame, info.CaptureLength = frame[:cut], cut
		}
		if err := w.WritePacket(info, frame); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if ng, ok := w.(*pcapgo.NgWriter); ok {
		if err := ng.Flush(); err != nil {
			return nil, err
		}
	}
	return patchLink(b.Bytes(), f), nil
}

type writer interface {
	WritePacket(gopacket.CaptureInfo, []byte) error
}

func newWriter(b *bytes.Buffer, f Format) (writer, error) {
	const snap = 65535
	switch {
	case f.NG:
		eth0 := pcapgo.NgInterface{Name: "eth0", LinkType: f.Link, SnapLength: snap, TimestampResolution: 9}
		w, err := pcapgo.NewNgWriterInterface(b, eth0, pcapgo.DefaultNgWriterOptions)
		if err != nil {
			return nil, err
		}
		_, err = w.AddInterface(pcapgo.NgInterface{Name: "eth1", LinkType: f.Link, SnapLength: snap, TimestampResolution: 6})
		return w, err
	case f.Nanoseconds:
		w := pcapgo.NewWriterNanos(b)
		return w, w.WriteFileHeader(snap, f.Link)
	}
	w := pcapgo.NewWriter(b)
	return w, w.WriteFileHeader(snap, f.Link)
}

// patchLink puts the true number in place of a stand-in.
func patchLink(b []byte, f Format) []byte {
	if f.Link != LinkTypeCooked2 {
		return b
	}
	if !f.NG {
		b[20], b[21] = 276&0xff, 276>>8
		return b
	}
	// Interface descriptions, block type 1, follow the section header.
	for at := 0; at+10 < len(b); at += int(b[at+4]) | int(b[at+5])<<8 {
		if b[at] == 1 && b[at+1]|b[at+2]|b[at+3] == 0 {
			b[at+8], b[at+9] = 276&0xff, 276>>8
		}
	}
	return b
}

// line is a packet as it is written down.
type line struct {
	time  time.Duration
	ip    []byte // nil: ARP
	vlan  int
	iface int
	cut   int
	is4   bool

	absent bool
}

func (l *line) frame(link layers.LinkType) []byte {
	ether := uint16(0x0800)
	switch {
	case l.ip == nil:
		ether = 0x0806
	case !l.is4:
		ether = 0x86dd
	}
	payload := l.ip
	if payload == nil {
		payload = make([]byte, 28)
	}
	if l.vlan > 0 {
		payload = slices.Concat([]byte{byte(l.vlan >> 8), byte(l.vlan), byte(ether >> 8), byte(ether)}, payload)
		ether = 0x8100
	}
	proto := []byte{byte(ether >> 8), byte(ether)}
	switch link {
	case layers.LinkTypeEthernet:
		frame := slices.Concat([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, proto, payload)
		for len(frame) < 60 { // as the wire has it
			frame = append(frame, 0)
		}
		return frame
	case layers.LinkTypeLinuxSLL:
		return slices.Concat([]byte{0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0}, proto, payload)
	case LinkTypeCooked2:
		return slices.Concat(proto, []byte{0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0}, payload)
	case layers.LinkTypeNull:
		family := byte(2)
		if !l.is4 {
			family = 30
		}
		return slices.Concat([]byte{family, 0, 0, 0}, payload)
	}
	return payload
}

// parse reads the words of a line.
func parse(words []string, packets map[int][]byte) (*line, error) {
	l := &line{}
	seconds, err := strconv.ParseFloat(words[0], 64)
	if err != nil || len(words) < 2 {
		return nil, fmt.Errorf("want TIME PACKET: %v", words)
	}
	l.time = time.Duration(seconds*1e6) * time.Microsecond
	options := make(map[string]string)
	var flags []string
	if words[1] == "ARP" {
		return l, nil
	}
	if len(words) < 5 || words[3] != ">" {
		return nil, fmt.Errorf("want TIME PROTOCOL FROM > TO: %v", words)
	}
	for _, w := range words[5:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			options[key] = value
		} else {
			flags = append(flags, w)
		}
	}
	number := func(key string, otherwise int) int {
		text, ok := options[key]
		if !ok {
			return otherwise
		}
		n, bad := strconv.Atoi(text)
		err = errors.Join(err, bad)
		return n
	}
	l.absent = slices.Contains(flags, "absent")
	l.vlan, l.iface, l.cut = number("vlan", 0), number("interface", 0), number("cut", 0)
	from, to, bad := addresses(words[2], words[4])
	if err = errors.Join(err, bad); err != nil {
		return nil, err
	}
	l.is4 = from.Addr().Is4()
	ip := ipLayer(from.Addr(), to.Addr(), words[1], number("id", 0), number("ttl", 64))
	seq := uint32(number("seq", 1000))
	payload := gopacket.Payload(options["payload"])
	var transport []gopacket.SerializableLayer
	switch words[1] {
	case "TCP":
		t := &layers.TCP{
			SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()), Seq: seq, Window: 64240,
			SYN: slices.Contains(flags, "SYN"), ACK: slices.Contains(flags, "ACK"), FIN: slices.Contains(flags, "FIN"), RST: slices.Contains(flags, "RST"),
		}
		err = t.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
		transport = []gopacket.SerializableLayer{t, payload}
	case "UDP":
		u := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
		err = u.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
		transport = []gopacket.SerializableLayer{u, payload}
	case "SCTP":
		chunk := map[string]byte{"DATA": 0, "INIT": 1, "INIT-ACK": 2, "ABORT": 6, "SHUTDOWN-COMPLETE": 14}[strings.Join(flags, "")]
		s := &layers.SCTP{SrcPort: layers.SCTPPort(from.Port()), DstPort: layers.SCTPPort(to.Port()), VerificationTag: seq}
		transport = []gopacket.SerializableLayer{s, gopacket.Payload([]byte{chunk, 0, 0, 8, 1, 2, 3, 4}), payload}
	case "ICMP":
		about := packets[number("about", 0)]
		about = about[:min(len(about), 48)]
		if l.is4 {
			about = about[:min(len(about), 28)]
			transport = []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, gopacket.Payload(about)}
		} else {
			icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 0)}
			err = icmp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
			transport = []gopacket.SerializableLayer{icmp, gopacket.Payload(append(make([]byte, 4), about...))}
		}
	default:
		err = fmt.Errorf("protocol %q: want TCP, UDP, SCTP, ICMP or ARP", words[1])
	}
	if err != nil {
		return nil, err
	}
	b := gopacket.NewSerializeBuffer()
	all := append([]gopacket.SerializableLayer{ip}, transport...)
	err = gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...)
	l.ip = b.Bytes()
	return l, err
}

// addresses reads both, with ports or without.
func addresses(from, to string) (a, b netip.AddrPort, err error) {
	read := func(s string) netip.AddrPort {
		if addr, bad := netip.ParseAddr(s); bad == nil {
			return netip.AddrPortFrom(addr, 0)
		}
		ap, bad := netip.ParseAddrPort(s)
		err = errors.Join(err, bad)
		return ap
	}
	return read(from), read(to), err
}

func ipLayer(from, to netip.Addr, protocol string, id, ttl int) gopacket.SerializableLayer {
	if from.Is4() {
		proto := map[string]layers.IPProtocol{"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 1}[protocol]
		return &layers.IPv4{Version: 4, TTL: uint8(ttl), Id: uint16(id), Protocol: proto, SrcIP: net.IP(from.AsSlice()), DstIP: net.IP(to.AsSlice())}
	}
	proto := map[string]layers.IPProtocol{"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 58}[protocol]
	return &layers.IPv6{Version: 6, HopLimit: uint8(ttl), NextHeader: proto, SrcIP: net.IP(from.AsSlice()), DstIP: net.IP(to.AsSlice())}
}
