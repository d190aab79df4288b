package rules

import (
	"net/netip"
	"testing"
)

// Values that rules test.
var (
	toPort  = Payload{Transport: true, Offset: 2, ByteSize: 2}
	l4proto = Meta{Key: "l4proto", ByteSize: 1}
	mark    = Meta{Key: "mark", ByteSize: 4}
)

func number4(n uint32) Const {
	b := Number(n)
	return append(Const(nil), b.Bytes()...)
}

func equal(v Value, data ...byte) Compare {
	return Compare{Values: []Value{v}, Ranges: []Range{Exactly(data)}}
}

// TestRange compares values of which some bits are not known.
func TestRange(t *testing.T) {
	for _, tt := range []struct {
		data, known []byte
		first, last []byte
		want        Truth
	}{
		{[]byte{5}, []byte{0xff}, []byte{5}, []byte{5}, True},
		{[]byte{4}, []byte{0xfe}, []byte{5}, []byte{5}, Unknown},
		{[]byte{4}, []byte{0xfe}, []byte{6}, []byte{6}, False},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{1, 0}, []byte{1, 0xff}, True},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{1, 1}, []byte{1, 0xff}, Unknown},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{2, 0}, []byte{3, 0}, False},
		{[]byte{1, 0}, []byte{0xff, 0}, []byte{0, 0}, []byte{0, 9}, False},
		{[]byte{1, 7}, []byte{0xff, 0xff}, []byte{0, 9}, []byte{1, 6}, False},
		{[]byte{1, 7, 0}, []byte{0xff, 0xff, 0}, []byte{1, 7}, []byte{1, 7}, True}, // the first bytes
		{[]byte{1}, []byte{0xff}, []byte{1, 7}, []byte{1, 7}, Unknown},
	} {
		b := Bits{Size: len(tt.data)}
		copy(b.Data[:], tt.data)
		copy(b.Known[:], tt.known)
		if got := (Range{tt.first, tt.last}).contains(&b); got != tt.want {
			t.Errorf("%v of bits %v in %v to %v: %v, want %v", tt.data, tt.known, tt.first, tt.last, got, tt.want)
		}
	}
}

// TestMarkUse is about what may not be seen of a rule's text.
func TestMarkUse(t *testing.T) {
	connmark := Ct{Key: "mark", ByteSize: 4}
	for name, tt := range map[string]struct {
		step Step
		want MarkUse
	}{
		"all bits":        {SetMark{To: number4(1)}, MarkUse{Changes: Marks{Packet: ^uint32(0)}}},
		"some bits":       {SetMark{To: Masked{Of: mark, Mask: number4(^uint32(6)), Xor: number4(2)}}, MarkUse{Changes: Marks{Packet: 6}}},
		"toggled":         {SetMark{To: Masked{Of: mark, Mask: number4(^uint32(0)), Xor: number4(16)}}, MarkUse{Changes: Marks{Packet: 16}}},
		"moved":           {SetMark{Connection: true, To: Xor{A: Masked{Of: connmark, Mask: number4(^uint32(8))}, B: Shifted{Of: Masked{Of: mark, Mask: number4(1)}, By: 4}}}, MarkUse{Changes: Marks{Connection: 24}, Copies: Marks{Packet: 1}}},
		"moved the other": {SetMark{To: Shifted{Of: Masked{Of: connmark, Mask: number4(8)}, By: -3}}, MarkUse{Changes: Marks{Packet: ^uint32(0)}, Copies: Marks{Connection: 8}}},
		"tested":          {Module{Tests: []Test{Module{Negated: true, Tests: []Test{equal(Masked{Of: mark, Mask: number4(5)}, number4(4)...)}}}}, MarkUse{Tests: Marks{Packet: 5}}},
		"looked up":       {VerdictMap{Key: Key{l4proto, connmark}}, MarkUse{Tests: Marks{Connection: ^uint32(0)}}},
		"nothing":         {equal(toPort, 0, 80), MarkUse{}},
	} {
		if got := (&Rule{Steps: []Step{tt.step}}).MarkUse(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// to is a packet to an address, and nothing else.
type to struct {
	Packet
	address netip.Addr
}

func (p to) Address(bool) netip.Addr { return p.address }

func (p to) AddrType(AddrType) Bits { return Number(1) } // RTN_UNICAST

// TestAddrTypesIPv6: of IPv6, "-m addrtype" tells multicast and unspecified addresses from unicast ones by the address alone
// (xt_addrtype.c, match_type6).
func TestAddrTypesIPv6(t *testing.T) {
	for _, tt := range []struct {
		address string
		types   uint16
		want    Truth
	}{
		{"fd00::1", 1 << RTNUnicast, True}, {"ff02::1", 1 << RTNUnicast, False}, {"::", 1 << RTNUnicast, False},
		{"ff02::1", 1 << RTNMulticast, True}, {"fd00::1", 1 << RTNMulticast, False},
		{"::", 1 << RTNUnspec, True}, {"fd00::1", 1 << RTNUnspec, False},
		{"fd00::1", 1 << RTNLocal, False},
	} {
		p := to{address: netip.MustParseAddr(tt.address)}
		if got := (AddrTypes{Types: tt.types}).Test(p); got != tt.want {
			t.Errorf("%s is of types %#x: %v, want %v", tt.address, tt.types, got, tt.want)
		}
		if got := (AddrTypes{Types: tt.types, Negated: true}).Test(p); got != True-tt.want {
			t.Errorf("%s is not of types %#x: %v, want %v", tt.address, tt.types, got, True-tt.want)
		}
	}
}

// TestAnd: one test that fails decides; of others, one that is not known.
func TestAnd(t *testing.T) {
	for _, tt := range [][3]Truth{
		{True, True, True}, {True, False, False}, {False, True, False}, {False, False, False}, {Unknown, False, False},
		{False, Unknown, False}, {Unknown, True, Unknown}, {True, Unknown, Unknown}, {Unknown, Unknown, Unknown},
	} {
		if got := tt[0].And(tt[1]); got != tt[2] {
			t.Errorf("%d and %d: %d, want %d", tt[0], tt[1], got, tt[2])
		}
	}
}

// TestStateBits: the bits of INVALID, ESTABLISHED, RELATED and NEW are the same; those of the others are not.
func TestStateBits(t *testing.T) {
	for states, want := range map[uint32][2]uint32{0xf: {0xf, 0}, 1 << 8: {1 << 6, 0}, 1 << 6: {0, 1 << 4}, 1<<7 | 8: {8, 1 << 5}} {
		if state, status := StateBits(states); state != want[0] || status != want[1] {
			t.Errorf("%#x: %#x and %#x, want %#x", states, state, status, want)
		}
	}
}
