// Package rules is the rules of a packet filter as the kernel evaluates them: steps over values of a packet. The
// packages that read rules make them - of the kernel's own form or of a listing - and those that know a packet
// evaluate them.
//
// It is a ground package.
package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Translates reports whether the chain, or one that it leads to, has a rule that translates, or may do so.
func (c *Chain) Translates() bool { return c.translates(make(map[*Chain]bool)) }

func (c *Chain) translates(seen map[*Chain]bool) bool {
	seen[c] = true
	for _, r := range c.Rules {
		for _, s := range r.Steps {
			switch s := s.(type) {
			case NAT:
				return true
			case Other:
				if !s.Harmless {
					return true
				}
			case Verdict:
				if s.translates(seen) {
					return true
				}
			case VerdictMap:
				if s.Set.Unreadable || s.Set.Any != nil && s.Set.Any.Verdict.translates(seen) {
					return true
				}
				for _, e := range s.Set.Elements {
					if e.Verdict.translates(seen) {
						return true
					}
				}
			}
		}
	}
	return false
}

// translates reports whether the verdict leads to a chain that does.
func (v Verdict) translates(seen map[*Chain]bool) bool {
	return v.Chain != nil && !seen[v.Chain] && v.Chain.translates(seen)
}

// Chain is a list of rules.
type Chain struct {
	Name  string
	Rules []*Rule
	Drops bool // the policy of a base chain
}

// Rule is one rule.
type Rule struct {
	// Chain is the name of its chain, and Comment its comment, which may be empty.
	Chain   string
	Comment string
	// Native: it is a rule of nftables, and is printed in nft's words instead of iptables'.
	Native bool
	// Steps are evaluated in order, until a test fails or a step ends the rule.
	Steps []Step
	// Line is that of a file, and Words the whole rule as it stands there, if it is from one.
	Line  int
	Words string
}

// Step is a [Test], or something that a rule does.
type Step interface {
	// Text describes the step in the words of nft, or of iptables unless native; it may be empty.
	Text(native bool) string
}

// Test decides whether the rule goes on.
type Test interface {
	Step
	Test(p Packet) Truth
}

// Truth is the result of a test.
type Truth uint8

// The results of tests.
const (
	False Truth = iota
	True
	Unknown // it depends on data that is not known
)

func truth(yes bool) Truth {
	if yes {
		return True
	}
	return False
}

// NegatedIf is the result of the negated test, if it is negated.
func (t Truth) NegatedIf(negated bool) Truth {
	if negated && t != Unknown {
		return True - t
	}
	return t
}

// And is the result of two tests that both must be true. One that fails decides it.
func (t Truth) And(u Truth) Truth {
	switch {
	case t == False || u == False:
		return False
	case t == Unknown:
		return Unknown
	}
	return u
}

// VerdictKind is what becomes of the walk through a chain.
type VerdictKind uint8

// The verdicts.
const (
	Continue VerdictKind = iota // with the next step
	Accept                      // ends the table
	Drop
	Return // from the chain
	Jump   // to a chain, and back
	Goto   // to a chain, and not back
)

// Verdict is a verdict.
type Verdict struct {
	Kind  VerdictKind
	Chain *Chain // of Jump and Goto, which do nothing without one
}

// VerdictMap looks up the verdict, as nft's vmap; a packet without an element goes on.
type VerdictMap struct {
	Key Key
	Set *Set
}

// SetMark sets the packet's mark or, with Connection, the connection's.
type SetMark struct {
	Connection bool
	To         Value
	Words      string // in iptables' words, with "-j"; empty: made from To, a Masked
}

// Other is anything else: a log line, a counter, a module that is not known.
type Other struct {
	Harmless bool // neither changes nor ends the packet
	Words
}

// Words are the text of a step in any case; they may be empty.
type Words string

// Text describes the step.
func (w Words) Text(bool) string { return string(w) }

// String is the rule as iptables-save prints it, or as nft does behind its chain's name.
func (r *Rule) String() string {
	switch {
	case r.Words != "":
		return r.Words
	case r.Native:
		return r.Chain + ":" + r.native()
	}
	return "-A " + r.Chain + r.iptables()
}

// native leaves out what nft does: the protocol if the rule names its fields.
func (r *Rule) native() string {
	var parts []string
	for _, s := range r.Steps {
		if t := s.Text(true); t != "" {
			parts = append(parts, t)
		}
	}
	for i := 0; i < len(parts); i++ {
		implied := false
		for j := i + 1; j < len(parts); j++ {
			if protocol, ok := strings.CutPrefix(parts[i], "meta l4proto "); ok && !strings.ContainsAny(protocol, " @") {
				named := strings.ReplaceAll(" "+parts[j], " th ", " "+protocol+" ")[1:]
				implied = implied || strings.HasPrefix(parts[j], protocol+" ") || named != parts[j]
				parts[j] = named
			}
			implied = implied || parts[i] == "meta nfproto ipv4" && strings.HasPrefix(parts[j], "ip ") || parts[i] == "meta nfproto ipv6" && strings.HasPrefix(parts[j], "ip6 ")
		}
		if implied {
			parts = slices.Delete(parts, i, i+1)
			i--
		}
	}
	if r.Comment != "" {
		parts = append(parts, fmt.Sprintf("comment %q", r.Comment))
	}
	if len(parts) == 0 {
		return ""
	}
	return " " + strings.Join(parts, " ")
}

// iptables puts addresses, devices and the protocol first, and "-m tcp" before ports.
func (r *Rule) iptables() string {
	order := []string{"-s", "-d", "-i", "-o", "-p"}
	generic := make([]string, len(order))
	var tests, effects strings.Builder
	module := ""
	for _, s := range r.Steps {
		t := s.Text(false)
		option, _, _ := strings.Cut(strings.TrimPrefix(t, "! "), " ")
		place := slices.Index(order, option)
		_, test := s.(Test)
		switch {
		case t == "":
		case !test:
			effects.WriteString(" " + t)
		case place >= 0:
			generic[place] += " " + t
		case option == "--sport" || option == "--dport" || option == "--tcp-flags":
			if protocol := strings.TrimPrefix(generic[4], " -p "); protocol != "" && module != protocol {
				module = protocol
				t = "-m " + module + " " + t
			}
			tests.WriteString(" " + t)
		default:
			tests.WriteString(" " + t)
		}
	}
	if r.Comment != "" {
		tests.WriteString(" -m comment --comment " + Quoted(r.Comment))
	}
	return strings.Join(generic, "") + tests.String() + effects.String()
}

// Body is the rule without its chain.
func (r *Rule) Body() string {
	s := strings.TrimPrefix(r.String(), "-A "+r.Chain)
	return strings.TrimPrefix(strings.TrimPrefix(s, r.Chain+":"), " ")
}

// Quoted puts text in quotes as iptables-save does: unless it has only letters, digits, "_" and "-"
// (xtables_save_string).
func Quoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`).Replace(s) + `"`
}

// Text describes the step.
func (v Verdict) Text(native bool) string {
	name, chain := verdictNames[v.Kind], ""
	if v.Chain != nil {
		chain = " " + v.Chain.Name
	}
	switch {
	case native && v.Kind < Jump:
		return name
	case native:
		return name + chain
	case v.Kind < Jump:
		return "-j " + strings.ToUpper(name)
	}
	return "-" + name[:1] + chain // -j and -g
}

var verdictNames = [...]string{"continue", "accept", "drop", "return", "jump", "goto"}

// Text describes the step.
func (m VerdictMap) Text(bool) string { return fmt.Sprintf("%s vmap %s", m.Key, m.Set) }

// Text describes the step.
func (s SetMark) Text(native bool) string {
	mark, target := "meta mark", "MARK"
	if s.Connection {
		mark, target = "ct mark", "CONNMARK"
	}
	m, masked := s.To.(Masked)
	switch {
	case !native && s.Words != "":
		return s.Words
	case !native && masked && m.Of.String() == mark:
		xor := m.Xor
		if xor == nil {
			xor = make([]byte, len(m.Mask))
		}
		return fmt.Sprintf("-j %s --set-xmark 0x%x/0x%x", target, hexOf(xor), ^hexOf(m.Mask).(uint32))
	}
	return mark + " set " + s.To.String()
}
