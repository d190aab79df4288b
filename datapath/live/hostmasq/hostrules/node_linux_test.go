package hostrules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
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
func (n node) saved(b xtables.Backend, f decision.Family) *iptables.Table {
	n.Helper()
	d, err := iptables.Parse(strings.NewReader(n.Exec("", xtablestest.Tool(b, f, "save"), "-t", "nat")), iptables.Options{Family: f})
	if err != nil {
		n.Fatal(err)
	}
	return d.Table("nat")
}

// only gives the one table of a back end and a family.
func (n node) only(b xtables.Backend, f decision.Family) *Table {
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

// asSaved compares a table that was read with the output of iptables-save, rule by rule. What is not
// decoded is abbreviated, and has to be named in undecoded.
func (n node) asSaved(b xtables.Backend, f decision.Family, undecoded ...string) {
	n.Helper()
	table, want := n.only(b, f), n.saved(b, f)
	got := make(map[string][]*rules.Rule)
	for _, c := range table.Chains {
		got[c.Name] = c.Rules
		if saved := want.Chain(c.Name); saved == nil || c.Drops != (saved.Policy == iptables.PolicyDrop) {
			n.Errorf("chain %s, drops %t: saved as %+v", c.Name, c.Drops, saved)
		}
	}
	for chain, saved := range want.ByChain() {
		if len(got[chain]) != len(saved) {
			n.Errorf("chain %s has %d rules, want %d", chain, len(got[chain]), len(saved))
			continue
		}
		for i, w := range saved {
			g := got[chain][i].String()
			parts := strings.Split(g, " …")
			for _, part := range parts[:len(parts)-1] {
				names := extensionName.FindAllStringSubmatch(part, -1)
				if len(names) == 0 || !slices.Contains(undecoded, names[len(names)-1][1]) {
					n.Errorf("not decoded: %s\nof %s", g, w)
				}
			}
			if len(parts) == 1 && g != w.String() {
				n.Errorf("read  %s\nsaved %s", g, w)
			}
		}
	}
}

// extensionName is the name of a module or a target.
var extensionName = regexp.MustCompile(`-[mj] (\S+)`)

// forEach runs a test for both back ends and families.
func forEach(t *testing.T, test func(n node, b xtables.Backend, f decision.Family)) {
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
