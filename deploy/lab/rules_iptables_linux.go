package lab

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
)

// iptablesRules are those of kube-proxy's iptables mode, in the format of iptables-save.
type iptablesRules struct{}

func (iptablesRules) command(f decision.Family) []string {
	if f == decision.IPv6 {
		return []string{"ip6tables-restore", "--noflush"}
	}
	return []string{"iptables-restore", "--noflush"}
}

func (iptablesRules) text(_ *Spec, t *decision.Table, f decision.Family) (string, error) {
	var b bytes.Buffer
	err := kubesave.Render(&b, kubechains.Rules(t, f, kubechains.Kernel{}))
	return b.String(), err
}

// change is the input of iptables-restore --noflush that leads from rules to others. Chains
// that are declared are emptied; those of the kernel are not, so their rules are added the first time only. Chains that
// are no longer there are removed.
func (iptablesRules) change(_ decision.Family, from, to string) (string, error) {
	before := chains(from)
	var b strings.Builder
	table := ""
	for line := range strings.Lines(to) {
		switch {
		case line[0] == '*':
			table = strings.TrimSpace(line[1:])
		case line == "COMMIT\n":
			after := chains(to)[table]
			gone := slices.DeleteFunc(slices.Clone(before[table]), func(c string) bool { return slices.Contains(after, c) })
			for _, c := range gone { // emptied first, as they may lead to each other
				fmt.Fprintf(&b, ":%s - [0:0]\n", c)
			}
			for _, c := range gone {
				fmt.Fprintf(&b, "-X %s\n", c)
			}
		case strings.HasPrefix(line, "-A ") && from != "" && !strings.HasPrefix(line, "-A KUBE-"):
			continue
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

// chains are kube-proxy's own chains, by table.
func chains(rules string) map[string][]string {
	all := make(map[string][]string)
	table := ""
	for line := range strings.Lines(rules) {
		switch {
		case line[0] == '*':
			table = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, ":KUBE-"):
			name, _, _ := strings.Cut(line[1:], " ")
			all[table] = append(all[table], name)
		}
	}
	return all
}
