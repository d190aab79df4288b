// Package visible prevents untrusted text from controlling a terminal: comments of rules, names
// of objects, messages of servers. Control characters in it become visible, as Go writes them
// in strings: ESC is \x1b. (In kubectl the lack of this was CVE-2021-25743.)
//
// A program's own escape sequences, colours for example, carry a [Seal], a number that text
// from outside cannot know. A [Writer] takes the seal off and lets them pass. So all output
// can go through one writer, and no place that prints has to remember what is foreign.
//
// It is a ground package.
package visible

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Seal marks the escape sequences of a program itself. A sealed sequence is one of ECMA-48 (a
// CSI with one parameter more), so that what measures text takes it for one.
//
// The zero Seal marks nothing. It is for output without a [Writer].
type Seal string

// NewSeal returns a seal that cannot be guessed.
func NewSeal() Seal { return Seal(strconv.FormatUint(rand.Uint64()|1<<63, 10)) }

const introducer = "\x1b[" // CSI

// Sequence makes a control sequence: parameters are digits and semicolons, final is the
// letter of the function.
func (s Seal) Sequence(parameters string, final byte) string {
	if s != "" {
		parameters = string(s) + ";" + parameters
	}
	return introducer + parameters + string(final)
}

// Paint returns the text in a colour, an SGR parameter.
func (s Seal) Paint(color, text string) string {
	return s.Sequence(color, 'm') + text + s.Sequence("0", 'm')
}

// Quote makes the control characters of a text visible, but for newlines and tabs. Nothing of
// it is trusted.
func Quote(text string) string { return string(appendVisible(nil, text, "", drop)) }

// Replace replaces the characters of a text that are not printable, for cells of tables: their
// width counts.
func Replace(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// Clean makes the control characters of a text visible, as Quote does, and leaves sealed
// sequences as they are, for a [Writer] to come.
func (s Seal) Clean(text string) string { return string(appendVisible(nil, text, s, keep)) }

// Open does what Clean does and takes the seals off: the text is for a terminal.
func (s Seal) Open(text string) string { return string(appendVisible(nil, text, s, open)) }

// How sealed sequences are handled.
type sealed int

const (
	drop sealed = iota // they are text like any other
	keep
	open
)

// appendVisible appends a text that is complete.
func appendVisible(b []byte, text string, seal Seal, do sealed) []byte {
	for len(text) > 0 {
		n := plain(text)
		b, text = append(b, text[:n]...), text[n:]
		if text == "" {
			break
		}
		if n, parameters := seal.sequence(text); do != drop && n > 0 {
			if do == keep {
				parameters = text[len(introducer):n]
			}
			b, text = append(append(b, introducer...), parameters...), text[n:]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		b, text = appendQuoted(b, r, text[:n]), text[n:]
	}
	return b
}

// plain returns how much of the text has nothing to hide.
func plain(text string) int {
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c >= ' ' && c < 0x7f, c == '\n', c == '\t':
			i++
			continue
		case c < utf8.RuneSelf:
			return i
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 || controls(r) {
			return i
		}
		i += n
	}
	return len(text)
}

// controls reports whether a character beyond ASCII controls terminals: C1, and those that change
// the direction of text, so that it reads differently (CVE-2021-42574).
func controls(r rune) bool {
	return r >= 0x80 && r <= 0x9f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 ||
		r == 0x200e || r == 0x200f || r == 0x061c
}

// appendQuoted appends a control character in visible form. Those that JSON's strings may
// hold unquoted are written as JSON does, so that JSON stays the same value.
func appendQuoted(b []byte, r rune, text string) []byte {
	switch {
	case r == '\r':
		return append(b, `\r`...)
	case r < ' ', r == utf8.RuneError && len(text) == 1:
		return fmt.Appendf(b, `\x%02x`, text[0])
	}
	return fmt.Appendf(b, `\u%04x`, r)
}

// longest is how long the parameters of a sequence may be, besides the seal.
const longest = 16

// sequence returns the length of the sealed sequence that the text begins with, and what follows
// its introducer without the seal; 0: it does not begin with one.
func (s Seal) sequence(text string) (n int, rest string) {
	start := s.prefix()
	if !strings.HasPrefix(text, start) {
		return 0, ""
	}
	for i := len(start); i < len(text) && i <= len(start)+longest; i++ {
		switch c := text[i]; {
		case c >= '0' && c <= '9', c == ';':
		case c >= '@' && c <= '~':
			return i + 1, text[len(start) : i+1]
		default:
			return 0, ""
		}
	}
	return 0, ""
}

// prefix is what sealed sequences begin with.
func (s Seal) prefix() string {
	if s == "" {
		return introducer
	}
	return introducer + string(s) + ";"
}

// incomplete returns how many bytes at the end of a text may be the beginning of a character or
// of a sealed sequence.
func (s Seal) incomplete(text string) int {
	start := s.prefix()
	if i := strings.LastIndexByte(text, 0x1b); i >= 0 && len(text)-i <= len(start)+longest {
		end := text[i:]
		if strings.HasPrefix(start, end) {
			return len(end)
		}
		if rest, ok := strings.CutPrefix(end, start); ok && strings.Trim(rest, "0123456789;") == "" {
			return len(end)
		}
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if end := text[len(text)-n:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRuneInString(end) {
				return n
			}
			break
		}
	}
	return 0
}
