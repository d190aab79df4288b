package visible

import (
	"io"
	"os"
	"sync"
)

// Writer writes text for a terminal: control characters become visible, and sequences that carry
// its seal take effect. It is safe for concurrent use.
type Writer struct {
	to   io.Writer
	seal Seal

	mu      sync.Mutex
	pending []byte // the beginning of a character or a sequence
	buffer  []byte
}

// NewWriter returns a writer with a new seal.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to, seal: NewSeal()} }

// Seal is the seal of sequences that pass.
func (w *Writer) Seal() Seal { return w.seal }

// Write writes text. What may be the beginning of a character or of a sealed sequence waits
// for the rest.
func (w *Writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := string(b)
	if len(w.pending) == 0 && plain(text) == len(text) {
		return w.to.Write(b)
	}
	text = string(w.pending) + text
	wait := w.seal.incomplete(text)
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
	w.buffer = appendVisible(w.buffer[:0], text, w.seal, open)
	_, err := w.to.Write(w.buffer)
	return err
}

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

// Unwrap is the writer behind it.
func (w *Writer) Unwrap() io.Writer { return w.to }

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
