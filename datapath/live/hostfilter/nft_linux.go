package hostfilter

import (
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// hooks are those of the built-in chains (linux/netfilter.h, NF_INET_...).
var hooks = map[string]uint32{"INPUT": 1, "FORWARD": 2}

// readNFT reads only the relevant chains: there may be many others.
func (p place) readNFT(want []chain) (found, error) {
	f, family := make(found), nft.Family(p.Family)
	for _, c := range want {
		for _, name := range []string{c.from, c.name} {
			a, err := nft.Get(family, unix.NFT_MSG_GETCHAIN, nft.NamedChain(filterTable, name))
			if err != nil {
				return nil, err
			}
			of := nft.ChainOf(a)
			if a == nil || name == c.from && !(of.Base && of.Type == "filter" && of.Hook == hooks[name]) {
				continue
			}
			f[name] = nil
			err = nft.Dump(family, unix.NFT_MSG_GETRULE, nft.RulesOf(filterTable, name), func(_ uint8, a nft.Attributes) {
				if r := nft.RuleOf(a); r.Table == filterTable && r.Chain == name {
					f[name] = append(f[name], decode(r))
				}
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// decode returns the rule of these expressions.
func decode(of nft.Rule) rule {
	r := rule{handle: of.Handle}
	l4proto := false // the protocol is in the register
	for _, e := range of.Expressions {
		data := nft.Parse(e.Data)
		switch e.Name {
		case "counter":
		case "match":
			r.Matches = append(r.Matches, xtables.ExtensionOf(data))
		case "meta":
			l4proto = data.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO
			r.other = r.other || !l4proto
		case "cmp":
			value := data.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE)
			if !l4proto || data.Uint32(unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ || len(value) != 1 {
				r.other = true
				break
			}
			r.other = r.other || r.Protocol != 0 || value[0] == 0
			r.Protocol = value[0]
		case "immediate":
			verdict := data.Nested(unix.NFTA_IMMEDIATE_DATA).Nested(unix.NFTA_DATA_VERDICT)
			switch int32(verdict.Uint32(unix.NFTA_VERDICT_CODE)) {
			case nft.Accept:
				r.accept, r.to = true, ""
			case unix.NFT_JUMP:
				r.accept, r.to = false, verdict.Text(unix.NFTA_VERDICT_CHAIN)
			default:
				r.other = true
			}
		default:
			r.other = true
		}
	}
	return r
}

// changeNFT makes the changes in one transaction.
func (p place) changeNFT(differences []difference) error {
	var t nft.Transaction
	family := nft.Family(p.Family)
	for _, d := range differences {
		chain, rules := nft.NamedChain(filterTable, d.name), nft.RulesOf(filterTable, d.name)
		if d.remove {
			for _, id := range d.jumps {
				t.Add(family, unix.NFT_MSG_DELRULE, 0, nft.NumberedRule(filterTable, d.from, id))
			}
			t.Add(family, unix.NFT_MSG_DELRULE, 0, rules)
			t.Add(family, unix.NFT_MSG_DELCHAIN, 0, chain)
			continue
		}
		if d.create {
			t.Add(family, unix.NFT_MSG_NEWCHAIN, netlink.Create, chain)
		}
		if d.refill && !d.create {
			t.Add(family, unix.NFT_MSG_DELRULE, 0, rules)
		}
		if d.refill {
			for _, c := range d.want {
				addRule(&t, family, d.name, netlink.Append, c, &expr.Verdict{Kind: expr.VerdictAccept})
			}
		}
		if d.hook { // without NLM_F_APPEND: at the top
			addRule(&t, family, d.from, 0, d.jump, &expr.Verdict{Kind: expr.VerdictJump, Chain: d.name})
		}
	}
	return t.Run()
}

// addRule adds a rule in the form that iptables-nft gives it: matches in xtables' structs, a
// counter and a verdict.
func addRule(t *nft.Transaction, family uint8, chain string, flags netlink.HeaderFlags, c xtables.Conditions, verdict *expr.Verdict) {
	var expressions []expr.Any
	var compat nft.Encode
	if c.Protocol != 0 {
		expressions = append(expressions, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{c.Protocol}})
		compat = func(e *netlink.AttributeEncoder) { // match tcp requires it (nft_compat.c, nft_parse_compat)
			e.Nested(unix.NFTA_RULE_COMPAT, func(e *netlink.AttributeEncoder) error {
				e.Uint32(unix.NFTA_RULE_COMPAT_PROTO, uint32(c.Protocol))
				e.Uint32(unix.NFTA_RULE_COMPAT_FLAGS, 0)
				return nil
			})
		}
	}
	for _, x := range c.Matches {
		expressions = append(expressions, &expr.Match{Name: x.Name, Rev: uint32(x.Revision), Info: (*xt.Unknown)(&x.Data)})
	}
	t.AddRule(family, flags, filterTable, chain, append(expressions, &expr.Counter{}, verdict), compat)
}
