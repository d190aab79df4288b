package hostnat

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

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
	a, device := w.packet.Destination.Addr(), ""
	if v.Source {
		a = w.packet.Source.Addr()
	}
	switch {
	case v.In && w.packet.In == "" && !w.packet.Local:
		return rules.UnknownBits(4)
	case v.In:
		device = w.packet.In
	case v.Out:
		device = w.packet.Out
	}
	return rules.Number(w.host.addrType(a, device))
}

// Meta is a property of the packet, as far as it is known.
func (w *walk) Meta(v rules.Meta) (b rules.Bits, present bool) {
	p := &w.packet
	is4 := p.Destination.Addr().Is4()
	switch v.Key {
	case "mark":
		return w.mark, true
	case "l4proto":
		b.Put([]byte{p.Protocol})
	case "nfproto":
		b.Put([]byte{rules.NFProto(is4)})
	case "protocol": // an EtherType
		b.Put([]byte{0x08, 0x00})
		if !is4 {
			b.Put([]byte{0x86, 0xdd})
		}
	case "iifname":
		return w.name(p.In, p.Local)
	case "oifname":
		return w.name(p.Out, false)
	case "iif":
		return w.index(p.In, p.Local)
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
	is4 := p.Destination.Addr().Is4()
	source, destination := p.Source, p.Original
	if v.Reply {
		source, destination = p.Destination, p.Source
	}
	address := func(a netip.Addr, want4 bool) (rules.Bits, bool) {
		if a.Is4() != want4 {
			return rules.UnknownBits(v.ByteSize), false
		}
		b.PutAddr(a)
		return b, true
	}
	port := func(a netip.AddrPort) (rules.Bits, bool) {
		b.Put([]byte{byte(a.Port() >> 8), byte(a.Port())})
		return b, true
	}
	switch v.Key {
	case "state":
		return rules.Number(stateNew), true
	case "status":
		if p.Original != p.Destination {
			return rules.Number(statusDNAT), true
		}
		return rules.Number(1 << 8), true
	case "direction":
		b.Put([]byte{0})
	case "mark":
		return w.connmark, true
	case "protocol":
		b.Put([]byte{p.Protocol})
	case "l3proto":
		b.Put([]byte{rules.NFProto(is4)})
	case "saddr":
		return address(source.Addr(), is4)
	case "daddr":
		return address(destination.Addr(), is4)
	case "ip saddr":
		return address(source.Addr(), true)
	case "ip daddr":
		return address(destination.Addr(), true)
	case "ip6 saddr":
		return address(source.Addr(), false)
	case "ip6 daddr":
		return address(destination.Addr(), false)
	case "proto-src":
		return port(source)
	case "proto-dst":
		return port(destination)
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
	return w.packet.Destination.Addr()
}

// Local reports whether a program on this host sent the packet.
func (w *walk) Local() bool { return w.packet.Local }
