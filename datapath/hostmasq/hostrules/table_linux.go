package hostrules

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// nftTable is a table of nftables as the kernel has it.
type nftTable struct {
	family  uint8 // NFPROTO_...
	name    string
	handle  uint64
	dormant bool // its hooks are not registered
	chains  []*nftChain
	sets    map[string]*set
	rules   []*rule
}

// nftChain is one chain; kind, hook, priority and drops are valid iff it is a base chain.
type nftChain struct {
	name     string
	base     bool
	kind     string // "nat", "filter", "route"
	hook     uint32 // NF_INET_...
	priority int32
	drops    bool // the policy
}

// String is "inet kindnet-ipmasq".
func (t *nftTable) String() string { return familyWord(t.family) + " " + t.name }

func familyWord(nfproto uint8) string {
	switch nfproto {
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	}
	return fmt.Sprintf("family-%d", nfproto)
}

// families are those whose packets the table sees.
func (t *nftTable) families() []iptables.Family {
	switch t.family {
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

func (c *nftChain) translatesSource() bool {
	return c.base && c.kind == natChainType && c.hook == hookPostrouting
}

func (t *nftTable) translates() bool {
	return !t.dormant && t.families() != nil && slices.ContainsFunc(t.chains, (*nftChain).translatesSource)
}

// ofIPTables reports whether the table looks like one of iptables-nft, by its name and base chains
// with the names of the built-in ones.
func (t *nftTable) ofIPTables() bool {
	if t.name != natTable || t.family == unix.NFPROTO_INET {
		return false
	}
	return !slices.ContainsFunc(t.chains, func(c *nftChain) bool { return c.base != iptables.Builtin(natTable, c.name) })
}

// tables returns the relevant parts of the table: the whole table if it is of iptables-nft, or
// else each base chain that translates at postrouting, with the chains reached from it.
func (t *nftTable) tables(k *kernel) []*Table {
	var out []*Table
	for _, f := range t.families() {
		for _, c := range t.chains {
			if !c.translatesSource() {
				continue
			}
			table := &Table{Family: f, Priority: c.priority, age: t.handle}
			if t.ofIPTables() {
				table.Backend, table.Name, table.Dump = NFT, natTable, dumpOf(f, t.whole(f, k))
			} else {
				table.Backend, table.Name, table.Dump = Native, t.String()+" "+c.name, dumpOf(f, t.from(c, f, k))
			}
			out = append(out, table)
		}
	}
	return out
}

func (c *nftChain) policy() iptables.Policy {
	switch {
	case !c.base:
		return iptables.PolicyNone
	case c.drops:
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
		for _, o := range t.chains {
			if o.name == name {
				c.Policy = o.policy()
			}
		}
		out.Chains = append(out.Chains, c)
	}
	for _, c := range t.chains {
		if !c.base {
			out.Chains = append(out.Chains, &iptables.Chain{Name: c.name})
		}
	}
	for _, r := range t.rules {
		out.Rules = append(out.Rules, tr.translate(r)...)
	}
	declare(out)
	return out
}

// from is the chain with those that are reached from it.
func (t *nftTable) from(base *nftChain, f iptables.Family, k *kernel) *iptables.Table {
	tr := &translator{family: f, kernel: k, names: map[string]string{base.name: postrouting}}
	for _, c := range t.chains {
		if c != base && iptables.Builtin(natTable, c.name) {
			tr.names[c.name] = "nft-" + c.name // a chain that can be jumped to is not built in
		}
	}
	out := &iptables.Table{Name: natTable, Chains: []*iptables.Chain{{Name: postrouting, Policy: base.policy()}}}
	byChain := make(map[string][]*rule)
	for _, r := range t.rules {
		byChain[r.chain] = append(byChain[r.chain], r)
	}
	original := make(map[string]string)
	for _, c := range t.chains {
		original[tr.chainName(c.name)] = c.name
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
