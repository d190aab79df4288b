package nftrules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// fields are the parts of a key.
func (c *compiler) fields(e nftables.Expr) ([]field, error) {
	parts, ok := e.(nftables.Concat)
	if !ok {
		parts = nftables.Concat{e}
	}
	var all []field
	for _, p := range parts {
		f, err := c.operand(p, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// operand is a field, an operation on fields, or what a map has for one. Constants are of the kind given, which may be nil.
func (c *compiler) operand(e nftables.Expr, of *field) (field, error) {
	if f, ok := c.field(e); ok {
		return f, nil
	}
	switch e := e.(type) {
	case nftables.Binary:
		return c.binary(e, of)
	case nftables.Map:
		return c.mapped(e, of)
	case nftables.Literal, nftables.List:
		if of != nil {
			b, err := of.value(e)
			return field{Value: rules.Const(b), kind: of.kind, expr: e}, err
		}
	}
	return field{}, fmt.Errorf("%s is not supported", nftables.Text(e))
}

// value is a constant in the field's bytes.
func (f *field) value(e nftables.Expr) ([]byte, error) {
	switch e := e.(type) {
	case nftables.Literal:
		return f.constant(e)
	case nftables.List:
		sum := make([]byte, f.Size())
		for _, part := range e {
			b, err := f.value(part)
			if err != nil {
				return nil, err
			}
			for i := range sum {
				sum[i] |= b[i]
			}
		}
		return sum, nil
	case nftables.Binary:
		a, err := f.value(e.Left)
		if err != nil {
			return nil, err
		}
		if n, ok := literalNumber(e.Right); ok && (e.Op == "<<" || e.Op == ">>") {
			moved := shifted{rules.Const(a), int(n)}
			if e.Op == ">>" {
				moved.by = -moved.by
			}
			b, _ := moved.Read(nil)
			return append([]byte(nil), b.Bytes()...), nil
		}
		b, err := f.value(e.Right)
		if err != nil {
			return nil, err
		}
		for i := range a {
			switch e.Op {
			case "&":
				a[i] &= b[i]
			case "|":
				a[i] |= b[i]
			case "^":
				a[i] ^= b[i]
			}
		}
		return a, nil
	}
	return nil, fmt.Errorf("%s is no constant", nftables.Text(e))
}

func literalNumber(e nftables.Expr) (uint64, bool) {
	l, ok := e.(nftables.Literal)
	if !ok {
		return 0, false
	}
	return l.Number()
}

// binary is an operation on a field.
func (c *compiler) binary(e nftables.Binary, of *field) (field, error) {
	left, err := c.operand(e.Left, of)
	if err != nil {
		return left, err
	}
	f := left
	f.expr = e
	if n, ok := literalNumber(e.Right); ok && (e.Op == "<<" || e.Op == ">>") {
		if n > 63 {
			return f, fmt.Errorf("%s moves too far", f.name())
		}
		by := int(n)
		if e.Op == ">>" {
			by = -by
		}
		f.Value = shifted{left.Value, by}
		return f, nil
	}
	if b, err := left.value(e.Right); err == nil {
		if n := lowBits(left.Value, e.Op, b); n != nil {
			f.Value = n
			return f, nil
		}
		f.Value = operate(e.Op, left.Value, b)
		return f, nil
	}
	right, err := c.operand(e.Right, &left)
	if err != nil {
		return f, err
	}
	if right.Size() != left.Size() {
		return f, fmt.Errorf("%s is not supported", f.name())
	}
	both := []field{left, right}
	f.Value, f.facts, f.needs, f.never = operation{e.Op, left.Value, right.Value}, factsOf(both), needsOf(both), neverOf(both)
	return f, nil
}

// lowBits are the low bits of a random number, by which iptables matches at random ("meta random & 2147483647 < 1073741824" is
// a probability of 0.5): a smaller random number. nil: it is something else.
func lowBits(v rules.Value, op string, mask []byte) *numgen {
	n, ok := v.(*numgen)
	if !ok || op != "&" || n.mod != 1<<32 || n.offset != 0 || n.inc || len(mask) != 4 {
		return nil
	}
	all := uint64(binary.BigEndian.Uint32(mask))
	if all == 0 || all&(all+1) != 0 {
		return nil
	}
	return &numgen{mod: all + 1}
}

// operate is an operation with a constant: (v & mask) ^ xor.
func operate(op string, v rules.Value, b []byte) rules.Value {
	m := rules.Masked{Of: v, Mask: make([]byte, len(b)), Xor: make([]byte, len(b))}
	for i := range b {
		switch op {
		case "&":
			m.Mask[i] = b[i]
		case "|":
			m.Mask[i], m.Xor[i] = ^b[i], b[i]
		case "^":
			m.Mask[i], m.Xor[i] = 0xff, b[i]
		}
	}
	return m
}

// rangeOf are the values of a constant, a prefix or a range.
func (f *field) rangeOf(e nftables.Expr) (rules.Range, error) {
	switch e := e.(type) {
	case nftables.Prefix:
		first, err := f.value(e.Address)
		if err != nil {
			return rules.Range{}, err
		}
		last := append([]byte(nil), first...)
		for bit := e.Length; bit < 8*len(first); bit++ {
			first[bit/8] &^= 0x80 >> (bit % 8)
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		return rules.Range{First: first, Last: last}, nil
	case nftables.Range:
		first, err := f.value(e.Low)
		if err != nil {
			return rules.Range{}, err
		}
		last, err := f.value(e.High)
		return rules.Range{First: first, Last: last}, err
	case nftables.Literal:
		if f.kind == kindDevice && len(e.Text) > 0 && e.Text[len(e.Text)-1] == '*' {
			first := make([]byte, rules.DeviceSize)
			n := copy(first, e.Text[:len(e.Text)-1])
			last := append([]byte(nil), first...)
			for i := n; i < len(last); i++ {
				last[i] = 0xff
			}
			return rules.Range{First: first, Last: last}, nil
		}
	case nftables.Wildcard:
		return rules.Range{First: make([]byte, f.Size()), Last: f.kind.most()}, nil
	}
	b, err := f.value(e)
	return rules.Exactly(b), err
}

// keyRange is the key of an element: the parts of a concatenation begin at multiples of four bytes.
func keyRange(fields []field, e nftables.Expr) (rules.Range, error) {
	if len(fields) == 1 {
		if parts, ok := e.(nftables.Concat); ok && len(parts) == 1 {
			e = parts[0]
		}
		return fields[0].rangeOf(e)
	}
	parts, ok := e.(nftables.Concat)
	if !ok || len(parts) != len(fields) {
		return rules.Range{}, fmt.Errorf("%s has not %d parts", nftables.Text(e), len(fields))
	}
	var all rules.Range
	for i, p := range parts {
		r, err := fields[i].rangeOf(p)
		if err != nil {
			return all, err
		}
		all.First, all.Last = append(all.First, padded(r.First)...), append(all.Last, padded(r.Last)...)
	}
	return all, nil
}

// padded fills up with zeros to a multiple of four bytes, as nf_tables' registers.
func padded(b []byte) []byte {
	return append(b[:len(b):len(b)], make([]byte, (4-len(b)%4)%4)...)
}

func keyOf(fields []field) rules.Key {
	var k rules.Key
	for _, f := range fields {
		k = append(k, f.Value)
	}
	return k
}

// needsOf is the protocol that a key needs.
func needsOf(fields []field) uint8 {
	for _, f := range fields {
		if f.needs != 0 {
			return f.needs
		}
	}
	return 0
}

// neverOf reports whether no packet of this family has the key.
func neverOf(fields []field) bool {
	return slices.ContainsFunc(fields, func(f field) bool { return f.never })
}

// factsOf are the facts that a key depends on.
func factsOf(fields []field) (all iptables.Facts) {
	for _, f := range fields {
		all |= f.facts
	}
	return all
}
