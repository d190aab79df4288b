package hostnat

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// header is the bytes of a header as far as they are known.
type header struct{ data, known [40]byte }

func (h *header) put(at int, b ...byte) {
	copy(h.data[at:], b)
	for i := range b {
		h.known[at+i] = 0xff
	}
}

// writeHeaders writes what is known of the packet's headers.
func (w *walk) writeHeaders() {
	p := &w.packet
	if p.Endpoint.Addr().Is4() {
		source, destination := p.Source.Addr().As4(), p.Endpoint.Addr().As4()
		w.network.put(12, source[:]...)
		w.network.put(16, destination[:]...)
		w.network.put(9, byte(p.Protocol))
		// Connection tracking has put fragments together. Bit 6 is "don't fragment".
		w.network.known[6], w.network.known[7] = 0xbf, 0xff
	} else {
		source, destination := p.Source.Addr().As16(), p.Endpoint.Addr().As16()
		w.network.put(8, source[:]...)
		w.network.put(24, destination[:]...)
	}
	w.transport.put(0, portBytes(p.Source)...)
	w.transport.put(2, portBytes(p.Endpoint)...)
	if p.Protocol == decision.TCP {
		// A SYN and nothing else; ECE and CWR are not known (RFC 3168, 6.1.1).
		w.transport.data[13], w.transport.known[13] = 0x02, 0x3f
	}
}

// portBytes is the port in network order.
func portBytes(a netip.AddrPort) []byte { return []byte{byte(a.Port() >> 8), byte(a.Port())} }

// Payload, Meta, Ct, AddrType, Address and Local are what rules read of the packet.
func (w *walk) Payload(v rules.Payload) (b rules.Bits, present bool) {
	header := &w.network
	if v.Transport {
		header = &w.transport
	}
	if v.Offset < 0 || v.ByteSize > len(b.Data) || v.Offset+v.ByteSize > len(header.data) {
		return rules.UnknownBits(v.ByteSize), true
	}
	b.Size = v.ByteSize
	copy(b.Data[:b.Size], header.data[v.Offset:])
	copy(b.Known[:b.Size], header.known[v.Offset:])
	return b, true
}

// AddrType is the type of an address by the host's own addresses.
func (w *walk) AddrType(v rules.AddrType) rules.Bits {
	a, device := w.packet.Endpoint.Addr(), ""
	if v.Source {
		a = w.packet.Source.Addr()
	}
	switch {
	case v.In && w.packet.InInterface == "" && !w.packet.Local:
		return rules.UnknownBits(4)
	case v.In:
		device = w.packet.InInterface
	case v.Out:
		device = w.packet.Out
	}
	return rules.Number(w.host.addrType(a, device))
}

// Meta is a property of the packet, as far as it is known.
func (w *walk) Meta(v rules.Meta) (b rules.Bits, present bool) {
	p := &w.packet
	is4 := p.Endpoint.Addr().Is4()
	switch v.Key {
	case "mark":
		return w.mark, true
	case "l4proto":
		b.Put([]byte{byte(p.Protocol)})
	case "nfproto":
		b.Put([]byte{rules.NFProto(is4)})
	case "protocol": // an EtherType
		b.Put([]byte{0x08, 0x00})
		if !is4 {
			b.Put([]byte{0x86, 0xdd})
		}
	case "iifname":
		return w.name(p.InInterface, p.Local)
	case "oifname":
		return w.name(p.Out, false)
	case "iif":
		return w.index(p.InInterface, p.Local)
	case "oif":
		return w.index(p.Out, false)
	case "pkttype": // PACKET_HOST (if_packet.h), of forwarded packets to this host and of its own
		b.Put([]byte{0})
	case "skuid", "skgid": // no program on this host has sent it
		return rules.UnknownBits(4), p.Local
	default:
		return rules.UnknownBits(v.ByteSize), true
	}
	return b, true
}

// name is a device's name; none: there is no device, rather than an unknown one.
func (w *walk) name(name string, none bool) (b rules.Bits, present bool) {
	if name == "" && !none {
		return rules.UnknownBits(rules.DeviceSize), true
	}
	return rules.DeviceName(name), true
}

func (w *walk) index(name string, none bool) (rules.Bits, bool) {
	i, known := w.host.devices[name]
	switch {
	case name == "" && none:
		return rules.Number(0), true
	case !known:
		return rules.UnknownBits(4), true
	}
	return rules.Number(i), true
}

// Bits of the connection's state and status: nf_conntrack_common.h, as nft and iptables compare
// them.
const (
	stateNew   = 1 << 3
	statusDNAT = 1<<5 | 1<<8 // IPS_DST_NAT, IPS_DST_NAT_DONE
)

// Ct is a property of the connection, which has seen no reply yet.
func (w *walk) Ct(v rules.Ct) (b rules.Bits, present bool) {
	p := &w.packet
	is4 := p.Endpoint.Addr().Is4()
	source, destination := p.Source, p.Destination
	if v.Reply {
		source, destination = p.Endpoint, p.Source
	}
	switch v.Key {
	case "state":
		return rules.Number(stateNew), true
	case "status":
		if p.Endpoint != p.Destination {
			return rules.Number(statusDNAT), true
		}
		return rules.Number(1 << 8), true
	case "direction":
		b.Put([]byte{0})
	case "mark":
		return w.connmark, true
	case "protocol":
		b.Put([]byte{byte(p.Protocol)})
	case "l3proto":
		b.Put([]byte{rules.NFProto(is4)})
	case "saddr", "ip saddr", "ip6 saddr", "daddr", "ip daddr", "ip6 daddr":
		if is4 && strings.HasPrefix(v.Key, "ip6") || !is4 && strings.HasPrefix(v.Key, "ip ") {
			return rules.UnknownBits(v.ByteSize), false
		}
		if strings.HasSuffix(v.Key, "daddr") {
			source = destination
		}
		b.PutAddr(source.Addr())
	case "proto-src":
		b.Put(portBytes(source))
	case "proto-dst":
		b.Put(portBytes(destination))
	default:
		return rules.UnknownBits(v.ByteSize), true
	}
	return b, true
}

// Address is the source's or the destination's.
func (w *walk) Address(source bool) netip.Addr {
	if source {
		return w.packet.Source.Addr()
	}
	return w.packet.Endpoint.Addr()
}

// Local reports whether a program on this host sent the packet.
func (w *walk) Local() bool { return w.packet.Local }
