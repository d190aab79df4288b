package iptables

import (
	"encoding/binary"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// The matches that compare a field of the packet, of its way or of its connection are tests of package rules, as conditions of
// nftables and the kernel's own rules are.

// xtables is a packet as iptables' modules see it.
type xtables struct{ *Context }

// Ct is that of a template, too, where the packet has one: x_tables' modules do not tell it from an entry.
func (x xtables) Ct(k rules.Ct) (rules.Bits, bool) {
	e := x.Host.Connection()
	if e == nil || k.Key == "state" {
		return x.Context.Ct(k)
	}
	return x.ofEntry(e, k)
}

// word has numbers of the machine as a Context has them.
var word = rules.Words{AppendByteOrder: binary.BigEndian}

// Values that many rules compare, so that comparing them allocates nothing.
var (
	sourceAddress      = map[bool][]rules.Value{true: {rules.AddressField(true, true)}, false: {rules.AddressField(false, true)}}
	destinationAddress = map[bool][]rules.Value{true: {rules.AddressField(true, false)}, false: {rules.AddressField(false, false)}}
	sourcePort         = []rules.Value{rules.PortField(true)}
	destinationPort    = []rules.Value{rules.PortField(false)}
	eitherPort         = []rules.Value{rules.PortField(true), rules.PortField(false)}
	inDevice           = []rules.Value{rules.Meta{Key: "iifname", ByteSize: rules.DeviceSize}}
	outDevice          = []rules.Value{rules.Meta{Key: "oifname", ByteSize: rules.DeviceSize}}
	transportProtocol  = []rules.Value{rules.Protocol}
	icmpTypeAndCode    = []rules.Value{rules.Payload{Transport: true, ByteSize: 2}}
	packetLength       = []rules.Value{rules.Meta{Key: "length", ByteSize: 4}}
	linkTypeOf         = []rules.Value{rules.Meta{Key: "pkttype", ByteSize: 1}}
	trafficClass       = map[bool]rules.Value{true: rules.Payload{Six: true, ByteSize: 2}, false: rules.Payload{Offset: 1, ByteSize: 1}}
	hopLimit           = map[bool][]rules.Value{true: {rules.Payload{Six: true, Offset: 7, ByteSize: 1}}, false: {rules.Payload{Offset: 8, ByteSize: 1}}}
)

// compare tests whether one of the values is in the range.
func (c *Context) compare(values []rules.Value, r rules.Range, negated bool) Truth {
	return rules.Compare{Values: values, Ranges: []rules.Range{r}, Negated: negated}.Test(c)
}

// inNetwork tests whether an address is in a network.
func (c *Context) inNetwork(values []rules.Value, n Network, negated bool) Truth {
	bits, ok := prefixLength(n.Mask)
	if !ok {
		return rules.Network(values[0], n.Addr, n.Mask, negated).Test(xtables{c})
	}
	a, m := n.Addr.As16(), n.Mask.As16()
	first := a[16-n.Addr.BitLen()/8:]
	if bits%8 == 0 {
		return c.compare(values, rules.Exactly(first[:bits/8]), negated)
	}
	last := a
	for i := range last {
		last[i] |= ^m[i]
	}
	return c.compare(values, rules.Range{First: first, Last: last[16-len(first):]}, negated)
}

// inRange tests whether an address is in a range.
func (c *Context) inRange(values []rules.Value, r AddrRange, negated bool) Truth {
	first, last := r.First.As16(), r.Last.As16()
	begin := 16 - r.First.BitLen()/8
	return c.compare(values, rules.Range{First: first[begin:], Last: last[begin:]}, negated)
}

// test tests a port.
func (p Ports) test(c *Context, port []rules.Value) Truth {
	if p.Range == anyPort && !p.Negated {
		return True
	}
	return c.compare(port, rules.Ports(p.Range.First, p.Range.Last), p.Negated)
}

// on tests the name of a device.
func (c *Context) on(device []rules.Value, i Interface, negated bool) Truth {
	name := rules.DeviceName(i.Name)
	size := len(i.Name)
	if !i.Wildcard {
		size++
	}
	return c.compare(device, rules.Exactly(name.Bytes()[:size]), negated)
}

// hasTOS tests bits of the type of service or the traffic class, which has it in the four bits behind the version.
func (c *Context) hasTOS(value, mask uint8, negated bool) Truth {
	if c.Packet.Is4() {
		return rules.IsMasked(trafficClass[false], []byte{mask}, []byte{value}, negated).Test(c)
	}
	shifted := func(b uint8) []byte { return binary.BigEndian.AppendUint16(nil, uint16(b)<<4) }
	return rules.IsMasked(trafficClass[true], shifted(mask), shifted(value), negated).Test(c)
}

// test is conntrack_mt (xt_conntrack.c).
func (m Conntrack) test(c *Context) Truth {
	x, e, result := xtables{c}, c.Host.Connection(), True
	if m.State.Given {
		if result = word.States(uint32(m.State.Value), m.State.Negated).Test(x); result == False {
			return False
		}
	}
	if e == nil {
		return result.And(truthOf(m.State.Given))
	}
	and := func(t rules.Test) { result = result.And(t.Test(x)) }
	for _, n := range []struct {
		Condition[Network]
		key   string
		reply bool
	}{
		{m.OriginalSource, "saddr", false}, {m.OriginalDestination, "daddr", false}, {m.ReplySource, "saddr", true}, {m.ReplyDestination, "daddr", true},
	} {
		if n.Given {
			and(rules.Network(rules.ConnectionField(n.key, n.reply, n.Value.Addr.BitLen()/8), n.Value.Addr, n.Value.Mask, n.Negated))
		}
	}
	for _, p := range []struct {
		Condition[PortRange]
		key   string
		reply bool
	}{
		{m.OriginalSourcePort, "proto-src", false}, {m.OriginalDestinationPort, "proto-dst", false},
		{m.ReplySourcePort, "proto-src", true}, {m.ReplyDestinationPort, "proto-dst", true},
	} {
		if p.Given {
			and(rules.Is(rules.ConnectionField(p.key, p.reply, 2), p.Negated, rules.Ports(p.Value.First, p.Value.Last)))
		}
	}
	if m.Direction.Given {
		and(rules.Direction((m.Direction.Value == Reply) != m.Direction.Negated))
	}
	if m.Protocol.Given {
		and(rules.Is(rules.ConnectionField("protocol", false, 1), m.Protocol.Negated, rules.Exactly([]byte{m.Protocol.Value})))
	}
	if m.Status.Given {
		and(word.Status(uint32(m.Status.Value), m.Status.Negated))
	}
	return result.And(truthOf(!m.Expire.fails(m.Expire.Value.Contains(c.Host.Expires()))))
}
