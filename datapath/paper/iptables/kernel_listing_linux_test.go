package iptables

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// listingForm is a way of listing rules.
type listingForm struct {
	args []string // behind "-t table"
	// column passes the text through what "column -t" does.
	column bool
}

func (f listingForm) String() string {
	text := strings.Join(f.args, " ")
	if f.column {
		text += " | column -t"
	}
	return text
}

func (f listingForm) numeric() bool { return f.has('n') }
func (f listingForm) verbose() bool { return f.has('v') }

func (f listingForm) has(letter rune) bool {
	return slices.ContainsFunc(f.args, func(a string) bool { return a[0] == '-' && a[1] != '-' && strings.ContainsRune(a, letter) })
}

var listingForms = []listingForm{
	{args: []string{"-nvL"}}, {args: []string{"-nvL"}, column: true}, {args: []string{"-L", "-n"}}, {args: []string{"-L"}},
	{args: []string{"-L", "-v"}, column: true}, {args: []string{"-L", "--line-numbers"}, column: true},
	{args: []string{"-nvxL", "--line-numbers"}},
}

// TestKernelLists has iptables load rules and list them in several forms: a listing
// means the same as the dump it was loaded from, but for what listings do not show.
func TestKernelLists(t *testing.T) {
	netnstest.Require(t)
	dumps, err := filepath.Glob("testdata/k*.rules")
	if err != nil || len(dumps) != 5 {
		t.Fatalf("%v, %v", dumps, err)
	}
	for _, backend := range []string{"nft", "legacy"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			files := []string{fmt.Sprintf("every-%s-%s.rules", backend, family)}
			if family == "ipv4" {
				for _, d := range dumps {
					files = append(files, filepath.Base(d))
				}
			}
			for _, file := range files {
				t.Run(backend+" "+file, func(t *testing.T) { listAndCompare(t, backend, family, file) })
			}
		}
	}
}

func listAndCompare(t *testing.T, backend, family, file string) {
	program := map[string]string{"ipv4": "iptables-", "ipv6": "ip6tables-"}[family] + backend
	netnstest.RequireTool(t, program)
	netnstest.RequireTool(t, program+"-restore")
	n, err := netns.New("iptables")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Run("*nat\nCOMMIT\n", program+"-restore"); err != nil {
		netnstest.Missing(t, fmt.Sprintf("%s: %v", program, err))
	}
	loaded := parseFile(t, file)
	madeOfTypes(loaded)
	if strings.HasPrefix(file, "every-") {
		if missing := dropUnsupported(n, loaded, program); len(missing) > 0 {
			t.Logf("without %d rules that the kernel does not load:\n%s", len(missing), strings.Join(missing, "\n"))
		}
	}
	if _, err := n.Run(loaded.String(), program+"-restore"); err != nil {
		t.Fatal(err)
	}
	for _, form := range listingForms {
		var text strings.Builder
		for _, table := range loaded.Tables {
			args := append([]string{"-t", table.Name}, form.args...)
			listed, err := n.Run("", program, args...)
			if err != nil {
				t.Fatal(err)
			}
			if form.column {
				listed = columnT(listed)
			}
			fmt.Fprintf(&text, "root@node:~# %s %s\n%s\n", program, strings.Join(args, " "), listed)
		}
		got, err := Read(text.String(), Options{})
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		compareListing(t, form, got, loaded)
	}
}

// compareListing compares all chains and rules.
func compareListing(t *testing.T, form listingForm, got, want *Dump) {
	t.Helper()
	if got.Family != want.Family || len(got.Tables) != len(want.Tables) {
		t.Errorf("%s: %s, %d tables; want %s, %d tables", form, got.Family, len(got.Tables), want.Family, len(want.Tables))
	}
	compared := 0
	for _, table := range want.Tables {
		listed := got.Table(table.Name)
		rules, wantRules := listed.ByChain(), table.ByChain()
		for _, c := range table.Chains {
			if l := listed.Chain(c.Name); l == nil || l.Policy != c.Policy || !got.Lists(table.Name, c.Name) {
				t.Errorf("%s: %s %s: listed as %+v", form, table.Name, c.Name, l)
			}
			if len(rules[c.Name]) != len(wantRules[c.Name]) {
				t.Errorf("%s: %s %s: %d rules, want %d", form, table.Name, c.Name, len(rules[c.Name]), len(wantRules[c.Name]))
				continue
			}
			for i, w := range wantRules[c.Name] {
				g := rules[c.Name][i]
				if (g.Counters != nil) != form.verbose() {
					t.Errorf("%s: counters %v", form, g.Counters)
				}
				if !form.numeric() && namesUnknown(g) {
					continue
				}
				compared++
				gotMatches, gotTarget := listable(g, form)
				wantMatches, wantTarget := listable(w, form)
				if !reflect.DeepEqual(gotMatches, wantMatches) || !reflect.DeepEqual(gotTarget, wantTarget) {
					t.Errorf("%s: %s\nlisted %s\nloaded %s", form, table.Name, g, w)
				}
			}
		}
	}
	all := 0
	for _, table := range want.Tables {
		all += len(table.Rules)
	}
	if compared < all*9/10 {
		t.Errorf("%s: only %d of %d rules were compared", form, compared, all)
	}
}

// namesUnknown reports whether the rule has names of users, or of hosts where the machine
// that runs the test has any: without -n these are not shown.
func namesUnknown(r *Rule) bool {
	return slices.ContainsFunc(r.Matches, func(m Match) bool {
		u, ok := m.(UnknownMatch)
		return ok && (strings.HasPrefix(u.Match, "user name ") || strings.HasPrefix(u.Match, "group name ") || strings.HasPrefix(u.Match, "host name "))
	})
}

// listable leaves out what a listing does not show.
func listable(r *Rule, form listingForm) ([]Match, Target) {
	var matches []Match
	for _, m := range r.Matches {
		switch known := m.(type) {
		case InInterface, OutInterface:
			if !form.verbose() {
				continue
			}
		case Hashlimit:
			known.Name = ""
			m = known
		case Time:
			if known.End.Value == latestTime { // what iptables-save prints of a time without an end
				known.End = Condition[uint32]{}
			}
			m = known
		case Quota:
			known.Negated = false
			m = known
		case UnknownMatch:
			if known.Match == notListed {
				continue
			}
			m = UnknownMatch{} // its text is another
		}
		matches = append(matches, m)
	}
	if u, ok := r.Target.(UnknownTarget); ok {
		return matches, UnknownTarget{Target: u.Target}
	}
	return matches, r.Target
}
