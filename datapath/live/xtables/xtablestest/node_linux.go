// Package xtablestest runs the programs of iptables in a network namespace, for tests of packages
// that read or write the same rules.
package xtablestest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// Backends and Families are all that a table can be of.
var (
	Backends = []xtables.Backend{xtables.NFT, xtables.Legacy}
	Families = []decision.Family{decision.IPv4, decision.IPv6}
)

// Node is a network namespace that lasts as long as the test.
type Node struct {
	*testing.T
	NS *netns.Namespace
}

// New makes a Node. The test is skipped where that is impossible.
func New(t *testing.T) Node {
	t.Helper()
	netnstest.Require(t)
	ns, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return Node{t, ns}
}

// Exec runs a program with an input and returns its output.
func (n Node) Exec(input, name string, args ...string) string {
	n.Helper()
	out, err := n.NS.Run(input, name, args...)
	if err != nil {
		n.Fatalf("%v\n%.4000s", err, input)
	}
	return out
}

// Do calls a function in the namespace; its error ends the test.
func (n Node) Do(f func() error) {
	n.Helper()
	if err := n.NS.Do(f); err != nil {
		n.Fatal(err)
	}
}

// NeedNAT loads the table nat of a back end, and ends the test if that is impossible.
func (n Node) NeedNAT(b xtables.Backend, f decision.Family) {
	n.Helper()
	restore := Tool(b, f, "restore")
	netnstest.RequireTool(n, restore)
	if _, err := n.NS.Run("*nat\nCOMMIT\n", restore); err != nil {
		netnstest.Missing(n, fmt.Sprintf("%s: %v", xtables.Place{Backend: b, Family: f, Table: "nat"}, err))
	}
}

// Tool is the name of a program of a back end: Tool(xtables.NFT, decision.IPv6, "save") is
// ip6tables-nft-save.
func Tool(b xtables.Backend, f decision.Family, suffix ...string) string {
	name := "iptables"
	if f == decision.IPv6 {
		name = "ip6tables"
	}
	return strings.Join(append([]string{name, string(b)}, suffix...), "-")
}

// WithoutRemarks removes the lines of iptables-save that begin with #.
func WithoutRemarks(saved string) string {
	return regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(saved, "")
}

// EachDump runs a test for each back end and each file of iptables-save's output that matches the
// pattern, of which there must be at least one, and returns the number of files.
func EachDump(t *testing.T, pattern string, test func(t *testing.T, b xtables.Backend, dump string)) int {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no dumps match %s: %v", pattern, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range Backends {
			t.Run(fmt.Sprintf("%s/%s", filepath.Base(file), b), func(t *testing.T) { test(t, b, string(text)) })
		}
	}
	return len(files)
}
