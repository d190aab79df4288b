package hostrules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// node is a network namespace with rules in it.
type node struct{ xtablestest.Node }

func newNode(t *testing.T) node {
	t.Helper()
	return node{xtablestest.New(t)}
}

func (n node) read() *Rules {
	n.Helper()
	var r *Rules
	n.Do(func() (err error) { r, err = Read(); return err })
	return r
}

// saved is the output of iptables-save for the table nat.
func (n node) saved(b xtables.Backend, f iptables.Family) *iptables.Table {
	n.Helper()
	d, err := iptables.Parse(strings.NewReader(n.Exec("", xtablestest.Tool(b, f, "save"), "-t", "nat")), iptables.Options{Family: f})
	if err != nil {
		n.Fatal(err)
	}
	return d.Table("nat")
}

// only gives the one table of a back end and a family.
func (n node) only(b xtables.Backend, f iptables.Family) *Table {
	n.Helper()
	var found *Table
	for _, t := range n.read().Tables {
		if t.Backend != b || t.Family != f {
			continue
		}
		if found != nil {
			n.Fatalf("two tables: %s and %s", found, t)
		}
		found = t
	}
	if found == nil {
		n.Fatalf("no table of iptables (%s), %s", b, f)
	}
	return found
}

// asSaved compares a table that was read with the output of iptables-save, rule by rule: the
// typed values, and the text. What is not decoded has to be named in undecoded.
func (n node) asSaved(b xtables.Backend, f iptables.Family, undecoded ...string) {
	n.Helper()
	got, want := n.only(b, f).nat(), n.saved(b, f)
	if g, w := chainsOf(got), chainsOf(want); !slices.Equal(g, w) {
		n.Errorf("chains\n%s, want\n%s", g, w)
	}
	rules := got.ByChain()
	for chain, saved := range want.ByChain() {
		if len(rules[chain]) != len(saved) {
			n.Errorf("chain %s has %d rules, want %d", chain, len(rules[chain]), len(saved))
			continue
		}
		for i, w := range saved {
			g := rules[chain][i]
			if names := unknownIn(g); len(names) > 0 {
				for _, name := range names {
					if !slices.Contains(undecoded, name) {
						n.Errorf("%s is not decoded:\n%s\nof %s", name, g, w)
					}
				}
				if len(g.Matches) != len(w.Matches) {
					n.Errorf("matches are missing:\n%s\nof %s", g, w)
				}
				continue
			}
			if g.String() != w.String() {
				n.Errorf("read  %s\nsaved %s", g, w)
			}
			if diff := cmp.Diff(typed(w), typed(g), sameValues); diff != "" {
				n.Errorf("%s: saved (-), read (+)\n%s", w, diff)
			}
		}
	}
}

var sameValues = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}

// typed is the meaning of a rule, without its text.
func typed(r *iptables.Rule) []any {
	return []any{r.Matches, r.Target}
}

// chainsOf gives the chains with their policies, in the order of their names.
func chainsOf(t *iptables.Table) []string {
	var names []string
	for _, c := range t.Chains {
		names = append(names, c.Name+" "+c.Policy.String())
	}
	slices.Sort(names)
	return names
}

// unknownIn gives the names of what is not decoded.
func unknownIn(r *iptables.Rule) []string {
	var names []string
	for _, m := range r.Matches {
		if u, ok := m.(iptables.UnknownMatch); ok {
			names = append(names, u.Match)
		}
	}
	if u, ok := r.Target.(iptables.UnknownTarget); ok {
		names = append(names, u.Target)
	}
	return names
}

// forEach runs a test for both back ends and families.
func forEach(t *testing.T, test func(n node, b xtables.Backend, f iptables.Family)) {
	for _, b := range xtablestest.Backends {
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s", b, f), func(t *testing.T) {
				n := newNode(t)
				n.NeedNAT(b, f)
				test(n, b, f)
			})
		}
	}
}
