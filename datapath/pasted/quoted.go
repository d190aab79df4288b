package pasted

import (
	"strconv"
	"strings"
	"unicode/utf16"
)

// UnquoteStrings returns what a text has in strings with escapes: a dump in a field of JSON or YAML, lines in the
// fields of a log, or one line with \n in it. wanted reports whether a string is of it. false: there are none.
func UnquoteStrings(text string, wanted func(string) bool) (string, bool) {
	var found []quotedString
	key := ""
	for i := 0; i < len(text); i++ {
		if c := text[i]; c != '"' && c != '\'' || !mayOpen(text, i) {
			continue
		}
		end := closingQuote(text, i)
		if end < 0 {
			continue
		}
		if q := text[i+1 : end]; strings.HasPrefix(strings.TrimLeft(text[end+1:], " \t"), ":") {
			key = q
		} else {
			found = append(found, quotedString{fieldName(text, i, key), unescape(q)})
		}
		i = end
	}
	// The rows of a listing look like nothing: of a field that has one line of iptables, all are taken. Ansible has a text and its
	// lines.
	rules, texts := make(map[string]bool), make(map[string]string)
	for _, q := range found {
		rules[q.field] = rules[q.field] || wanted(q.text)
		texts[q.field] += strings.TrimSuffix(q.text, "\n") + "\n"
	}
	for field, lines := range texts {
		if whole, ok := strings.CutSuffix(field, "_lines"); ok && rules[field] && texts[whole] == lines {
			rules[field] = false
		}
	}
	var b strings.Builder
	for _, q := range found {
		if rules[q.field] {
			b.WriteString(strings.TrimSuffix(q.text, "\n") + "\n")
		}
	}
	if b.Len() == 0 && strings.Contains(text, `\`) && wanted(unescape(text)) {
		b.WriteString(unescape(text))
	}
	return b.String(), b.Len() > 0
}

// quotedString is a string with the name of its field.
type quotedString struct{ field, text string }

// mayOpen reports whether a quote can be the first one of a string: "don't" has none.
func mayOpen(text string, i int) bool {
	if i > 0 && (text[i-1] == 'b' || text[i-1] == 'u') { // Python's
		i--
	}
	return i == 0 || strings.IndexByte(" \t\n[{(,:=", text[i-1]) >= 0
}

// closingQuote is the index of the quote that closes the one at text[i]; -1: there is none. YAML folds only strings in
// double quotes to several lines.
func closingQuote(text string, i int) int {
	for at := i + 1; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case text[i]:
			return at
		case '\n':
			if text[i] == '\'' {
				return -1
			}
		}
	}
	return -1
}

// fieldName is the name in front of "=", or else that of JSON.
func fieldName(text string, i int, key string) string {
	before, ok := strings.CutSuffix(text[:i], "=")
	if !ok {
		return key
	}
	return before[strings.LastIndexAny(before, " \t\n")+1:]
}

// unescape reads the escapes of JSON, YAML, Go and Python.
func unescape(q string) string {
	var b strings.Builder
	for i := 0; i < len(q); i++ {
		switch c := q[i]; {
		case c == '\n': // folded by YAML
			i = skipBlanks(q, i+1) - 1
			b.WriteByte(' ')
		case c != '\\' || i+1 == len(q):
			b.WriteByte(c)
		default:
			i++
			i += writeEscape(&b, q[i:]) - 1
		}
	}
	return b.String()
}

// writeEscape writes what stands behind a backslash, and returns its length.
func writeEscape(b *strings.Builder, q string) int {
	const simple, meaning = `nrt"'\/ `, "\n\r\t\"'\\/ "
	if i := strings.IndexByte(simple, q[0]); i >= 0 {
		b.WriteByte(meaning[i])
		return 1
	}
	switch q[0] {
	case '\n':
		return skipBlanks(q, 1)
	case 'x':
		if r, ok := hexadecimal(q[1:], 2); ok {
			b.WriteRune(r)
			return 3
		}
	case 'e':
		b.WriteByte(escape)
		return 1
	case '0':
		if strings.HasPrefix(q, "033") {
			b.WriteByte(escape)
			return 3
		}
	case 'u':
		r, ok := hexadecimal(q[1:], 4)
		if !ok {
			break
		}
		if len(q) > 6 && q[5:7] == `\u` && utf16.IsSurrogate(r) {
			if low, ok := hexadecimal(q[7:], 4); ok {
				b.WriteRune(utf16.DecodeRune(r, low))
				return 11
			}
		}
		b.WriteRune(r)
		return 5
	}
	b.WriteByte('\\')
	return 0
}

func hexadecimal(text string, digits int) (rune, bool) {
	if len(text) < digits {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:digits], 16, 32)
	return rune(n), err == nil
}

func skipBlanks(text string, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	return i
}
