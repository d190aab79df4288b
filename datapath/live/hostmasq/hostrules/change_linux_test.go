package hostrules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// TestReadWhileRulesChange: what is read is one of the rule sets that were there, though
// they are replaced all the time, by transactions with chains of other names.
func TestReadWhileRulesChange(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n := newNode(t)
	ruleset := func(i int) string {
		var b strings.Builder
		fmt.Fprintf(&b, "add table ip nat\ndelete table ip nat\ntable ip nat {\nset s%d { type ipv4_addr; elements = { 192.0.2.%d } }\n", i, i)
		for c := range 20 {
			fmt.Fprintf(&b, "chain c%d-%d { ip saddr @s%d return\nip saddr 192.0.2.%d masquerade\n}\n", i, c, i, i)
		}
		b.WriteString("chain POSTROUTING { type nat hook postrouting priority srcnat;\n")
		for c := range 20 {
			fmt.Fprintf(&b, "ip daddr 198.51.100.%d jump c%d-%d\n", c, i, c)
		}
		return b.String() + "}\n}\n"
	}
	n.Exec(ruleset(1), "nft", "-f", "-")
	text := func() string {
		var r *Rules
		// On a slow machine they may change faster than they can be read.
		for err := error(nft.ErrChanged); errors.Is(err, nft.ErrChanged); {
			if err = n.NS.Do(func() (err error) { r, err = Read(); return err }); err != nil && !errors.Is(err, nft.ErrChanged) {
				t.Fatal(err)
			}
		}
		var b strings.Builder
		for _, table := range r.Of(decision.IPv4) {
			b.WriteString(rulesText(table))
			for _, c := range table.Chains {
				for _, rule := range c.Rules {
					for _, s := range rule.Steps {
						if in, ok := s.(rules.In); ok {
							fmt.Fprintln(&b, in.Set.Name, in.Set.Elements)
						}
					}
				}
			}
		}
		return b.String()
	}
	known := make(map[string]bool)
	for i := range 3 {
		n.Exec(ruleset(i), "nft", "-f", "-")
		known[text()] = true
	}
	stop := n.keepLoading(func(i int) string { return ruleset(i % 3) })
	read := make(map[string]int)
	for range 100 {
		got := text()
		if !known[got] && read[got] == 0 {
			t.Errorf("torn:\n%s", got)
		}
		read[got]++
	}
	stop()
	if len(read) < 2 {
		t.Errorf("%d rule sets were read: nothing changed", len(read))
	}
}

// TestReadWhileOthersChange: changes of other tables, however fast, are not in the way.
func TestReadWhileOthersChange(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n := newNode(t)
	n.Exec("table ip nat {\nchain POSTROUTING { type nat hook postrouting priority srcnat; }\n}\n", "nft", "-f", "-")
	const (
		rules = 5000 // longer to read than a change takes
		// An ordinary user's socket does not take more at once.
		portion = 500
	)
	for i := 0; i < rules; i += portion {
		var b strings.Builder
		for k := i; k < i+portion; k++ {
			fmt.Fprintf(&b, "add rule ip nat POSTROUTING ip daddr 10.0.%d.%d masquerade\n", k/256, k%256)
		}
		n.Exec(b.String(), "nft", "-f", "-")
	}
	stop := n.keepLoading(func(int) string { return "add table ip other\ndelete table ip other\n" })
	for range 5 {
		if got := len(n.read().Of(decision.IPv4)[0].Base.Rules); got != rules {
			t.Errorf("%d rules were read, want %d", got, rules)
		}
	}
	stop()
}

// keepLoading loads one ruleset after the other until it is stopped.
func (n node) keepLoading(ruleset func(i int) string) (stop func()) {
	ctx, cancel := context.WithCancel(n.Context())
	ended := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			if ctx.Err() != nil {
				ended <- nil
				return
			}
			if _, err := n.NS.Run(ruleset(i), "nft", "-f", "-"); err != nil {
				ended <- err
				return
			}
		}
	}()
	return func() {
		n.Helper()
		cancel()
		if err := <-ended; err != nil {
			n.Error(err)
		}
	}
}
