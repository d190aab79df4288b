package xtables

import (
	"bytes"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Entry is one rule or chain head.
type Entry struct {
	Offset  uint32
	Raw     []byte // with next_offset its length
	Target  string // the name of the target
	Verdict int32  // valid iff Target is StandardTarget
	Head    string // the chain's name, valid iff Target is ErrorTarget
}

// Verdicts of a standard target that are no offsets: -NF_... - 1, and XT_RETURN.
const (
	Drop   int32 = -1
	Accept int32 = -2
	Return int32 = -5
)

// jumps reports that the verdict is an offset: of a chain, or of the next entry if the rule has no target.
func (e *Entry) jumps() bool { return e.Target == StandardTarget && e.Verdict >= 0 }

// Goto reports whether a jump is one without return: the flag IPT_F_GOTO or IP6T_F_GOTO.
func (e *Entry) Goto(f decision.Family) bool {
	if f == decision.IPv6 {
		return e.Raw[131]&4 != 0
	}
	return e.Raw[82]&2 != 0
}

// SetVerdict changes the verdict of a standard target, also in the raw bytes.
func (e *Entry) SetVerdict(f decision.Family, verdict uint32) {
	e.Verdict = int32(verdict)
	target := byteOrder.Uint16(e.Raw[layoutOf(f).targetOffset:])
	byteOrder.PutUint32(e.Raw[int(target)+extensionHeader:], verdict)
}

// Parts are the parts of an entry.
type Parts struct {
	// Generic is struct ipt_ip or ip6t_ip6: addresses, devices, protocol, flags.
	Generic []byte
	// Matches end with one named [Malformed] if the entry has a malformed one.
	Matches []Extension
	Target  Extension
}

// Parts splits the entry, without a copy.
func (e *Entry) Parts(f decision.Family) Parts {
	l := layoutOf(f)
	target := int(byteOrder.Uint16(e.Raw[l.targetOffset:]))
	p := Parts{Generic: e.Raw[:l.generic]}
	for rest := e.Raw[l.header:target]; len(rest) > 0; {
		var x Extension
		x, rest = extension(rest)
		p.Matches = append(p.Matches, x)
	}
	p.Target, _ = extension(e.Raw[target:])
	return p
}

// Conditions are the conditions of rules like nfqproxy's own.
type Conditions struct {
	Protocol uint8 // 0: any
	Matches  []Extension
}

// Equal reports whether the conditions are the same.
func (c Conditions) Equal(other Conditions) bool {
	return c.Protocol == other.Protocol && slices.EqualFunc(c.Matches, other.Matches, Extension.Equal)
}

// Conditions are those of the entry. all is false if there are others: addresses, devices,
// fragments, a negation; or if the entry is a goto.
func (e *Entry) Conditions(f decision.Family) (c Conditions, all bool) {
	p := e.Parts(f)
	c = Conditions{uint8(byteOrder.Uint16(p.Generic[layoutOf(f).protocol:])), p.Matches}
	return c, bytes.Equal(p.Generic, c.generic(f))
}

// generic makes a struct ipt_ip or ip6t_ip6.
func (c Conditions) generic(f decision.Family) []byte {
	l := layoutOf(f)
	raw := make([]byte, l.generic, l.header)
	byteOrder.PutUint16(raw[l.protocol:], uint16(c.Protocol))
	if f == decision.IPv6 && c.Protocol != 0 {
		raw[131] |= 1 // IP6T_F_PROTO
	}
	return raw
}

// entry makes a rule as struct ipt_entry or ip6t_entry.
func (c Conditions) entry(f decision.Family, target Extension) []byte {
	l := layoutOf(f)
	raw := c.generic(f)[:l.header]
	for _, x := range c.Matches {
		raw = x.append(raw)
	}
	byteOrder.PutUint16(raw[l.targetOffset:], uint16(len(raw)))
	raw = target.append(raw)
	byteOrder.PutUint16(raw[l.targetOffset+2:], uint16(len(raw)))
	return raw
}
