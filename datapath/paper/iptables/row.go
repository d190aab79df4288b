package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// Fields splits a line at its spaces into words with their columns; quotes have no meaning. A non-breaking space, as on web pages, is a
// space.
func Fields(line string) []Token {
	line = strings.ReplaceAll(line, "\u00a0", "  ") // as many bytes, for the columns
	var words []Token
	for i := 0; i < len(line); {
		if blank(line[i]) || line[i] == '\n' {
			i++
			continue
		}
		begin := i
		for i < len(line) && !blank(line[i]) && line[i] != '\n' {
			i++
		}
		words = append(words, Token{Text: line[begin:i], Column: begin + 1})
	}
	return words
}

// joined is the text of words with one space between them.
func joined(words []Token) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.Text
	}
	return strings.Join(texts, " ")
}

// columns are the columns besides target, prot, opt, source and destination.
type columns struct {
	number     bool // num: --line-numbers
	counters   bool // pkts, bytes: -v
	interfaces bool // in, out: -v
}

// parseColumns reads the line below "Chain ...".
func parseColumns(words []Token) (columns, bool) {
	c, rest := columns{}, words
	take := func(names ...string) bool {
		if len(rest) < len(names) || joined(rest[:len(names)]) != strings.Join(names, " ") {
			return false
		}
		rest = rest[len(names):]
		return true
	}
	c.number = take("num")
	c.counters = take("pkts", "bytes")
	ok := take("target", "prot", "opt")
	c.interfaces = take("in", "out")
	return c, ok && take("source", "destination") && len(rest) == 0
}

// NamesColumns reports whether a line of the text has the names of the columns of a listing.
func NamesColumns(text string) bool {
	for line := range strings.Lines(text) {
		if _, ok := parseColumns(Fields(line)); ok {
			return true
		}
	}
	return false
}

// inferColumns finds the columns by a rule. false: it is none, or has several readings.
func inferColumns(words []Token) (found columns, ok bool) {
	at := slices.IndexFunc(words, func(w Token) bool { return slices.Contains([]string{"--", "-f", "!f"}, w.Text) })
	if at < 1 {
		return columns{}, false
	}
	for _, c := range []columns{{}, {number: true}, {counters: true, interfaces: true}, {number: true, counters: true, interfaces: true}} {
		r, fault := c.row(words)
		if fault != nil || r.protocol.Column != words[at-1].Column {
			continue
		}
		if _, _, counts := parseCount(r.target.Text); counts { // no chain has such a name here: it is a counter or a number
			continue
		}
		if ok {
			return columns{}, false
		}
		found, ok = c, true
	}
	return found, ok
}

// row is the line of a rule.
type row struct {
	line     int
	counters *Counters
	rounded  bool  // the counters are
	target   Token // the zero value: none
	fragment Token // "-f", "!f", or the zero value
	// These include their "!".
	protocol, in, out, source, destination Token
	rest                                   []Token
}

// row reads a rule's columns. An empty column is recognized by the possible words, because column
// -t moves them.
func (c *columns) row(words []Token) (*row, *Error) {
	r, end := &row{}, words[len(words)-1]
	words = slices.Clone(words)
	var fault *Error // the first
	fail := func(column int, problem, want string) {
		if fault == nil {
			fault = &Error{Column: column, Problem: problem, Want: want}
		}
	}
	// "! 10.0.0.0/8" is one word more.
	take := func(what string, want string) Token {
		if len(words) > 1 && words[0].Text == "!" {
			words[1] = Token{Text: "!" + words[1].Text, Column: words[0].Column}
			words = words[1:]
		}
		if len(words) == 0 {
			fail(end.Column+len(end.Text), "the line ends before the "+what, want)
			return Token{}
		}
		w := words[0]
		words = words[1:]
		return w
	}
	if c.number {
		w := take("number of the rule", "a number")
		if _, ok := number[uint32](w.Text); !ok {
			fail(w.Column, fmt.Sprintf("%.40q in column num", w.Text), "the number of the rule")
		}
	}
	if c.counters {
		r.counters = &Counters{}
		for _, counter := range []struct {
			name  string
			value *uint64
		}{{"pkts", &r.counters.Packets}, {"bytes", &r.counters.Bytes}} {
			const want = "a number, perhaps with K, M, G, T or P"
			w := take(counter.name, want)
			n, rounded, ok := parseCount(w.Text)
			if !ok {
				fail(w.Column, fmt.Sprintf("%.40q in column %s", w.Text, counter.name), want)
			}
			*counter.value, r.rounded = n, r.rounded || rounded
		}
	}
	if len(words) > 0 && hasTarget(words) {
		r.target, words = words[0], words[1:]
	}
	r.protocol = take("protocol", "all, tcp, udp, ...")
	if text := strings.TrimPrefix(r.protocol.Text, "!"); !isProtocol(text) {
		fail(r.protocol.Column, fmt.Sprintf("%.40q in column prot", text), "a protocol: all, tcp, udp, ... or 0 to 255")
	}
	if len(words) > 0 && isOpt(words[0].Text) {
		if strings.HasSuffix(words[0].Text, "f") {
			r.fragment = words[0]
		}
		words = words[1:]
	}
	if c.interfaces {
		r.in, r.out = take("input interface", "a name, or * for any"), take("output interface", "a name, or * for any")
	}
	r.source = take("source", "an address or network, 0.0.0.0/0 for any")
	r.destination = take("destination", "an address or network, 0.0.0.0/0 for any")
	if r.rest = words; fault != nil {
		return nil, fault
	}
	return r, nil
}

// hasTarget reports whether the words begin with a target, or else with the protocol. After the
// protocol comes column opt, except in ip6tables before 1.8.9, which left it empty.
func hasTarget(words []Token) bool {
	at := func(i int) string {
		if i < len(words) {
			return words[i].Text
		}
		return ""
	}
	protocol := 0
	if at(0) == "!" {
		return false
	}
	if at(1) == "!" {
		protocol++ // "target ! tcp"
	}
	switch {
	case isOpt(at(1)):
		return false
	case isOpt(at(2 + protocol)):
		return true
	}
	return !isProtocol(strings.TrimPrefix(at(0), "!")) || isProtocol(strings.TrimPrefix(at(1+protocol), "!"))
}

func isProtocol(text string) bool {
	_, ok := ParseProtocol(text)
	return ok
}

// isOpt recognizes the words of column opt, and typographic dashes for "--".
func isOpt(text string) bool {
	return slices.Contains([]string{"--", "-f", "!f", "\u2013", "\u2014"}, text)
}

// parseCount reads "1801K" (xtables_print_num).
func parseCount(text string) (n uint64, rounded, ok bool) {
	unit := uint64(1)
	if i := strings.IndexAny(text, "KMGTP"); i > 0 && i == len(text)-1 {
		for range strings.IndexByte("KMGTP", text[i]) + 1 {
			unit *= 1000
		}
		text, rounded = text[:i], true
	}
	n, ok = number[uint64](text)
	if ok && n > ^uint64(0)/unit {
		return 0, false, false
	}
	return n * unit, rounded, ok
}

// family returns the family according to the row's addresses and to names that only one has.
func (r *row) family() Family {
	for _, w := range []Token{r.source, r.destination} {
		if f := familyOfAddress(strings.TrimPrefix(w.Text, "!")); f != FamilyUnknown {
			return f
		}
	}
	if n, _ := ParseProtocol(strings.TrimPrefix(r.protocol.Text, "!")); n == protoICMPv6 {
		return IPv6
	}
	for _, w := range r.rest {
		to, translates := strings.CutPrefix(w.Text, "to:")
		switch {
		case translates && familyOfAddress(to) != FamilyUnknown:
			return familyOfAddress(to)
		case w.Text == "icmp", w.Text == "icmptype", strings.HasPrefix(w.Text, "icmp-"):
			return IPv4
		case strings.HasPrefix(w.Text, "icmp6-"):
			return IPv6
		case w.Text == "/*":
			return FamilyUnknown // the text of a comment does not count
		}
	}
	return FamilyUnknown
}
