package rules

import "encoding/binary"

// Marks are bits of the packet mark and of the connection mark.
type Marks struct{ Packet, Connection uint32 }

// MarkUse is what a rule does with the bits of marks.
type MarkUse struct {
	Tests, Changes Marks
	Copies         Marks // to the other mark
}

// MarkUse returns what the rule does with marks, whatever packet meets it.
func (r *Rule) MarkUse() MarkUse {
	var u MarkUse
	for _, s := range r.Steps {
		u.step(s)
	}
	return u
}

func (u *MarkUse) step(s Step) {
	switch s := s.(type) {
	case Compare:
		u.Tests.add(readsOf(s.Values))
	case In:
		u.Tests.add(readsOf(s.Key))
	case VerdictMap:
		u.Tests.add(readsOf(s.Key))
	case Module:
		for _, t := range s.Tests {
			u.step(t)
		}
	case SetMark:
		if of := reads(s.To); s.Connection {
			u.Changes.Connection |= ^unchanged(s.To, ConnectionMark)
			u.Copies.Packet |= of.Packet
		} else {
			u.Changes.Packet |= ^unchanged(s.To, PacketMark)
			u.Copies.Connection |= of.Connection
		}
	}
}

func (m *Marks) add(other Marks) {
	m.Packet |= other.Packet
	m.Connection |= other.Connection
}

// readsOf are the bits of the marks that the values depend on.
func readsOf(values []Value) (m Marks) {
	for _, v := range values {
		m.add(reads(v))
	}
	return m
}

func reads(v Value) Marks {
	switch v := v.(type) {
	case Meta:
		if v == PacketMark {
			return Marks{Packet: ^uint32(0)}
		}
	case Ct:
		if v == ConnectionMark {
			return Marks{Connection: ^uint32(0)}
		}
	case Masked:
		m, mask := reads(v.Of), word(v.Mask, ^uint32(0))
		return Marks{m.Packet & mask, m.Connection & mask}
	case Xor:
		return readsOf([]Value{v.A, v.B})
	case Shifted:
		return reads(v.Of)
	case Swapped:
		return reads(v.Of)
	case Mapped:
		return readsOf(v.Key)
	}
	return Marks{}
}

// word is a number of four bytes; otherwise is for other sizes.
func word(b []byte, otherwise uint32) uint32 {
	if len(b) != 4 {
		return otherwise
	}
	return binary.NativeEndian.Uint32(b)
}

// unchanged are the bits of the value that are surely those of the mark itself.
func unchanged(v, mark Value) uint32 {
	switch v := v.(type) {
	case Masked:
		return unchanged(v.Of, mark) & word(v.Mask, 0) &^ word(v.Xor, 0)
	case Xor:
		return unchanged(v.A, mark)&^support(v.B) | unchanged(v.B, mark)&^support(v.A)
	case Meta, Ct:
		if v == mark {
			return ^uint32(0)
		}
	}
	return 0
}

// support are the bits of the value that may be 1.
func support(v Value) uint32 {
	switch v := v.(type) {
	case Const:
		return word(v, ^uint32(0))
	case Masked:
		return support(v.Of)&word(v.Mask, ^uint32(0)) | word(v.Xor, 0)
	case Shifted:
		return shifted(support(v.Of), v.By)
	}
	return ^uint32(0)
}
