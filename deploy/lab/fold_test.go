package lab

import (
	"bytes"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/view/text"
)

func TestFold(t *testing.T) {
	for _, tc := range []struct {
		line  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"as long as it is", 0, "as long as it is"},
		{"0123456789", 10, "0123456789"},
		{"one two three", 9, "one two\nthree"},
		{"  ✓ one two three", 12, "  ✓ one two\n    three"},
		{"    KUBE-SVC  -> one two three", 24, "    KUBE-SVC  -> one two\n            three"},
		{"    KUBE-SVC  -> one two three four", 40, "    KUBE-SVC  -> one two three four"},
		{"    KUBE-SVC  -> one two three four five six", 40, "    KUBE-SVC  -> one two three four five\n                 six"},
		{"              .  one two three", 26, "              .  one two\n             three"},
		{"  answer    from a, at b", 20, "  answer    from a,\n          at b"},
		{"averyveryverylongword", 10, "averyveryverylongword"},
		{"x  averyveryverylongword and more", 12, "x  averyveryverylongword\n   and more"},
	} {
		if got := fold(tc.line, tc.width); got != tc.want {
			t.Errorf("fold(%q, %d)\n%s\nwant\n%s", tc.line, tc.width, got, tc.want)
		}
	}
	// Colours have no width, and stay.
	painted := text.Style{Color: true}.Paint(text.Green, "one two") + " three"
	if got := fold(painted, 9); ansi.Strip(got) != "one two\nthree" || !strings.Contains(got, "\x1b[32m") {
		t.Errorf("%q", got)
	}
}

func TestFolder(t *testing.T) {
	var b bytes.Buffer
	f := &folder{w: &b, width: func() int { return 9 }}
	for _, piece := range []string{"one ", "two three", "\nfour", "\n", "rest"} {
		if n, err := f.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := b.String(); got != "one two\nthree\nfour\n" {
		t.Errorf("%q", got)
	}
	b.Reset()
	if _, err := newFolder(&b).Write([]byte(strings.Repeat("word ", 100) + "\n")); err != nil || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("to a buffer: %q, %v", b.String(), err)
	}
}
