package hostrules

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// kernel is the objects that the rules of an nftables table refer to.
type kernel struct {
	sets   map[string]*rules.Set // of the table, by name
	chains map[string]*rules.Chain
	ipset  setName
}

// translator reads one rule of nftables, as packets of one family meet it.
type translator struct {
	family decision.Family
	native bool // not a rule of iptables-nft
	kernel *kernel

	registers registers
	steps     []rules.Step
}

// translate returns the rule with all that the kernel evaluates of it. What is not known is an
// unknown test, or an effect that is not harmless: nothing is left out.
func (t *translator) translate(r *nft.Rule) *rules.Rule {
	t.registers, t.steps = registers{}, nil
	for list := r.Expressions; len(list) > 0; list = list[1:] {
		name, a := list[0].Name, nft.Parse(list[0].Data)
		if name == "cmp" && len(list) > 1 && list[1].Name == "cmp" && t.between(a, nft.Parse(list[1].Data)) {
			list = list[1:]
			continue
		}
		t.expression(name, a)
	}
	return &rules.Rule{Chain: r.Chain, Comment: commentIn(r.UserData), Native: t.native, Steps: t.steps}
}

func (t *translator) add(s rules.Step) { t.steps = append(t.steps, s) }

func (t *translator) unknown(words string) {
	t.add(rules.Fixed{Result: rules.Unknown, Words: rules.Words(words + " …")})
}

// expression takes one expression of the rule.
func (t *translator) expression(name string, a nft.Attributes) {
	switch name {
	case "counter", "last":
	case "objref":
		t.object(a)
	case "match":
		t.add(matchOf(t.family, xtables.ExtensionOf(a), t.kernel.ipset))
	case "target":
		t.effect(targetOf(t.family, xtables.ExtensionOf(a)))
	case "payload":
		t.payload(a)
	case "meta":
		t.meta(a)
	case "ct":
		t.ct(a)
	case "fib":
		t.fib(a)
	case "bitwise":
		t.bitwise(a)
	case "byteorder":
		size := bounded(a.Uint32(unix.NFTA_BYTEORDER_LEN))
		t.registers.put(a.Uint32(unix.NFTA_BYTEORDER_DREG), rules.Swapped{
			Of: t.registers.get(a.Uint32(unix.NFTA_BYTEORDER_SREG), size), Width: bounded(a.Uint32(unix.NFTA_BYTEORDER_SIZE)),
		})
	case "immediate":
		t.immediate(a)
	case "cmp":
		t.cmp(a)
	case "range":
		first, last := a.Nested(unix.NFTA_RANGE_FROM_DATA).Get(unix.NFTA_DATA_VALUE), a.Nested(unix.NFTA_RANGE_TO_DATA).Get(unix.NFTA_DATA_VALUE)
		t.compare(a.Uint32(unix.NFTA_RANGE_SREG), rules.Range{First: first, Last: last}, a.Uint32(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
	case "lookup":
		t.lookup(a)
	case "log":
		t.add(rules.Other{Harmless: true, Words: rules.Words(t.logWords(a))})
	case "masq":
		t.nat(rules.Masquerade, a, unix.NFTA_MASQ_FLAGS, 0, 0, unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX)
	case "redir":
		t.nat(rules.Redirect, a, unix.NFTA_REDIR_FLAGS, 0, 0, unix.NFTA_REDIR_REG_PROTO_MIN, unix.NFTA_REDIR_REG_PROTO_MAX)
	case "nat":
		t.natExpression(a)
	default:
		t.other(name, a)
	}
}

// said is the word of nft or that of iptables.
func (t *translator) said(nft, iptables string) string {
	if t.native {
		return nft
	}
	return iptables
}

func (t *translator) logWords(a nft.Attributes) string {
	switch prefix := a.Text(unix.NFTA_LOG_PREFIX); {
	case !t.native && a.Has(unix.NFTA_LOG_GROUP):
		return "-j NFLOG …"
	case !t.native:
		return "-j LOG …"
	case prefix != "":
		return fmt.Sprintf("log prefix %q", prefix)
	}
	return "log"
}

// loads are expressions whose value is not known, and which otherwise do nothing. tests may end the
// rule.
var (
	loads = map[string]uint16{
		"numgen": 1, "hash": 2, "rt": 1, "socket": 2, "osf": 1, "tunnel": 2, "xfrm": 1, "exthdr": 1, // NFTA_..._DREG
	}
	tests = map[string]bool{"limit": true, "quota": true, "connlimit": true, "dynset": true}
)

// other takes an expression without a known effect.
func (t *translator) other(name string, a nft.Attributes) {
	const nftaExthdrSreg = 7 // NFTA_EXTHDR_SREG
	dreg, load := loads[name]
	load = load && !(name == "exthdr" && a.Has(nftaExthdrSreg)) // which writes
	switch {
	case load && a.Has(dreg):
		t.registers.put(a.Uint32(dreg), rules.Opaque{ByteSize: 16}) // its size is not known
		t.registers.put(a.Uint32(dreg), rules.Opaque{ByteSize: 4, Words: name})
	case load, tests[name]:
		t.unknown(t.said(name, "-m "+name))
	default:
		t.effect(rules.Other{Words: rules.Words(name + " …")})
	}
}

func (t *translator) object(a nft.Attributes) {
	switch a.Uint32(unix.NFTA_OBJREF_IMM_TYPE) {
	case unix.NFT_OBJECT_COUNTER:
	case unix.NFT_OBJECT_QUOTA, unix.NFT_OBJECT_LIMIT, unix.NFT_OBJECT_CONNLIMIT:
		t.unknown("objref")
	default:
		t.effect(rules.Other{Words: "objref …"})
	}
}

// effect adds something that may change what was loaded before.
func (t *translator) effect(e rules.Step) {
	t.add(e)
	t.registers.changed()
}

func (t *translator) payload(a nft.Attributes) {
	if a.Has(unix.NFTA_PAYLOAD_SREG) {
		t.effect(rules.Other{Words: "payload set …"})
		return
	}
	base, size := a.Uint32(unix.NFTA_PAYLOAD_BASE), bounded(a.Uint32(unix.NFTA_PAYLOAD_LEN))
	v := rules.Value(rules.Payload{
		Transport: base == unix.NFT_PAYLOAD_TRANSPORT_HEADER, Six: t.family == decision.IPv6, Offset: bounded(a.Uint32(unix.NFTA_PAYLOAD_OFFSET)), ByteSize: size,
	})
	if base != unix.NFT_PAYLOAD_TRANSPORT_HEADER && base != unix.NFT_PAYLOAD_NETWORK_HEADER {
		v = rules.Opaque{ByteSize: size, Words: fmt.Sprintf("@ll,%d,%d", 8*a.Uint32(unix.NFTA_PAYLOAD_OFFSET), 8*size)}
	}
	t.registers.put(a.Uint32(unix.NFTA_PAYLOAD_DREG), v)
}

// bounded limits a number of bytes to the size of all registers.
func bounded(n uint32) int { return int(min(n, 64)) }

// metaKeys are the keys of meta in nft's words; those that are not listed have four bytes.
var metaKeys = map[uint32]rules.Meta{
	unix.NFT_META_LEN: rules.Length, unix.NFT_META_PROTOCOL: {Key: "protocol", ByteSize: 2}, unix.NFT_META_MARK: rules.PacketMark,
	unix.NFT_META_PRIORITY: {Key: "priority", ByteSize: 4}, unix.NFT_META_IIF: {Key: "iif", ByteSize: 4}, unix.NFT_META_OIF: {Key: "oif", ByteSize: 4},
	unix.NFT_META_IIFNAME: rules.InDevice, unix.NFT_META_OIFNAME: rules.OutDevice, unix.NFT_META_NFPROTO: {Key: "nfproto", ByteSize: 1},
	unix.NFT_META_IIFTYPE: {Key: "iiftype", ByteSize: 2}, unix.NFT_META_OIFTYPE: {Key: "oiftype", ByteSize: 2},
	unix.NFT_META_SKUID: {Key: "skuid", ByteSize: 4}, unix.NFT_META_SKGID: {Key: "skgid", ByteSize: 4}, unix.NFT_META_CPU: {Key: "cpu", ByteSize: 4},
	unix.NFT_META_NFTRACE: {Key: "nftrace", ByteSize: 4}, unix.NFT_META_RTCLASSID: {Key: "rtclassid", ByteSize: 4},
	unix.NFT_META_SECMARK: {Key: "secmark", ByteSize: 4}, unix.NFT_META_L4PROTO: rules.Protocol, unix.NFT_META_PKTTYPE: rules.LinkType,
	unix.NFT_META_IIFGROUP: {Key: "iifgroup", ByteSize: 4}, unix.NFT_META_OIFGROUP: {Key: "oifgroup", ByteSize: 4},
	unix.NFT_META_CGROUP: {Key: "cgroup", ByteSize: 4}, unix.NFT_META_PRANDOM: {Key: "random", ByteSize: 4},
}

// ctKeys are the keys of ct in nft's words; those that are not listed have four bytes. Addresses without a family have
// that of the packet.
var ctKeys = map[uint32]rules.Ct{
	unix.NFT_CT_STATE: rules.ConnectionState, unix.NFT_CT_DIRECTION: rules.ConnectionDirection, unix.NFT_CT_STATUS: rules.ConnectionStatus,
	unix.NFT_CT_MARK: rules.ConnectionMark, unix.NFT_CT_EXPIRATION: {Key: "expiration", ByteSize: 4}, unix.NFT_CT_HELPER: {Key: "helper", ByteSize: 16},
	unix.NFT_CT_L3PROTOCOL: {Key: "l3proto", ByteSize: 1}, unix.NFT_CT_SRC: {Key: "saddr"}, unix.NFT_CT_DST: {Key: "daddr"},
	unix.NFT_CT_PROTOCOL: {Key: "protocol", ByteSize: 1}, unix.NFT_CT_PROTO_SRC: {Key: "proto-src", ByteSize: 2},
	unix.NFT_CT_PROTO_DST: {Key: "proto-dst", ByteSize: 2}, unix.NFT_CT_LABELS: {Key: "label", ByteSize: 16}, unix.NFT_CT_ZONE: {Key: "zone", ByteSize: 2},
	unix.NFT_CT_BYTES: {Key: "bytes", ByteSize: 8}, unix.NFT_CT_PKTS: {Key: "packets", ByteSize: 8}, unix.NFT_CT_AVGPKT: {Key: "avgpkt", ByteSize: 8},
	// NFT_CT_SRC_IP, NFT_CT_DST_IP, NFT_CT_SRC_IP6 and NFT_CT_DST_IP6 (nf_tables.h), which the unix package does not have.
	19: {Key: "ip saddr", ByteSize: 4}, 20: {Key: "ip daddr", ByteSize: 4}, 21: {Key: "ip6 saddr", ByteSize: 16}, 22: {Key: "ip6 daddr", ByteSize: 16},
}

func (t *translator) meta(a nft.Attributes) {
	key := a.Uint32(unix.NFTA_META_KEY)
	v, ok := metaKeys[key]
	if !ok {
		v = rules.Meta{Key: fmt.Sprintf("key-%d", key), ByteSize: 4}
	}
	if !a.Has(unix.NFTA_META_SREG) {
		t.registers.put(a.Uint32(unix.NFTA_META_DREG), v)
		return
	}
	switch other := (rules.Other{Words: rules.Words("meta " + v.Key + " set …")}); key {
	case unix.NFT_META_MARK:
		t.effect(rules.SetMark{To: t.registers.get(a.Uint32(unix.NFTA_META_SREG), 4)})
	case unix.NFT_META_NFTRACE:
		t.add(rules.Other{Harmless: true, Words: rules.Words(t.said("meta nftrace set 1", "-j TRACE"))})
	case unix.NFT_META_PRIORITY, unix.NFT_META_SECMARK:
		other.Harmless = true
		t.add(other)
	default:
		t.effect(other)
	}
}

func (t *translator) ct(a nft.Attributes) {
	key := a.Uint32(unix.NFTA_CT_KEY)
	v, ok := ctKeys[key]
	if !ok {
		v = rules.Ct{Key: fmt.Sprintf("key-%d", key), ByteSize: 4}
	}
	switch {
	case !a.Has(unix.NFTA_CT_SREG):
		if d := a.Get(unix.NFTA_CT_DIRECTION); len(d) == 1 {
			v.Directed, v.Reply = true, d[0] == 1
		}
		if v.ByteSize == 0 {
			v.ByteSize = t.addressSize()
		}
		t.registers.put(a.Uint32(unix.NFTA_CT_DREG), v)
	case key == unix.NFT_CT_MARK:
		t.effect(rules.SetMark{Connection: true, To: t.registers.get(a.Uint32(unix.NFTA_CT_SREG), 4)})
	default:
		t.add(rules.Other{Harmless: true, Words: rules.Words("ct " + v.Key + " set …")})
	}
}

// addressSize is the size of an address of the family, in bytes.
func (t *translator) addressSize() int {
	if t.family == decision.IPv6 {
		return 16
	}
	return 4
}

func (t *translator) fib(a nft.Attributes) {
	flags := a.Uint32(unix.NFTA_FIB_FLAGS)
	v := rules.Value(rules.AddrType{Source: flags&unix.NFTA_FIB_F_SADDR != 0, In: flags&unix.NFTA_FIB_F_IIF != 0, Out: flags&unix.NFTA_FIB_F_OIF != 0})
	size := 4
	switch a.Uint32(unix.NFTA_FIB_RESULT) {
	case unix.NFT_FIB_RESULT_ADDRTYPE:
		if flags&unix.NFTA_FIB_F_MARK == 0 {
			t.registers.put(a.Uint32(unix.NFTA_FIB_DREG), v)
			return
		}
	case unix.NFT_FIB_RESULT_OIFNAME:
		size = 16
	}
	t.registers.put(a.Uint32(unix.NFTA_FIB_DREG), rules.Opaque{ByteSize: size, Words: "fib"})
}

func (t *translator) bitwise(a nft.Attributes) {
	const (
		nftaBitwiseOp = 6 // NFTA_BITWISE_OP
		maskXor       = 0 // NFT_BITWISE_MASK_XOR
	)
	mask, xor := a.Nested(unix.NFTA_BITWISE_MASK).Get(unix.NFTA_DATA_VALUE), a.Nested(unix.NFTA_BITWISE_XOR).Get(unix.NFTA_DATA_VALUE)
	of := t.registers.get(a.Uint32(unix.NFTA_BITWISE_SREG), len(mask))
	v := rules.Value(rules.Masked{Of: of, Mask: mask, Xor: xor})
	if a.Uint32(nftaBitwiseOp) != maskXor || len(mask) != of.Size() || len(xor) != len(mask) {
		v = rules.Opaque{ByteSize: bounded(a.Uint32(unix.NFTA_BITWISE_LEN)), Words: "bitwise"}
	}
	t.registers.put(a.Uint32(unix.NFTA_BITWISE_DREG), v)
}

func (t *translator) immediate(a nft.Attributes) {
	data := a.Nested(unix.NFTA_IMMEDIATE_DATA)
	if a.Uint32(unix.NFTA_IMMEDIATE_DREG) == verdictRegister {
		if v, ok := t.kernel.verdict(data.Nested(unix.NFTA_DATA_VERDICT)); ok {
			t.add(v)
		} else {
			t.add(rules.Other{Words: "verdict …"})
		}
		return
	}
	t.registers.put(a.Uint32(unix.NFTA_IMMEDIATE_DREG), rules.Const(data.Get(unix.NFTA_DATA_VALUE)))
}

// verdict reads struct nft_verdict. It is not ok for verdicts that rules of nat cannot have, and for
// chains that are not there.
func (k *kernel) verdict(a nft.Attributes) (rules.Verdict, bool) {
	kind, ok := map[int32]rules.VerdictKind{
		unix.NFT_CONTINUE: rules.Continue, unix.NFT_JUMP: rules.Jump, unix.NFT_GOTO: rules.Goto, unix.NFT_RETURN: rules.Return,
		nft.Accept: rules.Accept, nft.Drop: rules.Drop,
	}[int32(a.Uint32(unix.NFTA_VERDICT_CODE))]
	v := rules.Verdict{Kind: kind}
	if kind == rules.Jump || kind == rules.Goto {
		v.Chain = k.chains[a.Text(unix.NFTA_VERDICT_CHAIN)]
		ok = ok && v.Chain != nil
	}
	return v, ok
}

func (t *translator) cmp(a nft.Attributes) {
	data := a.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE)
	r, op := rules.Exactly(data), a.Uint32(unix.NFTA_CMP_OP)
	switch op {
	case unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ:
	case unix.NFT_CMP_LTE, unix.NFT_CMP_GT: // not less or equal
		r.First = make([]byte, len(data))
	case unix.NFT_CMP_GTE, unix.NFT_CMP_LT: // not greater or equal
		r.Last = bytes.Repeat([]byte{0xff}, len(data))
	default:
		t.unknown("cmp")
		return
	}
	t.compare(a.Uint32(unix.NFTA_CMP_SREG), r, op == unix.NFT_CMP_NEQ || op == unix.NFT_CMP_GT || op == unix.NFT_CMP_LT)
}

// between is for two comparisons that together are one with a range. false: they are not.
func (t *translator) between(a, b nft.Attributes) bool {
	if a.Uint32(unix.NFTA_CMP_OP) != unix.NFT_CMP_GTE || b.Uint32(unix.NFTA_CMP_OP) != unix.NFT_CMP_LTE || a.Uint32(unix.NFTA_CMP_SREG) != b.Uint32(unix.NFTA_CMP_SREG) {
		return false
	}
	t.compare(a.Uint32(unix.NFTA_CMP_SREG), rules.Range{First: a.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE), Last: b.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE)}, false)
	return true
}

// compare adds a comparison, or two for fields that nft compares at once.
func (t *translator) compare(register uint32, r rules.Range, negated bool) {
	v := t.registers.get(register, len(r.First))
	if len(r.First) == 0 || len(r.First) != len(r.Last) || len(r.First) > v.Size() {
		t.unknown("cmp")
		return
	}
	if first, second, at := fields(v); at > 0 && at < len(r.First) && !negated && bytes.Equal(r.First, r.Last) {
		t.add(compare(first, false, rules.Exactly(r.First[:at])))
		v, r = second, rules.Exactly(r.First[at:])
	}
	t.add(compare(v, negated, r))
}

// fields tells apart the two addresses or ports that a payload covers; at is the size of the first. 0:
// it is one field.
func fields(v rules.Value) (first, second rules.Payload, at int) {
	p, ok := v.(rules.Payload)
	end := 16
	switch {
	case !ok:
		return first, second, 0
	case p.Transport:
		end = 2
	case p.Six:
		end = 24
	}
	if p.Offset >= end || p.Offset+p.ByteSize <= end {
		return first, second, 0
	}
	first, second, at = p, p, end-p.Offset
	first.ByteSize, second.Offset, second.ByteSize = at, end, p.ByteSize-at
	return first, second, at
}

// lookup is "ip saddr @set", "iifname vmap { ... }" and "snat to ip saddr map { ... }".
func (t *translator) lookup(a nft.Attributes) {
	name := a.Text(unix.NFTA_LOOKUP_SET)
	s := t.kernel.sets[name]
	if s == nil {
		s = &rules.Set{Name: name, Unreadable: true}
	}
	key := t.registers.key(a.Uint32(unix.NFTA_LOOKUP_SREG), s.KeySize)
	switch dreg := a.Uint32(unix.NFTA_LOOKUP_DREG); {
	case !a.Has(unix.NFTA_LOOKUP_DREG):
		t.add(rules.In{Key: key, Set: s, Negated: a.Uint32(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0})
	case dreg == verdictRegister:
		t.add(rules.VerdictMap{Key: key, Set: s})
	default:
		t.registers.put(dreg, rules.Mapped{Key: key, Set: s, ByteSize: max(1, s.ValueSize)})
	}
}

// natExpression adds nothing for a translation of the other family (nft_nat.c, nft_nat_inet_eval).
func (t *translator) natExpression(a nft.Attributes) {
	if f := a.Uint32(unix.NFTA_NAT_FAMILY); f != unix.NFPROTO_INET && f != uint32(nft.Family(t.family)) {
		return
	}
	kind := rules.SNAT
	if a.Uint32(unix.NFTA_NAT_TYPE) != unix.NFT_NAT_SNAT {
		kind = rules.DNAT
	}
	t.nat(kind, a, unix.NFTA_NAT_FLAGS, unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX, unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX)
}

// nat adds a translation. The attributes of these types name registers; 0: there is no such
// attribute.
func (t *translator) nat(kind rules.NATKind, a nft.Attributes, flags, addrMin, addrMax, portMin, portMax uint16) {
	value := func(attribute uint16, size int) rules.Value {
		if attribute == 0 || !a.Has(attribute) {
			return nil
		}
		return t.registers.get(a.Uint32(attribute), size)
	}
	size := t.addressSize()
	n := rules.NAT{
		Kind: kind, First: value(addrMin, size), Last: value(addrMax, size), FirstPort: value(portMin, 2), LastPort: value(portMax, 2),
		Netmap: a.Uint32(flags)&unix.NF_NAT_RANGE_NETMAP != 0,
	}
	t.add(natFlags(n, a.Uint32(flags)))
}
