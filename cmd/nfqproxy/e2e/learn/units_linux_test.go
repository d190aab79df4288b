package learn

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/units"
)

// selected are the units that are always proven: those of the first chapter that TestScreen and TestPage do not go through,
// and the first unit with a fault that differs.
func selected(id string) bool { return slices.Contains([]string{"1.3", "1.4", "1.5", "4.1"}, id) }

// TestUnits proves all units, or by default those that are selected, once: no step ends before its solution, wrong answers are judged
// wrong, and the solutions, typed into a terminal, end all steps. Where students have different faults, ten of them.
func TestUnits(t *testing.T) {
	netnstest.Require(t)
	c, err := learn.Load(units.Files(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Units()); n < 30 {
		t.Errorf("the course has %d units, want 30 or more", n)
	}
	for _, u := range c.Units() {
		if !netnstest.All() && !selected(u.ID) {
			continue
		}
		seeds := 1
		switch {
		case !netnstest.All():
		case len(u.Variants) > 0:
			seeds = 10
		case u.Differs():
			seeds = 2
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", u.ID, seed), func(t *testing.T) {
				t.Parallel()
				requireProgramsOf(t, u)
				output, err := e2etest.Command("learn", "test", u.ID, "--seed", strconv.Itoa(seed)).CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s", err, output)
				}
			})
		}
	}
}
