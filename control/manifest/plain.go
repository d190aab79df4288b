package manifest

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// plainYAML reads the part of YAML that kubectl writes for most objects: blocks of one key
// or item a line, with values that can be nothing else than what they look like. It takes a
// tenth of the time and memory of a whole parser. It refuses everything else, for which
// there is one.
type plainYAML struct {
	lines []plainLine
	at    int
	bad   bool
}

type plainLine struct {
	indent int
	text   string
}

// parsePlain parses a block, and reports whether it could.
func parsePlain(data []byte) (any, bool) {
	p := plainYAML{lines: make([]plainLine, 0, bytes.Count(data, []byte("\n"))+1)}
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSuffix(text, "\n")
		rest := strings.TrimLeft(text, " ")
		if rest == "" || rest[0] == '#' || rest[len(rest)-1] == ' ' || !printable(rest) {
			return nil, false
		}
		p.lines = append(p.lines, plainLine{len(text) - len(rest), rest})
	}
	if len(p.lines) == 0 {
		return nil, false
	}
	v := p.block(p.lines[0].indent)
	return v, !p.bad && p.at == len(p.lines)
}

// printable reports whether a text has printable ASCII characters only; what is beyond has
// rules of its own.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func (p *plainYAML) fail() any {
	p.bad = true
	return nil
}

// inBlock reports whether the next line is of the block at the indentation. A line that is
// indented further belongs to a value that is not plain.
func (p *plainYAML) inBlock(indent int) bool {
	if p.bad || p.at == len(p.lines) || p.lines[p.at].indent < indent {
		return false
	}
	if p.lines[p.at].indent > indent {
		p.bad = true
	}
	return !p.bad
}

func (p *plainYAML) block(indent int) any {
	if strings.HasPrefix(p.lines[p.at].text, "- ") {
		return p.sequence(indent)
	}
	return p.mapping(indent)
}

func (p *plainYAML) sequence(indent int) any {
	var all []any
	for p.inBlock(indent) {
		text, ok := strings.CutPrefix(p.lines[p.at].text, "- ")
		switch {
		case !ok:
			return all // of the mapping around
		case text[0] == ' ' || text[0] == '-':
			return p.fail()
		}
		if _, _, ok := splitKey(text); ok {
			p.lines[p.at] = plainLine{indent + 2, text}
			all = append(all, p.mapping(indent+2))
			continue
		}
		p.at++
		all = append(all, p.scalar(text))
	}
	return all
}

func (p *plainYAML) mapping(indent int) any {
	m := make(map[string]any)
	for p.inBlock(indent) {
		key, value, ok := splitKey(p.lines[p.at].text)
		if _, twice := m[key]; !ok || twice {
			return p.fail()
		}
		p.at++
		switch {
		case value != "":
			m[key] = p.scalar(value)
		case p.at == len(p.lines):
			m[key] = nil
		case p.lines[p.at].indent > indent:
			m[key] = p.block(p.lines[p.at].indent)
		case p.lines[p.at].indent == indent && strings.HasPrefix(p.lines[p.at].text, "- "):
			m[key] = p.sequence(indent)
		default:
			m[key] = nil
		}
	}
	return m
}

// splitKey takes a line apart, if it is that of a key.
func splitKey(text string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(text, ":")
	if !ok || value != "" && (value[0] != ' ' || len(value) < 2 || value[1] == ' ') || !plainText(key) {
		return "", "", false
	}
	return key, strings.TrimPrefix(value, " "), true
}

var (
	plainNumber = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)
	// Texts that begin with a digit and are no number, date or time: addresses and UIDs.
	plainDigits = regexp.MustCompile(`^([0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]{1,2})?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
)

func (p *plainYAML) scalar(s string) any {
	switch s {
	case "true":
		return true
	case "false":
		return false
	case "{}":
		return map[string]any{}
	case "[]":
		return []any{}
	}
	switch c := s[0]; {
	case c == '"' || c == '\'':
		inner := s[1:max(1, len(s)-1)]
		if len(s) < 2 || s[len(s)-1] != c || strings.ContainsAny(inner, `"'\`) {
			return p.fail()
		}
		return inner
	case c >= '0' && c <= '9':
		if plainNumber.MatchString(s) {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return p.fail()
			}
			return n
		}
		if plainDigits.MatchString(s) {
			return s
		}
	case plainText(s):
		return s
	}
	return p.fail()
}

// plainText reports whether a text without quotes is a text and nothing else.
func plainText(s string) bool {
	if s == "" || (s[0]|0x20) < 'a' || (s[0]|0x20) > 'z' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := (c|0x20) >= 'a' && (c|0x20) <= 'z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' && c != '/' {
			return false
		}
	}
	if len(s) > 5 {
		return true
	}
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf":
		return false
	}
	return true
}
