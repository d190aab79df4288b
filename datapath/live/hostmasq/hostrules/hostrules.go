// Package hostrules reads the address translation rules of other programs from the kernel, of
// iptables' two back ends and of nftables, for package hostnat to evaluate, and reports their
// changes. It uses the kernel's own interfaces: no program is run, no module is loaded, and
// CAP_NET_ADMIN in the user namespace of the network namespace is sufficient.
//
// A module or an expression that is not known here is an unknown test, or an effect that is not
// harmless, and named: no rule that a packet could meet is left out.
package hostrules

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Rules are the nat rules of one network namespace at one time. They are safe for concurrent
// reads.
type Rules struct {
	// Tables are in the order in which a packet meets them when it leaves (POSTROUTING), as far as
	// that is known: see [Rules.OrderUnknown]. ACCEPT ends its own table only, and the first table
	// that translates is the last one evaluated (nf_nat_core.c, nf_nat_inet_fn).
	Tables []*Table
	// Devices are the indexes of the host's devices, by name.
	Devices map[string]uint32
}

// native is the "back end" of nftables' own tables, which iptables does not see.
const native xtables.Backend = "native"

// Table is a table "nat" of iptables, or the chains reached from one base chain of an nftables
// table that translates at postrouting.
type Table struct {
	// Backend is iptables' back end, or "native", as the table's form suggests.
	Backend xtables.Backend
	Family  decision.Family
	// Name is "nat", or of a native table its family, name and base chain: "inet
	// kindnet-ipmasq postrouting".
	Name string
	// Priority is that of the hook at postrouting: lower ones come first.
	Priority int32
	// Base is the chain that packets meet when they leave, and Chains are all of the table.
	Base   *rules.Chain
	Chains []*rules.Chain

	// age orders tables of the same priority: the kernel puts a new hook before the old
	// ones (netfilter/core.c, nf_hook_entries_grow). It is the handle of an nftables table,
	// and 0 for a legacy one, as if that were the oldest.
	age uint64
}

// String describes the table.
func (t *Table) String() string {
	if t.Backend == native {
		return fmt.Sprintf("nftables chain %s, for %s", t.Name, t.Family)
	}
	return xtables.Place{Backend: t.Backend, Family: t.Family, Table: t.Name}.String()
}

// Of returns the tables of a family, in order.
func (r *Rules) Of(f decision.Family) []*Table {
	return slices.DeleteFunc(slices.Clone(r.Tables), func(t *Table) bool { return t.Family != f })
}

// OrderUnknown reports that the order of some tables of a family is unknown, and may matter. The
// kernel evaluates tables of the same priority in the reverse order of their creation. That order
// is known for nftables tables; the kernel does not report whether the legacy table is older. It
// is listed after them, as on a host where it is the oldest.
func (r *Rules) OrderUnknown(f decision.Family) bool {
	tables := r.Of(f)
	return slices.ContainsFunc(tables, func(t *Table) bool {
		return t.Backend == xtables.Legacy && len(t.Base.Rules) > 0 && slices.ContainsFunc(tables, func(o *Table) bool {
			return o.Backend != xtables.Legacy && o.Priority == t.Priority && len(o.Base.Rules) > 0
		})
	})
}

// postrouting is the built-in chain that packets meet when they leave.
const postrouting = "POSTROUTING"

// sort sorts the tables in the kernel's order.
func (r *Rules) sort() {
	slices.SortStableFunc(r.Tables, func(a, b *Table) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.age, a.age))
	})
}

// prioritySNAT is the priority of iptables' table nat at postrouting (NF_IP_PRI_NAT_SRC).
const prioritySNAT = 100
