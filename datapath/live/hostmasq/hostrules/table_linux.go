package hostrules

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// nftTable is a table of nftables with its contents.
type nftTable struct {
	*nft.Table
	sets  map[string]*set
	rules []*nft.Rule
}

// families are those whose packets the table sees.
func (t *nftTable) families() []iptables.Family {
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

// ofIPTables reports whether the table looks like one of iptables-nft, by its name and base chains
// with the names of the built-in ones.
func (t *nftTable) ofIPTables() bool {
	if t.Name != natTable || t.Family == unix.NFPROTO_INET {
		return false
	}
	return !slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return c.Base != iptables.Builtin(natTable, c.Name) })
}

// tables returns the relevant parts of the table: the whole table if it is of iptables-nft, or
// else each base chain that translates at postrouting, with the chains reached from it.
func (t *nftTable) tables(k *kernel) []*Table {
	var out []*Table
	for _, f := range t.families() {
		for _, c := range t.Chains {
			if !translatesSource(c) {
				continue
			}
			table := &Table{Family: f, Priority: c.Priority, age: t.Handle}
			if t.ofIPTables() {
				table.Backend, table.Name, table.Dump = xtables.NFT, natTable, dumpOf(f, t.whole(f, k))
			} else {
				table.Backend, table.Name, table.Dump = native, t.String()+" "+c.Name, dumpOf(f, t.from(c, f, k))
			}
			out = append(out, table)
		}
	}
	return out
}

func policyOf(c *nft.Chain) iptables.Policy {
	switch {
	case !c.Base:
		return iptables.PolicyNone
	case c.Drops:
		return iptables.PolicyDrop
	}
	return iptables.PolicyAccept
}

// whole is the table with all its chains.
func (t *nftTable) whole(f iptables.Family, k *kernel) *iptables.Table {
	tr := &translator{family: f, kernel: k}
	out := &iptables.Table{Name: natTable}
	for _, name := range iptables.BuiltinChains(natTable) {
		c := &iptables.Chain{Name: name, Policy: iptables.PolicyAccept} // as iptables-save shows missing ones
		for _, o := range t.Chains {
			if o.Name == name {
				c.Policy = policyOf(o)
			}
		}
		out.Chains = append(out.Chains, c)
	}
	for _, c := range t.Chains {
		if !c.Base {
			out.Chains = append(out.Chains, &iptables.Chain{Name: c.Name})
		}
	}
	for _, r := range t.rules {
		out.Rules = append(out.Rules, tr.translate(r)...)
	}
	declare(out)
	return out
}

// from is the chain with those that are reached from it.
func (t *nftTable) from(base *nft.Chain, f iptables.Family, k *kernel) *iptables.Table {
	tr := &translator{family: f, kernel: k, names: map[string]string{base.Name: postrouting}}
	for _, c := range t.Chains {
		if c != base && iptables.Builtin(natTable, c.Name) {
			tr.names[c.Name] = "nft-" + c.Name // a chain that can be jumped to is not built in
		}
	}
	out := &iptables.Table{Name: natTable, Chains: []*iptables.Chain{{Name: postrouting, Policy: policyOf(base)}}}
	byChain := make(map[string][]*nft.Rule)
	for _, r := range t.rules {
		byChain[r.Chain] = append(byChain[r.Chain], r)
	}
	original := make(map[string]string)
	for _, c := range t.Chains {
		original[tr.chainName(c.Name)] = c.Name
	}
	reached := map[string]bool{postrouting: true}
	for todo := []string{postrouting}; len(todo) > 0; todo = todo[1:] {
		for _, r := range byChain[original[todo[0]]] {
			for _, made := range tr.translate(r) {
				out.Rules = append(out.Rules, made)
				next := ""
				switch target := made.Target.(type) {
				case iptables.Jump:
					next = target.Chain
				case iptables.Goto:
					next = target.Chain
				}
				if _, there := original[next]; there && !reached[next] {
					reached[next] = true
					out.Chains = append(out.Chains, &iptables.Chain{Name: next})
					todo = append(todo, next)
				}
			}
		}
	}
	declare(out)
	return out
}

// declare adds the chains that were made for single rules.
func declare(t *iptables.Table) {
	declared := make(map[string]bool)
	for _, c := range t.Chains {
		declared[c.Name] = true
	}
	for _, r := range t.Rules {
		if !declared[r.Chain] {
			declared[r.Chain] = true
			t.Chains = append(t.Chains, &iptables.Chain{Name: r.Chain})
		}
	}
}
