//go:build linux

package diagnose_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// tally counts what came up.
type tally struct {
	sync.Mutex
	counts map[string]uint64
}

func newTally() *tally { return &tally{counts: make(map[string]uint64)} }

func (y *tally) count(format string, args ...any) { y.counts[fmt.Sprintf(format, args...)]++ }

func (y *tally) add(x *examination) {
	y.Lock()
	defer y.Unlock()
	for _, f := range x.flows {
		y.count("flows from %s: answered %v", f.origin, f.answered)
	}
	y.count("back end %s", x.backend)
	y.count("plan %s", x.cluster.plan.name)
	if x.fault == nil {
		y.count("healthy nodes")
		y.count("healthy with %s", x.firewall)
		return
	}
	y.count("nodes with a fault")
	switch {
	case len(x.cut()) > 0:
		y.count("fault %s: cuts off", x.fault.name)
	case len(x.serious()) > 0:
		y.count("fault %s: cuts off nothing, and found", x.fault.name)
	default:
		y.count("fault %s: cuts off nothing", x.fault.name)
	}
}

func (y *tally) log(t testing.TB) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(y.counts)) {
		fmt.Fprintf(&b, "%8d %s\n", y.counts[name], name)
	}
	t.Logf("what came up:\n%s", &b)
}

// require fails if something did not come up that should have among so many nodes.
func (y *tally) require(t testing.TB, nodes uint64) {
	t.Helper()
	if nodes < 60 {
		return
	}
	for _, f := range faults {
		if y.counts[fmt.Sprintf("fault %s: cuts off", f.name)] == 0 {
			t.Errorf("no node on which the fault %q cuts off a service", f.name)
		}
	}
	for _, f := range firewalls {
		if y.counts["healthy with "+f.name] == 0 && nodes >= 200 {
			t.Errorf("no healthy node with %s", f.name)
		}
	}
	for o := range origins {
		for _, answered := range []bool{true, false} {
			if name := fmt.Sprintf("flows from %s: answered %v", o, answered); y.counts[name] == 0 {
				t.Errorf("no %s", name)
			}
		}
	}
}
