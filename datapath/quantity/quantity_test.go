package quantity

import "testing"

func TestCount(t *testing.T) {
	for _, c := range []struct {
		n          int
		noun, want string
	}{{0, "flow", "0 flows"}, {1, "flow", "1 flow"}, {2, "flow", "2 flows"}, {1, "entry", "1 entry"}, {2, "entry", "2 entries"}} {
		if got := Count(c.n, c.noun); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestSome(t *testing.T) {
	for most, want := range map[int]string{1: "a and 2 more", 2: "a, b and 1 more", 3: "a, b, c", 4: "a, b, c"} {
		if got := Some([]string{"a", "b", "c"}, most); got != want {
			t.Errorf("%d: %s, want %s", most, got, want)
		}
	}
}
