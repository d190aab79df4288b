package hostrules

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// known returns the content of a register. If that is unknown, the rule gets an unknown match,
// unless it already has one at the place where the unknown began.
func (t *translator) known(register uint32, expression string) *load {
	l := t.registers.get(register)
	if l == nil && !t.opaque {
		t.unknown("%s", expression)
	}
	return l
}

func (t *translator) cmp(a nft.Attributes) {
	data := a.Nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE]
	l := t.known(a.Uint32(unix.NFTA_CMP_SREG), "cmp")
	if l == nil {
		return
	}
	if 0 < len(data) && len(data) < l.size && l.mask == nil && l.xor == nil && !isDevice(l) {
		// Only this many bytes are compared.
		short := *l
		short.mask = append(slices.Repeat([]byte{0xff}, len(data)), make([]byte, l.size-len(data))...)
		data = append(slices.Clone(data), make([]byte, l.size-len(data))...)
		l = &short
	}
	lowest, highest := make([]byte, len(data)), slices.Repeat([]byte{0xff}, len(data))
	op := a.Uint32(unix.NFTA_CMP_OP)
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

// between joins two comparisons to a range, as nft writes "80-90": at least the first and at most
// the second.
func (t *translator) between(low, high nft.Attributes) bool {
	register := low.Uint32(unix.NFTA_CMP_SREG)
	l := t.registers.get(register)
	first, last := low.Nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE], high.Nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE]
	if l == nil || inMachineOrder(l) || register != high.Uint32(unix.NFTA_CMP_SREG) || len(first) != l.size ||
		low.Uint32(unix.NFTA_CMP_OP) != unix.NFT_CMP_GTE || high.Uint32(unix.NFTA_CMP_OP) != unix.NFT_CMP_LTE {
		return false
	}
	t.test(l, interval{first, last}, false)
	return true
}

// inMachineOrder reports whether the load may be a number whose bytes are not in the order in
// which they are compared.
func inMachineOrder(l *load) bool {
	return l.kind == loadMeta || l.kind == loadFib || l.kind == loadCt && (l.key == unix.NFT_CT_MARK || l.key == unix.NFT_CT_STATE || l.key == unix.NFT_CT_STATUS)
}

func isDevice(l *load) bool {
	return l.kind == loadMeta && (l.key == unix.NFT_META_IIFNAME || l.key == unix.NFT_META_OIFNAME)
}

func (t *translator) inRange(a nft.Attributes) {
	l := t.known(a.Uint32(unix.NFTA_RANGE_SREG), "range")
	if l == nil {
		return
	}
	if inMachineOrder(l) {
		t.unknown("%s", l)
		return
	}
	in := interval{a.Nested(unix.NFTA_RANGE_FROM_DATA)[unix.NFTA_DATA_VALUE], a.Nested(unix.NFTA_RANGE_TO_DATA)[unix.NFTA_DATA_VALUE]}
	t.test(l, in, a.Uint32(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
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
