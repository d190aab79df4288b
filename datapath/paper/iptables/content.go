package iptables

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// String is "-m string": text in the packet, from its IP header on (xt_string.c).
type String struct {
	Pattern    string // 1 to 128 bytes
	Algorithm  string // bm or kmp, which find the same
	From       uint16
	To         Condition[uint16] // where the text has to end; not given: 65535
	IgnoreCase bool
	Negated    bool
}

// Limit is where the text has to end.
func (m *String) Limit() int {
	if m.To.Given {
		return int(m.To.Value)
	}
	return 65535
}

const longestPattern = 128 // XT_STRING_MAX_PATTERN_SIZE

var aPattern = kind[string]{"a text to look for", "1 to 128 bytes", func(s string) (string, bool) {
	return s, 0 < len(s) && len(s) <= longestPattern
}}

// aHexPattern reads text with bytes in hexadecimal between bars: "|0d 0a|x".
var aHexPattern = kind[string]{"a text with hexadecimal digits", "text, with bytes like |0d 0a| in it", func(s string) (string, bool) {
	bytes, ok := parseHexString(s)
	text, short := aPattern.parse(bytes)
	return text, ok && short
}}

// parseHexString is parse_hex_string of libxt_string.c: a backslash keeps the character behind it, and the one behind a bar is
// neither a bar nor a backslash.
func parseHexString(s string) (string, bool) {
	var b strings.Builder
	inHex := false
	for i := 0; i < len(s); {
		literal := s[i] == '\\' && !inHex
		if s[i] == '|' {
			if inHex = !inHex; inHex {
				for i+1 < len(s) && s[i+1] == ' ' {
					i++
				}
			}
			if i++; i >= len(s) {
				break
			}
		}
		switch {
		case literal:
			if i+1 >= len(s) {
				return "", false
			}
			b.WriteByte(s[i+1])
			i += 2
		case inHex:
			if i+2 >= len(s) {
				return "", false
			}
			n, err := hex.DecodeString(s[i : i+2])
			if err != nil {
				return "", false
			}
			b.Write(n)
			if i += 2; s[i] == ' ' {
				i++
			}
		default:
			b.WriteByte(s[i])
			i++
		}
	}
	return b.String(), true
}

var _ = addMatch(&module{
	name: "string",
	shapes: map[string]shape{
		"--string": notOne, "--hex-string": notOne, "--algo": one, "--from": one, "--to": one, "--icase": flag,
	},
	phrases: map[string]phrase{"STRING": stringPhrase},
	build: func(s *section) Match {
		m := String{From: optional(s, "--from", anyUint16, 0), To: condition(s, "--to", anyUint16), IgnoreCase: s.has("--icase")}
		m.Algorithm = first(s, s.oneOf("--algo"), kind[string]{"an algorithm", "bm or kmp", func(t string) (string, bool) { return t, t == "bm" || t == "kmp" }})
		o := s.oneOf("--string", "--hex-string")
		m.Negated = o.negated
		pattern := aPattern
		if o.name.Text == "--hex-string" {
			pattern = aHexPattern
		}
		m.Pattern = first(s, o, pattern)
		return m
	},
})

func (String) module() string { return "string" }
func (m String) write(w *words) {
	option, text := "--string", m.Pattern
	if !printable(text) {
		option, text = "--hex-string", "|"+hex.EncodeToString([]byte(text))+"|"
	}
	w.option(m.Negated, option)
	w.tokens = append(w.tokens, Token{Text: text, Quoted: true})
	w.bare("--algo", m.Algorithm)
	writeNumber(w, "--from", m.From, 0)
	writeCondition(w, "--to", m.To, decimal)
	w.flag(m.IgnoreCase, "--icase")
}

// printable reports whether iptables-save prints a byte as text (libxt_string.c, is_hex_string).
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return !strings.HasSuffix(s, `\`)
}

func (String) reads() Facts { return FactBytes }

func (m String) test(c *Context) Truth {
	image := c.Packet.image()
	found, hidden := image.contains(&m)
	if hidden && found == False {
		c.assume("that %q is not in the fields of its headers that are not known", m.Pattern)
	}
	return found.NegatedIf(m.Negated)
}

func (m String) whyNot(*Context) string {
	if m.Negated {
		return fmt.Sprintf("%q is in the packet", m.Pattern)
	}
	return fmt.Sprintf("%q is not in the packet", m.Pattern)
}

func (m String) unknown(*Context) string { return Describe(m) + bytesNotKnown }

const bytesNotKnown = " depends on bytes of the packet that are not known"

// contains is textsearch_find from one offset to another (skb_find_text, net/core/skbuff.c). If
// only unknown fields of the headers could contain the text, it does not match, and hidden is set.
func (m *image) contains(s *String) (found Truth, hidden bool) {
	for at := int(s.From); at+len(s.Pattern) <= min(s.Limit(), len(m.bytes)); at++ {
		switch m.begins(at, s) {
		case True:
			return True, false
		case Unknown:
			if end := at + len(s.Pattern); end > m.payload && !m.allKnown(max(at, m.payload), end) {
				found = Unknown
			} else {
				hidden = true
			}
		}
	}
	return found, hidden
}

func (m *image) begins(at int, s *String) Truth {
	t := True
	for i := range len(s.Pattern) {
		switch a, b := m.bytes[at+i], s.Pattern[i]; {
		case !m.known[at+i]:
			t = Unknown
		case a == b, s.IgnoreCase && lower(a) == lower(b):
		default:
			return False
		}
	}
	return t
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// stringPhrase reads `STRING match  "foo bar" ALGO name bm FROM 5 TO 20 ICASE`. Text and
// hexadecimal digits in bars look the same: they are read as digits.
func stringPhrase(w *wording, negated bool) bool {
	w.load("string")
	if negated || !w.word("match") {
		return false
	}
	not := w.word("!")
	begin := w.at
	for !w.word("ALGO", "name") {
		if _, ok := w.next(); !ok {
			return false
		}
	}
	quoted, fault := Split(joined(w.words[begin : w.at-2]))
	if fault != nil || len(quoted) != 1 || !quoted[0].Quoted {
		return false
	}
	option, text := "--string", quoted[0].Text
	if bytes, opened := strings.CutPrefix(text, "|"); opened && strings.HasSuffix(bytes, "|") {
		if _, err := hex.DecodeString(strings.TrimSuffix(bytes, "|")); err == nil {
			option = "--hex-string"
		}
	}
	w.emit(not, option)
	w.args = append(w.args, Token{Text: text, Quoted: true, Column: w.words[begin].Column})
	return w.value("--algo") && w.listed(modules["string"].shapes, [][2]string{{"FROM", "--from"}, {"TO", "--to"}, {"ICASE", "--icase"}})
}

// U32 is "-m u32": numbers computed from the packet's bytes, from its IP header on, all of which
// must be in the given ranges (xt_u32.c).
type U32 struct {
	Tests   []U32Test // at most 11
	Negated bool
}

// U32Test is one number and its ranges, of which one must contain it.
type U32Test struct {
	// Start is the offset of the number's first 32 bits.
	Start  uint32
	Steps  []U32Step // at most 10
	Ranges []Range[uint32]
}

// U32Step computes the next number from the previous one.
type U32Step struct {
	Operator U32Operator
	Number   uint32
}

// U32Operator is enum xt_u32_ops.
type U32Operator uint8

// The operators.
const (
	U32And   U32Operator = iota // a mask
	U32Left                     // shifted to the left
	U32Right                    // shifted to the right
	U32At                       // the 32 bits at Number after the number, which is added to the earlier offsets
)

var u32Signs = []string{"&", "<<", ">>", "@"}

const mostU32 = 10 // XT_U32_MAXSIZE; there may be one more of each

var u32Tests = kind[[]U32Test]{"a list of tests", `tests like "0>>22&0x3C@0=0x1:0x5" with && between them`, func(s string) (tests []U32Test, ok bool) {
	for text := range strings.SplitSeq(strings.ReplaceAll(s, " ", ""), "&&") {
		t, ok := parseU32Test(text)
		if !ok || len(t.Steps) > mostU32 || len(t.Ranges) > mostU32+1 {
			return nil, false
		}
		tests = append(tests, t)
	}
	return tests, len(tests) <= mostU32+1
}}

func parseU32Test(text string) (t U32Test, ok bool) {
	location, ranges, ok := strings.Cut(text, "=")
	if !ok {
		return t, false
	}
	// cut returns the first number, and the operator after it.
	cut := func() (n uint32, operator U32Operator, more bool) {
		end := strings.IndexAny(location, "&<>@")
		digits := location
		if more = end >= 0; more {
			digits = location[:end]
			for i, sign := range u32Signs {
				if rest, found := strings.CutPrefix(location[end:], sign); found {
					operator, location = U32Operator(i), rest
					n, ok = number[uint32](digits)
					return n, operator, ok
				}
			}
			ok = false
			return 0, 0, false
		}
		n, ok = number[uint32](digits)
		return n, 0, false
	}
	var more bool
	var operator U32Operator
	if t.Start, operator, more = cut(); !ok {
		return t, false
	}
	for more {
		step := U32Step{Operator: operator}
		if step.Number, operator, more = cut(); !ok {
			return t, false
		}
		t.Steps = append(t.Steps, step)
	}
	for word := range strings.SplitSeq(ranges, ",") {
		r, ok := parseAnyRange[uint32](word, ":")
		if !ok {
			return t, false
		}
		t.Ranges = append(t.Ranges, r)
	}
	return t, true
}

var _ = addMatch(&module{
	name: "u32", shapes: map[string]shape{"--u32": notOne},
	phrases: map[string]phrase{"u32": u32Phrase},
	build: func(s *section) Match {
		v, negated := sole(s, "--u32", u32Tests)
		return U32{v, negated}
	},
})

func (U32) module() string { return "u32" }
func (m U32) write(w *words) {
	number := func(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }
	var tests []string
	for _, t := range m.Tests {
		var b strings.Builder
		b.WriteString(number(t.Start))
		for _, step := range t.Steps {
			fmt.Fprintf(&b, "%s%s", nameOf(u32Signs, step.Operator), number(step.Number))
		}
		for i, r := range t.Ranges {
			b.WriteString([]string{"=", ","}[min(i, 1)] + number(r.First))
			if r.First != r.Last {
				b.WriteString(":" + number(r.Last))
			}
		}
		tests = append(tests, b.String())
	}
	w.option(m.Negated, "--u32")
	w.tokens = append(w.tokens, Token{Text: strings.Join(tests, "&&"), Quoted: true})
}

func (U32) reads() Facts { return FactBytes }

func (m U32) test(c *Context) Truth {
	image := c.Packet.image()
	return image.u32(m.Tests).NegatedIf(m.Negated)
}

func (m U32) unknown(*Context) string { return Describe(m) + bytesNotKnown }

// u32 is u32_match_it (xt_u32.c).
func (m *image) u32(tests []U32Test) Truth {
	t := True
	for i := range tests {
		switch m.test(&tests[i]) {
		case False:
			return False
		case Unknown:
			t = Unknown
		}
	}
	return t
}

func (m *image) test(t *U32Test) Truth {
	n, ok := m.at(uint64(t.Start), 4)
	if !ok {
		return False
	}
	base := uint32(0)
	for _, s := range t.Steps {
		switch s.Operator {
		case U32And:
			n = partial{n.value & s.Number, n.known | ^s.Number}
		case U32Left:
			n = partial{n.value << (s.Number & 31), n.known<<(s.Number&31) | (1<<(s.Number&31) - 1)}
		case U32Right:
			n = partial{n.value >> (s.Number & 31), ^(^n.known >> (s.Number & 31))}
		case U32At:
			if n.known != ^uint32(0) {
				return Unknown
			}
			if base+n.value < base {
				return False
			}
			base += n.value
			if n, ok = m.at(uint64(base)+uint64(s.Number), 4); !ok {
				return False
			}
		}
	}
	if n.known != ^uint32(0) {
		return Unknown
	}
	return truthOf(slices.ContainsFunc(t.Ranges, func(r Range[uint32]) bool { return r.Contains(n.value) }))
}

// u32Phrase reads `u32 ! "0x0=0x1"`.
func u32Phrase(w *wording, negated bool) bool {
	w.load("u32")
	not := w.word("!")
	t, ok := w.next()
	text, opened := strings.CutPrefix(t.Text, `"`)
	text, closed := strings.CutSuffix(text, `"`)
	w.emit(not, "--u32")
	w.args = append(w.args, Token{Text: text, Quoted: true, Column: t.Column})
	return ok && opened && closed && !negated
}
