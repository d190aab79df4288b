package hostrules

import (
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// segment is what a rule does at one point.
type segment struct{ lines []line }

// line is one rule of iptables; the target is nil if it does nothing.
type line struct {
	conditions []condition
	target     iptables.Target
}

// assembly joins segments to rules.
type assembly struct {
	family  iptables.Family
	handle  uint64
	comment string
	chains  int // chains that were made
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

// assemble adds the rules of segments to a chain. iptables has one target per rule, so the
// following segments go into a chain of their own. A RETURN there would return to the rule after
// this one, unless the chain is the target of a goto; but then its end would not return either.
func (a *assembly) assemble(chain string, segments []segment) {
	if len(segments) == 0 {
		return
	}
	first, rest := segments[0], segments[1:]
	if len(rest) == 0 {
		a.addAll(chain, first.lines)
		return
	}
	a.chains++
	inner := fmt.Sprintf("rule-%d", a.handle)
	if a.chains > 1 {
		inner = fmt.Sprintf("rule-%d-%d", a.handle, a.chains)
	}
	var to iptables.Target = iptables.Jump{Chain: inner}
	if last := rest[len(rest)-1]; leaves(last) {
		if slices.ContainsFunc(rest, func(s segment) bool { return !s.unconditional() }) {
			rest = append(slices.Clone(rest[:len(rest)-1]), segment{[]line{{nil, unknownTarget("return behind a match behind a change")}}})
		} else {
			to = iptables.Goto{Chain: inner}
		}
	}
	var lines []line
	for _, l := range first.lines {
		lines = append(lines, line{l.conditions, to})
	}
	if !a.addAll(chain, lines) {
		return
	}
	a.comment = ""
	a.add(inner, nil, first.lines[0].target)
	for len(rest) > 1 && rest[0].unconditional() {
		a.add(inner, nil, rest[0].lines[0].target)
		rest = rest[1:]
	}
	a.assemble(inner, rest)
}

func (s segment) unconditional() bool { return len(s.lines) == 1 && len(s.lines[0].conditions) == 0 }

// addAll adds lines of which a packet must match at most one; if it could match several, it adds
// an unknown match and returns false.
func (a *assembly) addAll(chain string, lines []line) bool {
	if repeat(lines) {
		a.add(chain, []condition{{match: unknownMatch("several values and a change")}}, unknownTarget("rule"))
		return false
	}
	for _, l := range lines {
		a.add(chain, l.conditions, l.target)
	}
	return true
}

// leaves reports whether a segment may leave the chain by RETURN or GOTO.
func leaves(s segment) bool {
	return slices.ContainsFunc(s.lines, func(l line) bool {
		_, goes := l.target.(iptables.Goto)
		return goes || l.target == iptables.Return
	})
}

// repeat reports whether a packet may match several of these lines: that is so if one changes what
// the others match, or if they count.
func repeat(lines []line) bool {
	if len(lines) < 2 {
		return false
	}
	for _, l := range lines {
		for _, c := range l.conditions {
			if c.transport != nil {
				continue
			}
			switch c.match.(type) {
			case iptables.Mark, iptables.Connmark:
				if !terminal(l.target) {
					return true
				}
			}
			if counts(c.match) {
				return true
			}
		}
	}
	return false
}

// terminal reports whether no rule of the chain is evaluated after the target.
func terminal(t iptables.Target) bool {
	switch t.(type) {
	case iptables.Verdict, iptables.Goto, iptables.SNAT, iptables.DNAT, iptables.Masquerade, iptables.Redirect, iptables.Netmap:
		return true
	}
	return false
}
