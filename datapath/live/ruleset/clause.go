package ruleset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// clause is a part of a rule, in nft's text and in the kernel's expressions. Rules are built from
// clauses, so that the printed and the loaded rules cannot differ.
type clause struct {
	text  string
	exprs []expr.Any
}

// rule is a list of clauses, all of which must match.
type rule []clause

func (r rule) text() string {
	words := make([]string, 0, len(r))
	for _, c := range r {
		if c.text != "" {
			words = append(words, c.text)
		}
	}
	return strings.Join(words, " ")
}

func (r rule) exprs() []expr.Any {
	var e []expr.Any
	for _, c := range r {
		e = append(e, c.exprs...)
	}
	return e
}

// The 32-bit registers of the rule machine (NFT_REG32_00...) serve for set keys,
// each field of which starts at a multiple of four bytes.
const (
	reg = 1 // NFT_REG_1, for single values
	key = 8 // NFT_REG32_00, the start of set keys
)

// family is the part of a clause that differs between IPv4 and IPv6.
type family struct {
	name     string // as nft names the header: ip or ip6
	nfproto  byte   // NFPROTO_*
	addrType nftables.SetDatatype
	addrLen  uint32
	src, dst uint32 // offsets in the network header
}

var (
	ipv4 = family{"ip", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 4, 12, 16}
	ipv6 = family{"ip6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 16, 8, 24}
)

// words is how many registers an address takes.
func (f family) words() uint32 { return f.addrLen / 4 }

// IP protocol numbers.
const (
	tcp  byte = 6
	udp  byte = 17
	sctp byte = 132
)

func l4proto(proto byte) clause {
	name := map[byte]string{tcp: "tcp", udp: "udp", sctp: "sctp"}[proto]
	return clause{"meta l4proto " + name, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
	}}
}

// onLoopback matches packets that arrive on lo; they passed output before.
func onLoopback() clause {
	const arphrdLoopback = 772 // if_arp.h
	return clause{"meta iiftype loopback", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint16(nil, arphrdLoopback)},
	}}
}

// notOnLoopback is the opposite of onLoopback.
func notOnLoopback() clause {
	const arphrdLoopback = 772 // if_arp.h
	return clause{"meta iiftype != loopback", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: reg},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: binary.NativeEndian.AppendUint16(nil, arphrdLoopback)},
	}}
}

func payload(base expr.PayloadBase, offset, n, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: n}
}

const (
	network   = expr.PayloadBaseNetworkHeader
	transport = expr.PayloadBaseTransportHeader
)

// tcpSyn matches, or does not match, the first packet of a TCP connection: SYN set;
// ACK, FIN and RST clear.
func tcpSyn(match bool) clause {
	op, sign := expr.CmpOpEq, "=="
	if !match {
		op, sign = expr.CmpOpNeq, "!="
	}
	const fin, syn, rst, ack = 1, 2, 4, 16
	return clause{"tcp flags & (fin | syn | rst | ack) " + sign + " syn", []expr.Any{
		payload(transport, 13, 1, reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: reg, Data: []byte{syn}},
	}}
}

// tcpRefusal matches the RST that answers a SYN: with ACK, and the sequence number 0.
func tcpRefusal() clause {
	const fin, syn, rst, ack = 1, 2, 4, 16
	return clause{"tcp flags & (fin | syn | rst | ack) == rst | ack tcp sequence 0", []expr.Any{
		payload(transport, 13, 1, reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{rst | ack}},
		payload(transport, 4, 4, reg),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{0, 0, 0, 0}},
	}}
}

// sctpInit matches, or does not match, the first packet of an SCTP association: an INIT chunk is alone in
// its packet (RFC 9260, section 3), after the common header of 12 bytes.
func sctpInit(match bool) clause {
	op, sign := expr.CmpOpEq, ""
	if !match {
		op, sign = expr.CmpOpNeq, "!= "
	}
	return clause{"@th,96,8 " + sign + "1", []expr.Any{
		payload(transport, 12, 1, reg),
		&expr.Cmp{Op: op, Register: reg, Data: []byte{1}},
	}}
}

// daddrIn and saddrIn match addresses in a prefix given by its first bytes.
func (f family) daddrIn(prefix string, mask, value []byte) clause {
	return f.addrIn("daddr "+prefix, f.dst, mask, value)
}

func (f family) saddrIn(prefix string, mask, value []byte) clause {
	return f.addrIn("saddr "+prefix, f.src, mask, value)
}

func (f family) addrIn(text string, offset uint32, mask, value []byte) clause {
	return clause{f.name + " " + text, []expr.Any{
		payload(network, offset, uint32(len(mask)), reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: value},
	}}
}

// saddrWithin matches, or does not match, packets from a prefix.
func (f family) saddrWithin(p netip.Prefix, match bool) clause {
	address, mask := bytesOf(p)
	c := f.saddrIn(p.Masked().String(), mask, address)
	if !match {
		c.text = fmt.Sprintf("%s saddr != %s", f.name, p.Masked())
		c.exprs[len(c.exprs)-1] = &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: address}
	}
	return c
}

// daddrWithin matches packets to a prefix.
func (f family) daddrWithin(p netip.Prefix) clause {
	address, mask := bytesOf(p)
	return f.daddrIn(p.Masked().String(), mask, address)
}

func bytesOf(p netip.Prefix) (address, mask []byte) {
	address = p.Masked().Addr().AsSlice()
	mask = make([]byte, len(address))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return address, mask
}

// sourceLocal matches packets whose source is an address of the node.
func sourceLocal() clause {
	return addressType("saddr", &expr.Fib{Register: reg, FlagSADDR: true, ResultADDRTYPE: true}, true)
}

// destinationLocal matches packets to an address of the node.
func destinationLocal() clause {
	return addressType("daddr", &expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true}, true)
}

func addressType(field string, lookup expr.Any, local bool) clause {
	op, sign := expr.CmpOpEq, ""
	if !local {
		op, sign = expr.CmpOpNeq, "!= "
	}
	return clause{fmt.Sprintf("fib %s type %slocal", field, sign), []expr.Any{
		lookup,
		&expr.Cmp{Op: op, Register: reg, Data: host32(unix.RTN_LOCAL)},
	}}
}

// inInterface matches, or does not match, packets that arrive by the interface, or by one whose name
// begins so. Packets that originate on the node arrive by none.
func inInterface(name string, prefix, match bool) clause {
	op, sign := expr.CmpOpEq, ""
	if !match {
		op, sign = expr.CmpOpNeq, "!= "
	}
	data, text := []byte(name), name+"*"
	if !prefix { // the kernel pads names with zeros
		data, text = append(data, make([]byte, unix.IFNAMSIZ-len(name))...), name
	}
	return clause{fmt.Sprintf("iifname %s%q", sign, text), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg},
		&expr.Cmp{Op: op, Register: reg, Data: data},
	}}
}

// keyed is a clause that loads a set key into the registers from [key] on.
type keyed clause

// headerField is a field that differs between a packet and its reply.
type headerField struct {
	name   string // as nft names it
	offset uint32 // in its header
}

// flowKey is the packet's tuple: addresses and ports of the headers.
func (f family) flowKey() keyed {
	return f.tupleKey(headerField{"saddr", f.src}, headerField{"daddr", f.dst}, headerField{"sport", 0}, headerField{"dport", 2})
}

// replyKey is the tuple of the replies to this packet.
func (f family) replyKey() keyed {
	return f.tupleKey(headerField{"daddr", f.dst}, headerField{"saddr", f.src}, headerField{"dport", 2}, headerField{"sport", 0})
}

func (f family) tupleKey(addr1, addr2, port1, port2 headerField) keyed {
	w := f.words()
	return keyed{
		fmt.Sprintf("%s %s . %s %s . udp %s . udp %s", f.name, addr1.name, f.name, addr2.name, port1.name, port2.name),
		[]expr.Any{
			payload(network, addr1.offset, f.addrLen, key),
			payload(network, addr2.offset, f.addrLen, key+w),
			payload(transport, port1.offset, 2, key+2*w),
			payload(transport, port2.offset, 2, key+2*w+1),
		},
	}
}

// serviceKey is the packet's destination address, protocol and destination port.
func (f family) serviceKey() keyed {
	w := f.words()
	return keyed{
		f.name + " daddr . meta l4proto . th dport",
		[]expr.Any{
			payload(network, f.dst, f.addrLen, key),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: key + w},
			payload(transport, 2, 2, key+w+1),
		},
	}
}

// servicePortKey is serviceKey without the address.
func servicePortKey() keyed {
	return keyed{"meta l4proto . th dport", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: key},
		payload(transport, 2, 2, key+1),
	}}
}

func (f family) daddrKey() keyed {
	return keyed{f.name + " daddr", []expr.Any{payload(network, f.dst, f.addrLen, key)}}
}

// then adds an expression that uses the key.
func (k keyed) then(text string, e expr.Any) clause {
	return clause{text, append(k.exprs[:len(k.exprs):len(k.exprs)], e)}
}

// in matches if the set holds the key.
func (k keyed) in(s *set) clause {
	return k.then(k.text+" @"+s.name, &expr.Lookup{SourceRegister: key, SetName: s.name, SetID: s.id()})
}

// notIn matches if the set does not hold the key.
func (k keyed) notIn(s *set) clause {
	return k.then(k.text+" != @"+s.name, &expr.Lookup{SourceRegister: key, SetName: s.name, SetID: s.id(), Invert: true})
}

// Operations on sets from within rules (enum nft_dynset_ops).
const (
	opUpdate = 1 // NFT_DYNSET_OP_UPDATE
	opDelete = 2 // NFT_DYNSET_OP_DELETE
)

// refreshed adds the key to the set, or restarts its timeout.
func (k keyed) refreshed(s *set) clause { return k.dynset("update", opUpdate, s) }

// deleted removes the key from the set.
func (k keyed) deleted(s *set) clause { return k.dynset("delete", opDelete, s) }

func (k keyed) dynset(verb string, op uint32, s *set) clause {
	return k.then(fmt.Sprintf("%s @%s { %s }", verb, s.name, k.text), &expr.Dynset{SrcRegKey: key, SetName: s.name, SetID: s.id(), Operation: op})
}

// bits matches if any (or none) of the bits are set in what load puts into reg.
func bits(what string, load expr.Any, mask uint32, set bool) clause {
	op, sign := expr.CmpOpNeq, "!="
	if !set {
		op, sign = expr.CmpOpEq, "=="
	}
	return clause{fmt.Sprintf("%s & 0x%x %s 0", what, mask, sign), []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: host32(mask), Xor: host32(0)},
		&expr.Cmp{Op: op, Register: reg, Data: host32(0)},
	}}
}

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func packetMark(mask uint32, set bool) clause {
	return bits("meta mark", &expr.Meta{Key: expr.MetaKeyMARK, Register: reg}, mask, set)
}

func connMark(mask uint32, set bool) clause {
	return bits("ct mark", &expr.Ct{Key: expr.CtKeyMARK, Register: reg}, mask, set)
}

func translated(set bool) clause {
	const dnat = 1 << 5 // IPS_DST_NAT
	c := bits("ct status", &expr.Ct{Key: expr.CtKeySTATUS, Register: reg}, dnat, set)
	c.text = "ct status & dnat != 0"
	if !set {
		c.text = "ct status & dnat == 0"
	}
	return c
}

// ctState matches, or does not match, packets in any of the states of bits; names has them in
// nft's language. Before conntrack a packet is untracked, if a rule made it so, or invalid.
func ctState(names string, states uint32, match bool) clause {
	c := bits("ct state", &expr.Ct{Key: expr.CtKeySTATE, Register: reg}, states, match)
	c.text = "ct state " + names
	if !match {
		c.text = "ct state != " + names
	}
	return c
}

// tracked matches packets of connections, new or not.
func tracked() clause {
	return ctState("new,established", expr.CtStateBitNEW|expr.CtStateBitESTABLISHED, true)
}

// packetMarkIs matches packets with exactly this mark.
func packetMarkIs(mark uint32) clause {
	return clause{fmt.Sprintf("meta mark 0x%x", mark), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: host32(mark)},
	}}
}

func setPacketMark(mark uint32) clause {
	return clause{fmt.Sprintf("meta mark set 0x%x", mark), []expr.Any{
		&expr.Immediate{Register: reg, Data: host32(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}}
}

// clearPacketMark clears the bits of the packet's mark.
func clearPacketMark(mask uint32) clause {
	return clause{fmt.Sprintf("meta mark set meta mark & 0x%08x", ^mask), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: host32(^mask), Xor: host32(0)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}}
}

// toLoopback matches packets to loopback addresses.
func (f family) toLoopback() clause {
	if f == ipv4 {
		return f.daddrIn("127.0.0.0/8", []byte{0xff}, []byte{127})
	}
	return f.daddrIn("::1", bytes.Repeat([]byte{0xff}, 16), append(make([]byte, 15), 1))
}

func notFromLoopback() clause {
	return clause{"ip saddr != 127.0.0.0/8", []expr.Any{
		payload(network, ipv4.src, 1, reg),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{127}},
	}}
}

func counter() clause { return clause{"counter", []expr.Any{&expr.Counter{}}} }

// Ends of rules.

func accept() clause { return verdict("accept", expr.VerdictAccept) }
func drop() clause   { return verdict("drop", expr.VerdictDrop) }

func verdict(text string, kind expr.VerdictKind) clause {
	return clause{text, []expr.Any{&expr.Verdict{Kind: kind}}}
}

func jump(chain string) clause {
	return clause{"jump " + chain, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
}

// Reject types (enum nft_reject_types).
const (
	rejectUnreachable = 0 // NFT_REJECT_ICMP_UNREACH
	rejectTCPReset    = 1 // NFT_REJECT_TCP_RST
)

// rejectPortUnreachable refuses the packet with ICMP's or ICMPv6's error "port unreachable".
func (f family) rejectPortUnreachable() clause {
	if f == ipv4 {
		const icmpPortUnreach = 3 // ICMP_PORT_UNREACH (icmp.h)
		return clause{"reject with icmp port-unreachable", []expr.Any{&expr.Reject{Type: rejectUnreachable, Code: icmpPortUnreach}}}
	}
	const icmpv6PortUnreach = 4 // ICMPV6_PORT_UNREACH (icmpv6.h)
	return clause{"reject with icmpv6 port-unreachable", []expr.Any{&expr.Reject{Type: rejectUnreachable, Code: icmpv6PortUnreach}}}
}

func rejectReset() clause {
	return clause{"reject with tcp reset", []expr.Any{&expr.Reject{Type: rejectTCPReset}}}
}

// queue sends the packet to one of count queues from first on, chosen by CPU, or accepts it if no
// program listens there (bypass).
func queue(first, count uint16, native bool) clause {
	text := fmt.Sprintf("queue flags bypass,fanout to %d-%d", first, first+count-1)
	if native {
		return clause{text, []expr.Any{&expr.Queue{Num: first, Total: count, Flag: expr.QueueFlagBypass | expr.QueueFlagFanout}}}
	}
	// struct xt_NFQ_info_v3 (xt_NFQUEUE.h). The flags have the same values.
	info := binary.NativeEndian.AppendUint16(nil, first)
	info = binary.NativeEndian.AppendUint16(info, count)
	info = binary.NativeEndian.AppendUint16(info, uint16(expr.QueueFlagBypass|expr.QueueFlagFanout))
	return clause{text, []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: (*xt.Unknown)(&info)}}}
}
