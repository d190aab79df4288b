package nftrules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// view is a packet as values read it. All that it returns is in network byte order.
type view struct{ *iptables.Context }

var _ rules.Packet = view{}

// numberBits is a number of a size in bytes.
func numberBits(size int, n uint64) (b rules.Bits) {
	var all [8]byte
	binary.BigEndian.PutUint64(all[:], n)
	b.Put(all[8-size:])
	return b
}

func flag(is bool) rules.Bits {
	if is {
		return numberBits(1, 1)
	}
	return numberBits(1, 0)
}

// Payload reads the header. What all rules read is not taken from the packet's bytes.
func (v view) Payload(p rules.Payload) (b rules.Bits, present bool) {
	packet := &v.Packet
	is4 := packet.Is4()
	switch {
	case p.Transport && iptables.HasPorts(packet.Protocol) && p.ByteSize == 2 && p.Offset == 0:
		return numberBits(2, uint64(packet.Source.Port())), true
	case p.Transport && iptables.HasPorts(packet.Protocol) && p.ByteSize == 2 && p.Offset == 2:
		return numberBits(2, uint64(packet.Destination.Port())), true
	case p.Transport && packet.Protocol == protoTCP && p.Offset == 13 && p.ByteSize == 1:
		return numberBits(1, uint64(packet.Flags)), true
	case p.Transport:
		return packet.ReadHeader(true, p.Offset, p.ByteSize)
	case is4 && p.Offset == 12 && p.ByteSize == 4 || !is4 && p.Offset == 8 && p.ByteSize == 16:
		b.PutAddr(packet.Source.Addr())
		return b, true
	case is4 && p.Offset == 16 && p.ByteSize == 4 || !is4 && p.Offset == 24 && p.ByteSize == 16:
		b.PutAddr(packet.Destination.Addr())
		return b, true
	case is4 && p.Offset == 9 && p.ByteSize == 1 || !is4 && p.Offset == 6 && p.ByteSize == 1 && packet.Bytes == nil:
		return numberBits(1, uint64(packet.Protocol)), true
	case is4 && p.Offset == 6 && p.ByteSize == 2 && packet.Bytes == nil: // not a fragment; "do not fragment" may be set
		b = numberBits(2, 0)
		b.Known[0] = 0x3f
		return b, true
	}
	return packet.ReadHeader(false, p.Offset, p.ByteSize)
}

// name is the name of a device; empty: there is none.
func nameBits(name string) (b rules.Bits) {
	var data [deviceSize]byte
	copy(data[:deviceSize-1], name)
	b.Put(data[:])
	return b
}

// Meta is nft_meta_get_eval (nft_meta.c).
func (v view) Meta(m rules.Meta) (b rules.Bits, present bool) {
	p := &v.Packet
	switch m.Key {
	case "length":
		return numberBits(4, uint64(p.Length)), true
	case "protocol":
		if p.Is4() {
			return numberBits(2, 0x0800), true
		}
		return numberBits(2, 0x86dd), true
	case "nfproto":
		return numberBits(1, uint64(rules.NFProto(p.Is4()))), true
	case "l4proto":
		return numberBits(1, uint64(p.Protocol)), true
	case "mark":
		return numberBits(4, uint64(p.Mark)), true
	case "iif", "iifname", "sdif", "sdifname":
		return nameBits(v.In), true
	case "oif", "oifname":
		return nameBits(v.Out), true
	case "iiftype":
		device := v.In // nft_meta.c asks for the packet's device (NFT_META_IFTYPE), which leads out from POSTROUTING on
		if v.Host.Hook() == "POSTROUTING" {
			device = v.Out
		}
		return v.deviceType(device)
	case "oiftype":
		return v.deviceType(v.Out)
	case "priority":
		if p.Local {
			v.Host.Assume("that the sending socket has the priority 0")
		}
		return numberBits(4, uint64(p.Priority)), true
	case "iifgroup":
		return v.deviceGroup(v.In)
	case "oifgroup":
		return v.deviceGroup(v.Out)
	case "skuid", "skgid", "cgroup":
		there, known := v.socket()
		switch {
		case !there:
			return rules.UnknownBits(4), false
		case !known || m.Key == "cgroup":
			return rules.UnknownBits(4), true
		case m.Key == "skuid":
			return numberBits(4, uint64(p.Owner.UID)), true
		}
		return numberBits(4, uint64(p.Owner.GID)), true
	case "pkttype":
		return numberBits(1, uint64(v.LinkType())), true
	case "cpu":
		v.Host.Assume(fmt.Sprintf("that processor %d handles the packet", p.CPU))
		return numberBits(4, uint64(p.CPU)), true
	case "nftrace":
		return flag(false), true
	case "ipsec":
		v.Host.Assume("that IPsec did not protect the packet")
		return flag(false), true
	case "time", "hour", "day":
		now := v.Host.Time()
		if now.IsZero() {
			return rules.UnknownBits(m.ByteSize), true
		}
		v.Host.Assume("that the times in the rules are UTC")
		return timeBits(m.Key, now), true
	}
	return rules.UnknownBits(m.ByteSize), true
}

func timeBits(key string, now time.Time) rules.Bits {
	switch key {
	case "hour":
		return numberBits(4, uint64(now.Unix()%86400))
	case "day":
		return numberBits(1, uint64(now.Weekday()))
	}
	return numberBits(8, uint64(now.UnixNano()))
}

// socket is whether the packet has a socket, and whether that is the one that sent it. One that comes in by lo has lost it
// (skb_orphan); at INPUT, packets of connections have that of the connection (early demultiplexing).
func (v view) socket() (there, sent bool) {
	switch hook := v.Host.Hook(); {
	case hook == "OUTPUT" || hook == "POSTROUTING" && v.Packet.Local:
		return v.Packet.Owner != nil, true
	case v.Host.Assigned(), hook == "INPUT" && v.Host.State() != iptables.StateNew:
		return true, false
	}
	return false, false
}

// deviceGroup is the group of a device; a packet without a device has none.
func (v view) deviceGroup(device string) (rules.Bits, bool) {
	group, known := v.Host.Group(device)
	if device == "" || !known {
		return rules.UnknownBits(4), device != ""
	}
	return numberBits(4, uint64(group)), true
}

// deviceType is ARPHRD_... (if_arp.h).
func (v view) deviceType(device string) (rules.Bits, bool) {
	switch {
	case device == "":
		return rules.UnknownBits(2), false
	case device == "lo":
		return numberBits(2, 772), true
	case v.Host.HasFrames(device):
		return numberBits(2, 1), true
	}
	return rules.UnknownBits(2), true
}

// Ct is nft_ct_get_eval (nft_ct.c): a packet without a connection, or with a template, has a state,
// and nothing else.
func (v view) Ct(c rules.Ct) (b rules.Bits, present bool) {
	e := v.Host.Connection()
	if c.Key == "state" {
		return numberBits(4, stateBit(v.Host, e)), true
	}
	if e == nil || !v.Host.Tracked() { // none, or a template
		return rules.UnknownBits(c.ByteSize), false
	}
	tuple := e.Original
	reply := c.Reply || !c.Directed && v.Host.Reply()
	if reply {
		tuple = e.Reply
	}
	switch c.Key {
	case "direction":
		return numberBits(1, map[bool]uint64{true: 1}[v.Host.Reply()]), true
	case "status":
		return statusBits(e, v.Host.Translates()), true
	case "mark":
		return numberBits(4, uint64(e.Mark)), true
	case "l3proto":
		return numberBits(1, uint64(rules.NFProto(e.Original.Source.Addr().Is4()))), true
	case "protocol":
		return numberBits(1, uint64(tuple.Protocol)), true
	case "saddr":
		b.PutAddr(tuple.Source.Addr())
		return b, true
	case "daddr":
		b.PutAddr(tuple.Destination.Addr())
		return b, true
	case "proto-src":
		return numberBits(2, uint64(tuple.Source.Port())), true
	case "proto-dst":
		return numberBits(2, uint64(tuple.Destination.Port())), true
	case "zone":
		return numberBits(2, uint64(e.Zone)), true
	case "expiration":
		return numberBits(4, 1000*uint64(v.Host.Expires())), true
	case "helper":
		return rules.UnknownBits(16), false // of the connection that expected this one: no other has any (nft_ct_get_eval, nft_ct.c)
	case "label":
		b.Put(e.Labels[:])
		return b, true
	case "bytes", "packets", "avgpkt":
		return v.traffic(c, e)
	}
	return rules.UnknownBits(c.ByteSize), true
}

// stateBit is NF_CT_STATE_BIT (nf_conntrack_common.h).
func stateBit(h iptables.Host, e *iptables.Connection) uint64 {
	switch s := h.State(); {
	case s == iptables.StateUntracked:
		return kindState.names["untracked"]
	case s == iptables.StateInvalid || e == nil:
		return kindState.names["invalid"]
	case s == iptables.StateNew:
		return kindState.names["new"]
	case s == iptables.StateRelated:
		return kindState.names["related"]
	}
	return kindState.names["established"]
}

// statusBits are those of enum ip_conntrack_status. Whether rules for translation were evaluated is only known of a host
// that has such.
func statusBits(e *iptables.Connection, translates bool) rules.Bits {
	const sourceDone, destinationDone, helper = 1 << 7, 1 << 8, 1 << 13
	n := uint64(0)
	for bit, is := range map[uint64]bool{
		kindStatus.names["seen-reply"]: e.SeenReply, kindStatus.names["assured"]: e.Assured, kindStatus.names["confirmed"]: e.Confirmed,
		kindStatus.names["snat"]: e.SNAT, kindStatus.names["dnat"]: e.DNAT, sourceDone: e.SourceDone, destinationDone: e.DestinationDone, helper: e.Helper != "",
	} {
		if is {
			n |= bit
		}
	}
	b := numberBits(4, n)
	if !translates {
		b.Known[2], b.Known[3] = b.Known[2]&^(destinationDone>>8), b.Known[3]&^sourceDone
		b.Data[2], b.Data[3] = b.Data[2]&b.Known[2], b.Data[3]&b.Known[3]
	}
	return b
}

func (v view) traffic(c rules.Ct, e *iptables.Connection) (rules.Bits, bool) {
	directions := e.Traffic[:]
	if c.Directed && c.Reply {
		directions = e.Traffic[1:]
	} else if c.Directed {
		directions = e.Traffic[:1]
	}
	packets, bytes := uint64(0), uint64(0)
	for _, t := range directions {
		packets, bytes = packets+t.Packets, bytes+t.Bytes
	}
	v.Host.Assume("that the kernel counts the traffic of connections (net.netfilter.nf_conntrack_acct)")
	switch {
	case c.Key == "bytes":
		return numberBits(8, bytes), true
	case c.Key == "packets":
		return numberBits(8, packets), true
	case packets == 0:
		return numberBits(8, 0), true
	}
	return numberBits(8, bytes/packets), true
}

// addressTypes are the bits of iptables' types in the order of RTN_... (rtnetlink.h).
var addressTypes = []iptables.AddrTypes{
	iptables.AddrUnspec, iptables.AddrUnicast, iptables.AddrLocal, iptables.AddrBroadcast, iptables.AddrAnycast, iptables.AddrMulticast,
	iptables.AddrBlackhole, iptables.AddrUnreachable, iptables.AddrProhibit,
}

// AddrType is the type of an address by the routes of the host, RTN_... .
func (v view) AddrType(t rules.AddrType) rules.Bits {
	device := ""
	switch {
	case t.In:
		device = v.In
	case t.Out:
		device = v.Out
	}
	a := v.Address(t.Source)
	if a.Is6() {
		return numberBits(4, v.addrType6(a, device))
	}
	for n, is := range addressTypes {
		if v.Host.AddrType(a, device, is) {
			return numberBits(4, uint64(n))
		}
	}
	return rules.UnknownBits(4)
}

// addrType6 is __nft_fib6_eval_type (nft_fib_ipv6.c).
func (v view) addrType6(a netip.Addr, device string) uint64 {
	typ, by := v.Host.RouteBack(a)
	switch {
	case typ == iptables.AddrLocal && (device == "" || device == by):
		typ = iptables.AddrLocal
	case typ == iptables.AddrBlackhole || typ == iptables.AddrProhibit:
	case a.IsMulticast():
		typ = iptables.AddrMulticast
	case typ == iptables.AddrUnicast || typ == iptables.AddrLocal:
		typ = iptables.AddrUnicast
	default:
		typ = iptables.AddrUnreachable
	}
	return uint64(slices.Index(addressTypes, typ))
}

// Address is the source's or the destination's.
func (v view) Address(source bool) netip.Addr {
	if source {
		return v.Packet.Source.Addr()
	}
	return v.Packet.Destination.Addr()
}

// Local reports whether a program on this host sent the packet.
func (v view) Local() bool { return v.Packet.Local }
