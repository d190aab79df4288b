package iptables

import (
	"strings"
)

// Quota is "-m quota": the first Bytes bytes of the packets that come to the rule
// (xt_quota.c).
type Quota struct {
	Bytes   uint64
	Negated bool // what comes behind them
}

var quotaModule = &module{
	name: "quota", shapes: map[string]shape{"--quota": notOne},
	build: func(s *section) Match {
		o := s.oneOf("--quota")
		if len(o.values) == 0 {
			return Quota{}
		}
		return Quota{value(s, o.values[0], anyUint64), o.negated}
	},
}

// Module is "quota".
func (Quota) Module() string   { return "quota" }
func (m Quota) write(w *words) { w.option(m.Negated, "--quota", decimal(m.Bytes)) }

// quotaPhrase reads "quota: 1000 bytes", which is also what a negated one prints.
func quotaPhrase(w *wording, negated bool) bool {
	w.load("quota")
	w.notes["quota"] = "quotas are listed without their \"!\": each is taken to be without one"
	return !negated && w.value("--quota") && w.word("bytes")
}

// Connlimit is "-m connlimit": how many connections of one address the rule has met
// that still exist (xt_connlimit.c).
type Connlimit struct {
	Limit uint32
	// UpTo: at most Limit connections, the packet's own included; else more.
	UpTo bool
	// Bits is the length of the prefix that addresses are counted together by.
	Bits        uint8
	Destination bool // the destination's address counts, not the source's
}

var connlimitModule = &module{
	name: "connlimit",
	shapes: map[string]shape{
		"--connlimit-above": notOne, "--connlimit-upto": notOne, "--connlimit-mask": one, "--connlimit-saddr": flag, "--connlimit-daddr": flag,
	},
	build: func(s *section) Match {
		m := Connlimit{Destination: s.has("--connlimit-daddr")}
		s.atMostOne("--connlimit-saddr", "--connlimit-daddr")
		o := s.oneOf("--connlimit-above", "--connlimit-upto")
		if len(o.values) == 0 {
			return m
		}
		m.UpTo = (o.name.Text == "--connlimit-upto") != o.negated
		m.Limit = value(s, o.values[0], anyUint32)
		m.Bits = optional(s, "--connlimit-mask", kind[uint8]{"a prefix length", "0 to the length of an address", func(t string) (uint8, bool) {
			n, ok := number[uint8](t)
			return n, ok && int(n) <= s.family.bits()
		}}, uint8(s.family.bits()))
		return m
	},
}

// Module is "connlimit".
func (Connlimit) Module() string { return "connlimit" }
func (m Connlimit) write(w *words) {
	option, side := "--connlimit-above", "--connlimit-saddr"
	if m.UpTo {
		option = "--connlimit-upto"
	}
	if m.Destination {
		side = "--connlimit-daddr"
	}
	w.bare(option, decimal(m.Limit), "--connlimit-mask", decimal(m.Bits), side)
}

// connlimitPhrase reads "#conn src/32 > 3" and "#conn dst/24 <= 3".
func connlimitPhrase(w *wording, negated bool) bool {
	w.load("connlimit")
	of, _ := w.next()
	sign, _ := w.next()
	limit, ok := w.next()
	side, bits, masked := strings.Cut(of.Text, "/")
	option, ok2 := map[string]string{">": "--connlimit-above", "<=": "--connlimit-upto"}[sign.Text]
	flag, ok3 := map[string]string{"src": "--connlimit-saddr", "dst": "--connlimit-daddr"}[side]
	w.emit(false, option, limit)
	w.emit(false, "--connlimit-mask", Token{Text: bits, Column: of.Column})
	w.emit(false, flag)
	return ok && ok2 && ok3 && masked && !negated
}

// Helper is "-m helper": the packet's connection was begun because of another one's
// helper (xt_helper.c).
type Helper struct {
	Name    string // empty: any
	Negated bool
}

var helperModule = &module{
	name: "helper", shapes: map[string]shape{"--helper": notOne},
	build: func(s *section) Match {
		o := s.oneOf("--helper")
		if len(o.values) == 0 {
			return Helper{}
		}
		return Helper{value(s, o.values[0], shortText(29)), o.negated}
	},
}

// Module is "helper".
func (Helper) Module() string { return "helper" }
func (m Helper) write(w *words) {
	w.flag(m.Negated, "!")
	w.text("--helper", m.Name)
}

// helperPhrase reads `helper match "ftp"` and `helper match ! ""`.
func helperPhrase(w *wording, negated bool) bool {
	w.load("helper")
	if negated || !w.word("match") {
		return false
	}
	not := w.word("!")
	t, ok := w.next()
	name, quoted := strings.CutPrefix(t.Text, `"`)
	name, closed := strings.CutSuffix(name, `"`)
	w.emit(not, "--helper")
	w.args = append(w.args, Token{Text: name, Quoted: true, Column: t.Column})
	return ok && quoted && closed
}
