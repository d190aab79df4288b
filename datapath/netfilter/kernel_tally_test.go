//go:build linux

package netfilter

import (
	"maps"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/steps"
)

// tally counts what was compared.
type tally map[string]int

func (y tally) add(t *trial, p *Packet, w Way) {
	y["packets"]++
	y["verdict "+w.Verdict.String()]++
	if w.Tracking != TrackingInvalid || w.Entry == nil {
		y["state "+w.Tracking.String()]++
	}
	if w.Reply {
		y["direction reply"]++
	}
	if w.Verdict == Rejected && w.By != nil {
		y["refused "+string(w.With)]++
	}
	if w.Entry != nil && w.Entry.Confirmed && !w.Reply {
		if w.Entry.SNAT {
			y["entry SNAT"]++
		}
		if w.Entry.DNAT {
			y["entry DNAT"]++
		}
	}
	visited := make(map[string]bool)
	for _, s := range w.Steps {
		if s.Table == "" {
			continue
		}
		visited[s.Hook+" "+s.Table] = true
		r := t.byLine[s.Line]
		if r == nil || s.Outcome == steps.Policy {
			continue
		}
		if s.Outcome == steps.Passed {
			if m := onlyModule(r); m != "" {
				y["match "+m+" no"]++
			}
			continue
		}
		for _, m := range r.Matches {
			if m.Module() != "" {
				y["match "+m.Module()+" yes"]++
			}
		}
		if r.Target != nil {
			switch r.Target.(type) {
			case iptables.Jump:
				y["target a chain"]++
			case iptables.Goto:
				y["target goto"]++
			default:
				y["target "+r.Target.Name()]++
			}
		}
	}
	for k := range visited {
		y["hook "+k]++
	}
}

// onlyModule is the module of the one match that a rule has.
func onlyModule(r *iptables.Rule) string {
	module := ""
	for _, m := range r.Matches {
		switch {
		case m.Module() == "comment":
		case m.Module() == "":
			if _, ok := m.(iptables.Protocol); !ok {
				return ""
			}
		case module != "":
			return ""
		default:
			module = m.Module()
		}
	}
	return module
}

func (y tally) log(t testing.TB) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(y)) {
		t.Logf("%7d %s", y[what], what)
	}
}

// atLeast is that it came up that often.
func (y tally) atLeast(t testing.TB, n int, what string) {
	t.Helper()
	if y[what] < n {
		t.Errorf("%q came up %d times, want at least %d", what, y[what], n)
	}
}
