package hostrules

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// verdict returns the target for struct nft_verdict: ok is false for "continue", which is none.
func (t *translator) verdict(a nft.Attributes) (target iptables.Target, ok bool) {
	chain := a.Text(unix.NFTA_VERDICT_CHAIN)
	switch code := int32(a.Uint32(unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_CONTINUE:
		return nil, false
	case unix.NFT_JUMP:
		return iptables.Jump{Chain: t.chainName(chain)}, true
	case unix.NFT_GOTO:
		return iptables.Goto{Chain: t.chainName(chain)}, true
	case unix.NFT_RETURN:
		return iptables.Return, true
	case nft.Accept:
		return iptables.Accept, true
	case nft.Drop:
		return iptables.Drop, true
	default:
		return unknownTarget("verdict %d", code), true
	}
}

// masquerade, redirect and nat read the expressions that translate.
func (t *translator) masquerade(a nft.Attributes) iptables.Target {
	to, ok := t.natRange(a.Uint32(unix.NFTA_MASQ_FLAGS), a, 0, 0, unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX)
	if !ok {
		return unknownTarget("masq")
	}
	to.Persistent = false // has no effect with a single address, and iptables has no option for it
	return iptables.Masquerade{To: to}
}

func (t *translator) redirect(a nft.Attributes) iptables.Target {
	to, ok := t.natRange(a.Uint32(unix.NFTA_REDIR_FLAGS), a, 0, 0, unix.NFTA_REDIR_REG_PROTO_MIN, unix.NFTA_REDIR_REG_PROTO_MAX)
	if !ok {
		return unknownTarget("redir")
	}
	to.Persistent = false // likewise
	return iptables.Redirect{To: to}
}

// nat returns nil for one of the other family, which does nothing (nft_nat.c, nft_nat_inet_eval).
func (t *translator) nat(a nft.Attributes) iptables.Target {
	if f := a.Uint32(unix.NFTA_NAT_FAMILY); f != unix.NFPROTO_INET && f != uint32(nft.Family(t.family)) {
		return nil
	}
	source := a.Uint32(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_SNAT
	flags := a.Uint32(unix.NFTA_NAT_FLAGS)
	to, ok := t.natRange(flags&^iptables.NATNetmap, a, unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX, unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX)
	switch {
	case ok && flags&iptables.NATNetmap != 0:
		// NETMAP changes the source at POSTROUTING, and so does this.
		if p, prefix := (iptables.AddrRange{First: to.First, Last: to.Last}).Prefix(); prefix && to == (iptables.NATRange{First: to.First, Last: to.Last}) {
			return iptables.Netmap{To: p}
		}
	case ok && source:
		return iptables.SNAT{To: to}
	case ok:
		return iptables.DNAT{To: to}
	}
	if source {
		return unknownTarget("snat")
	}
	return unknownTarget("dnat")
}

// natRange reads the registers that attributes of these types name; 0: there is no such attribute.
// It is not ok if their values are not fixed.
func (t *translator) natRange(flags uint32, a nft.Attributes, addrMin, addrMax, portMin, portMax uint16) (iptables.NATRange, bool) {
	ok := true
	value := func(attribute uint16) []byte {
		l := t.registers.get(a.Uint32(attribute))
		if l == nil || l.kind != loadData {
			ok = false
			return nil
		}
		return l.data
	}
	addr := func(attribute uint16) netip.Addr {
		v, valid := netip.AddrFromSlice(value(attribute))
		ok = ok && valid && v.Is6() == (t.family == iptables.IPv6)
		return v
	}
	port := func(attribute uint16) uint16 {
		v := value(attribute)
		if len(v) < 2 {
			ok = false
			return 0
		}
		return binary.BigEndian.Uint16(v)
	}
	var first, last netip.Addr
	var firstPort, lastPort uint16
	flags &^= iptables.NATMapIPs | iptables.NATProtoSpecified
	if addrMin != 0 && a.Has(addrMin) {
		flags |= iptables.NATMapIPs
		first = addr(addrMin)
		if last = first; a.Has(addrMax) {
			last = addr(addrMax)
		}
	}
	if a.Has(portMin) {
		flags |= iptables.NATProtoSpecified
		firstPort = port(portMin)
		if lastPort = firstPort; a.Has(portMax) {
			lastPort = port(portMax)
		}
	}
	to, valid := iptables.NATRangeOf(flags, first, last, firstPort, lastPort, 0)
	return to, ok && valid
}

// setMeta is "meta mark set" and its like.
func (t *translator) setMeta(a nft.Attributes) iptables.Target {
	key := a.Uint32(unix.NFTA_META_KEY)
	l := t.registers.get(a.Uint32(unix.NFTA_META_SREG))
	switch {
	case l == nil:
	case key == unix.NFT_META_NFTRACE && l.kind == loadData && len(l.data) > 0 && l.data[0] == 1:
		return iptables.Trace{}
	case key != unix.NFT_META_MARK:
	case l.kind == loadCt && l.key == unix.NFT_CT_MARK && isZero(l.xor):
		return iptables.SetConnmark{Mode: iptables.ConnmarkRestore, PacketMask: ^uint32(0), ConnectionMask: l.nativeMask()}
	default:
		if m, ok := marked(l, loadMeta, unix.NFT_META_MARK); ok {
			return iptables.SetMark{Mark: m}
		}
	}
	return unknownTarget("meta %s set", nameOf(metaNames, key))
}

// setCt is "ct mark set" and its like.
func (t *translator) setCt(a nft.Attributes) iptables.Target {
	key := a.Uint32(unix.NFTA_CT_KEY)
	l := t.registers.get(a.Uint32(unix.NFTA_CT_SREG))
	switch {
	case l == nil || key != unix.NFT_CT_MARK:
	case l.kind == loadMeta && l.key == unix.NFT_META_MARK && isZero(l.xor):
		return iptables.SetConnmark{Mode: iptables.ConnmarkSave, PacketMask: l.nativeMask(), ConnectionMask: ^uint32(0)}
	default:
		if m, ok := marked(l, loadCt, unix.NFT_CT_MARK); ok {
			return iptables.SetConnmark{Mode: iptables.ConnmarkSet, Mark: m}
		}
	}
	return unknownTarget("ct %s set", nameOf(ctNames, key))
}

// marked returns a load as the value of --set-xmark: a fixed value, or the mark itself (of that
// kind and key) with some bits changed.
func marked(l *load, kind loadKind, key uint32) (iptables.MaskedValue, bool) {
	switch {
	case l.kind == loadData && len(l.data) == 4:
		return iptables.MaskedValue{Value: binary.NativeEndian.Uint32(l.data), Mask: ^uint32(0)}, true
	case l.kind == kind && l.key == key:
		m := iptables.MaskedValue{Mask: ^l.nativeMask()}
		if len(l.xor) == 4 {
			m.Value = binary.NativeEndian.Uint32(l.xor)
		}
		return m, true
	}
	return iptables.MaskedValue{}, false
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// log is the expression of that name: a copy for a group, or a line.
func log(a nft.Attributes) iptables.Target {
	prefix := a.Text(unix.NFTA_LOG_PREFIX)
	if a.Has(unix.NFTA_LOG_GROUP) {
		return iptables.NFLog{
			Prefix: prefix, Group: a.Uint16(unix.NFTA_LOG_GROUP), Size: a.Uint32(unix.NFTA_LOG_SNAPLEN),
			Threshold: max(1, a.Uint16(unix.NFTA_LOG_QTHRESHOLD)),
		}
	}
	level, flags := uint32(4), a.Uint32(unix.NFTA_LOG_FLAGS) // NF_LOG_...
	if a.Has(unix.NFTA_LOG_LEVEL) {
		level = a.Uint32(unix.NFTA_LOG_LEVEL)
	}
	if level > 7 { // NFT_LOGLEVEL_AUDIT
		return unknownTarget("log level %d", level)
	}
	return iptables.Log{
		Prefix: prefix, Level: uint8(level),
		TCPSequence: flags&1 != 0, TCPOptions: flags&2 != 0, IPOptions: flags&4 != 0, UID: flags&8 != 0, MACDecode: flags&32 != 0,
	}
}

// limit is the expression of that name. Its rate is the one that iptables-nft would print.
func limit(a nft.Attributes) (iptables.Match, bool) {
	const scale = 10000 // XT_LIMIT_SCALE
	rate, unit := a.Uint64(unix.NFTA_LIMIT_RATE), a.Uint64(unix.NFTA_LIMIT_UNIT)
	if rate == 0 || unit == 0 || unit > 1<<32/scale || a.Uint32(unix.NFTA_LIMIT_TYPE) != unix.NFT_LIMIT_PKTS || a.Uint32(unix.NFTA_LIMIT_FLAGS) != 0 || unit*scale < rate {
		return nil, false
	}
	return iptables.Limit{Rate: iptables.Rate{Interval: unit * scale / rate}, Burst: a.Uint32(unix.NFTA_LIMIT_BURST)}, true
}
