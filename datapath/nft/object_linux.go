package nft

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Verdicts of rules and policies (linux/netfilter.h).
const (
	Drop   = 0 // NF_DROP
	Accept = 1 // NF_ACCEPT
)

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

// RuleOf reads the attributes of a rule.
func RuleOf(a Attributes) Rule {
	return Rule{
		Table: a.Text(unix.NFTA_RULE_TABLE), Chain: a.Text(unix.NFTA_RULE_CHAIN), Handle: a.Uint64(unix.NFTA_RULE_HANDLE),
		Expressions: Expressions(a[unix.NFTA_RULE_EXPRESSIONS]), UserData: a[unix.NFTA_RULE_USERDATA],
	}
}

// Expressions reads the expressions of a rule.
func Expressions(data []byte) []Expression {
	var list []Expression
	for _, e := range Elements(data) {
		list = append(list, Expression{e.Text(unix.NFTA_EXPR_NAME), e[unix.NFTA_EXPR_DATA]})
	}
	return list
}

// Encode writes attributes of a message.
type Encode = func(*netlink.AttributeEncoder)

// NamedChain selects a chain of a table, or names it in a change.
func NamedChain(table, name string) Encode {
	return func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, name)
	}
}

// RulesOf selects the rules of a table or, unless the chain is "", of one of its chains.
func RulesOf(table, chain string) Encode {
	return func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		if chain != "" {
			e.String(unix.NFTA_RULE_CHAIN, chain)
		}
	}
}

// NumberedRule selects a rule of a chain by its handle.
func NumberedRule(table, chain string, handle uint64) Encode {
	return func(e *netlink.AttributeEncoder) {
		RulesOf(table, chain)(e)
		e.Uint64(unix.NFTA_RULE_HANDLE, handle)
	}
}

// SetsOf selects the sets of a table.
func SetsOf(table string) Encode {
	return func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_SET_TABLE, table) }
}

// ElementsOf selects the elements of a set.
func ElementsOf(table, set string) Encode {
	return func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	}
}
