package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// nftablesRules are the table of kube-proxy's nftables mode, as nft prints it.
type nftablesRules struct{}

func (nftablesRules) command(decision.Family) []string { return []string{"nft", "-f", "-"} }

func (nftablesRules) text(s *Spec, t *decision.Table, f decision.Family) (string, error) {
	var b strings.Builder
	_, err := nftproxy.Tables(t, nftproxy.Options{ServiceCIDRs: (*labfile.Lab)(s).ServicePrefixes()}, f).WriteTo(&b)
	return b.String(), err
}

// change is the input of nft -f, one transaction, that leads from a table to another one. Base chains stay, as does session
// affinity: what rules have put into sets. What goes is declared first, in case somebody has deleted it.
func (nftablesRules) change(f decision.Family, from, to string) (string, error) {
	family := nftables.FamilyIP
	if f == decision.IPv6 {
		family = nftables.FamilyIP6
	}
	var b strings.Builder
	line := func(command, kind, name string) {
		fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("%s %s %s %s %s", command, kind, family, nftproxy.Table, name), " "))
	}
	if from == "" {
		line("add", "table", "")
		line("delete", "table", "")
		return b.String() + to, nil
	}
	before, err := tableOf(from)
	if err != nil {
		return "", err
	}
	after, err := tableOf(to)
	if err != nil {
		return "", err
	}
	gone := slices.DeleteFunc(slices.Clone(before.Chains), func(c *nftables.Chain) bool {
		return slices.ContainsFunc(after.Chains, func(other *nftables.Chain) bool { return other.Name == c.Name })
	})
	known := &nftables.Table{Family: family, Name: nftproxy.Table, Sets: before.Sets}
	for _, c := range gone {
		known.Chains = append(known.Chains, &nftables.Chain{Name: c.Name})
	}
	if _, err := (&nftables.Ruleset{Tables: []*nftables.Table{known}}).Print(&b, nftables.Format{Terse: true}); err != nil {
		return "", err
	}
	line("flush", "table", "")
	for _, s := range before.Sets {
		kind := "set"
		if s.Map {
			kind = "map"
		}
		switch stays := slices.ContainsFunc(after.Sets, func(other *nftables.Set) bool { return other.Name == s.Name && other.Timeout == s.Timeout }); {
		case !stays:
			line("delete", kind, s.Name)
		case s.Timeout == 0:
			line("flush", kind, s.Name)
		}
	}
	for _, c := range gone { // after the maps that lead to them
		line("delete", "chain", c.Name)
	}
	return b.String() + to, nil
}

// tableOf reads one table.
func tableOf(text string) (*nftables.Table, error) {
	r, err := nftables.Read(nftproxy.Table, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return r.Tables[0], nil
}
