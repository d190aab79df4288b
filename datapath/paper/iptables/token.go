package iptables

import "strings"

// Token is one word of a rule.
type Token struct {
	// Text is the word without quotes and escapes.
	Text string
	// Quoted is set for a word in double quotes, the only ones that iptables-restore accepts
	// (xshared.c, add_param_to_argv).
	Quoted bool
	// Column is where the word begins, in bytes from 1; 0: was not read from a file.
	Column int
}

// plain are the characters that need no quotes (xtables.c, xtables_save_string).
func plain(c byte) bool {
	return c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// Word is a token for an option, a number or an address, which iptables-save prints
// without quotes.
func Word(text string) Token { return Token{Text: text} }

// Text is a token for free text (a comment, a prefix), quoted where iptables-save
// quotes it: unless it is made of letters, digits, "_" and "-" only.
func Text(text string) Token {
	for i := range len(text) {
		if !plain(text[i]) {
			return Token{Text: text, Quoted: true}
		}
	}
	return Token{Text: text, Quoted: text == ""}
}

// String returns the word as printed, with quotes if it needs them.
func (t Token) String() string {
	if !t.Quoted && t.Text != "" && !strings.ContainsAny(t.Text, " \t\"\r\n") {
		return t.Text
	}
	if !strings.ContainsAny(t.Text, `"\'`) {
		return `"` + t.Text + `"`
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(t.Text) {
		switch c := t.Text[i]; c {
		case '"', '\\', '\'':
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Is reports whether the word is one of these and not in quotes: a comment "-j" is no jump.
func (t Token) Is(words ...string) bool {
	if t.Quoted {
		return false
	}
	for _, w := range words {
		if t.Text == w {
			return true
		}
	}
	return false
}

// Split splits a line into words, as iptables-restore does: a closing quote ends the word, a quote
// may open in the middle of one, a backslash escapes only inside quotes.
func Split(line string) ([]Token, *Error) {
	return appendWords(make([]Token, 0, 1+strings.Count(line, " ")), line, 1)
}

// appendWords appends the words of a line, as Split finds them; column is that of its first byte.
func appendWords(tokens []Token, line string, column int) ([]Token, *Error) {
	for i := 0; i < len(line); {
		if blank(line[i]) {
			i++
			continue
		}
		begin := i
		for i < len(line) && !blank(line[i]) && line[i] != '"' {
			i++
		}
		if i == len(line) || blank(line[i]) {
			tokens = append(tokens, Token{Text: line[begin:i], Column: column + begin})
			continue
		}
		text, end, ok := unquote(line, i)
		if !ok {
			return nil, &Error{Column: column + i, Problem: "a quote is opened and never closed", Want: `another "`}
		}
		tokens = append(tokens, Token{Text: line[begin:i] + text, Quoted: true, Column: column + begin})
		i = end
	}
	return tokens, nil
}

// longestText is more than the longest text of a rule, a comment, has with escapes.
const longestText = 600

// cutRule cuts the first line off a text, without its end, and with it the lines that belong to the
// same rule: iptables-save prints a line end inside quotes as it is. breaks is how many they are.
func cutRule(text string) (line, rest string, breaks int) {
	end := lineEnd(text, 0)
	if begin := strings.TrimLeft(text[:end], " \t"); begin != "" && (begin[0] == '-' || begin[0] == '[') && strings.Contains(begin, `"`) {
		first := end
		for breaks = 0; opened(text[:end]); breaks++ {
			next := text[end:]
			if next == "" || end-first > longestText || beginsLine(next) {
				end, breaks = first, 0 // the quote is a fault of the first line
				break
			}
			end = lineEnd(text, end)
		}
	}
	return strings.TrimRight(text[:end], "\r\n"), text[end:], breaks
}

// lineEnd is the index behind the line that begins at an index.
func lineEnd(text string, from int) int {
	if n := strings.IndexByte(text[from:], '\n'); n >= 0 {
		return from + n + 1
	}
	return len(text)
}

// opened reports whether the line ends inside quotes.
func opened(line string) bool {
	if strings.IndexByte(line, '\\') < 0 {
		return strings.Count(line, `"`)%2 == 1
	}
	_, e := Split(line)
	return e != nil
}

// beginsLine reports whether the text is a line of its own, which nobody writes into a comment.
func beginsLine(text string) bool {
	for _, begin := range []string{"-A ", ":", "*", "COMMIT"} {
		if strings.HasPrefix(text, begin) {
			return true
		}
	}
	return text[0] == '[' && ParseCounters(text[:strings.IndexByte(text+"]", ']')]+"]") != nil
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// unquote reads the text in the quotes that open at line[i]; end is after them.
func unquote(line string, i int) (text string, end int, ok bool) {
	i++
	if n := strings.IndexAny(line[i:], `"\`); n >= 0 && line[i+n] == '"' {
		return line[i : i+n], i + n + 1, true
	}
	var b strings.Builder
	for ; i < len(line); i++ {
		switch line[i] {
		case '"':
			return b.String(), i + 1, true
		case '\\':
			if i++; i == len(line) {
				return "", 0, false
			}
		}
		b.WriteByte(line[i])
	}
	return "", 0, false
}
