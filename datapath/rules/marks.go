package rules

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
		for _, v := range s.Values {
			u.tests(v)
		}
	case In:
		u.key(s.Key)
	case VerdictMap:
		u.key(s.Key)
	case Module:
		for _, t := range s.Tests {
			u.step(t)
		}
	case Not:
		for _, t := range s.Tests {
			u.step(t)
		}
	case SetMark:
		packet, connection := reads(s.To)
		if s.Connection {
			u.Changes.Connection |= ^unchanged(s.To, s.Connection)
			u.Copies.Packet |= packet
		} else {
			u.Changes.Packet |= ^unchanged(s.To, s.Connection)
			u.Copies.Connection |= connection
		}
	}
}

func (u *MarkUse) key(k Key) {
	for _, v := range k {
		u.tests(v)
	}
}

func (u *MarkUse) tests(v Value) {
	packet, connection := reads(v)
	u.Tests.Packet |= packet
	u.Tests.Connection |= connection
}

func isMark(v Value, connection bool) bool {
	if connection {
		c, ok := v.(Ct)
		return ok && c.Key == "mark"
	}
	m, ok := v.(Meta)
	return ok && m.Key == "mark"
}

// reads are the bits of the marks that the value depends on.
func reads(v Value) (packet, connection uint32) {
	switch v := v.(type) {
	case Masked:
		packet, connection = reads(v.Of)
		if len(v.Mask) == 4 {
			mask := hexOf(v.Mask).(uint32)
			return packet & mask, connection & mask
		}
	case Xor:
		packet, connection = reads(v.A)
		p, c := reads(v.B)
		return packet | p, connection | c
	case Shifted:
		return reads(v.Of)
	case Swapped:
		return reads(v.Of)
	case Mapped:
		for _, k := range v.Key {
			p, c := reads(k)
			packet, connection = packet|p, connection|c
		}
	default:
		if isMark(v, false) {
			return ^uint32(0), 0
		}
		if isMark(v, true) {
			return 0, ^uint32(0)
		}
	}
	return packet, connection
}

// unchanged are the bits of the value that are surely those of the mark itself.
func unchanged(v Value, connection bool) uint32 {
	switch v := v.(type) {
	case Masked:
		if len(v.Mask) != 4 {
			return 0
		}
		kept := unchanged(v.Of, connection) & hexOf(v.Mask).(uint32)
		if len(v.Xor) == 4 {
			kept &^= hexOf(v.Xor).(uint32)
		}
		return kept
	case Xor:
		return unchanged(v.A, connection)&^support(v.B) | unchanged(v.B, connection)&^support(v.A)
	}
	if isMark(v, connection) {
		return ^uint32(0)
	}
	return 0
}

// support are the bits of the value that may be 1.
func support(v Value) uint32 {
	switch v := v.(type) {
	case Const:
		if len(v) == 4 {
			return hexOf(v).(uint32)
		}
	case Masked:
		if len(v.Mask) == 4 {
			bits := support(v.Of) & hexOf(v.Mask).(uint32)
			if len(v.Xor) == 4 {
				bits |= hexOf(v.Xor).(uint32)
			}
			return bits
		}
	case Shifted:
		return shifted(support(v.Of), v.By)
	}
	return ^uint32(0)
}
