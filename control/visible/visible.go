// Package visible prevents untrusted text from controlling a terminal: comments of rules, names
// of objects, messages of servers. Control characters in it become visible, as Go writes them
// in strings: ESC is \x1b. (In kubectl the lack of this was CVE-2021-25743.)
//
// All output can go through one [Writer], and no place that prints has to remember what is foreign. Package
// terminal lets a program's own escape sequences pass.
//
// It is a ground package.
package visible

import (
	"fmt"
	"io"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Sequences are the escape sequences of a program itself, which pass.
type Sequences interface {
	// Pass returns the length of the sequence that the text begins with, and what is written for it; 0: it does not
	// begin with one.
	Pass(text string) (n int, written string)
	// Incomplete returns how many bytes at the end of a text may be the beginning of a sequence.
	Incomplete(text string) int
}

// Quote makes the control characters of a text visible, but for newlines and tabs. Nothing of
// it is trusted.
func Quote(text string) string { return string(Append(nil, text, nil)) }

// Append appends a text, which is complete, with its control characters as Quote makes them visible. own pass; nil: there are
// none.
func Append(b []byte, text string, own Sequences) []byte {
	for len(text) > 0 {
		n := plain(text)
		b, text = append(b, text[:n]...), text[n:]
		if text == "" {
			break
		}
		if own != nil {
			if n, written := own.Pass(text); n > 0 {
				b, text = append(b, written...), text[n:]
				continue
			}
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
func controls(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

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

// Writer writes text for a terminal: control characters become visible. It is safe for concurrent use.
type Writer struct {
	to  io.Writer
	own Sequences

	mu      sync.Mutex
	pending []byte // the beginning of a character or a sequence
	buffer  []byte
}

// NewWriter returns a writer. own pass; nil: there are none.
func NewWriter(to io.Writer, own Sequences) *Writer { return &Writer{to: to, own: own} }

// Unwrap is the writer behind it.
func (w *Writer) Unwrap() io.Writer { return w.to }

// Write writes text. What may be the beginning of a character or of a sequence waits
// for the rest.
func (w *Writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := string(b)
	if len(w.pending) == 0 && plain(text) == len(text) {
		return w.to.Write(b)
	}
	text = string(w.pending) + text
	wait := w.incomplete(text)
	w.pending = append(w.pending[:0], text[len(text)-wait:]...)
	if err := w.write(text[:len(text)-wait]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Flush writes what waits for a rest that does not come.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := string(w.pending)
	w.pending = w.pending[:0]
	return w.write(text)
}

func (w *Writer) write(text string) error {
	if text == "" {
		return nil
	}
	w.buffer = Append(w.buffer[:0], text, w.own)
	_, err := w.to.Write(w.buffer)
	return err
}

// incomplete returns how many bytes at the end of a text may be the beginning of a character or
// of a sequence.
func (w *Writer) incomplete(text string) int {
	if w.own != nil {
		if n := w.own.Incomplete(text); n > 0 {
			return n
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
