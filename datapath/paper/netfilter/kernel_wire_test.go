//go:build linux

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

const (
	ipv4Header = 20
	ipv6Header = 40
)

// encode makes the IP packet, with all checksums right: conntrack takes others for
// invalid. answer means that the server sends it, whose sequence numbers are
// others.
func encode(p *iptables.Packet, answer bool) []byte {
	body := encodeTransport(p, answer)
	src, dst := p.Source.Addr().AsSlice(), p.Destination.Addr().AsSlice()
	pseudo := append(append(append([]byte{}, src...), dst...), 0, 0, byte(len(body)>>8), byte(len(body)), 0, 0, 0, p.Protocol)
	switch p.Protocol {
	case protoTCP:
		binary.BigEndian.PutUint16(body[16:], checksum(append(pseudo, body...)))
	case protoUDP:
		binary.BigEndian.PutUint16(body[6:], checksum(append(pseudo, body...)))
	case protoICMPv6:
		binary.BigEndian.PutUint16(body[2:], checksum(append(pseudo, body...)))
	case protoICMP:
		binary.BigEndian.PutUint16(body[2:], checksum(body))
	case protoSCTP:
		// RFC 9260, appendix A: CRC32c, written the other way round.
		binary.LittleEndian.PutUint32(body[8:], crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	}
	var header []byte
	if p.Is4() {
		header = make([]byte, ipv4Header)
		header[0], header[1], header[8], header[9] = 0x45, p.TOS, p.TTL, p.Protocol
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Header+len(body)))
		header[5] = 1 // an identification
		copy(header[12:], src)
		copy(header[16:], dst)
		binary.BigEndian.PutUint16(header[10:], checksum(header))
	} else {
		header = make([]byte, ipv6Header)
		header[0], header[1], header[6], header[7] = 0x60|p.TOS>>4, p.TOS<<4, p.Protocol, p.TTL
		binary.BigEndian.PutUint16(header[4:], uint16(len(body)))
		copy(header[8:], src)
		copy(header[24:], dst)
	}
	return append(header, body...)
}

// sequence numbers of client and server, before their SYN.
const clientSequence, serverSequence = 1000, 5000

func encodeTransport(p *iptables.Packet, answer bool) []byte {
	var b []byte
	switch p.Protocol {
	case protoTCP:
		const header = 20
		b = make([]byte, header)
		for _, kind := range p.TCPOptions {
			switch kind {
			case 2: // the maximum segment size
				b = append(b, kind, 4, byte(p.MSS>>8), byte(p.MSS))
			case 3: // the window's scale
				b = append(b, 1, kind, 3, 7)
			case 4: // selective acknowledgements
				b = append(b, 1, 1, kind, 2)
			case 8: // a timestamp: 1000, and none of the other side
				b = append(b, 1, 1, kind, 10, 0, 0, 1000>>8, 1000&0xff, 0, 0, 0, 0)
			}
		}
		b[12], b[13] = byte(len(b)/4)<<4, byte(p.Flags)
		sequence, other := uint32(clientSequence), uint32(serverSequence)
		if answer {
			sequence, other = other, sequence
		}
		if p.Flags&iptables.SYN == 0 {
			sequence++
		}
		binary.BigEndian.PutUint32(b[4:], sequence)
		// A reset acknowledges nothing, as the other side may have sent nothing yet: for
		// resets windows count even where nf_conntrack_tcp_be_liberal is set.
		if p.Flags&(iptables.ACK|iptables.RST) == iptables.ACK {
			binary.BigEndian.PutUint32(b[8:], other+1)
		}
		binary.BigEndian.PutUint16(b[14:], 0x7fff) // window
	case protoUDP:
		b = make([]byte, 8)
		b = append(b, "GET /x"...)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	case protoICMP, protoICMPv6:
		b = make([]byte, 20)
		b[0], b[1] = p.ICMPType, p.ICMPCode
		binary.BigEndian.PutUint16(b[4:], p.ICMPID)
		return b
	case protoSCTP:
		b = make([]byte, 12)
		if len(p.Chunks) > 0 && p.Chunks[0].Type != sctpInit {
			binary.BigEndian.PutUint32(b[4:], 7) // verification tag
		}
		for _, c := range p.Chunks {
			chunk := []byte{c.Type, c.Flags, 0, 4}
			if c.Type == sctpInit || c.Type == 2 {
				chunk = make([]byte, 20)
				chunk[0], chunk[3], chunk[7] = c.Type, byte(len(chunk)), 7
				chunk[9], chunk[13], chunk[15], chunk[19] = 1, 1, 1, 1 // window, streams out and in, first TSN
			}
			b = append(b, chunk...)
		}
	default:
		return make([]byte, 8)
	}
	binary.BigEndian.PutUint16(b, p.Source.Port())
	binary.BigEndian.PutUint16(b[2:], p.Destination.Port())
	return b
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// decode reads what can be seen of a packet, of which the transport header may be cut
// short. ok is false for other packets than those of IP.
func decode(b []byte) (p iptables.Packet, ok bool) {
	var src, dst netip.Addr
	var body []byte
	switch {
	case len(b) >= ipv4Header && b[0] == 0x45:
		p.TOS, p.TTL, p.Protocol, body = b[1], b[8], b[9], b[ipv4Header:]
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	case len(b) >= ipv6Header && b[0]>>4 == 6:
		p.TOS, p.TTL, p.Protocol, body = b[0]<<4|b[1]>>4, b[7], b[6], b[ipv6Header:]
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	default:
		return p, false
	}
	var sport, dport uint16
	switch {
	case len(body) < 8:
	case iptables.HasPorts(p.Protocol):
		sport, dport = binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])
	case hasICMP(p.Protocol):
		p.ICMPType, p.ICMPCode, p.ICMPID = body[0], body[1], binary.BigEndian.Uint16(body[4:])
	}
	if p.Protocol == protoTCP && len(body) >= 14 {
		p.Flags = iptables.TCPFlags(body[13])
	}
	p.Source, p.Destination = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return p, true
}

// hopByHop is the next header of multicast listener reports, which come unrequested.
const hopByHop = 0

// captured is a packet on the wire of a device.
type captured struct {
	device string
	iptables.Packet
}

// capture gives what has come out of the node.
func (n *kernelNode) capture() (seen []captured, err error) {
	var buffer [2048]byte
	for {
		size, from, err := unix.Recvfrom(n.wire, buffer[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return seen, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("capturing: %w", err)
		}
		const ethernetHeader = 14
		if size < ethernetHeader {
			continue
		}
		if p, ok := decode(buffer[ethernetHeader:size]); ok && p.Protocol != hopByHop {
			seen = append(seen, captured{n.outerDevice[from.(*unix.SockaddrLinklayer).Ifindex], p})
		}
	}
}
