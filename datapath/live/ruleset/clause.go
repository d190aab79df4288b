package ruleset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
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
	decision.Family
	name     string // as nft names the header: ip or ip6
	nfproto  byte   // NFPROTO_*
	addrType nftables.SetDatatype
	addrLen  uint32
	src, dst uint32 // offsets in the network header
	// ctSrc and ctDst are the keys of the addresses in a tuple of conntrack (enum nft_ct_keys).
	ctSrc, ctDst expr.CtKey
}

var (
	ipv4 = family{decision.IPv4, "ip", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 4, 12, 16, unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP}
	ipv6 = family{decision.IPv6, "ip6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 16, 8, 24, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6}
)

// words is how many registers an address takes.
func (f family) words() uint32 { return f.addrLen / 4 }

// IP protocol numbers.
const tcp, udp, sctp = byte(decision.TCP), byte(decision.UDP), byte(decision.SCTP)

// field is a value that rules load into registers: a part of a header, or what the kernel knows about a packet.
type field struct {
	text  string
	words uint32 // the registers that it takes
	load  func(register uint32) expr.Any
}

const (
	network   = expr.PayloadBaseNetworkHeader
	transport = expr.PayloadBaseTransportHeader
)

func header(text string, base expr.PayloadBase, offset, n uint32) field {
	return field{text, (n + 3) / 4, func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: n}
	}}
}

func meta(text string, k expr.MetaKey) field {
	return field{text, 1, func(register uint32) expr.Any { return &expr.Meta{Key: k, Register: register} }}
}

func ct(text string, k expr.CtKey) field {
	return field{text, 1, func(register uint32) expr.Any { return &expr.Ct{Key: k, Register: register} }}
}

func fib(text string, lookup expr.Fib) field {
	return field{text, 1, func(register uint32) expr.Any {
		e := lookup
		e.Register = register
		return &e
	}}
}

// random is a number from offset to offset+modulus-1.
func random(modulus, offset int) field {
	text := fmt.Sprintf("numgen random mod %d", modulus)
	if offset > 0 {
		text += fmt.Sprintf(" offset %d", offset)
	}
	return field{text, 1, func(register uint32) expr.Any {
		return &expr.Numgen{Register: register, Modulus: uint32(modulus), Type: unix.NFT_NG_RANDOM, Offset: uint32(offset)}
	}}
}

func (f family) saddr() field { return header(f.name+" saddr", network, f.src, f.addrLen) }
func (f family) daddr() field { return header(f.name+" daddr", network, f.dst, f.addrLen) }

func protocol() field { return meta("meta l4proto", expr.MetaKeyL4PROTO) }
func dport() field    { return header("th dport", transport, 2, 2) }

// is matches, or does not match, packets whose field has a value.
func (f field) is(match bool, text string, value []byte) clause {
	op := expr.CmpOpEq
	if !match {
		op = expr.CmpOpNeq
	}
	return clause{f.text + " " + not(match) + text, []expr.Any{f.load(reg), &expr.Cmp{Op: op, Register: reg, Data: value}}}
}

// not is nft's sign before a value that is not to match. After a mask there is one for values that are to match, too.
func not(match bool) string {
	if match {
		return ""
	}
	return "!= "
}

func equals(match bool) string {
	if match {
		return "=="
	}
	return "!="
}

// masked is a clause of [field.is] about some bits of the field.
func (c clause) masked(mask []byte) clause {
	bitwise := &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
	return clause{c.text, slices.Insert(c.exprs, 1, expr.Any(bitwise))}
}

func l4proto(proto byte) clause {
	return protocol().is(true, map[byte]string{tcp: "tcp", udp: "udp", sctp: "sctp"}[proto], []byte{proto})
}

// onLoopback matches, or does not match, packets that arrive on lo; they passed output before.
func onLoopback(match bool) clause {
	const arphrdLoopback = 772 // if_arp.h
	return meta("meta iiftype", expr.MetaKeyIIFTYPE).is(match, "loopback", binary.NativeEndian.AppendUint16(nil, arphrdLoopback))
}

// Flags of TCP.
const fin, syn, rst, ack = 1, 2, 4, 16

func tcpFlags(match bool, text string, flags byte) clause {
	c := header("tcp flags", transport, 13, 1).is(match, "", []byte{flags}).masked([]byte{fin | syn | rst | ack})
	c.text = "tcp flags & (fin | syn | rst | ack) " + equals(match) + " " + text
	return c
}

// tcpSyn matches, or does not match, the first packet of a TCP connection: SYN set;
// ACK, FIN and RST clear.
func tcpSyn(match bool) clause { return tcpFlags(match, "syn", syn) }

// tcpRefusal matches the RST that answers a SYN: with ACK, and the sequence number 0.
func tcpRefusal() rule {
	return rule{l4proto(tcp), tcpFlags(true, "rst | ack", rst|ack), header("tcp sequence", transport, 4, 4).is(true, "0", []byte{0, 0, 0, 0})}
}

// sctpInit matches, or does not match, the first packet of an SCTP association: an INIT chunk is alone in
// its packet (RFC 9260, section 3), after the common header of 12 bytes.
func sctpInit(match bool) clause {
	return header("@th,96,8", transport, 12, 1).is(match, "1", []byte{1})
}

// daddrIn and saddrIn match addresses in a prefix given by its first bytes.
func (f family) daddrIn(prefix string, mask, value []byte) clause {
	return header(f.name+" daddr", network, f.dst, uint32(len(mask))).is(true, prefix, value).masked(mask)
}

func (f family) saddrIn(prefix string, mask, value []byte) clause {
	return header(f.name+" saddr", network, f.src, uint32(len(mask))).is(true, prefix, value).masked(mask)
}

// within matches, or does not match, packets whose field, an address, is in a prefix.
func (f field) within(p netip.Prefix, match bool) clause {
	return f.is(match, p.Masked().String(), p.Masked().Addr().AsSlice()).masked(maskOf(p))
}

func maskOf(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// sourceLocal matches, or does not match, packets whose source is an address of the node.
func sourceLocal(match bool) clause {
	return fib("fib saddr type", expr.Fib{FlagSADDR: true, ResultADDRTYPE: true}).is(match, "local", host32(unix.RTN_LOCAL))
}

// destinationLocal matches packets to an address of the node.
func destinationLocal() clause {
	return fib("fib daddr type", expr.Fib{FlagDADDR: true, ResultADDRTYPE: true}).is(true, "local", host32(unix.RTN_LOCAL))
}

// inInterface matches, or does not match, packets that arrive by the interface, or by one whose name
// begins so. Packets that originate on the node arrive by none.
func inInterface(name string, prefix, match bool) clause {
	data, text := []byte(name), name+"*"
	if !prefix { // the kernel pads names with zeros
		data, text = append(data, make([]byte, unix.IFNAMSIZ-len(name))...), name
	}
	return meta("iifname", expr.MetaKeyIIFNAME).is(match, strconv.Quote(text), data)
}

// keyed is a clause that loads a set key into the registers from [key] on.
type keyed struct {
	text  string
	exprs []expr.Any
	next  uint32 // the first register after the key
}

// concat is a key of fields, each of which begins with a register.
func concat(fields ...field) keyed {
	k := keyed{next: key}
	for _, f := range fields {
		k = k.and(f)
	}
	return k
}

// and adds a field to the key.
func (k keyed) and(f field) keyed {
	if k.text != "" {
		k.text += " . "
	}
	return keyed{k.text + f.text, append(k.exprs[:len(k.exprs):len(k.exprs)], f.load(k.next)), k.next + f.words}
}

// flowKey is the packet's tuple: addresses and ports of the headers.
func (f family) flowKey() keyed {
	return concat(f.saddr(), f.daddr(), header("udp sport", transport, 0, 2), header("udp dport", transport, 2, 2))
}

// replyKey is the tuple of the replies to this packet.
func (f family) replyKey() keyed {
	return concat(f.daddr(), f.saddr(), header("udp dport", transport, 2, 2), header("udp sport", transport, 0, 2))
}

// serviceKey is the packet's destination address, protocol and destination port, and servicePortKey the same without
// the address.
func (f family) serviceKey() keyed { return concat(f.daddr(), protocol(), dport()) }
func servicePortKey() keyed        { return concat(protocol(), dport()) }

// clientKey is the source, the destination, the protocol and the destination port.
func (f family) clientKey() keyed { return concat(f.saddr(), f.daddr(), protocol(), dport()) }

func (f family) daddrKey() keyed { return concat(f.daddr()) }

// then adds an expression that uses the key.
func (k keyed) then(text string, e expr.Any) clause {
	return clause{text, append(k.exprs[:len(k.exprs):len(k.exprs)], e)}
}

// in matches if the set holds the key.
func (k keyed) in(s *set) clause {
	return k.then(k.text+" @"+s.name, &expr.Lookup{SourceRegister: key, SetName: s.name, SetID: s.id})
}

// notIn matches if the set does not hold the key.
func (k keyed) notIn(s *set) clause {
	return k.then(k.text+" != @"+s.name, &expr.Lookup{SourceRegister: key, SetName: s.name, SetID: s.id, Invert: true})
}

// Operations on sets from within rules (enum nft_dynset_ops).
const (
	opUpdate = 1 // NFT_DYNSET_OP_UPDATE
	opDelete = 2 // NFT_DYNSET_OP_DELETE
)

// refreshed adds the key to the set, or restarts its timeout; 0: the set's own.
func (k keyed) refreshed(s *set, timeout time.Duration) clause {
	return k.dynset("update", opUpdate, s, timeout)
}

// deleted removes the key from the set.
func (k keyed) deleted(s *set) clause { return k.dynset("delete", opDelete, s, 0) }

func (k keyed) dynset(verb string, op uint32, s *set, timeout time.Duration) clause {
	element := k.text
	if timeout > 0 {
		element += fmt.Sprintf(" timeout %s", timeout)
	}
	return k.then(fmt.Sprintf("%s @%s { %s }", verb, s.name, element),
		&expr.Dynset{SrcRegKey: key, SetName: s.name, SetID: s.id, Operation: op, Timeout: timeout})
}

// verdictIn jumps to the chain that the map has for the key.
func (k keyed) verdictIn(s *set) clause {
	return k.then(k.text+" vmap @"+s.name, &expr.Lookup{SourceRegister: key, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: s.name, SetID: s.id})
}

// dnatTo counts the packet, and translates the destination to the address and port that the map has for
// the key; if it has none, the rule does not match.
func (f family) dnatTo(k keyed, s *set) clause {
	count := counter()
	c := k.then(fmt.Sprintf("%s dnat %s to %s map @%s", count.text, f.name, k.text, s.name), &expr.Lookup{SourceRegister: key, DestRegister: key, IsDestRegSet: true, SetName: s.name, SetID: s.id})
	c.exprs = append(append(c.exprs, count.exprs...), &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: key, RegProtoMin: key + f.words(), Specified: true})
	return c
}

// bits matches if any (or none) of the bits of the field are set.
func (f field) bits(mask uint32, set bool) clause {
	c := f.is(!set, "0", host32(0)).masked(host32(mask))
	c.text = fmt.Sprintf("%s & 0x%x %s 0", f.text, mask, equals(!set))
	return c
}

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func markOfPacket() field     { return meta("meta mark", expr.MetaKeyMARK) }
func markOfConnection() field { return ct("ct mark", expr.CtKeyMARK) }

func packetMark(mask uint32, set bool) clause { return markOfPacket().bits(mask, set) }
func connMark(mask uint32, set bool) clause   { return markOfConnection().bits(mask, set) }

func translated(set bool) clause {
	const dnat = 1 << 5 // IPS_DST_NAT
	c := ct("ct status", expr.CtKeySTATUS).bits(dnat, set)
	c.text = "ct status & dnat " + equals(!set) + " 0"
	return c
}

// ctState matches, or does not match, packets in any of the states of bits; names has them in
// nft's language. Before conntrack a packet is untracked, if a rule made it so, or invalid.
func ctState(names string, states uint32, match bool) clause {
	c := ct("ct state", expr.CtKeySTATE).bits(states, match)
	c.text = "ct state " + not(match) + names
	return c
}

// tracked matches packets of connections, new or not.
func tracked() clause {
	return ctState("new,established", expr.CtStateBitNEW|expr.CtStateBitESTABLISHED, true)
}

// packetMarkIs matches packets with exactly this mark.
func packetMarkIs(mark uint32) clause {
	return markOfPacket().is(true, fmt.Sprintf("0x%x", mark), host32(mark))
}

// storePacketMark makes the mark of the packet what is in the register.
var storePacketMark = &expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true}

func setPacketMark(mark uint32) clause {
	return clause{fmt.Sprintf("meta mark set 0x%x", mark), []expr.Any{&expr.Immediate{Register: reg, Data: host32(mark)}, storePacketMark}}
}

// clearPacketMark clears the bits of the packet's mark, and setPacketMarkBits sets them.
func clearPacketMark(mask uint32) clause {
	return markOfPacket().changed(fmt.Sprintf("& 0x%08x", ^mask), ^mask, 0, storePacketMark)
}

func setPacketMarkBits(bits uint32) clause {
	return markOfPacket().changed(fmt.Sprintf("| 0x%08x", bits), ^bits, bits, storePacketMark)
}

// setConnMark sets bits of the connection's mark.
func setConnMark(bits uint32) clause {
	return markOfConnection().changed(fmt.Sprintf("| 0x%08x", bits), ^bits, bits, &expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true})
}

func (f field) changed(text string, mask, xor uint32, store expr.Any) clause {
	return clause{fmt.Sprintf("%s set %[1]s %s", f.text, text), []expr.Any{
		f.load(reg), &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: host32(mask), Xor: host32(xor)}, store,
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
	return header("ip saddr", network, ipv4.src, 1).is(false, "127.0.0.0/8", []byte{127})
}

func counter() clause { return clause{"counter", []expr.Any{&expr.Counter{}}} }

func masquerade() clause {
	return clause{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}}
}

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
