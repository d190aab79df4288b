package nftables

import (
	"net/netip"
	"regexp"
	"strings"
)

// kind is the kind of a token; that of punctuation is its character.
type kind uint8

const (
	endOfFile kind = 128 + iota
	newline
	word   // a name, an address, a time
	quoted // text is without quotation marks
	number
	opEq
	opNe
	opLe
	opGe
	opShl
	opShr
	xtComment // "# xt_NAME", a statement in the listings of older nft
)

// operators are the words that stand for signs (nftables, src/scanner.l).
var operators = map[string]kind{
	"eq": opEq, "ne": opNe, "le": opLe, "ge": opGe, "lt": '<', "gt": '>', "lshift": opShl, "rshift": opShr,
	"and": '&', "or": '|', "xor": '^', "not": '!',
}

// token is one token. Its text is part of the file's; that of a newline, or of the end of the file, is the comment in front.
type token struct {
	kind         kind
	text         string
	start, end   int // offsets in the file; those of "$x" for what replaces it
	line, column int
}

// handle is the number of a comment "# handle N" at the end of a line.
func (t token) handle() (n uint64) {
	if t.kind == newline || t.kind == endOfFile {
		if rest, found := strings.CutPrefix(t.text, "handle "); found {
			n, _ = parseNumber(rest)
		}
	}
	return n
}

// lexer cuts a file into tokens. A copy of it is a place to return to.
type lexer struct {
	file      string
	src       string
	pos       int
	line      int
	lineStart int
}

// is says which bytes have a property.
type is [256]bool

func bytesOf(s string) (set is) {
	for _, c := range []byte(s) {
		set[c] = true
	}
	return set
}

const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

var (
	inWord    = bytesOf(letters + digits + "_./-")
	inAddress = bytesOf(digits + "abcdefABCDEF:.")
	inNumber  = bytesOf(letters + digits)
	isHex     = bytesOf(digits + "abcdefABCDEF")
	isDigit   = bytesOf(digits)
	isLetter  = bytesOf(letters + "_")
)

func (l *lexer) span(from int, set *is) int {
	for from < len(l.src) && set[l.src[from]] {
		from++
	}
	return from
}

// next is the next token.
func (l *lexer) next() token {
	comment := ""
	for l.pos < len(l.src) {
		switch c := l.src[l.pos]; c {
		case ' ', '\t', '\r':
			l.pos++
		case '\\':
			if strings.HasPrefix(l.src[l.pos:], "\\\n") || strings.HasPrefix(l.src[l.pos:], "\\\r\n") {
				l.pos += strings.IndexByte(l.src[l.pos:], '\n') + 1
				l.line, l.lineStart = l.line+1, l.pos
				continue
			}
			if l.at(l.pos+1) == '*' {
				return l.token(word, l.pos+2)
			}
			return l.token(kind(c), l.pos+1)
		case '#':
			if strings.HasPrefix(l.src[l.pos:], "# xt_") {
				t := l.token(xtComment, l.span(l.pos+2, &inWord))
				t.text = t.text[len("# xt_"):]
				return t
			}
			end := strings.IndexByte(l.src[l.pos:], '\n')
			if end < 0 {
				end = len(l.src) - l.pos
			}
			comment = strings.TrimSpace(l.src[l.pos+1 : l.pos+end])
			l.pos += end
		case '\n':
			t := l.token(newline, l.pos+1)
			t.text = comment
			l.line, l.lineStart = l.line+1, l.pos
			return t
		default:
			return l.visible(c)
		}
	}
	t := l.token(endOfFile, l.pos)
	t.text = comment
	return t
}

// at is the byte there, or 0 behind the end.
func (l *lexer) at(i int) byte {
	if i < len(l.src) {
		return l.src[i]
	}
	return 0
}

func (l *lexer) token(k kind, end int) token {
	t := token{kind: k, text: l.src[l.pos:end], start: l.pos, end: end, line: l.line, column: l.pos - l.lineStart + 1}
	l.pos = end
	return t
}

// invalidType follows a number of which nft 1.0.6 has lost the type: those of a set of ports behind ct original proto-dst, where
// a rule is for several protocols. Newer versions print the port.
const invalidType = " [invalid type]"

// mask is what people write in place of an address, and nft does not.
var mask = regexp.MustCompile(`^(<[A-Za-z][\w.-]*>|\*{2,})`)

func (l *lexer) visible(c byte) token {
	if inAddress[c] || c == '[' {
		if t, ok := l.address(c); ok {
			return t
		}
	}
	switch {
	case c == '<' || c == '*':
		if m := mask.FindString(l.src[l.pos:]); m != "" {
			return l.token(word, l.pos+len(m))
		}
	case isLetter[c], c == '.' && inWord[l.at(l.pos+1)]:
		end := l.span(l.pos, &inWord)
		if l.at(end) == '*' {
			end++
		} else if l.at(end) == '\\' && l.at(end+1) == '*' {
			end += 2
		} else if end-l.pos <= len("lshift") {
			if k, ok := operators[l.src[l.pos:end]]; ok {
				return l.token(k, end)
			}
		}
		return l.token(word, end)
	case isDigit[c]:
		end := l.span(l.pos, &inNumber)
		if _, ok := parseNumber(l.src[l.pos:end]); ok || strings.HasPrefix(l.src[l.pos:end], "0x") {
			t := l.token(number, end)
			if strings.HasPrefix(l.src[end:], invalidType) {
				l.pos += len(invalidType)
			}
			return t
		}
		return l.token(word, end)
	case c == '"':
		end := strings.IndexByte(l.src[l.pos+1:], '"')
		if end < 0 {
			return l.token(kind(c), l.pos+1)
		}
		t := l.token(quoted, l.pos+end+2)
		t.text = t.text[1 : len(t.text)-1]
		if n := strings.Count(t.text, "\n"); n > 0 {
			l.line, l.lineStart = l.line+n, t.start+2+strings.LastIndexByte(t.text, '\n')
		}
		return t
	}
	if l.pos+2 <= len(l.src) {
		k := kind(0)
		switch l.src[l.pos : l.pos+2] {
		case "==":
			k = opEq
		case "!=":
			k = opNe
		case "<=":
			k = opLe
		case ">=":
			k = opGe
		case "<<":
			k = opShl
		case ">>":
			k = opShr
		}
		if k != 0 {
			return l.token(k, l.pos+2)
		}
	}
	if c >= 0x80 { // a rune is no punctuation; its kind must not be one of ours
		return l.token('?', l.pos+1)
	}
	return l.token(kind(c), l.pos+1)
}

// maxAddress is the length of the longest address of IPv6, and more.
const maxAddress = 48

// address is an IP or MAC address, or a pair of numbers as of "meta priority 1:2".
func (l *lexer) address(c byte) (t token, ok bool) {
	from := l.pos
	if c == '[' {
		from++
	}
	end := l.span(from, &inAddress)
	run := l.src[from:min(end, from+maxAddress)]
	if n := ipv4(run); n > 0 && c != '[' {
		return l.token(word, from+n), true
	}
	if !strings.Contains(run, ":") {
		return t, false
	}
	for cut := run; strings.Count(cut, ":") >= 2; {
		_, err := netip.ParseAddr(cut)
		if err == nil || isMAC(cut) {
			if c == '[' {
				if l.at(from+len(cut)) != ']' {
					break
				}
				t := l.token(word, from+len(cut)+1)
				t.text = cut
				return t, true
			}
			return l.token(word, from+len(cut)), true
		}
		cut = cut[:strings.LastIndexByte(cut, ':')] // "::1:80" behind "[" never comes here: the bracket ends it
		if strings.HasSuffix(cut, ":") && !strings.HasSuffix(cut, "::") {
			cut = cut[:len(cut)-1]
		}
	}
	if c == '[' {
		return t, false
	}
	high := l.span(from, &isHex)
	if low := l.span(high+1, &isHex); l.at(high) == ':' && high > from && high-from <= 4 && low > high+1 && low-high <= 5 &&
		strings.IndexByte(" \t\n:-},", l.at(low)) >= 0 {
		return l.token(word, low), true
	}
	return t, false
}

// ipv4 is how long the IPv4 address is that s begins with; 0: there is none. "10.0.0.1." is an address and a dot.
func ipv4(s string) int {
	n, dots := 0, 0
	for n < len(s) && (isDigit[s[n]] || s[n] == '.' && dots < 3 && n > 0 && s[n-1] != '.') {
		if s[n] == '.' {
			dots++
		}
		n++
	}
	if dots < 3 || !isDigit[s[n-1]] {
		return 0
	}
	return n
}

func isMAC(s string) bool {
	groups := strings.Split(s, ":")
	if len(groups) != 6 {
		return false
	}
	for _, g := range groups {
		if len(g) == 0 || len(g) > 2 || !isHex[g[0]] || !isHex[g[len(g)-1]] {
			return false
		}
	}
	return true
}
