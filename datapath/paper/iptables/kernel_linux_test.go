package iptables

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestKernelSavesTheSame has iptables load rules that were made of their typed values,
// in the spelling of this package, and save them again: what it prints is
// read and printed without a change, and means the same as was loaded. Each rule is
// loaded by itself first, for a kernel that lacks its module.
func TestKernelSavesTheSame(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "iptables-restore")
	for _, backend := range []string{"nft", "legacy"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			t.Run(backend+" "+family, func(t *testing.T) {
				program := "iptables-" + backend
				if family == "ipv6" {
					program = "ip6tables-" + backend
				}
				netnstest.RequireTool(t, program+"-restore")
				n, err := netns.New("iptables")
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				if _, err := n.Run("*nat\nCOMMIT\n", program+"-restore"); err != nil {
					netnstest.Missing(t, fmt.Sprintf("%s: %v", program, err))
				}
				d := parseFile(t, fmt.Sprintf("every-%s-%s.rules", backend, family))
				madeOfTypes(d)
				missing := dropUnsupported(n, d, program)
				rules := 0
				for _, table := range d.Tables {
					rules += len(table.Rules)
				}
				t.Logf("%d rules, without %d that the kernel does not load:\n%s", rules, len(missing), strings.Join(missing, "\n"))
				if _, err := n.Run(d.String(), program+"-restore"); err != nil {
					t.Fatal(err)
				}
				for _, args := range [][]string{nil, {"-c"}} {
					text, err := n.Run("", program+"-save", args...)
					if err != nil {
						t.Fatal(err)
					}
					saved, err := Parse(strings.NewReader(text), Options{})
					if err != nil {
						t.Fatal(err)
					}
					if got := saved.String(); got != text {
						t.Errorf("printed:\n%s", firstDifference(got, text))
					}
					if counted := saved.Tables[0].Rules[0].Counters != nil; counted != (args != nil) {
						t.Errorf("counters: %v, with %q", counted, args)
					}
					sameTyped(t, saved)
					sameRules(t, saved, d)
				}
			})
		}
	}
}

// TestKernelLoadsDumps has iptables load the dumps of the real nodes and save them.
func TestKernelLoadsDumps(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "iptables-nft-restore")
	files, err := filepath.Glob("testdata/k*.rules")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		n, err := netns.New("iptables")
		if err != nil {
			t.Fatal(err)
		}
		d := parseFile(t, filepath.Base(file))
		madeOfTypes(d)
		if _, err := n.Run(d.String(), "iptables-nft-restore"); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		text, err := n.Run("", "iptables-nft-save")
		if err != nil {
			t.Fatal(err)
		}
		saved, err := Parse(strings.NewReader(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		sameRules(t, saved, d)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

func parseFile(t *testing.T, name string) *Dump {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse(bytes.NewReader(text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// madeOfTypes replaces the words of all rules by those of their typed values.
func madeOfTypes(d *Dump) {
	for _, table := range d.Tables {
		for _, r := range table.Rules {
			r.SetArgs(Tokens(r.Matches, r.Target))
		}
	}
}

// dropUnsupported takes out the rules that the kernel does not load, and returns them.
func dropUnsupported(n *netns.Namespace, d *Dump, program string) (missing []string) {
	for _, table := range d.Tables {
		// Few rules are not loaded: those of a part that is loaded need no process each.
		var loaded func(rules []*Rule) []*Rule
		loaded = func(rules []*Rule) []*Rule {
			part := &Dump{Tables: []*Table{{Name: table.Name, Chains: table.Chains, Rules: rules}}}
			_, err := n.Run(part.String(), program+"-restore")
			switch half := len(rules) / 2; {
			case err == nil:
				return rules
			case half == 0:
				missing = append(missing, err.Error()+": "+rules[0].String())
				return nil
			default:
				return slices.Concat(loaded(rules[:half]), loaded(rules[half:]))
			}
		}
		if len(table.Rules) > 0 {
			table.Rules = loaded(table.Rules)
		}
	}
	return missing
}

// sameRules compares the rules of each chain.
func sameRules(t *testing.T, got, want *Dump) {
	t.Helper()
	for _, table := range want.Tables {
		other := got.Table(table.Name)
		if other == nil {
			t.Errorf("table %s was not saved", table.Name)
			continue
		}
		rules := other.ByChain()
		for chain, loaded := range table.ByChain() {
			saved := rules[chain]
			if len(saved) != len(loaded) {
				t.Errorf("%s %s: %d rules, want %d", table.Name, chain, len(saved), len(loaded))
				continue
			}
			for i := range loaded {
				if saved[i].String() != loaded[i].String() {
					t.Errorf("%s:\nsaved  %s\nloaded %s", table.Name, saved[i], loaded[i])
				}
			}
		}
	}
}
