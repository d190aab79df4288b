package kubechains

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// builtIn are the built-in chains of the tables that kube-proxy writes to.
var builtIn = map[Table][]string{
	Mangle: {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	Filter: {"INPUT", "FORWARD", "OUTPUT"},
	NAT:    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
}

// fixedChains are independent of services.
var fixedChains = map[Table][]string{
	Mangle: {Canary},
	Filter: {ExternalServices, Firewall, Forward, NodePorts, Canary, ProxyFirewall, Services},
	NAT:    {MarkMasq, NodePorts, Postrouting, Canary, Services},
}

// Rules returns all rules for the table in one address family, in kube-proxy's order: within a
// chain, the order of evaluation.
func Rules(t *decision.Table, f decision.Family, k Kernel) []Rule {
	w := newWriter(t, f, k)
	w.rules = jumps(f)
	w.services(slices.DeleteFunc(slices.Clone(t.Services()), func(s *decision.ServicePort) bool { return s.Family != f }))
	return append(w.rules, common(t, f, k)...)
}

// ServiceRules are the rules of one service port alone.
func ServiceRules(t *decision.Table, s *decision.ServicePort, k Kernel) []Rule {
	w := newWriter(t, s.Family, k)
	w.service(s)
	return w.rules
}

// RenderRules writes the bare rules, without declarations: a part of what [Render] writes.
func RenderRules(out io.Writer, rules []Rule) error {
	b := bufio.NewWriter(out)
	var table Table
	for i := range rules {
		if r := &rules[i]; r.Table != table {
			table = r.Table
			fmt.Fprintf(b, "*%s\n", table)
		}
		fmt.Fprintln(b, rules[i].line())
	}
	return b.Flush()
}

// Render writes rules as iptables-save prints them; iptables-restore loads the text.
// Chains are sorted by name, as iptables-nft-save does; rules keep their order.
func Render(out io.Writer, rules []Rule) error {
	b := bufio.NewWriter(out)
	for _, table := range []Table{Mangle, Filter, NAT} {
		byChain := make(map[string][]*Rule)
		for i := range rules {
			if r := &rules[i]; r.Table == table {
				byChain[r.Chain] = append(byChain[r.Chain], r)
			}
		}
		var chains []string
		for c := range byChain {
			if !slices.Contains(builtIn[table], c) {
				chains = append(chains, c)
			}
		}
		for _, c := range fixedChains[table] {
			if byChain[c] == nil {
				chains = append(chains, c)
			}
		}
		slices.Sort(chains)
		fmt.Fprintf(b, "*%s\n", table)
		for _, c := range builtIn[table] {
			fmt.Fprintf(b, ":%s ACCEPT [0:0]\n", c)
		}
		for _, c := range chains {
			fmt.Fprintf(b, ":%s - [0:0]\n", c)
		}
		for _, c := range append(slices.Clone(builtIn[table]), chains...) {
			for _, r := range byChain[c] {
				fmt.Fprintln(b, r.line())
			}
		}
		fmt.Fprintln(b, "COMMIT")
	}
	return b.Flush()
}
