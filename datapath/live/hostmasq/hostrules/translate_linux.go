package hostrules

import (
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// kernel is the objects that the rules of an nftables table refer to.
type kernel struct {
	sets map[string]*set // of the table
	// ipset and device return names by numbers.
	ipset  iptables.SetName
	device func(index uint32) (string, bool)
}

// translator translates one rule of nftables to rules of iptables, for the packets of one family.
type translator struct {
	family iptables.Family
	kernel *kernel
	// names are the chains' names in the dump where they are others than in the table.
	names map[string]string

	registers registers
	// branches are the conditions under which a packet reaches this point of the rule, at most one
	// of which is true; none: no packet reaches it.
	branches [][]condition
	segments []segment
	ended    bool // the rule goes on for no packet
	// opaque is set once a register's content is unknown; the rule has an unknown match then.
	opaque bool
	// unseen names an expression after the last segment that may have an effect.
	unseen string
}

// maxBranches bounds how many rules of iptables one rule of nftables may become.
const maxBranches = 4096

func (t *translator) chainName(name string) string {
	if other, ok := t.names[name]; ok {
		return other
	}
	return name
}

// translate returns the rules, those of the rule's own chain and those of the chains made for it;
// none for a rule that no packet of the family matches.
func (t *translator) translate(r *nft.Rule) []*iptables.Rule {
	*t = translator{family: t.family, kernel: t.kernel, names: t.names, branches: [][]condition{nil}}
	for list := r.Expressions; len(list) > 0 && !t.ended && len(t.branches) > 0; list = list[1:] {
		name, data := list[0].Name, nft.Parse(list[0].Data)
		if len(list) > 1 && name == "cmp" && list[1].Name == "cmp" && t.between(data, nft.Parse(list[1].Data)) {
			list = list[1:]
			continue
		}
		t.expression(name, data)
	}
	switch {
	case t.unseen != "":
		t.effect(unknownTarget("%s", t.unseen))
	case len(t.segments) == 0: // it only counts
		t.effect(nil)
	}
	a := assembly{family: t.family, handle: r.Handle, comment: commentIn(r.UserData)}
	a.assemble(t.chainName(r.Chain), t.segments)
	return a.rules
}

// expression takes one expression of the rule.
func (t *translator) expression(name string, a nft.Attributes) {
	switch name {
	case "counter", "last":
	case "objref":
		if a.Uint32(unix.NFTA_OBJREF_IMM_TYPE) != unix.NFT_OBJECT_COUNTER {
			t.strange("objref")
		}
	case "match":
		t.and(iptables.DecodeMatch(t.family, extension(a, unix.NFTA_MATCH_NAME, unix.NFTA_MATCH_REV, unix.NFTA_MATCH_INFO), t.kernel.ipset))
	case "target":
		t.effect(iptables.DecodeTarget(t.family, extension(a, unix.NFTA_TARGET_NAME, unix.NFTA_TARGET_REV, unix.NFTA_TARGET_INFO)))
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
		t.byteorder(a)
	case "immediate":
		t.immediate(a)
	case "cmp":
		t.cmp(a)
	case "range":
		t.inRange(a)
	case "lookup":
		t.lookup(a)
	case "limit":
		if m, ok := limit(a); ok {
			t.and(m)
		} else {
			t.unknown("limit")
		}
	case "log":
		t.effect(log(a))
	case "masq":
		t.finish(t.masquerade(a))
	case "redir":
		t.finish(t.redirect(a))
	case "nat":
		if target := t.nat(a); target != nil {
			t.finish(target)
		}
	default:
		t.strange(name)
		t.registers, t.opaque = registers{}, true // which it may have filled
	}
}

// harmless are unknown expressions that do not change a packet: they load a value, or match.
var harmless = map[string]bool{
	"numgen": true, "hash": true, "rt": true, "socket": true, "osf": true, "tunnel": true, "xfrm": true, "quota": true, "connlimit": true,
}

// strange takes an unknown expression, which may be a match or the rule's target.
func (t *translator) strange(name string) {
	t.unknown("%s", name)
	if !harmless[name] {
		t.unseen = name
	}
}

// extension is the module in an expression "match" or "target" (nft_compat.c).
func extension(a nft.Attributes, name, revision, info uint16) iptables.Extension {
	return iptables.Extension{Name: a.Text(name), Revision: uint8(a.Uint32(revision)), Data: a[info]}
}

func (t *translator) unknown(format string, args ...any) { t.and(unknownMatch(format, args...)) }

// and adds a match to all branches.
func (t *translator) and(m iptables.Match) { t.andAll([]condition{{match: m}}) }

func (t *translator) andAll(conditions []condition) {
	for i, b := range t.branches {
		t.branches[i] = append(b[:len(b):len(b)], conditions...)
	}
}

// effect records what the rule does here, if anything; the rule continues after that.
func (t *translator) effect(target iptables.Target) {
	s := segment{}
	for _, b := range t.branches {
		s.lines = append(s.lines, line{b, target})
	}
	if len(s.lines) > 0 {
		t.segments = append(t.segments, s)
	}
	t.branches, t.unseen = [][]condition{nil}, ""
	// What was loaded before may have been changed by it.
	for i, l := range t.registers {
		if l != nil && l.kind != loadData {
			t.registers[i] = nil
		}
	}
}

// finish is like effect for the end of the rule.
func (t *translator) finish(target iptables.Target) {
	t.effect(target)
	t.ended = true
}

func (t *translator) payload(a nft.Attributes) {
	if a.Has(unix.NFTA_PAYLOAD_SREG) {
		t.effect(unknownTarget("payload set"))
		return
	}
	t.registers.put(a.Uint32(unix.NFTA_PAYLOAD_DREG), &load{
		kind: loadPayload, key: a.Uint32(unix.NFTA_PAYLOAD_BASE),
		offset: int(a.Uint32(unix.NFTA_PAYLOAD_OFFSET)), size: bounded(a.Uint32(unix.NFTA_PAYLOAD_LEN)),
	})
}

// bounded limits a number of bytes to the size of all registers.
func bounded(n uint32) int { return int(min(n, 64)) }

func (t *translator) meta(a nft.Attributes) {
	if a.Has(unix.NFTA_META_SREG) {
		t.effect(t.setMeta(a))
		return
	}
	key := a.Uint32(unix.NFTA_META_KEY)
	size := 4
	switch key {
	case unix.NFT_META_NFPROTO, unix.NFT_META_L4PROTO, unix.NFT_META_PKTTYPE:
		size = 1
	case unix.NFT_META_PROTOCOL, unix.NFT_META_IIFTYPE, unix.NFT_META_OIFTYPE:
		size = 2
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		size = 16
	}
	t.registers.put(a.Uint32(unix.NFTA_META_DREG), &load{kind: loadMeta, key: key, size: size})
}

func (t *translator) ct(a nft.Attributes) {
	if a.Has(unix.NFTA_CT_SREG) {
		t.effect(t.setCt(a))
		return
	}
	l := &load{kind: loadCt, key: a.Uint32(unix.NFTA_CT_KEY), direction: -1, size: 4}
	if d := a[unix.NFTA_CT_DIRECTION]; len(d) == 1 {
		l.direction = int(d[0])
	}
	switch l.key {
	case unix.NFT_CT_DIRECTION, unix.NFT_CT_L3PROTOCOL, unix.NFT_CT_PROTOCOL:
		l.size = 1
	case unix.NFT_CT_PROTO_SRC, unix.NFT_CT_PROTO_DST, unix.NFT_CT_ZONE:
		l.size = 2
	case unix.NFT_CT_SRC, unix.NFT_CT_DST:
		if t.family == iptables.IPv6 {
			l.size = 16
		}
	case ctSrcIP6, ctDstIP6, unix.NFT_CT_LABELS, unix.NFT_CT_HELPER:
		l.size = 16
	case unix.NFT_CT_BYTES, unix.NFT_CT_PKTS, unix.NFT_CT_AVGPKT:
		l.size = 8
	}
	t.registers.put(a.Uint32(unix.NFTA_CT_DREG), l)
}

func (t *translator) fib(a nft.Attributes) {
	dreg := a.Uint32(unix.NFTA_FIB_DREG)
	if a.Uint32(unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_ADDRTYPE {
		t.unknown("fib")
		t.registers.put(dreg, nil)
		t.opaque = true
		return
	}
	t.registers.put(dreg, &load{kind: loadFib, key: a.Uint32(unix.NFTA_FIB_FLAGS), size: 4})
}

func (t *translator) bitwise(a nft.Attributes) {
	const xorOp = 0 // NFT_BITWISE_MASK_XOR
	dreg := a.Uint32(unix.NFTA_BITWISE_DREG)
	l := t.registers.get(a.Uint32(unix.NFTA_BITWISE_SREG))
	mask := a.Nested(unix.NFTA_BITWISE_MASK)[unix.NFTA_DATA_VALUE]
	xor := a.Nested(unix.NFTA_BITWISE_XOR)[unix.NFTA_DATA_VALUE]
	const nftaBitwiseOp = 6 // NFTA_BITWISE_OP
	if l == nil || l.kind == loadData || a.Uint32(nftaBitwiseOp) != xorOp || len(mask) != l.size || len(xor) != l.size {
		t.registers.put(dreg, nil)
		if !t.opaque {
			t.unknown("bitwise")
		}
		t.opaque = true
		return
	}
	changed := *l
	if changed.mask = mask; l.mask != nil {
		changed.mask = masked(l.mask, mask)
	}
	if l.xor != nil {
		xor = xored(masked(l.xor, mask), xor)
	}
	if changed.xor = nil; !isZero(xor) {
		changed.xor = xor
	}
	t.registers.put(dreg, &changed)
}

// byteorder comes before the comparison of a number by size, for which iptables mostly has
// no match.
func (t *translator) byteorder(a nft.Attributes) {
	if l := t.known(a.Uint32(unix.NFTA_BYTEORDER_SREG), "byteorder"); l != nil && !t.opaque {
		t.unknown("%s", l)
	}
	t.registers.put(a.Uint32(unix.NFTA_BYTEORDER_DREG), nil)
	t.opaque = true
}

func (t *translator) immediate(a nft.Attributes) {
	data := a.Nested(unix.NFTA_IMMEDIATE_DATA)
	if a.Uint32(unix.NFTA_IMMEDIATE_DREG) == verdictRegister {
		if target, ok := t.verdict(data.Nested(unix.NFTA_DATA_VERDICT)); ok {
			t.finish(target)
		}
		return
	}
	v := data[unix.NFTA_DATA_VALUE]
	t.registers.put(a.Uint32(unix.NFTA_IMMEDIATE_DREG), &load{kind: loadData, size: len(v), data: v})
}
