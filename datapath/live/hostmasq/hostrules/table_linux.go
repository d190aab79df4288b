package hostrules

import (
	"bytes"
	"cmp"
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
	k := &kernel{sets: make(map[string]*rules.Set), chains: make(map[string]*rules.Chain), ipset: xtables.SetNames}
	for _, c := range t.Chains {
		k.chains[c.Name] = &rules.Chain{Name: c.Name, Drops: c.Base && c.Drops}
	}
	for name, s := range t.sets {
		k.sets[name] = s.set(name, k)
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

// collected is the elements of a set as the kernel returns them. Those with verdicts refer to
// chains, which differ by family.
type collected struct {
	flags              uint32 // NFT_SET_...
	keySize, valueSize int    // in bytes, each part of a concatenation filled up to registers
	elements           []nft.Attributes
}

// What the unix package does not have (nf_tables.h).
const (
	nftaSetElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END
	elementCatchall   = 2  // NFT_SET_ELEM_CATCHALL
)

func keyOf(e nft.Attributes) []byte {
	return e.Nested(unix.NFTA_SET_ELEM_KEY).Get(unix.NFTA_DATA_VALUE)
}

func isEnd(e nft.Attributes) bool {
	return e.Uint32(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0
}

func isCatchall(e nft.Attributes) bool {
	return e.Uint32(unix.NFTA_SET_ELEM_FLAGS)&elementCatchall != 0
}

// sort puts the elements, which come in the order of a hash table, in that of their keys, and an end
// before a beginning. A resized hash table is walked twice in part: what came twice goes.
func (c *collected) sort() {
	slices.SortStableFunc(c.elements, func(a, b nft.Attributes) int {
		begins := func(e nft.Attributes) int {
			if isEnd(e) {
				return 0
			}
			return 1
		}
		return cmp.Or(bytes.Compare(keyOf(a), keyOf(b)), cmp.Compare(begins(a), begins(b)))
	})
	c.elements = slices.CompactFunc(c.elements, func(a, b nft.Attributes) bool {
		return bytes.Equal(keyOf(a), keyOf(b)) && isEnd(a) == isEnd(b) && isCatchall(a) == isCatchall(b)
	})
}

// set puts the set together. Sets with intervals of one part (nft_set_rbtree.c) have beginnings and
// ends.
func (c *collected) set(name string, k *kernel) *rules.Set {
	s := &rules.Set{Name: name, KeySize: c.keySize, ValueSize: c.valueSize, Unreadable: c.flags&(unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL) != 0}
	for i, a := range c.elements {
		if isEnd(a) {
			continue
		}
		key, data := keyOf(a), a.Nested(unix.NFTA_SET_ELEM_DATA)
		e := rules.Element{Key: rules.Exactly(key), Value: data.Get(unix.NFTA_DATA_VALUE)}
		if data.Has(unix.NFTA_DATA_VERDICT) {
			v, ok := k.verdict(data.Nested(unix.NFTA_DATA_VERDICT))
			e.Verdict, s.Unreadable = v, s.Unreadable || !ok
		}
		switch {
		case isCatchall(a):
			s.Any = &e
			continue
		case a.Has(nftaSetElemKeyEnd):
			e.Key.Last = a.Nested(nftaSetElemKeyEnd).Get(unix.NFTA_DATA_VALUE)
		case c.flags&unix.NFT_SET_INTERVAL != 0:
			e.Key.Last = bytes.Repeat([]byte{0xff}, len(key))
			if i+1 < len(c.elements) && !isCatchall(c.elements[i+1]) {
				e.Key.Last = before(keyOf(c.elements[i+1]))
			}
		}
		if len(key) == 0 || len(key) != len(e.Key.Last) || len(key) > c.keySize || bytes.Compare(key, e.Key.Last) > 0 && !a.Has(nftaSetElemKeyEnd) {
			s.Unreadable = true
			continue
		}
		s.Elements = append(s.Elements, e)
	}
	s.Sort()
	return s
}

// before is the number before this one; of zero, the greatest.
func before(n []byte) []byte {
	n = slices.Clone(n)
	for i := len(n) - 1; i >= 0; i-- {
		n[i]--
		if n[i] != 0xff {
			break
		}
	}
	return n
}
