package pasted

import (
	"strings"
	"testing"
)

func TestUncover(t *testing.T) {
	content := func(line string) bool { return strings.HasPrefix(line, "set ") }
	for _, c := range []struct{ name, text, want string }{
		{"plain", "set a\nset b\n", "set a\nset b\n"},
		{"mail", "Hi,\n> set a\n> (b)\n> set c\n\nBye\n", "\nset a\n(b) \nset c \n"},
		{"numbers", " 1\tset a\n 2\tset b\n", "set a \nset b \n"},
		{"terminal", "root@n:~# dump\n\x1b[1mset a\x1b[0m\n--More--\nset\u00a0b\n", "\nset a\n\nset b\n"},
		{"cut", "set a\n[...]\nbye\n", "set a\n[...]\n"},
		{"nothing", "\ufeffget a\n", "get a\n"},
	} {
		if got := Uncover(c.text, content); strings.ReplaceAll(got, " \n", "\n") != strings.ReplaceAll(c.want, " \n", "\n") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestUnquoteStrings(t *testing.T) {
	wanted := func(text string) bool { return strings.Contains(text, "set ") }
	for text, want := range map[string]string{
		`{"name": "a", "out": "set a\nset \u00e9"}`:                "set a\nset é\n",
		`{"out": "set a\nb", "out_lines": ["set a", "b"]}`:         "set a\nb\n",
		"msg=\"set a\" level=info\nmsg=\"b\" level=\"debug of x\"": "set a\nb\n",
		`it's "nothing"`: "",
	} {
		if got, ok := UnquoteStrings(text, wanted); got != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestMasks(t *testing.T) {
	for word, want := range map[string][2]bool{
		"x.x.x.x": {true, true}, "<node-ip>": {true, true}, "$IP": {true, true}, "REDACTED": {true, true}, "10.0.0.xxx": {false, true},
		"KUBE-SEP-AXXXA": {false, true}, "10.96.0.1": {false, false}, "xt_conntrack": {false, false}, "[fd00::1]:80": {false, false},
	} {
		if got := [2]bool{IsMask(word), IsMasked("a " + word)}; got != want {
			t.Errorf("%s: %v, want %v", word, got, want)
		}
	}
}
