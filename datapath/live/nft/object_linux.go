package nft

import (
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Verdicts of rules and policies (linux/netfilter.h).
const (
	Drop   = 0 // NF_DROP
	Accept = 1 // NF_ACCEPT
)

// Table is a table as the kernel returns it, with its chains.
type Table struct {
	Family  uint8 // NFPROTO_...
	Name    string
	Handle  uint64
	Dormant bool // its hooks are not registered
	Chains  []*Chain
}

// tableHandle is NFTA_TABLE_HANDLE (nf_tables.h), which the unix package does not have.
const tableHandle = 4

// Dumper is [Dump] or [DumpOnce].
type Dumper func(family uint8, kind int, filter Encode, each func(family uint8, a Attributes)) error

// Tables lists the tables of a family or, with NFPROTO_UNSPEC, of all.
func Tables(dump Dumper, family uint8) ([]*Table, error) {
	var tables []*Table
	err := dump(family, unix.NFT_MSG_GETTABLE, nil, func(family uint8, a Attributes) {
		tables = append(tables, &Table{
			Family: family, Name: a.Text(unix.NFTA_TABLE_NAME), Handle: a.Uint64(tableHandle),
			Dormant: a.Uint32(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0,
		})
	})
	if err != nil {
		return nil, err
	}
	return tables, dump(family, unix.NFT_MSG_GETCHAIN, nil, func(family uint8, a Attributes) {
		c := ChainOf(a)
		if i := slices.IndexFunc(tables, func(t *Table) bool { return t.Family == family && t.Name == c.Table }); i >= 0 {
			tables[i].Chains = append(tables[i].Chains, &c)
		}
	})
}

// Rules lists the rules of all chains.
func (t *Table) Rules(dump Dumper) ([]*Rule, error) {
	var rules []*Rule
	err := dump(t.Family, unix.NFT_MSG_GETRULE, NamedTable(t.Name), func(_ uint8, a Attributes) {
		// Kernels without the filter return the rules of all tables.
		if r := RuleOf(a); r.Table == t.Name {
			rules = append(rules, &r)
		}
	})
	return rules, err
}

// String is "inet kindnet-ipmasq".
func (t *Table) String() string {
	family, known := map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}[t.Family]
	if !known {
		family = fmt.Sprintf("family-%d", t.Family)
	}
	return family + " " + t.Name
}

// Chain is a chain as the kernel returns it.
type Chain struct {
	Table, Name string
	Base        bool
	// Type ("nat", "filter", "route"), Hook (NF_INET_...), Priority and Drops (the policy) are valid
	// iff it is a base chain.
	Type     string
	Hook     uint32
	Priority int32
	Drops    bool
}

// ChainOf reads the attributes of a chain.
func ChainOf(a Attributes) Chain {
	hook := a.Nested(unix.NFTA_CHAIN_HOOK)
	return Chain{
		Table: a.Text(unix.NFTA_CHAIN_TABLE), Name: a.Text(unix.NFTA_CHAIN_NAME), Base: a.Has(unix.NFTA_CHAIN_HOOK), Type: a.Text(unix.NFTA_CHAIN_TYPE),
		Hook: hook.Uint32(unix.NFTA_HOOK_HOOKNUM), Priority: int32(hook.Uint32(unix.NFTA_HOOK_PRIORITY)),
		Drops: a.Has(unix.NFTA_CHAIN_POLICY) && a.Uint32(unix.NFTA_CHAIN_POLICY) == Drop,
	}
}

// Rule is a rule as the kernel returns it.
type Rule struct {
	Table, Chain string
	Handle       uint64
	Expressions  []Expression
	UserData     []byte
}

// Expression is one expression of a rule.
type Expression struct {
	Name string
	Data []byte // its attributes
}

// Jump is the chain that an expression "immediate" jumps or goes to; "": none, or it is another expression.
func (e Expression) Jump() string {
	if e.Name != "immediate" {
		return ""
	}
	return Parse(e.Data).Nested(unix.NFTA_IMMEDIATE_DATA).Nested(unix.NFTA_DATA_VERDICT).Text(unix.NFTA_VERDICT_CHAIN)
}

// RuleOf reads the attributes of a rule.
func RuleOf(a Attributes) Rule {
	return Rule{
		Table: a.Text(unix.NFTA_RULE_TABLE), Chain: a.Text(unix.NFTA_RULE_CHAIN), Handle: a.Uint64(unix.NFTA_RULE_HANDLE),
		Expressions: Expressions(a.Get(unix.NFTA_RULE_EXPRESSIONS)), UserData: a.Get(unix.NFTA_RULE_USERDATA),
	}
}

// Expressions reads the expressions of a rule.
func Expressions(data []byte) []Expression {
	var list []Expression
	for _, e := range Elements(data) {
		list = append(list, Expression{e.Text(unix.NFTA_EXPR_NAME), e.Get(unix.NFTA_EXPR_DATA)})
	}
	return list
}

// Encode writes attributes of a message.
type Encode = func(*netlink.AttributeEncoder)

// NamedTable selects a table or all objects of a kind in it, or names it in a change. Its attribute is the first of every
// object.
func NamedTable(name string) Encode {
	return func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, name) }
}

// names writes the name of a table and that of an object in it.
func names(table string, of uint16, name string) Encode {
	return func(e *netlink.AttributeEncoder) {
		NamedTable(table)(e)
		e.String(of, name)
	}
}

// NamedChain selects a chain of a table, or names it in a change.
func NamedChain(table, name string) Encode {
	return names(table, unix.NFTA_CHAIN_NAME, name)
}

// RulesOf selects the rules of a chain.
func RulesOf(table, chain string) Encode {
	return names(table, unix.NFTA_RULE_CHAIN, chain)
}

// NumberedRule selects a rule of a chain by its handle.
func NumberedRule(table, chain string, handle uint64) Encode {
	return func(e *netlink.AttributeEncoder) {
		RulesOf(table, chain)(e)
		e.Uint64(unix.NFTA_RULE_HANDLE, handle)
	}
}

// NamedSet selects a set of a table, or names it in a change.
func NamedSet(table, name string) Encode {
	return names(table, unix.NFTA_SET_NAME, name)
}

// ElementsOf selects the elements of a set.
func ElementsOf(table, set string) Encode {
	return names(table, unix.NFTA_SET_ELEM_LIST_SET, set)
}
