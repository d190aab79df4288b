package hostrules

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// nftTable is a table of nftables with its contents.
type nftTable struct {
	*nft.Table
	sets  map[string]*collected
	rules []*nft.Rule
}

// families are those whose packets the table sees.
func (t *nftTable) families() []decision.Family {
	switch t.Family {
	case unix.NFPROTO_IPV4:
		return families[:1]
	case unix.NFPROTO_IPV6:
		return families[1:]
	case unix.NFPROTO_INET:
		return families
	}
	return nil
}

const (
	hookPostrouting = 4 // NF_INET_POST_ROUTING
	natChainType    = "nat"
)

func translatesSource(c *nft.Chain) bool {
	return c.Base && c.Type == natChainType && c.Hook == hookPostrouting
}

func (t *nftTable) translates() bool {
	return !t.Dormant && t.families() != nil && slices.ContainsFunc(t.Chains, translatesSource)
}

// baseChains are the built-in chains of iptables' table nat.
var baseChains = []string{"PREROUTING", "INPUT", "OUTPUT", postrouting}

// ofIPTables reports whether the table looks like one of iptables-nft, by its name and base chains
// with the names of the built-in ones.
func (t *nftTable) ofIPTables() bool {
	if t.Name != natTable || t.Family == unix.NFPROTO_INET {
		return false
	}
	return !slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return c.Base != slices.Contains(baseChains, c.Name) })
}

// tables returns a table for each family and base chain that translates at postrouting.
func (t *nftTable) tables() []*Table {
	var out []*Table
	for _, f := range t.families() {
		chains := t.chains(f)
		for _, c := range t.Chains {
			if !translatesSource(c) {
				continue
			}
			table := &Table{Family: f, Priority: c.Priority, age: t.Handle, Base: chainNamed(chains, c.Name), Chains: chains}
			if table.Backend, table.Name = native, t.String()+" "+c.Name; t.ofIPTables() {
				table.Backend, table.Name = xtables.NFT, natTable
			}
			out = append(out, table)
		}
	}
	return out
}

// chains are the table's chains with their rules, as packets of the family meet them.
func (t *nftTable) chains(f decision.Family) []*rules.Chain {
	tr := t.translator(f)
	var chains []*rules.Chain
	for _, c := range t.Chains {
		chains = append(chains, tr.kernel.chains[c.Name])
	}
	for _, r := range t.rules {
		if c := tr.kernel.chains[r.Chain]; c != nil {
			c.Rules = append(c.Rules, tr.translate(r))
		}
	}
	return chains
}

// translator prepares to translate the table's rules.
func (t *nftTable) translator(f decision.Family) *translator {
	k := &kernel{sets: make(map[string]*rules.Set), sizes: make(map[string]int), chains: make(map[string]*rules.Chain), ipset: xtables.SetNames}
	for _, c := range t.Chains {
		k.chains[c.Name] = &rules.Chain{Name: c.Name, Drops: c.Base && c.Drops}
	}
	for name, s := range t.sets {
		k.sets[name], k.sizes[name] = s.set(name, k), s.keySize
	}
	return &translator{family: f, native: !t.ofIPTables(), kernel: k}
}

func chainNamed(chains []*rules.Chain, name string) *rules.Chain {
	for _, c := range chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}
