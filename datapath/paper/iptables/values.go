package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// What rules compare: matches of iptables and conditions of nftables read the same values. All are in network byte order.

var _ rules.Packet = (*Context)(nil)

// NetworkNumber is a number of up to 8 bytes in network byte order.
func NetworkNumber(size int, n uint64) (b rules.Bits) {
	var all [8]byte
	binary.BigEndian.PutUint64(all[:], n)
	b.Put(all[8-size:])
	return b
}

// Flag is 1 or 0, of one byte.
func Flag(is bool) (b rules.Bits) {
	if is {
		return NetworkNumber(1, 1)
	}
	return NetworkNumber(1, 0)
}

// Payload reads the header. What all rules read is not taken from the packet's bytes.
func (c *Context) Payload(p rules.Payload) (b rules.Bits, present bool) {
	packet := &c.Packet
	is4 := packet.Is4()
	switch {
	case p.Transport && HasPorts(packet.Protocol) && p.ByteSize == 2 && p.Offset == 0:
		return NetworkNumber(2, uint64(packet.Source.Port())), true
	case p.Transport && HasPorts(packet.Protocol) && p.ByteSize == 2 && p.Offset == 2:
		return NetworkNumber(2, uint64(packet.Destination.Port())), true
	case p.Transport && packet.Protocol == protoTCP && p.Offset == 13 && p.ByteSize == 1:
		return NetworkNumber(1, uint64(packet.Flags)), true
	case p.Transport && hasICMP(packet.Protocol) && p.Offset == 0 && p.ByteSize <= 2:
		b.Put([]byte{packet.ICMPType, packet.ICMPCode}[:p.ByteSize])
		return b, true
	case p.Transport:
		return packet.ReadHeader(true, p.Offset, p.ByteSize)
	case is4 && p.Offset == 12 && p.ByteSize == 4 || !is4 && p.Offset == 8 && p.ByteSize == 16:
		b.PutAddr(packet.Source.Addr())
		return b, true
	case is4 && p.Offset == 16 && p.ByteSize == 4 || !is4 && p.Offset == 24 && p.ByteSize == 16:
		b.PutAddr(packet.Destination.Addr())
		return b, true
	case is4 && p.Offset == 9 && p.ByteSize == 1 || !is4 && p.Offset == 6 && p.ByteSize == 1 && packet.Bytes == nil:
		return NetworkNumber(1, uint64(packet.Protocol)), true
	case is4 && p.Offset == 8 && p.ByteSize == 1 || !is4 && p.Offset == 7 && p.ByteSize == 1:
		return NetworkNumber(1, uint64(packet.TTL)), true
	case is4 && p.Offset == 1 && p.ByteSize == 1:
		return NetworkNumber(1, uint64(packet.TOS)), true
	case !is4 && p.Offset == 0 && p.ByteSize == 2 && packet.Bytes == nil: // the rest is of the flow label
		b = NetworkNumber(2, 6<<12|uint64(packet.TOS)<<4)
		b.Known[1] = 0xf0
		return b, true
	case is4 && p.Offset == 6 && p.ByteSize == 2 && packet.Bytes == nil: // not a fragment; "do not fragment" may be set
		b = NetworkNumber(2, 0)
		b.Known[0] = 0x3f
		return b, true
	}
	return packet.ReadHeader(false, p.Offset, p.ByteSize)
}

// Meta is nft_meta_get_eval (nft_meta.c).
func (c *Context) Meta(m rules.Meta) (b rules.Bits, present bool) {
	p := &c.Packet
	switch m.Key {
	case "length":
		return NetworkNumber(4, uint64(p.Length)), true
	case "protocol":
		if p.Is4() {
			return NetworkNumber(2, 0x0800), true
		}
		return NetworkNumber(2, 0x86dd), true
	case "nfproto":
		return NetworkNumber(1, uint64(rules.NFProto(p.Is4()))), true
	case "l4proto":
		return NetworkNumber(1, uint64(p.Protocol)), true
	case "mark":
		return NetworkNumber(4, uint64(p.Mark)), true
	case "iif", "iifname", "sdif", "sdifname":
		return rules.DeviceName(c.In), true
	case "oif", "oifname":
		return rules.DeviceName(c.Out), true
	case "iiftype":
		device := c.In // nft_meta.c asks for the packet's device (NFT_META_IFTYPE), which leads out from POSTROUTING on
		if c.Host.Hook() == "POSTROUTING" {
			device = c.Out
		}
		return c.deviceType(device)
	case "oiftype":
		return c.deviceType(c.Out)
	case "priority":
		if p.Local {
			c.Host.Assume("that the sending socket has the priority 0")
		}
		return NetworkNumber(4, uint64(p.Priority)), true
	case "iifgroup":
		return c.deviceGroup(c.In)
	case "oifgroup":
		return c.deviceGroup(c.Out)
	case "skuid", "skgid", "cgroup":
		there, known := c.socket()
		switch {
		case !there:
			return rules.UnknownBits(4), false
		case !known || m.Key == "cgroup":
			return rules.UnknownBits(4), true
		case m.Key == "skuid":
			return NetworkNumber(4, uint64(p.Owner.UID)), true
		}
		return NetworkNumber(4, uint64(p.Owner.GID)), true
	case "pkttype":
		return NetworkNumber(1, uint64(c.linkType())), true
	case "cpu":
		c.Host.Assume(fmt.Sprintf("that processor %d handles the packet", p.CPU))
		return NetworkNumber(4, uint64(p.CPU)), true
	case "nftrace":
		return Flag(false), true
	case "ipsec":
		c.Host.Assume("that IPsec did not protect the packet")
		return Flag(false), true
	case "time", "hour", "day":
		now := c.Host.Time()
		if now.IsZero() {
			return rules.UnknownBits(m.ByteSize), true
		}
		c.Host.Assume("that the times in the rules are UTC")
		return timeBits(m.Key, now), true
	}
	return rules.UnknownBits(m.ByteSize), true
}

func timeBits(key string, now time.Time) rules.Bits {
	switch key {
	case "hour":
		return NetworkNumber(4, uint64(now.Unix()%86400))
	case "day":
		return NetworkNumber(1, uint64(now.Weekday()))
	}
	return NetworkNumber(8, uint64(now.UnixNano()))
}

// socket is whether the packet has a socket, and whether that is the one that sent it. One that comes in by lo has lost it
// (skb_orphan); at INPUT, packets of connections have that of the connection (early demultiplexing).
func (c *Context) socket() (there, sent bool) {
	switch hook := c.Host.Hook(); {
	case hook == "OUTPUT" || hook == "POSTROUTING" && c.Packet.Local:
		return c.Packet.Owner != nil, true
	case c.Host.Assigned(), hook == "INPUT" && c.Host.State() != StateNew:
		return true, false
	}
	return false, false
}

// deviceGroup is the group of a device; a packet without a device has none.
func (c *Context) deviceGroup(device string) (rules.Bits, bool) {
	group, known := c.Host.Group(device)
	if device == "" || !known {
		return rules.UnknownBits(4), device != ""
	}
	return NetworkNumber(4, uint64(group)), true
}

// deviceType is ARPHRD_... (if_arp.h).
func (c *Context) deviceType(device string) (rules.Bits, bool) {
	switch {
	case device == "":
		return rules.UnknownBits(2), false
	case device == "lo":
		return NetworkNumber(2, 772), true
	case c.Host.HasFrames(device):
		return NetworkNumber(2, 1), true
	}
	return rules.UnknownBits(2), true
}

// Ct is nft_ct_get_eval (nft_ct.c): a packet without a connection, or with a template, has a state,
// and nothing else.
func (c *Context) Ct(k rules.Ct) (b rules.Bits, present bool) {
	e := c.Host.Connection()
	if k.Key == "state" {
		return NetworkNumber(4, uint64(c.stateBit(e))), true
	}
	if e == nil || !c.Host.Tracked() { // none, or a template
		return rules.UnknownBits(k.ByteSize), false
	}
	return c.ofEntry(e, k)
}

// ofEntry is a property of an entry.
func (c *Context) ofEntry(e *Connection, k rules.Ct) (b rules.Bits, present bool) {
	tuple := e.Original
	reply := k.Reply || !k.Directed && c.Host.Reply()
	if reply {
		tuple = e.Reply
	}
	switch k.Key {
	case "direction":
		return NetworkNumber(1, map[bool]uint64{true: 1}[c.Host.Reply()]), true
	case "status":
		return statusBits(e, c.Host.Translates()), true
	case "mark":
		return NetworkNumber(4, uint64(e.Mark)), true
	case "l3proto":
		return NetworkNumber(1, uint64(rules.NFProto(e.Original.Source.Addr().Is4()))), true
	case "protocol":
		return NetworkNumber(1, uint64(tuple.Protocol)), true
	case "saddr":
		b.PutAddr(tuple.Source.Addr())
		return b, true
	case "daddr":
		b.PutAddr(tuple.Destination.Addr())
		return b, true
	case "proto-src":
		return NetworkNumber(2, uint64(tuple.Source.Port())), true
	case "proto-dst":
		return NetworkNumber(2, uint64(tuple.Destination.Port())), true
	case "zone":
		return NetworkNumber(2, uint64(e.Zone)), true
	case "expiration":
		return NetworkNumber(4, 1000*uint64(c.Host.Expires())), true
	case "helper":
		return rules.UnknownBits(16), false // of the connection that expected this one: no other has any (nft_ct_get_eval, nft_ct.c)
	case "label":
		b.Put(e.Labels[:])
		return b, true
	case "bytes", "packets", "avgpkt":
		return c.traffic(k, e)
	}
	return rules.UnknownBits(k.ByteSize), true
}

// stateBit is NF_CT_STATE_BIT (nf_conntrack_common.h).
func (c *Context) stateBit(e *Connection) States {
	switch s := c.Host.State(); {
	case s == StateUntracked:
		return 1 << 6 // NF_CT_STATE_UNTRACKED_BIT
	case s == StateInvalid || e == nil:
		return StateInvalid
	case s == StateNew, s == StateRelated: // XT_CONNTRACK_STATE_BIT is NF_CT_STATE_BIT
		return s
	}
	return StateEstablished
}

// statusBits are those of enum ip_conntrack_status. Whether rules for translation were evaluated is only known of a host
// that has such.
func statusBits(e *Connection, translates bool) rules.Bits {
	const snat, dnat, sourceDone, destinationDone, helper = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 13
	n := uint64(0)
	for _, s := range []struct {
		bit uint64
		is  bool
	}{
		{uint64(StatusSeenReply), e.SeenReply}, {uint64(StatusAssured), e.Assured}, {uint64(StatusConfirmed), e.Confirmed},
		{snat, e.SNAT}, {dnat, e.DNAT}, {sourceDone, e.SourceDone}, {destinationDone, e.DestinationDone}, {helper, e.Helper != ""},
	} {
		if s.is {
			n |= s.bit
		}
	}
	b := NetworkNumber(4, n)
	if !translates {
		b.Known[2], b.Known[3] = b.Known[2]&^(destinationDone>>8), b.Known[3]&^sourceDone
		b.Data[2], b.Data[3] = b.Data[2]&b.Known[2], b.Data[3]&b.Known[3]
	}
	return b
}

func (c *Context) traffic(k rules.Ct, e *Connection) (rules.Bits, bool) {
	directions := e.Traffic[:]
	if k.Directed && k.Reply {
		directions = e.Traffic[1:]
	} else if k.Directed {
		directions = e.Traffic[:1]
	}
	packets, bytes := uint64(0), uint64(0)
	for _, t := range directions {
		packets, bytes = packets+t.Packets, bytes+t.Bytes
	}
	c.Host.Assume("that the kernel counts the traffic of connections (net.netfilter.nf_conntrack_acct)")
	switch {
	case k.Key == "bytes":
		return NetworkNumber(8, bytes), true
	case k.Key == "packets":
		return NetworkNumber(8, packets), true
	case packets == 0:
		return NetworkNumber(8, 0), true
	}
	return NetworkNumber(8, bytes/packets), true
}

// addressTypes are the bits of iptables' types in the order of RTN_... (rtnetlink.h).
var addressTypes = []AddrTypes{
	AddrUnspec, AddrUnicast, AddrLocal, AddrBroadcast, AddrAnycast, AddrMulticast,
	AddrBlackhole, AddrUnreachable, AddrProhibit,
}

// AddrType is the type of an address by the routes of the host, RTN_... .
func (c *Context) AddrType(t rules.AddrType) rules.Bits {
	device := ""
	switch {
	case t.In:
		device = c.In
	case t.Out:
		device = c.Out
	}
	a := c.Address(t.Source)
	if a.Is6() {
		return NetworkNumber(4, c.addrType6(a, device))
	}
	for n, is := range addressTypes {
		if c.Host.AddrType(a, device, is) {
			return NetworkNumber(4, uint64(n))
		}
	}
	return rules.UnknownBits(4)
}

// addrType6 is __nft_fib6_eval_type (nft_fib_ipv6.c).
func (c *Context) addrType6(a netip.Addr, device string) uint64 {
	typ, by := c.Host.RouteBack(a, 0)
	switch {
	case typ == AddrLocal && (device == "" || device == by):
		typ = AddrLocal
	case typ == AddrBlackhole || typ == AddrProhibit:
	case a.IsMulticast():
		typ = AddrMulticast
	case typ == AddrUnicast || typ == AddrLocal:
		typ = AddrUnicast
	default:
		typ = AddrUnreachable
	}
	return uint64(slices.Index(addressTypes, typ))
}

// Address is the source's or the destination's.
func (c *Context) Address(source bool) netip.Addr {
	if source {
		return c.Packet.Source.Addr()
	}
	return c.Packet.Destination.Addr()
}

// Local reports whether a program on this host sent the packet.
func (c *Context) Local() bool { return c.Packet.Local }
