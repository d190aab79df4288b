package xtables_test

import (
	"fmt"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestPoll: rules count, packets do not.
func TestPoll(t *testing.T) {
	for _, f := range xtablestest.Families {
		t.Run(f.String(), func(t *testing.T) {
			n := xtablestest.New(t)
			netnstest.RequireTool(t, xtablestest.Tool(xtables.Legacy, f, "restore"))
			p := xtables.NewPoll("nat")
			poll := func(want bool, when string) {
				t.Helper()
				var differs bool
				n.Do(func() error { differs = p.Changed(); return nil })
				if differs != want {
					t.Errorf("%s: differs %t, want %t", when, differs, want)
				}
			}
			rules := func(counters, device string) {
				n.Exec(fmt.Sprintf("*nat\n:POSTROUTING ACCEPT %s\n%s -A POSTROUTING -o %s -j MASQUERADE\nCOMMIT\n", counters, counters, device), xtablestest.Tool(xtables.Legacy, f, "restore"), "--counters")
			}
			poll(true, "first")
			poll(false, "again")
			n.NeedNAT(xtables.Legacy, f)
			poll(true, "the table is there")
			rules("[0:0]", "eth0")
			poll(true, "a rule")
			rules("[5:600]", "eth0")
			poll(false, "other counters")
			rules("[5:600]", "eth1")
			poll(true, "another device")
			rules("[0:0]", "eth1")
			poll(false, "counters at zero")
		})
	}
}
