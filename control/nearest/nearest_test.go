package nearest

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	names := []string{"", "kind", "dual-stack", "status", "default/web", "shop/web-api", "kind-worker", "kind-worker2"}
	for wrong, want := range map[string]string{
		"knd":           "kind",
		"KIND":          "kind",
		"kidn":          "kind",
		"stauts":        "status",
		"dualstack":     "dual-stack",
		"default/wbe":   "default/web",
		"defautl/web":   "default/web",
		"web":           "default/web", // without its namespace
		"web-apii":      "shop/web-api",
		"kind-wroker":   "kind-worker",
		"zzz":           "",
		"":              "",
		"something":     "",
		"x/kind-worker": "kind-worker", // with one that it has not
	} {
		if got := Name(wrong, names); got != want {
			t.Errorf("%q is nearest to %q, want %q", wrong, got, want)
		}
	}
	if got := Hint("knd", names); got != ` (did you mean "kind"?)` {
		t.Errorf("hint %q", got)
	}
	if got := Hint("zzz", names); got != "" {
		t.Errorf("hint %q", got)
	}
	if got := Name(strings.Repeat("a", 1<<20), []string{strings.Repeat("a", 1<<20)}); got != "" {
		t.Errorf("of long names %q is found", got[:10])
	}
}

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if got := distance(tc.a, tc.b); got != tc.want || distance(tc.b, tc.a) != tc.want {
			t.Errorf("distance of %q and %q: %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestFew(t *testing.T) {
	if got := Few([]string{"b", "a", "b"}); got != "a, b" {
		t.Errorf("%q", got)
	}
	if got := Few(strings.Split("jihgfedcba", "")); got != "a, b, c, d, e, f, g, h, and 2 more" {
		t.Errorf("%q", got)
	}
}

func TestSome(t *testing.T) {
	if got, want := Some([]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}), "1, 2, 3, 4, 5, 6, 7, 8, and 2 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Some([]string{"2", "1"}); got != "2, 1" {
		t.Errorf("got %q", got)
	}
}
