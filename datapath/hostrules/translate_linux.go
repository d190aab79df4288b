package hostrules

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// kernel is what the rules of an nftables table refer to and what is asked for it.
type kernel struct {
	sets map[string]*set // of the table
	// ipset and device give names by numbers.
	ipset  xtables.SetName
	device func(index uint32) (string, bool)
}

// translator makes rules of iptables out of one of nftables, for the packets of one
// family.
type translator struct {
	family iptables.Family
	kernel *kernel
	// names are the chains' names in the dump where they are others than in the table.
	names map[string]string

	registers registers
	// branches are the ways in which a packet can have come to this point of the rule,
	// at most one of which a packet goes; none: no packet comes here.
	branches [][]condition
	segments []segment
	ended    bool // the rule goes on for no packet
	// opaque is set once something is in a register that is not known.
	opaque bool
}

// segment is what a rule does at one point.
type segment struct{ lines []line }

// line is one rule of iptables; the target is nil if it does nothing.
type line struct {
	conditions []condition
	target     iptables.Target
}

// maxBranches bounds how many rules of iptables one rule of nftables may become.
const maxBranches = 4096

func (t *translator) nfproto() uint8 {
	if t.family == iptables.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (t *translator) chainName(name string) string {
	if other, ok := t.names[name]; ok {
		return other
	}
	return name
}

// rule is a rule of nftables as the kernel gives it.
type rule struct {
	table, chain string
	handle       uint64
	expressions  []attributes
	comment      string
}

// translate gives the rules, those of the rule's own chain and those of the chains
// that are made for it; none for a rule that no packet of the family meets.
func (t *translator) translate(r *rule) []*iptables.Rule {
	t.registers, t.branches, t.segments, t.ended, t.opaque = registers{}, [][]condition{nil}, nil, false, false
	for list := r.expressions; len(list) > 0 && !t.ended && len(t.branches) > 0; list = list[1:] {
		name, data := list[0].text(unix.NFTA_EXPR_NAME), list[0].nested(unix.NFTA_EXPR_DATA)
		if len(list) > 1 && name == "cmp" && list[1].text(unix.NFTA_EXPR_NAME) == "cmp" && t.between(data, list[1].nested(unix.NFTA_EXPR_DATA)) {
			list = list[1:]
			continue
		}
		t.expression(name, data)
	}
	if len(t.segments) == 0 { // it only counts
		t.effect(nil)
	}
	a := assembly{family: t.family, handle: r.handle, comment: r.comment}
	a.assemble(t.chainName(r.chain), t.segments)
	return a.rules
}

// expression takes one expression of the rule.
func (t *translator) expression(name string, a attributes) {
	switch name {
	case "counter", "last":
	case "objref":
		if a.u32(unix.NFTA_OBJREF_IMM_TYPE) != unix.NFT_OBJECT_COUNTER {
			t.unknown("objref %s", a.text(unix.NFTA_OBJREF_IMM_NAME))
		}
	case "match":
		t.and(xtables.DecodeMatch(t.family, extension(a, unix.NFTA_MATCH_NAME, unix.NFTA_MATCH_REV, unix.NFTA_MATCH_INFO), t.kernel.ipset))
	case "target":
		t.effect(xtables.DecodeTarget(t.family, extension(a, unix.NFTA_TARGET_NAME, unix.NFTA_TARGET_REV, unix.NFTA_TARGET_INFO)))
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
		// It may fill registers, or end the rule, or do something.
		t.unknown("%s", name)
		t.registers, t.opaque = registers{}, true
	}
}

// extension is the module in an expression "match" or "target" (nft_compat.c).
func extension(a attributes, name, revision, info uint16) xtables.Extension {
	return xtables.Extension{Name: a.text(name), Revision: uint8(a.u32(revision)), Data: a[info]}
}

func (t *translator) unknown(format string, args ...any) { t.and(unknownMatch(format, args...)) }

// and adds a match to all branches.
func (t *translator) and(m iptables.Match) { t.andAll([]condition{{match: m}}) }

func (t *translator) andAll(conditions []condition) {
	for i, b := range t.branches {
		t.branches[i] = append(b[:len(b):len(b)], conditions...)
	}
}

// effect notes what the rule does here, if anything; it goes on behind that.
func (t *translator) effect(target iptables.Target) {
	s := segment{}
	for _, b := range t.branches {
		s.lines = append(s.lines, line{b, target})
	}
	if len(s.lines) > 0 {
		t.segments = append(t.segments, s)
	}
	t.branches = [][]condition{nil}
}

// finish is like effect for what the rule ends with.
func (t *translator) finish(target iptables.Target) {
	t.effect(target)
	t.ended = true
}

func (t *translator) payload(a attributes) {
	if a.has(unix.NFTA_PAYLOAD_SREG) {
		t.effect(unknownTarget("payload set"))
		return
	}
	t.registers.put(a.u32(unix.NFTA_PAYLOAD_DREG), &load{
		kind: loadPayload, key: a.u32(unix.NFTA_PAYLOAD_BASE),
		offset: int(a.u32(unix.NFTA_PAYLOAD_OFFSET)), size: bounded(a.u32(unix.NFTA_PAYLOAD_LEN)),
	})
}

// bounded is a number of bytes, at most those of all registers.
func bounded(n uint32) int { return int(min(n, 64)) }

func (t *translator) meta(a attributes) {
	if a.has(unix.NFTA_META_SREG) {
		t.effect(t.setMeta(a))
		return
	}
	key := a.u32(unix.NFTA_META_KEY)
	size := 4
	switch key {
	case unix.NFT_META_NFPROTO, unix.NFT_META_L4PROTO, unix.NFT_META_PKTTYPE:
		size = 1
	case unix.NFT_META_PROTOCOL, unix.NFT_META_IIFTYPE, unix.NFT_META_OIFTYPE:
		size = 2
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		size = 16
	}
	t.registers.put(a.u32(unix.NFTA_META_DREG), &load{kind: loadMeta, key: key, size: size})
}

func (t *translator) ct(a attributes) {
	if a.has(unix.NFTA_CT_SREG) {
		t.effect(t.setCt(a))
		return
	}
	l := &load{kind: loadCt, key: a.u32(unix.NFTA_CT_KEY), direction: -1, size: 4}
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
	t.registers.put(a.u32(unix.NFTA_CT_DREG), l)
}

func (t *translator) fib(a attributes) {
	dreg := a.u32(unix.NFTA_FIB_DREG)
	if a.u32(unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_ADDRTYPE {
		t.unknown("fib")
		t.registers.put(dreg, nil)
		t.opaque = true
		return
	}
	t.registers.put(dreg, &load{kind: loadFib, key: a.u32(unix.NFTA_FIB_FLAGS), size: 4})
}

func (t *translator) bitwise(a attributes) {
	const xorOp = 0 // NFT_BITWISE_MASK_XOR
	dreg := a.u32(unix.NFTA_BITWISE_DREG)
	l := t.registers.get(a.u32(unix.NFTA_BITWISE_SREG))
	mask := a.nested(unix.NFTA_BITWISE_MASK)[unix.NFTA_DATA_VALUE]
	xor := a.nested(unix.NFTA_BITWISE_XOR)[unix.NFTA_DATA_VALUE]
	const nftaBitwiseOp = 6 // NFTA_BITWISE_OP
	if l == nil || l.kind == loadData || a.u32(nftaBitwiseOp) != xorOp || len(mask) != l.size || len(xor) != l.size {
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
func (t *translator) byteorder(a attributes) {
	if l := t.known(a.u32(unix.NFTA_BYTEORDER_SREG), "byteorder"); l != nil && !t.opaque {
		t.unknown("%s", l)
	}
	t.registers.put(a.u32(unix.NFTA_BYTEORDER_DREG), nil)
	t.opaque = true
}

func (t *translator) immediate(a attributes) {
	data := a.nested(unix.NFTA_IMMEDIATE_DATA)
	if a.u32(unix.NFTA_IMMEDIATE_DREG) == verdictRegister {
		if target, ok := t.verdict(data.nested(unix.NFTA_DATA_VERDICT)); ok {
			t.finish(target)
		}
		return
	}
	v := data[unix.NFTA_DATA_VALUE]
	t.registers.put(a.u32(unix.NFTA_IMMEDIATE_DREG), &load{kind: loadData, size: len(v), data: v})
}

// known gives what is in a register. If that is not known, the rule is one that cannot be
// judged; it says so, unless it did already where the unknown began.
func (t *translator) known(register uint32, expression string) *load {
	l := t.registers.get(register)
	if l == nil && !t.opaque {
		t.unknown("%s", expression)
	}
	return l
}

func (t *translator) cmp(a attributes) {
	data := a.nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE]
	l := t.known(a.u32(unix.NFTA_CMP_SREG), "cmp")
	if l == nil {
		return
	}
	if 0 < len(data) && len(data) < l.size && l.mask == nil && l.xor == nil && !isDevice(l) {
		// Only so many bytes are compared.
		short := *l
		short.mask = append(slices.Repeat([]byte{0xff}, len(data)), make([]byte, l.size-len(data))...)
		data = append(slices.Clone(data), make([]byte, l.size-len(data))...)
		l = &short
	}
	lowest, highest := make([]byte, len(data)), slices.Repeat([]byte{0xff}, len(data))
	op := a.u32(unix.NFTA_CMP_OP)
	switch op {
	case unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ:
		t.test(l, exactly(data), op == unix.NFT_CMP_NEQ)
		return
	}
	if inMachineOrder(l) {
		t.unknown("%s", l)
		return
	}
	switch op {
	case unix.NFT_CMP_LT:
		t.test(l, interval{data, highest}, true)
	case unix.NFT_CMP_LTE:
		t.test(l, interval{lowest, data}, false)
	case unix.NFT_CMP_GT:
		t.test(l, interval{lowest, data}, true)
	case unix.NFT_CMP_GTE:
		t.test(l, interval{data, highest}, false)
	default:
		t.unknown("cmp")
	}
}

// between takes two comparisons that are one, as nft writes "80-90": at least this and at
// most that.
func (t *translator) between(low, high attributes) bool {
	register := low.u32(unix.NFTA_CMP_SREG)
	l := t.registers.get(register)
	first, last := low.nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE], high.nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE]
	if l == nil || inMachineOrder(l) || register != high.u32(unix.NFTA_CMP_SREG) || len(first) != l.size ||
		low.u32(unix.NFTA_CMP_OP) != unix.NFT_CMP_GTE || high.u32(unix.NFTA_CMP_OP) != unix.NFT_CMP_LTE {
		return false
	}
	t.test(l, interval{first, last}, false)
	return true
}

// inMachineOrder says whether the load may be a number whose bytes are not in the order in
// which they are compared.
func inMachineOrder(l *load) bool {
	return l.kind == loadMeta || l.kind == loadFib || l.kind == loadCt && (l.key == unix.NFT_CT_MARK || l.key == unix.NFT_CT_STATE || l.key == unix.NFT_CT_STATUS)
}

func isDevice(l *load) bool {
	return l.kind == loadMeta && (l.key == unix.NFT_META_IIFNAME || l.key == unix.NFT_META_OIFNAME)
}

func (t *translator) inRange(a attributes) {
	l := t.known(a.u32(unix.NFTA_RANGE_SREG), "range")
	if l == nil {
		return
	}
	if inMachineOrder(l) {
		t.unknown("%s", l)
		return
	}
	in := interval{a.nested(unix.NFTA_RANGE_FROM_DATA)[unix.NFTA_DATA_VALUE], a.nested(unix.NFTA_RANGE_TO_DATA)[unix.NFTA_DATA_VALUE]}
	t.test(l, in, a.u32(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
}

// test adds a comparison to all branches.
func (t *translator) test(l *load, in interval, negated bool) {
	switch answer := t.compare(l, in, negated); {
	case answer.unknown:
		t.unknown("%s", l)
	case answer.never:
		t.branches = nil
	default:
		t.andAll(answer.conditions)
	}
}

// assembly puts segments together as rules.
type assembly struct {
	family  iptables.Family
	handle  uint64
	comment string
	chains  int // that were made
	rules   []*iptables.Rule
}

// add adds one rule to a chain.
func (a *assembly) add(chain string, conditions []condition, target iptables.Target) {
	matches := resolve(a.family, conditions)
	if a.comment != "" {
		matches = append(matches, iptables.Comment{Text: a.comment})
	}
	a.rules = append(a.rules, &iptables.Rule{Chain: chain, Matches: matches, Target: target, Args: iptables.Tokens(matches, target)})
}

// assemble adds the rules of segments to a chain. iptables has one target for a rule: what
// follows goes into a chain of its own. A RETURN there would return to the
// rule behind this one, unless the chain is gone to; then its end would not.
func (a *assembly) assemble(chain string, segments []segment) {
	if len(segments) == 0 {
		return
	}
	first := segments[0]
	if a.repeats(first) {
		// The same packet could meet two of the rules.
		a.add(chain, []condition{{match: unknownMatch("several values and a change")}}, unknownTarget("rule"))
		return
	}
	if len(segments) == 1 {
		for _, l := range first.lines {
			a.add(chain, l.conditions, l.target)
		}
		return
	}
	a.chains++
	inner := fmt.Sprintf("rule-%d", a.handle)
	if a.chains > 1 {
		inner = fmt.Sprintf("rule-%d-%d", a.handle, a.chains)
	}
	var to iptables.Target = iptables.Jump{Chain: inner}
	rest := segments[1:]
	if last := rest[len(rest)-1]; leaves(last) {
		if slices.ContainsFunc(rest, func(s segment) bool { return len(s.lines) != 1 || len(s.lines[0].conditions) > 0 }) {
			rest = append(slices.Clone(rest[:len(rest)-1]), segment{[]line{{nil, unknownTarget("return behind a match behind a change")}}})
		} else {
			to = iptables.Goto{Chain: inner}
		}
	}
	for _, l := range first.lines {
		a.add(chain, l.conditions, to)
	}
	a.comment = ""
	a.add(inner, nil, first.lines[0].target)
	for len(rest) > 1 && len(rest[0].lines) == 1 && len(rest[0].lines[0].conditions) == 0 {
		a.add(inner, nil, rest[0].lines[0].target)
		rest = rest[1:]
	}
	a.assemble(inner, rest)
}

// leaves says whether a segment may leave the chain: by RETURN, or by GOTO.
func leaves(s segment) bool {
	return slices.ContainsFunc(s.lines, func(l line) bool {
		_, goes := l.target.(iptables.Goto)
		return goes || l.target == iptables.Return
	})
}

// repeats says whether a packet may meet several lines of a segment: it meets one,
// unless that changes what the others look at, or they count.
func (a *assembly) repeats(s segment) bool {
	if len(s.lines) < 2 {
		return false
	}
	for _, l := range s.lines {
		for _, c := range l.conditions {
			if c.transport != nil {
				continue
			}
			if counts(c.match) {
				return true
			}
			switch c.match.(type) {
			case iptables.Mark, iptables.Connmark:
				if !terminal(l.target) {
					return true
				}
			}
		}
	}
	return false
}

// terminal says whether no rule of the chain is asked behind the target.
func terminal(t iptables.Target) bool {
	switch t.(type) {
	case iptables.Verdict, iptables.Goto, iptables.SNAT, iptables.DNAT, iptables.Masquerade, iptables.Redirect, iptables.Netmap:
		return true
	}
	return false
}
