package conntrack

import (
	"encoding/binary"
	"net/netip"
)

// Netlink and ctnetlink constants, with the names of linux/netlink.h,
// linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
const (
	nlmsgHdrLen   = 16 // struct nlmsghdr
	nfgenmsgLen   = 4  // struct nfgenmsg
	nlaHdrLen     = 4  // struct nlattr
	nlmsgError    = 2  // NLMSG_ERROR
	nlmsgDone     = 3  // NLMSG_DONE
	nlaFNested    = 1 << 15
	nlaTypeMask   = 0x3fff // NLA_TYPE_MASK
	flagRequest   = 0x1    // NLM_F_REQUEST
	flagDumpIntr  = 0x10   // NLM_F_DUMP_INTR
	flagExcl      = 0x200  // NLM_F_EXCL
	flagDump      = 0x300  // NLM_F_DUMP
	flagCreate    = 0x400  // NLM_F_CREATE
	subsysCT      = 1 << 8 // NFNL_SUBSYS_CTNETLINK
	msgCTNew      = subsysCT + 0
	msgCTGet      = subsysCT + 1
	msgCTDelete   = subsysCT + 2
	msgCTGetStats = subsysCT + 5
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoinfo  = 4
	ctaNATSrc     = 6
	ctaTimeout    = 7
	ctaMark       = 8
	ctaID         = 12
	ctaNATDst     = 13
	ctaZone       = 18
	ctaMarkMask   = 21
	ctaFilter     = 25

	ctaCountersOrig   = 9
	ctaCountersReply  = 10
	ctaTimestamp      = 20
	ctaTimestampEvent = 27

	ctaTupleIP       = 1
	ctaTupleProto    = 2
	ctaIPv4Src       = 1
	ctaIPv4Dst       = 2
	ctaIPv6Src       = 3
	ctaIPv6Dst       = 4
	ctaProtoNum      = 1
	ctaProtoSrcPort  = 2
	ctaProtoDstPort  = 3
	ctaNATv4MinIP    = 1
	ctaNATv4MaxIP    = 2
	ctaNATProto      = 3
	ctaNATv6MinIP    = 4
	ctaNATv6MaxIP    = 5
	ctaProtonatMin   = 1 // CTA_PROTONAT_PORT_MIN
	ctaProtonatMax   = 2 // CTA_PROTONAT_PORT_MAX
	ctaProtoinfoTCP  = 1
	ctaProtoinfoSCTP = 3
	ctaFilterOrig    = 1 // CTA_FILTER_ORIG_FLAGS
	ctaTCPState      = 1 // CTA_PROTOINFO_TCP_STATE
	ctaSCTPState     = 1 // CTA_PROTOINFO_SCTP_STATE

	// filterProtoNum is CTA_FILTER_F_CTA_PROTO_NUM (net/netfilter/nf_internals.h, which
	// is no header for user space; its values are fixed all the same).
	filterProtoNum = 1 << 3
)

// createTimeout is how long an entry lives, in seconds, if its packet does not follow after the
// entry was created or extended. The packet sets the protocol's own timeout; it follows within
// milliseconds unless another rule drops it.
const createTimeout = 30

// The append functions write messages into a caller's buffer, in the manner of
// append. Byte order: netlink headers are in host order, all ctnetlink values in
// network order.

// appendCreate writes IPCTNL_MSG_CT_NEW for the entry, without NLM_F_ACK: the kernel replies only
// if it refuses.
func appendCreate(b []byte, seq uint32, e *Entry) []byte {
	b, start := beginEntry(b, msgCTNew, flagCreate|flagExcl, seq, ctaTupleOrig, e.Tuple, e.Zone)
	// The plain inverse: the kernel works out the translated one itself.
	b = appendTuple(b, ctaTupleReply, e.Tuple.Inverse())
	b = appendUint32(b, ctaTimeout, createTimeout)
	b = appendUint32(b, ctaMark, e.Mark)
	if e.Destination.IsValid() {
		b = appendNAT(b, ctaNATDst, e.Destination.Addr(), [2]uint16{e.Destination.Port(), e.Destination.Port()})
	}
	if e.SourceAddr.IsValid() {
		b = appendNAT(b, ctaNATSrc, e.SourceAddr, e.SourcePorts)
	}
	return endMessage(b, start)
}

// appendExtend writes IPCTNL_MSG_CT_NEW that extends the timeout of an existing entry.
func appendExtend(b []byte, seq uint32, t Tuple, zone uint16) []byte {
	b, start := beginEntry(b, msgCTNew, 0, seq, ctaTupleOrig, t, zone)
	return endMessage(appendUint32(b, ctaTimeout, createTimeout), start)
}

// appendGet writes IPCTNL_MSG_CT_GET for the entry that has the tuple in either direction.
func appendGet(b []byte, seq uint32, t Tuple, zone uint16) []byte {
	b, start := beginEntry(b, msgCTGet, 0, seq, ctaTupleOrig, t, zone)
	return endMessage(b, start)
}

// appendDelete writes IPCTNL_MSG_CT_DELETE for the entry that has the tuple, in the direction ctaTuple..., and the ID. As the
// ID stands for the original tuple (see [State]), the reply tuple identifies an entry by both tuples, and so by its
// translation.
func appendDelete(b []byte, seq uint32, direction uint16, t Tuple, zone uint16, id uint32) []byte {
	b, start := beginEntry(b, msgCTDelete, 0, seq, direction, t, zone)
	return endMessage(appendUint32(b, ctaID, id), start)
}

// appendDump writes IPCTNL_MSG_CT_GET for all entries that pass the filter.
func appendDump(b []byte, seq uint32, f Filter) []byte {
	b, start := beginMessage(b, msgCTGet, flagDump, seq, f.Family)
	if f.Mark != 0 {
		b = appendUint32(b, ctaMark, f.Mark)
		b = appendUint32(b, ctaMarkMask, f.Mark)
	}
	if f.Protocol == 0 || f.Family == 0 { // which the kernel requires for the rest (ctnetlink_parse_tuple_filter)
		return endMessage(b, start)
	}
	b, tuple := beginAttr(b, ctaTupleOrig)
	b, proto := beginAttr(b, ctaTupleProto)
	b = endAttr(appendAttr(b, ctaProtoNum, []byte{f.Protocol}), proto)
	b = endAttr(b, tuple)
	b, filter := beginAttr(b, ctaFilter)
	// The one ctnetlink value in host order.
	b = appendAttr(b, ctaFilterOrig, binary.NativeEndian.AppendUint32(nil, filterProtoNum))
	return endMessage(endAttr(b, filter), start)
}

// appendGetStats writes IPCTNL_MSG_CT_GET_STATS, which returns the number of entries and their
// limit.
func appendGetStats(b []byte, seq uint32) []byte {
	b, start := beginMessage(b, msgCTGetStats, 0, seq, 0)
	return endMessage(b, start)
}

// beginEntry begins a message about the entry that has a tuple, in the direction ctaTuple..., in a zone.
func beginEntry(b []byte, typ, flags uint16, seq uint32, direction uint16, t Tuple, zone uint16) ([]byte, message) {
	family := IPv4
	if !t.Source.Addr().Unmap().Is4() {
		family = IPv6
	}
	b, start := beginMessage(b, typ, flags, seq, family)
	b = appendTuple(b, direction, t)
	if zone != 0 { // else the kernel's default, and older kernels may know no zones
		b = appendUint16(b, ctaZone, zone)
	}
	return b, start
}

// beginMessage writes both headers, all but the length.
func beginMessage(b []byte, typ, flags uint16, seq uint32, family byte) ([]byte, message) {
	start := message(len(b))
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|flagRequest)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // port id: the kernel fills it in
	return append(b, family, 0, 0, 0), start   // struct nfgenmsg
}

// message and attr are the offsets at which an open message or attribute starts.
type (
	message int
	attr    int
)

// endMessage sets the length of an open message.
func endMessage(b []byte, start message) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-int(start)))
	return b
}

// endAttr sets the length of an open attribute. What is inside is already padded.
func endAttr(b []byte, start attr) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-int(start)))
	return b
}

func beginAttr(b []byte, typ uint16) ([]byte, attr) {
	start := attr(len(b))
	b = binary.NativeEndian.AppendUint16(b, 0)
	return binary.NativeEndian.AppendUint16(b, typ|nlaFNested), start
}

func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(nlaHdrLen+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	for len(b)%4 != 0 { // attributes are aligned to four bytes; messages start aligned
		b = append(b, 0)
	}
	return b
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, nlaHdrLen+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.BigEndian.AppendUint32(b, v)
}

func appendUint16(b []byte, typ uint16, v uint16) []byte {
	b = binary.NativeEndian.AppendUint16(b, nlaHdrLen+2)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return append(binary.BigEndian.AppendUint16(b, v), 0, 0)
}

func appendAddr(b []byte, v4, v6 uint16, a netip.Addr) []byte {
	if a = a.Unmap(); a.Is4() {
		v := a.As4()
		return appendAttr(b, v4, v[:])
	}
	v := a.As16()
	return appendAttr(b, v6, v[:])
}

func appendTuple(b []byte, typ uint16, t Tuple) []byte {
	b, tuple := beginAttr(b, typ)
	b, ip := beginAttr(b, ctaTupleIP)
	b = appendAddr(b, ctaIPv4Src, ctaIPv6Src, t.Source.Addr())
	b = appendAddr(b, ctaIPv4Dst, ctaIPv6Dst, t.Destination.Addr())
	b = endAttr(b, ip)
	b, proto := beginAttr(b, ctaTupleProto)
	b = appendAttr(b, ctaProtoNum, []byte{t.Protocol})
	b = appendUint16(b, ctaProtoSrcPort, t.Source.Port())
	b = appendUint16(b, ctaProtoDstPort, t.Destination.Port())
	b = endAttr(b, proto)
	return endAttr(b, tuple)
}

// appendNAT writes a range of one address and, unless they are 0, of ports.
func appendNAT(b []byte, typ uint16, a netip.Addr, ports [2]uint16) []byte {
	b, nat := beginAttr(b, typ)
	b = appendAddr(b, ctaNATv4MinIP, ctaNATv6MinIP, a)
	b = appendAddr(b, ctaNATv4MaxIP, ctaNATv6MaxIP, a)
	if ports != [2]uint16{} {
		var proto attr
		b, proto = beginAttr(b, ctaNATProto)
		b = appendUint16(b, ctaProtonatMin, ports[0])
		b = appendUint16(b, ctaProtonatMax, ports[1])
		b = endAttr(b, proto)
	}
	return endAttr(b, nat)
}
