// Package kubesave writes the rules of package kubechains as iptables-save prints them.
package kubesave

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// RenderRules writes the bare rules, without declarations: a part of what [Render] writes.
func RenderRules(out io.Writer, rules []kubechains.Rule) error {
	b := bufio.NewWriter(out)
	var table kubechains.Table
	for i := range rules {
		if r := &rules[i]; r.Table != table {
			table = r.Table
			fmt.Fprintf(b, "*%s\n", table)
		}
		fmt.Fprintln(b, line(&rules[i]))
	}
	return b.Flush()
}

// Render writes rules as iptables-save prints them; iptables-restore loads the text.
// Chains are sorted by name, as iptables-nft-save does; rules keep their order.
func Render(out io.Writer, rules []kubechains.Rule) error {
	b := bufio.NewWriter(out)
	for _, table := range []kubechains.Table{kubechains.Mangle, kubechains.Filter, kubechains.NAT} {
		builtIn := iptables.BuiltinChains(string(table))
		byChain := make(map[string][]*kubechains.Rule)
		for i := range rules {
			if r := &rules[i]; r.Table == table {
				byChain[r.Chain] = append(byChain[r.Chain], r)
			}
		}
		var chains []string
		for c := range byChain {
			if !slices.Contains(builtIn, c) {
				chains = append(chains, c)
			}
		}
		for _, c := range kubechains.FixedChains[table] {
			if byChain[c] == nil {
				chains = append(chains, c)
			}
		}
		slices.Sort(chains)
		fmt.Fprintf(b, "*%s\n", table)
		for _, c := range builtIn {
			fmt.Fprintf(b, ":%s ACCEPT [0:0]\n", c)
		}
		for _, c := range chains {
			fmt.Fprintf(b, ":%s - [0:0]\n", c)
		}
		for _, c := range append(builtIn, chains...) {
			for _, r := range byChain[c] {
				fmt.Fprintln(b, line(r))
			}
		}
		fmt.Fprintln(b, "COMMIT")
	}
	return b.Flush()
}

func line(r *kubechains.Rule) string { return strings.TrimSuffix("-A "+r.Chain+" "+r.String(), " ") }
