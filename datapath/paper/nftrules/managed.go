package nftrules

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// WithoutIPTables returns the rules without the tables of iptables-nft that the dumps of iptables have too; nil: none are left,
// and none are below the network layer. nft lists these tables, but not all that their rules do.
func WithoutIPTables(d *iptables.Dump, others []*iptables.Dump) *iptables.Dump {
	same := *d
	same.Tables = slices.DeleteFunc(slices.Clone(d.Tables), func(t *iptables.Table) bool {
		family, name, _ := strings.Cut(t.Name, " ")
		return family != string(nftables.FamilyINet) && slices.ContainsFunc(others, func(o *iptables.Dump) bool {
			return o.Ruleset == nil && o.Family == d.Family && o.Backend != iptables.BackendLegacy && o.Table(name) != nil && managed(d.Ruleset, family, name)
		})
	})
	if len(same.Tables) == 0 && !slices.ContainsFunc(d.Ruleset.Tables, nftables.BelowNetwork) {
		return nil
	}
	return &same
}

// RulesetWithoutIPTables is WithoutIPTables for a ruleset of both families.
func RulesetWithoutIPTables(rs *nftables.Ruleset, others []*iptables.Dump) *nftables.Ruleset {
	same := *rs
	same.Tables = slices.DeleteFunc(slices.Clone(rs.Tables), func(t *nftables.Table) bool {
		family := map[nftables.Family]iptables.Family{nftables.FamilyIP: iptables.IPv4, nftables.FamilyIP6: iptables.IPv6}[t.Family]
		return slices.ContainsFunc(others, func(o *iptables.Dump) bool {
			return o.Family == family && o.Backend != iptables.BackendLegacy && o.Table(t.Name) != nil && managed(rs, string(t.Family), t.Name)
		})
	})
	return &same
}

// managed reports whether iptables-nft made a table: nft warns of it, and older versions show it by the names of the chains only.
func managed(rs *nftables.Ruleset, family, name string) bool {
	for _, t := range rs.Tables {
		if string(t.Family) != family || t.Name != name {
			continue
		}
		return t.Warning != "" || !slices.ContainsFunc(t.Chains, func(c *nftables.Chain) bool {
			return c.Base != nil && !iptables.Builtin(name, c.Name)
		})
	}
	return false
}
