package iptables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// lines is a difference as lines of text.
func lines(diffs []TableDiff) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, t := range diffs {
		switch {
		case t.Added:
			add("+table %s", t.Name)
		case t.Removed:
			add("-table %s", t.Name)
		}
		for _, c := range t.Chains {
			switch {
			case c.Before == nil && c.After != nil:
				add("+chain %s %s", t.Name, c.Name)
			case c.Before != nil && c.After == nil:
				add("-chain %s %s", t.Name, c.Name)
			case c.PolicyChanged():
				add("%s %s %s -> %s", t.Name, c.Name, c.Before.Policy, c.After.Policy)
			}
			for _, r := range c.Rules {
				switch {
				case r.Moved():
					add(">%s %d -> %d", t.Name, r.Before.Line, r.After.Line)
				case r.After == nil:
					add("-%s %d: %s", t.Name, r.Before.Line, r.Before)
				default:
					add("+%s %d: %s", t.Name, r.After.Line, r.After)
				}
			}
		}
	}
	return lines
}

func TestDiff(t *testing.T) {
	nat := func(lines ...string) string { return "*nat\n" + strings.Join(lines, "\n") + "\nCOMMIT\n" }
	for _, c := range []struct {
		name, before, after string
		want                []string
	}{
		{"nothing", nat(":INPUT ACCEPT [0:0]", "-A INPUT -s 10.0.0.1/32 -j ACCEPT"), nat(":INPUT ACCEPT [0:0]", "-A INPUT -s 10.0.0.1/32 -j ACCEPT"), nil},
		{"counters, comment lines, spaces and quotes do not count",
			"# Generated today\n" + nat(":INPUT ACCEPT [0:0]", "[1:2] -A INPUT -m comment --comment web -j ACCEPT"),
			nat(":INPUT ACCEPT [7:8]", "# here", `[3:4] -A INPUT   -m comment --comment "web" -j ACCEPT`), nil},
		{"the order of chains does not count", nat(":A - [0:0]", ":B - [0:0]", "-A A -j ACCEPT", "-A B -j DROP"), nat(":B - [0:0]", ":A - [0:0]", "-A B -j DROP", "-A A -j ACCEPT"), nil},
		{"a built-in chain that is not declared is there all the same", nat(":INPUT ACCEPT [0:0]"), nat(), nil},
		{"policy", nat(":INPUT ACCEPT [0:0]"), nat(":INPUT DROP [0:0]"), []string{"nat INPUT ACCEPT -> DROP"}},
		{"a rule and its successor", nat("-A INPUT -s 10.0.0.1/32 -j ACCEPT", "-A INPUT -j DROP"), nat("-A INPUT -s 10.0.0.2/32 -j ACCEPT", "-A INPUT -j DROP"),
			[]string{"-nat 2: -A INPUT -s 10.0.0.1/32 -j ACCEPT", "+nat 2: -A INPUT -s 10.0.0.2/32 -j ACCEPT"}},
		{"one of two like it", nat("-A INPUT -j ACCEPT", "-A INPUT -j ACCEPT"), nat("-A INPUT -j ACCEPT"), []string{"-nat 3: -A INPUT -j ACCEPT"}},
		{"one moved over two", nat("-A INPUT -j ACCEPT", "-A INPUT -j DROP", "-A INPUT -j RETURN"), nat("-A INPUT -j DROP", "-A INPUT -j RETURN", "-A INPUT -j ACCEPT"), []string{">nat 2 -> 4"}},
		{"a chain", nat(":A - [0:0]", "-A A -j DROP"), nat(":B - [0:0]", "-A B -j DROP"),
			[]string{"+chain nat B", "+nat 3: -A B -j DROP", "-chain nat A", "-nat 3: -A A -j DROP"}},
		{"a table", nat("-A INPUT -j DROP"), "*raw\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n", []string{"+table raw", "-table nat", "-nat 2: -A INPUT -j DROP"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, err := Parse(strings.NewReader(c.before), Options{})
			if err != nil {
				t.Fatal(err)
			}
			after, err := Parse(strings.NewReader(c.after), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if have := lines(Diff(before, after)); !slices.Equal(have, c.want) {
				t.Errorf("%q\nwant %q", have, c.want)
			}
		})
	}
}

// TestDiffLeadsFromOneToTheOther: taking out what is removed and moved, and putting
// in what is added and moved in its new place, gives the other chain.
func TestDiffLeadsFromOneToTheOther(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	chain := func() []*Rule {
		rules := make([]*Rule, r.IntN(12))
		for i := range rules {
			rules[i] = &Rule{words: new([]Token{Word(fmt.Sprint(r.IntN(8)))})}
		}
		return rules
	}
	for range 5000 {
		before, after := chain(), chain()
		diffs := diffRules(before, after)
		out, in := make(map[*Rule]bool), make(map[*Rule]bool)
		for _, d := range diffs {
			out[d.Before], in[d.After] = true, true
		}
		kept := slices.DeleteFunc(slices.Clone(before), func(r *Rule) bool { return out[r] })
		var have []*Rule
		for _, rule := range after {
			if in[rule] {
				have = append(have, rule)
			} else if len(kept) > 0 {
				have, kept = append(have, kept[0]), kept[1:]
			}
		}
		same := func(a, b *Rule) bool { return a.String() == b.String() }
		if len(kept) > 0 || !slices.EqualFunc(have, after, same) {
			t.Fatalf("from %v by %v to %v, not %v", before, diffs, have, after)
		}
		// Nothing is both removed and added.
		removed := make(map[string]bool)
		for _, d := range diffs {
			if d.After == nil {
				removed[d.Before.String()] = true
			}
		}
		for _, d := range diffs {
			if d.Before == nil && removed[d.After.String()] {
				t.Fatalf("%s is removed and added", d.After)
			}
		}
	}
}
