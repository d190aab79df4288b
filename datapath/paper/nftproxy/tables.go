package nftproxy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// Options are what kube-proxy's tables depend on besides the service table.
type Options struct {
	// ServiceCIDRs are the ranges of cluster IPs, as ServiceCIDR objects have them: packets to addresses in them without a service are
	// dropped.
	ServiceCIDRs []netip.Prefix
}

// Tables are kube-proxy's tables for the families, after its first write. WriteTo prints them as nft list ruleset does, in
// kube-proxy's order: it writes services in a random one. If several service ports claim the same destination, that one has it which gets its
// packets in iptables mode; with kube-proxy a random one has it.
func Tables(t *decision.Table, o Options, families ...decision.Family) *nftables.Ruleset {
	r := &nftables.Ruleset{}
	for _, f := range families {
		w := newWriter(t, f)
		w.common(o)
		for _, s := range t.Services() {
			if s.Family == f {
				w.service(s)
			}
		}
		r.Tables = append(r.Tables, w.finish())
	}
	return r
}

// ServiceTable is the part of the table that is for some service ports of one family.
func ServiceTable(t *decision.Table, f decision.Family, services ...*decision.ServicePort) *nftables.Ruleset {
	w := newWriter(t, f)
	w.sets()
	for _, s := range services {
		w.service(s)
	}
	table := w.finish()
	table.Sets = slices.DeleteFunc(table.Sets, func(s *nftables.Set) bool { return s.Elements == nil && s.Timeout == 0 })
	return &nftables.Ruleset{Tables: []*nftables.Table{table}}
}

// writer writes the table of one family.
type writer struct {
	t      *decision.Table
	node   *decision.Node
	family decision.Family
	table  *nftables.Table
	byName map[string]*set
}

// set is a set or map with the elements that it gets.
type set struct {
	*nftables.Set
	at map[string]*element
}

// element is one element; rank is the number of service ports that come before its own at this destination.
type element struct {
	nftables.Element
	order []byte
	rank  int
}

func newWriter(t *decision.Table, f decision.Family) *writer {
	w := &writer{t: t, node: t.Node(), family: f, byName: make(map[string]*set)}
	w.table = &nftables.Table{Family: w.ip(), Name: Table, Comment: "rules for kube-proxy"}
	return w
}

// ip is the name of the family, and of its header.
func (w *writer) ip() nftables.Family {
	if w.family == decision.IPv6 {
		return nftables.FamilyIP6
	}
	return nftables.FamilyIP
}

// addr is the type of addresses.
func (w *writer) addr() string {
	if w.family == decision.IPv6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

func (w *writer) chain(name string) *nftables.Chain {
	c := &nftables.Chain{Name: name}
	w.table.Chains = append(w.table.Chains, c)
	return c
}

func rule(c *nftables.Chain, s ...nftables.Statement) *nftables.Rule {
	r := &nftables.Rule{Statements: s}
	c.Rules = append(c.Rules, r)
	return r
}

// set adds a set, or with the type verdict a map.
func (w *writer) set(name, comment string, value string, key ...string) {
	s := &nftables.Set{Name: name, Comment: comment, Key: nftables.Type{Names: key}}
	if value != "" {
		s.Map, s.Value = true, nftables.Type{Names: []string{value}}
	}
	w.table.Sets = append(w.table.Sets, s)
	w.byName[name] = &set{s, make(map[string]*element)}
}

// put adds an element, unless the set has one with this key whose service port comes first.
func (w *writer) put(name string, k key, value nftables.Expr, comment string, rank int) {
	s := w.byName[name]
	if have := s.at[string(k.order)]; have != nil && have.rank <= rank {
		return
	}
	s.at[string(k.order)] = &element{nftables.Element{Key: k.expr, Value: value, Comment: comment}, k.order, rank}
}

// finish puts the elements into the sets, in nft's order.
func (w *writer) finish() *nftables.Table {
	for _, s := range w.byName {
		all := make([]*element, 0, len(s.at))
		for _, e := range s.at {
			all = append(all, e)
		}
		slices.SortFunc(all, func(a, b *element) int { return compareKeys(a.order, b.order) })
		for _, e := range all {
			s.Elements = append(s.Elements, e.Element)
		}
	}
	return w.table
}

// compareKeys compares keys as nft orders them on machines whose least significant byte comes first: as numbers whose
// last byte is the most significant one (nftables, src/mergesort.c, concat_expr_msort_value).
func compareKeys(a, b []byte) int {
	for i := min(len(a), len(b)) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return cmp.Compare(a[i], b[i])
		}
	}
	return 0
}
