//go:build linux

package diagnose_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
	"github.com/nfqproxy/nfqproxy/datapath/paper/pastedrules"
)

// ruleset is rules of iptables as text, to be changed by others and by hand.
type ruleset struct {
	policies map[string]string   // of "table chain", DROP
	rules    map[string][]string // of "table chain", without "-A chain"
	chains   map[string][]string // of a table: those that are not built in, in the order of declaration
}

// builtIn are the tables and their chains.
var builtIn = []struct {
	table  string
	chains []string
}{
	{"raw", []string{"PREROUTING", "OUTPUT"}},
	{"mangle", []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}},
	{"filter", []string{"INPUT", "FORWARD", "OUTPUT"}},
	{"nat", []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}},
}

func newRuleset() *ruleset {
	return &ruleset{policies: map[string]string{}, rules: map[string][]string{}, chains: map[string][]string{}}
}

// kubeProxy are the rules that kube-proxy writes.
func kubeProxy(t *decision.Table) *ruleset {
	var b bytes.Buffer
	if err := kubesave.Render(&b, kubechains.Rules(t, decision.IPv4, kubechains.Kernel{})); err != nil {
		panic(err) // a buffer takes all
	}
	r, table := newRuleset(), ""
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			r.declare(table, strings.Fields(line[1:])[0])
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(line[3:], " ")
			r.append(table, chain, rule)
		}
	}
	return r
}

func isBuiltIn(table, chain string) bool {
	return slices.ContainsFunc(builtIn, func(b struct {
		table  string
		chains []string
	}) bool {
		return b.table == table && slices.Contains(b.chains, chain)
	})
}

// declare makes a chain, if it is not there.
func (r *ruleset) declare(table, chain string) {
	if !isBuiltIn(table, chain) && !slices.Contains(r.chains[table], chain) {
		r.chains[table] = append(r.chains[table], chain)
	}
}

// append adds rules at the end of a chain, insert at a place in it, both without "-A chain".
func (r *ruleset) append(table, chain string, rules ...string) {
	r.insert(table, chain, len(r.rules[table+" "+chain]), rules...)
}

func (r *ruleset) insert(table, chain string, at int, rules ...string) {
	r.declare(table, chain)
	key := table + " " + chain
	r.rules[key] = slices.Insert(r.rules[key], at, rules...)
}

// find returns the positions of the rules of a chain with all of the texts.
func (r *ruleset) find(table, chain string, texts ...string) (at []int) {
	for i, rule := range r.rules[table+" "+chain] {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(rule, text) }) {
			at = append(at, i)
		}
	}
	return at
}

// replace puts rules in the place of those with all of the texts.
func (r *ruleset) replace(table, chain string, texts []string, with ...string) {
	at := r.find(table, chain, texts...)
	key := table + " " + chain
	for _, i := range slices.Backward(at) {
		r.rules[key] = slices.Replace(r.rules[key], i, i+1, with...)
	}
}

// String is the input of iptables-restore: all tables, so that nothing is left of what was there.
func (r *ruleset) String() string {
	var b strings.Builder
	for _, t := range builtIn {
		fmt.Fprintf(&b, "*%s\n", t.table)
		for _, c := range t.chains {
			policy := "ACCEPT"
			if p := r.policies[t.table+" "+c]; p != "" {
				policy = p
			}
			fmt.Fprintf(&b, ":%s %s [0:0]\n", c, policy)
		}
		for _, c := range r.chains[t.table] {
			fmt.Fprintf(&b, ":%s - [0:0]\n", c)
		}
		for _, c := range append(slices.Clone(t.chains), r.chains[t.table]...) {
			for _, rule := range r.rules[t.table+" "+c] {
				fmt.Fprintf(&b, "-A %s %s\n", c, rule)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// backend is one of the two implementations of iptables.
type backend string

const (
	legacy backend = "legacy"
	nft    backend = "nft"
)

var backends = []backend{nft, legacy}

// other is the other one.
func (b backend) other() backend {
	if b == nft {
		return legacy
	}
	return nft
}

func requireBackends(t testing.TB) {
	t.Helper()
	netnstest.Require(t)
	for _, b := range backends {
		netnstest.RequireTool(t, "iptables-"+string(b)+"-restore")
	}
}

// load replaces all rules of the back end in a namespace.
func (b backend) load(ns *netns.Namespace, r *ruleset) error {
	_, err := ns.Run(r.String(), "iptables-"+string(b)+"-restore", "-w")
	return err
}

// save is what iptables-save prints of the back end.
func (b backend) save(ns *netns.Namespace) (string, error) {
	return ns.Run("", "iptables-"+string(b)+"-save")
}

// read is the rules as doctor gets them.
func read(text, file string) ([]*iptables.Dump, error) {
	in, err := pastedrules.Read(strings.NewReader(text), iptables.Options{Family: iptables.IPv4})
	if err != nil {
		return nil, err
	}
	for _, d := range in.Dumps {
		d.File = file
		d.NameRules(file)
	}
	return in.Dumps, nil
}
