package docs

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/live/confine"
)

// TestSystemCalls: the page lists the system calls that the filter allows.
func TestSystemCalls(t *testing.T) {
	page := e2etest.ReadFile(t, "explanation/confinement.md")
	for name, calls := range map[string][]string{"Measured": confine.Measured, "Reserve": confine.Reserve} {
		_, text, _ := strings.Cut(page, "**"+name+".**")
		_, list, _ := strings.Cut(text, "\n\n")
		list, _, _ = strings.Cut(list, "\n\n")
		listed := make(map[string]bool)
		for _, m := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(list, -1) {
			listed[m[1]] = true
		}
		slices.Sort(calls)
		if got := slices.Sorted(maps.Keys(listed)); !slices.Equal(got, calls) {
			t.Errorf("%s: the page lists\n%q\nthe filter allows\n%q", name, got, calls)
		}
	}
}
