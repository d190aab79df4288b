package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/visible"
)

// Sealed sequences are obeyed, and no other: not of another seal, not plain ones.
func TestSeal(t *testing.T) {
	mine, other := NewSeal(), NewSeal()
	if mine == other {
		t.Fatal("two seals are the same")
	}
	painted := mine.Paint("31", "a") + mine.Sequence("3", 'F') + other.Paint("31", "b") + Seal("").Paint("31", "c") + "\x1b["
	foreign := strings.ReplaceAll(other.Paint("31", "b"), "\x1b", `\x1b`) + `\x1b[31mc\x1b[0m\x1b[`
	if got, want := mine.Open(painted), "\x1b[31ma\x1b[0m\x1b[3F"+foreign; got != want {
		t.Errorf("opened: %q, want %q", got, want)
	}
	if got, want := mine.Clean(painted), mine.Paint("31", "a")+mine.Sequence("3", 'F')+foreign; got != want {
		t.Errorf("cleaned: %q, want %q", got, want)
	}
	if got := mine.Open(mine.Clean(painted)); got != mine.Open(painted) {
		t.Errorf("cleaned, then opened: %q", got)
	}
	if got := visible.Quote(mine.Paint("31", "a")); strings.Contains(got, "\x1b") {
		t.Errorf("quoted: %q", got)
	}
	// What measures text takes sealed sequences for sequences.
	if n := ansi.StringWidth(mine.Paint("31", "abc")); n != 3 {
		t.Errorf("width %d, want 3", n)
	}
}

// However the text is cut into writes, the output is the same.
func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	text := w.Seal().Paint("31", "✓ ä") + "\x1b[2J" + "\u202e" + w.Seal().Paint("2", "x") + "\xff\x1b[" + string(w.Seal())
	want := w.Seal().Open(text)
	for size := 1; size <= len(text); size++ {
		out.Reset()
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if written, err := w.Write([]byte(rest[:n])); written != n || err != nil {
				t.Fatal(written, err)
			}
			rest = rest[n:]
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("in pieces of %d: %q, want %q", size, out.String(), want)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriterFails(t *testing.T) {
	w := NewWriter(failing{})
	for _, text := range []string{"plain", "\x1b"} {
		_, err := w.Write([]byte(text + "\n"))
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestFile(t *testing.T) {
	w := NewWriter(os.Stdout)
	if f, ok := File(w); !ok || f != os.Stdout || SealOf(w) != w.Seal() {
		t.Errorf("behind the writer is %v, %t, its seal is %q", f, ok, SealOf(w))
	}
	if f, ok := File(new(bytes.Buffer)); ok || SealOf(new(bytes.Buffer)) != "" {
		t.Errorf("behind a buffer is %v", f)
	}
}

// FuzzOpen: no text from outside controls a terminal, whatever it is and however it is cut,
// and JSON stays the same value.
func FuzzOpen(f *testing.F) {
	for _, s := range []string{"", "a\x1b[31mb", "\x1b[1234;31m", "\u009b2J", "\x9b2J", "\u202e", "\r\n\t", "\xe2\x9c", `{"a":"` + "\u202e\u007f" + `"}`} {
		f.Add(s, 1)
	}
	f.Fuzz(func(t *testing.T, text string, at int) {
		var out bytes.Buffer
		w := NewWriter(&out)
		at = min(max(at, 0), len(text))
		_, _ = w.Write([]byte(text[:at]))
		_, _ = w.Write([]byte(text[at:]))
		_ = w.Flush()
		got := out.String()
		if want := visible.Quote(text); got != want || w.Seal().Open(text) != want || w.Seal().Clean(text) != want {
			t.Errorf("written %q, want %q", got, want)
		}
		if !utf8.ValidString(got) {
			t.Errorf("not UTF-8: %q", got)
		}
		for _, r := range got {
			if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
				t.Errorf("%q is left in %q", r, got)
			}
		}
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var before, after string
		if err := errors.Join(json.Unmarshal(encoded, &before), json.Unmarshal([]byte(visible.Quote(string(encoded))), &after)); err != nil || before != after {
			t.Errorf("JSON of %q became %q, %v", before, after, err)
		}
	})
}
