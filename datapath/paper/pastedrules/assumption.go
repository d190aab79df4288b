package pastedrules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// noteWarnings repeats what iptables says about rules that are not in its output.
func (a *assembler) noteWarnings(g *gatherer) {
	for _, s := range g.hidden {
		a.note(s.number, "table %s is incompatible with iptables, which does not print it: it is there, and its rules are not known", s.table)
	}
	for _, s := range g.warned {
		there := slices.ContainsFunc(a.in.Dumps, func(d *iptables.Dump) bool { return d.Backend == iptables.BackendLegacy && d.Family == s.Family })
		if there {
			continue
		}
		program := "iptables-legacy-save"
		if s.Family == iptables.IPv6 {
			program = "ip6tables-legacy-save"
		}
		a.note(s.number, "the host has rules of iptables-legacy, too, which are not in the text and may change the verdict: add the output of %s", program)
		for _, d := range a.in.Dumps {
			if d.Family == s.Family {
				d.LegacyToo, d.Backend = true, cmp.Or(d.Backend, iptables.BackendNFT)
			}
		}
	}
}

// noteLines says what was left out.
func (a *assembler) noteLines(lines []pastedLine, all []string, others []int) {
	decorated, first := 0, 0
	for i, l := range lines {
		if l.before != "" && !l.shell && !l.damaged {
			if decorated == 0 {
				first = i
			}
			decorated++
		}
	}
	if decorated > 0 {
		a.note(lines[first].number, "of %s the text in front of the rule is left out, as %q here", quantity.Count(decorated, "line"), shortened(lines[first].before))
	}
	for _, n := range others {
		if nftTable.MatchString(all[n-1]) {
			a.note(n, "the output of nft is not read beside other rules: give it in a file of its own")
			break
		}
	}
	for _, n := range others {
		if iptables.IsChainLine(all[n-1]) {
			a.note(n, "the listing of iptables -L is not read beside other rules: give it in a file of its own")
			break
		}
	}
	if len(others) > 0 {
		texts := make([]string, 0, 8)
		for _, n := range others[:min(len(others), 8)] {
			texts = append(texts, fmt.Sprint(n))
		}
		if len(others) > len(texts) {
			texts = append(texts, fmt.Sprintf("and %d more", len(others)-len(texts)))
		}
		a.note(others[0], "%s not of iptables, and left out: %s", isAre(len(others)), strings.Join(texts, ", "))
	}
}

func isAre(n int) string {
	if n == 1 {
		return "1 line is"
	}
	return fmt.Sprintf("%d lines are", n)
}

func shortened(text string) string {
	const most = 40
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
