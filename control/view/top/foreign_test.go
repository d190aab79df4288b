package top

import (
	"errors"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// TestForeignText: names and messages of servers do not control the terminal, and take the room
// that they are shown in. The screen's own colours are obeyed.
func TestForeignText(t *testing.T) {
	const evil = "\x1b]0;owned\a\x1b[2J\x1b[31mred\u202e\u009b2K"
	s := newScreen(t, 100, 30)
	s.options.Style.Color = true
	s.seen.services.Services[0].Name = evil
	s.seen.services.Services[0].Service = "default/" + evil
	s.seen.services.Nodes = []string{evil}
	s.trouble = errors.New(evil)
	text := s.text()
	if !strings.Contains(text, `\x1b]0;owned\x07`) || !strings.Contains(text, "\x1b[31mno response since") || strings.Contains(text, "\x1b[31mred") {
		t.Errorf("%q", text)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if n := ansi.StringWidth(line); n > 100 {
			t.Errorf("%d columns: %q", n, line)
		}
		for _, r := range ansi.Strip(line) {
			if r < ' ' || r >= 0x7f && r <= 0x9f || r == 0x202e {
				t.Errorf("%q is left in %q", r, line)
			}
		}
	}
}
