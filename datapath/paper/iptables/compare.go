package iptables

import (
	"encoding/binary"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// The matches that compare a field of the packet, its devices or a field of its connection do so with the values and comparisons of
// package rules, as conditions of nftables and the kernel's own rules do.

// read is a value of the packet as a match compares it.
type read struct {
	rules.Bits
	present bool // a packet without the value does not match, negated or not
}

func (c *Context) payload(p rules.Payload) read {
	b, present := c.Payload(p)
	return read{b, present}
}

func (c *Context) address(source bool) read {
	return c.payload(rules.AddressField(!c.Packet.Is4(), source))
}

func (c *Context) port(source bool) read { return c.payload(rules.PortField(source)) }

func (c *Context) meta(m rules.Meta) read {
	b, present := c.Meta(m)
	return read{b, present}
}

// ofConnection is also that of a template, where the packet has one: x_tables' modules do not tell it from an entry.
func (c *Context) ofConnection(k rules.Ct) read {
	e := c.Host.Connection()
	if e == nil {
		return read{}
	}
	b, present := c.ofEntry(e, k)
	return read{b, present}
}

// in tests whether the value is in the range.
func (v read) in(r rules.Range, negated bool) Truth {
	if !v.present {
		return False
	}
	return v.In(r).NegatedIf(negated)
}

// is tests whether the value begins with the bytes.
func (v read) is(negated bool, b ...byte) Truth { return v.in(rules.Exactly(b), negated) }

// masked tests whether the value is another one in the bits of a mask.
func (v read) masked(mask, value []byte, negated bool) Truth {
	v.Mask(mask, nil)
	return v.is(negated, value...)
}

// inNetwork tests whether the address is in a network, whose mask need not be a prefix.
func (v read) inNetwork(n Network, negated bool) Truth {
	a, m := n.Addr.As16(), n.Mask.As16()
	begin := len(a) - n.Addr.BitLen()/8
	if bits, ok := prefixLength(n.Mask); ok && bits%8 == 0 {
		return v.is(negated, a[begin:begin+bits/8]...)
	}
	return v.masked(m[begin:], a[begin:], negated)
}

// inAddresses tests whether the address is in a range.
func (v read) inAddresses(r AddrRange, negated bool) Truth {
	first, last := r.First.As16(), r.Last.As16()
	begin := len(first) - r.First.BitLen()/8
	return v.in(rules.Range{First: first[begin:], Last: last[begin:]}, negated)
}

// inPorts tests whether the number of two bytes is in a range.
func (v read) inPorts(r PortRange, negated bool) Truth {
	first, last := [2]byte{byte(r.First >> 8), byte(r.First)}, [2]byte{byte(r.Last >> 8), byte(r.Last)}
	return v.in(rules.Range{First: first[:], Last: last[:]}, negated)
}

// names tests the name of a device.
func (v read) names(i Interface, negated bool) Truth {
	name, size := rules.DeviceName(i.Name), len(i.Name)
	if !i.Wildcard {
		size++
	}
	return v.is(negated, name.Bytes()[:size]...)
}

// marked tests the bits of a mark.
func (v read) marked(m MaskedValue, negated bool) Truth {
	var mask, value [4]byte
	binary.BigEndian.PutUint32(mask[:], m.Mask)
	binary.BigEndian.PutUint32(value[:], m.Value)
	return v.masked(mask[:], value[:], negated)
}

// anyBit tests whether the number has one of the bits.
func (v read) anyBit(bits uint32) Truth { return v.marked(MaskedValue{Mask: bits}, true) }

// inStates tests the states of --ctstate.
func (c *Context) inStates(s States, negated bool) Truth {
	state, status := rules.StateBits(uint32(s))
	b, present := c.Ct(rules.ConnectionState)
	found := read{b, present}.anyBit(state)
	if found == False {
		found = c.ofConnection(rules.ConnectionStatus).anyBit(status)
	}
	return found.NegatedIf(negated)
}

// hasTOS tests bits of the type of service, or of the traffic class, which stands across two bytes.
func (c *Context) hasTOS(value, mask uint8, negated bool) Truth {
	if c.Packet.Is4() {
		return c.payload(rules.Payload{Offset: 1, ByteSize: 1}).masked([]byte{mask}, []byte{value}, negated)
	}
	return c.payload(rules.Payload{Six: true, ByteSize: 2}).masked([]byte{mask >> 4, mask << 4}, []byte{value >> 4, value << 4}, negated)
}
