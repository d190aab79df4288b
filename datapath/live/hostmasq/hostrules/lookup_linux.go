package hostrules

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// lookup is "ip saddr @set" and "iifname vmap { ... }". Each element is a branch of its own, or a
// match if it must not be met.
func (t *translator) lookup(a nft.Attributes) {
	name := a.Text(unix.NFTA_LOOKUP_SET)
	negated := a.Uint32(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	dreg, maps := a.Uint32(unix.NFTA_LOOKUP_DREG), a.Has(unix.NFTA_LOOKUP_DREG)
	verdicts := maps && dreg == verdictRegister
	if maps && !verdicts {
		t.registers.put(dreg, nil)
		t.opaque = true
	}
	s := t.kernel.sets[name]
	var loads []*load
	known := s != nil && !s.broken && !(maps && !verdicts) && s.flags&(unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL) == 0 &&
		!slices.ContainsFunc(s.elements, func(e element) bool { return e.catchall })
	if known {
		loads, known = t.registers.concatenation(a.Uint32(unix.NFTA_LOOKUP_SREG), s.keySize)
	}
	switch {
	case !known:
	case verdicts:
		if t.verdictMap(s, loads) {
			return
		}
	case t.together(s, loads, negated):
		return
	case negated:
		if t.none(s, loads) {
			return
		}
	default:
		if t.any(s, loads) {
			return
		}
	}
	if verdicts {
		t.finish(unknownTarget("vmap @%s", name))
		return
	}
	t.unknown("lookup @%s", name)
}

// conditions returns the conditions for packets with one element's key.
func (t *translator) conditions(e element, loads []*load) answer {
	parts, ok := e.in.parts(loads)
	if !ok {
		return unknownAnswer
	}
	all := answer{}
	for i, l := range loads {
		one := t.compare(l, parts[i], false)
		if one.unknown {
			return unknownAnswer
		}
		all.never = all.never || one.never
		all.conditions = append(all.conditions, one.conditions...)
	}
	return all
}

// multiply returns the branches of packets with one element's key.
func (t *translator) multiply(e element, loads []*load) (branches [][]condition, ok bool) {
	a := t.conditions(e, loads)
	if a.unknown {
		return nil, false
	}
	if a.never {
		return nil, true
	}
	for _, b := range t.branches {
		branches = append(branches, append(b[:len(b):len(b)], a.conditions...))
	}
	return branches, true
}

// any adds the condition that the packet has one of the keys.
func (t *translator) any(s *set, loads []*load) bool {
	if len(s.elements)*len(t.branches) > maxBranches {
		return false
	}
	var branches [][]condition
	for _, e := range s.elements {
		more, ok := t.multiply(e, loads)
		if !ok {
			return false
		}
		branches = append(branches, more...)
	}
	t.branches = branches
	return true
}

// none adds the condition that the packet has none of the keys.
func (t *translator) none(s *set, loads []*load) bool {
	if len(loads) != 1 || len(s.elements) > maxBranches {
		return false // one differing part is enough
	}
	var all []condition
	for _, e := range s.elements {
		parts, ok := e.in.parts(loads)
		if !ok {
			return false
		}
		switch a := t.compare(loads[0], parts[0], true); {
		case a.unknown:
			return false
		case a.never:
			t.branches = nil
			return true
		default:
			all = append(all, a.conditions...)
		}
	}
	t.andAll(all)
	return true
}

// together makes one match for all keys, if iptables has one: multiport for ports, addrtype for
// types of addresses, conntrack for states.
func (t *translator) together(s *set, loads []*load, negated bool) bool {
	if len(loads) != 1 || len(s.elements) == 0 {
		return false
	}
	l := loads[0]
	var ins []interval
	for _, e := range s.elements {
		parts, ok := e.in.parts(loads)
		if !ok {
			return false
		}
		ins = append(ins, parts[0])
	}
	if l.kind == loadPayload && l.key == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
		test := &transportTest{offset: l.offset, size: l.size, mask: l.mask, in: ins, negated: negated, text: "lookup @" + s.name}
		if l.xor != nil || !test.isPort() || multiportSize(test.portRanges()) > maxMultiport {
			return false
		}
		t.andAll([]condition{{transport: test}})
		return true
	}
	bits := uint32(0)
	for _, in := range ins {
		n, ok := in.native()
		switch {
		case !ok || l.mask != nil || l.xor != nil:
			return false
		case l.kind == loadFib && n <= 11: // RTN_XRESOLVE
			bits |= 1 << n
		case l.kind == loadCt && l.key == unix.NFT_CT_STATE && n&(n-1) == 0:
			bits |= n
		default:
			return false
		}
	}
	var a answer
	if l.kind == loadFib {
		a = fibTypes(l, iptables.AddrTypes(bits), negated)
	} else if m, ok := ctStates(bits, negated); ok {
		a = matching(m)
	} else {
		return false
	}
	if a.unknown {
		return false
	}
	t.andAll(a.conditions)
	return true
}

// verdictMap ends the rule by the verdict of the packet's key; other packets go on with the
// next rule.
func (t *translator) verdictMap(s *set, loads []*load) bool {
	if len(s.elements)*len(t.branches) > maxBranches {
		return false
	}
	out := segment{}
	for _, e := range s.elements {
		branches, ok := t.multiply(e, loads)
		if !ok || e.verdict == nil {
			return false
		}
		target, ok := t.verdict(e.verdict)
		if !ok {
			return false // goes on within the rule
		}
		for _, b := range branches {
			out.lines = append(out.lines, line{b, target})
		}
	}
	t.branches, t.ended = nil, true
	if len(out.lines) > 0 {
		t.segments = append(t.segments, out)
	}
	return true
}
