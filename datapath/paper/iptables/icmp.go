package iptables

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// ICMP is "-m icmp".
type ICMP struct {
	Type    ICMPType
	Negated bool
}

// ICMP6 is "-m icmp6".
type ICMP6 ICMP

// ICMPType is a type of ICMP or ICMPv6 message.
type ICMPType struct {
	// Any is set for "any", for which the other fields have no meaning. Only ICMP has it.
	Any  bool
	Type uint8
	// Code counts iff it is given.
	Code Condition[uint8]
}

// String is "any", "type" or "type/code", in numbers.
func (t ICMPType) String() string {
	switch {
	case t.Any:
		return "any"
	case t.Code.Given:
		return decimal(t.Type) + "/" + decimal(t.Code.Value)
	}
	return decimal(t.Type)
}

func icmpOf(typ uint8) ICMPType { return ICMPType{Type: typ} }

func icmpCode(typ, code uint8) ICMPType {
	return ICMPType{Type: typ, Code: Condition[uint8]{Given: true, Value: code}}
}

// icmpNames are those of libxt_icmp.h.
var icmpNames = map[string]ICMPType{
	"any": {Any: true}, "echo-reply": icmpOf(0), "pong": icmpOf(0),
	"destination-unreachable": icmpOf(3), "network-unreachable": icmpCode(3, 0), "host-unreachable": icmpCode(3, 1),
	"protocol-unreachable": icmpCode(3, 2), "port-unreachable": icmpCode(3, 3), "fragmentation-needed": icmpCode(3, 4),
	"source-route-failed": icmpCode(3, 5), "network-unknown": icmpCode(3, 6), "host-unknown": icmpCode(3, 7),
	"network-prohibited": icmpCode(3, 9), "host-prohibited": icmpCode(3, 10),
	"TOS-network-unreachable": icmpCode(3, 11), "TOS-host-unreachable": icmpCode(3, 12),
	"communication-prohibited": icmpCode(3, 13), "host-precedence-violation": icmpCode(3, 14),
	"precedence-cutoff": icmpCode(3, 15), "source-quench": icmpOf(4),
	"redirect": icmpOf(5), "network-redirect": icmpCode(5, 0), "host-redirect": icmpCode(5, 1),
	"TOS-network-redirect": icmpCode(5, 2), "TOS-host-redirect": icmpCode(5, 3),
	"echo-request": icmpOf(8), "ping": icmpOf(8), "router-advertisement": icmpOf(9), "router-solicitation": icmpOf(10),
	"time-exceeded": icmpOf(11), "ttl-exceeded": icmpOf(11), "ttl-zero-during-transit": icmpCode(11, 0),
	"ttl-zero-during-reassembly": icmpCode(11, 1), "parameter-problem": icmpOf(12), "ip-header-bad": icmpCode(12, 0),
	"required-option-missing": icmpCode(12, 1), "timestamp-request": icmpOf(13), "timestamp-reply": icmpOf(14),
	"address-mask-request": icmpOf(17), "address-mask-reply": icmpOf(18),
}

// icmp6Names are those of libxt_icmp.h.
var icmp6Names = map[string]ICMPType{
	"destination-unreachable": icmpOf(1), "no-route": icmpCode(1, 0), "communication-prohibited": icmpCode(1, 1),
	"beyond-scope": icmpCode(1, 2), "address-unreachable": icmpCode(1, 3), "port-unreachable": icmpCode(1, 4),
	"failed-policy": icmpCode(1, 5), "reject-route": icmpCode(1, 6), "packet-too-big": icmpOf(2),
	"time-exceeded": icmpOf(3), "ttl-exceeded": icmpOf(3), "ttl-zero-during-transit": icmpCode(3, 0),
	"ttl-zero-during-reassembly": icmpCode(3, 1), "parameter-problem": icmpOf(4), "bad-header": icmpCode(4, 0),
	"unknown-header-type": icmpCode(4, 1), "unknown-option": icmpCode(4, 2),
	"echo-request": icmpOf(128), "ping": icmpOf(128), "echo-reply": icmpOf(129), "pong": icmpOf(129),
	"mld-listener-query": icmpOf(130), "mld-listener-report": icmpOf(131), "mld-listener-done": icmpOf(132),
	"mld-listener-reduction": icmpOf(132), "router-solicitation": icmpOf(133), "router-advertisement": icmpOf(134),
	"neighbour-solicitation": icmpOf(135), "neighbor-solicitation": icmpOf(135),
	"neighbour-advertisement": icmpOf(136), "neighbor-advertisement": icmpOf(136), "redirect": icmpOf(137),
}

// icmpNamed reads a name, or the beginning of one type's name only, in capital or small letters
// (libxt_icmp.h, xt_icmp_parse).
func icmpNamed(names map[string]ICMPType, text string) (found ICMPType, ok bool) {
	for name, t := range names {
		switch {
		case strings.EqualFold(name, text):
			return t, true
		case !begins(name, text):
		case ok && found != t:
			return found, false
		default:
			found, ok = t, true
		}
	}
	return found, ok
}

func anICMPType(names map[string]ICMPType) kind[ICMPType] {
	return kind[ICMPType]{"an ICMP type", "type, type/code, or a name like echo-request", func(s string) (ICMPType, bool) {
		if t, ok := icmpNamed(names, s); ok {
			return t, true
		}
		typ, code, two := strings.Cut(s, "/")
		n, ok := number[uint8](typ)
		if !two {
			// 255 is how the kernel stores "any" (ip_tables.h users, icmp_match).
			if _, any := names["any"]; any && n == 255 {
				return ICMPType{Any: true}, ok
			}
			return icmpOf(n), ok
		}
		c, ok2 := number[uint8](code)
		return icmpCode(n, c), ok && ok2
	}}
}

var _ = addMatch(icmpModule("icmp", IPv4, protoICMP, "icmp", "--icmp-type", icmpNames, func(m ICMP) Match { return m }))
var _ = addMatch(icmpModule("icmp6", IPv6, protoICMPv6, "ipv6-icmp", "--icmpv6-type", icmp6Names, func(m ICMP) Match { return ICMP6(m) }))

// icmpModule is a module whose listings begin with a word, alone or with "type" behind it.
func icmpModule(name string, f Family, protocol uint8, word, option string, names map[string]ICMPType, of func(ICMP) Match) *module {
	return &module{
		name: name, family: f, implied: protocol,
		shapes:  map[string]shape{option: notOne},
		phrases: map[string]phrase{word: icmpPhrase(name, option, names), word + "type": icmpNumber(name, option)},
		build: func(s *section) Match {
			s.needs(s.name, "-m "+name, protocol)
			v, negated := sole(s, option, anICMPType(names))
			return of(ICMP{v, negated})
		},
	}
}

func (ICMP) module() string   { return "icmp" }
func (m ICMP) write(w *words) { w.option(m.Negated, "--icmp-type", m.Type.String()) }

func (m ICMP) test(c *Context) Truth {
	t, typeAndCode := m.Type, c.payload(rules.Payload{Transport: true, ByteSize: 2})
	switch {
	case t.Any:
		return truthOf(!m.Negated)
	case t.Code.Given:
		return typeAndCode.is(m.Negated, t.Type, t.Code.Value)
	}
	return typeAndCode.is(m.Negated, t.Type)
}

func (ICMP6) module() string   { return "icmp6" }
func (m ICMP6) write(w *words) { w.option(m.Negated, "--icmpv6-type", m.Type.String()) }

func (m ICMP6) test(c *Context) Truth { return ICMP(m).test(c) }

// icmpPhrase reads "icmp echo-request", "icmp !any", "icmp !type 3 code 4".
func icmpPhrase(module, option string, names map[string]ICMPType) phrase {
	number := icmpNumber(module, option)
	return func(w *wording, negated bool) bool {
		switch {
		case w.word("type"):
			return number(w, negated)
		case w.word("!type"), w.word("!", "type"):
			return number(w, !negated)
		}
		not, t, ok := w.negatable()
		if _, known := names[t.Text]; !ok || !known {
			return false
		}
		w.names = true
		w.load(module)
		w.emit(not != negated, option, t)
		return true
	}
}

// icmpNumber reads "icmptype 3 code 4" behind its first word.
func icmpNumber(module, option string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		typ, ok := w.next()
		if w.word("code") {
			code, coded := w.next()
			typ.Text, ok = typ.Text+"/"+code.Text, ok && coded
		}
		w.emit(negated, option, typ)
		return ok && w.peek() != "codes" // "codes 1 to 5": iptables has no option for that
	}
}
