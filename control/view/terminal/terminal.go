// Package terminal is what a program writes to a terminal: text from outside, made visible by package visible, and
// escape sequences of the program itself, colours for example. These carry a [Seal], a number that text from outside
// cannot know; a [Writer] takes the seal off and lets them pass.
package terminal

import (
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/nfqproxy/nfqproxy/control/visible"
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

// Clean makes the control characters of a text visible, as [visible.Quote] does, and leaves sealed
// sequences as they are, for a [Writer] to come.
func (s Seal) Clean(text string) string { return string(visible.Append(nil, text, passing{s, true})) }

// Open does what Clean does and takes the seals off: the text is for a terminal.
func (s Seal) Open(text string) string { return string(visible.Append(nil, text, passing{s, false})) }

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

// passing are the sequences that carry a seal, which keep it or lose it.
type passing struct {
	seal Seal
	keep bool
}

// Pass implements [visible.Sequences].
func (p passing) Pass(text string) (int, string) {
	n, rest := p.seal.sequence(text)
	if p.keep {
		return n, text[:n]
	}
	return n, introducer + rest
}

// Incomplete implements [visible.Sequences].
func (p passing) Incomplete(text string) int {
	start := p.seal.prefix()
	if i := strings.LastIndexByte(text, 0x1b); i >= 0 && len(text)-i <= len(start)+longest {
		end := text[i:]
		if strings.HasPrefix(start, end) {
			return len(end)
		}
		if rest, ok := strings.CutPrefix(end, start); ok && strings.Trim(rest, "0123456789;") == "" {
			return len(end)
		}
	}
	return 0
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

// Writer is a [visible.Writer] that lets the sequences pass that carry its seal. It is safe for concurrent use.
type Writer struct {
	*visible.Writer
	seal Seal
}

// NewWriter returns a writer with a new seal.
func NewWriter(to io.Writer) *Writer {
	s := NewSeal()
	return &Writer{visible.NewWriter(to, passing{s, false}), s}
}

// Seal is the seal of sequences that pass.
func (w *Writer) Seal() Seal { return w.seal }

// Raw is the writer behind a [Writer], for what is not text: a capture, for example, or the
// screen of a program that quotes by itself.
func Raw(w io.Writer) io.Writer {
	for {
		v, ok := w.(interface{ Unwrap() io.Writer })
		if !ok {
			return w
		}
		w = v.Unwrap()
	}
}

// File is the file behind a writer, where there is one.
func File(w io.Writer) (*os.File, bool) {
	f, ok := Raw(w).(*os.File)
	return f, ok
}

// SealOf is the seal of a writer, or of that which it wraps; the zero seal: it has none.
func SealOf(w io.Writer) Seal {
	for {
		switch v := w.(type) {
		case *Writer:
			return v.seal
		case interface{ Unwrap() io.Writer }:
			w = v.Unwrap()
		default:
			return ""
		}
	}
}
