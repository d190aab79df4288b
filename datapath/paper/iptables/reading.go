package iptables

import "github.com/nfqproxy/nfqproxy/datapath/rules"

// This file is what conditions of nftables read of a packet, besides the fields of a Packet.

// ReadHeader reads bytes of the network header or, with transport, of the transport header and what follows; the offset
// and the size are in bytes. Bytes that the packet has, but whose values are not given, are not known. false: the packet
// ends before.
func (p *Packet) ReadHeader(transport bool, offset, size int) (b rules.Bits, ok bool) {
	m := p.image()
	if len(m.bytes) == 0 {
		return rules.UnknownBits(size), false
	}
	begin := 0
	if transport {
		begin = lengthIPv6
		if p.Is4() {
			begin = int(m.bytes[0]&0xf) * 4
		}
	}
	from := begin + offset
	if b = rules.UnknownBits(size); from < 0 || from+b.Size > len(m.bytes) {
		return b, false
	}
	for i := range b.Size {
		if m.known[from+i] {
			b.Data[i], b.Known[i] = m.bytes[from+i], 0xff
		}
	}
	return b, true
}

// ServicePort is the port of a service by its name; false: it is none of those that listings have.
func ServicePort(name string) (port uint16, ok bool) {
	port, ok = services[name]
	return port, ok
}

// Recall is what is kept under a key; nil: nothing is.
func (c *Context) Recall(key any) any { return c.Host.Memory().kept[key] }

// Keep keeps a value under a key, for later packets.
func (c *Context) Keep(key, value any) { c.keep(key, value) }

// LinkType is how the packet was addressed on the link.
func (c *Context) LinkType() LinkType { return c.linkType() }
