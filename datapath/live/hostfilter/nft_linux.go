package hostfilter

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// hooks are those of the built-in chains (linux/netfilter.h, NF_INET_...).
var hooks = map[string]uint32{"INPUT": 1, "FORWARD": 2}

// readNFT reads only the relevant chains: there may be many others.
func (p place) readNFT(want []chain) (*found, error) {
	f := newFound()
	for _, c := range want {
		from, err := p.chain(c.from)
		if err != nil {
			return nil, err
		}
		if from != nil && from.Base && from.Type == "filter" && from.Hook == hooks[c.from] {
			f.built[c.from] = nil
			if err := p.eachRule(c.from, f.add); err != nil {
				return nil, err
			}
		}
		own, err := p.chain(c.name)
		if err != nil {
			return nil, err
		}
		if own != nil {
			f.own[c.name] = nil
			if err := p.eachRule(c.name, f.add); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// chain returns a chain of the table; nil: there is none.
func (p place) chain(name string) (*nft.Chain, error) {
	a, err := nft.Get(nft.Family(p.Family), unix.NFT_MSG_GETCHAIN, nft.NamedChain(filterTable, name))
	if a == nil || err != nil {
		return nil, err
	}
	c := nft.ChainOf(a)
	return &c, nil
}

// eachRule calls do for each rule of a chain, in order.
func (p place) eachRule(chain string, do func(chain string, id uint64, r rule)) error {
	return nft.Dump(nft.Family(p.Family), unix.NFT_MSG_GETRULE, nft.RulesOf(filterTable, chain), func(_ uint8, a nft.Attributes) {
		if r := nft.RuleOf(a); r.Table == filterTable && r.Chain == chain {
			do(chain, r.Handle, decode(r.Expressions))
		}
	})
}

// decode returns the rule of these expressions.
func decode(expressions []nft.Expression) (r rule) {
	l4proto := false // the protocol is in the register
	for _, e := range expressions {
		data := nft.Parse(e.Data)
		switch e.Name {
		case "counter":
		case "match":
			r.Matches = append(r.Matches, xtables.Extension{
				Name: data.Text(unix.NFTA_MATCH_NAME), Revision: uint8(data.Uint32(unix.NFTA_MATCH_REV)), Data: data.Get(unix.NFTA_MATCH_INFO),
			})
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
				p.addRule(&t, d.name, netlink.Append, c, nft.Accept, "")
			}
		}
		if d.hook { // without NLM_F_APPEND: at the top
			p.addRule(&t, d.from, 0, d.jump, unix.NFT_JUMP, d.name)
		}
	}
	err := t.Run()
	if nft.IsChanged(err) {
		return errors.Join(errChanged, err)
	}
	return err
}

// addRule adds a rule in the form that iptables-nft gives it: matches in xtables' structs, a
// counter and a verdict.
func (p place) addRule(t *nft.Transaction, chain string, flags netlink.HeaderFlags, c xtables.Conditions, verdict int32, to string) {
	t.Add(nft.Family(p.Family), unix.NFT_MSG_NEWRULE, netlink.Create|flags, func(e *netlink.AttributeEncoder) {
		nft.RulesOf(filterTable, chain)(e)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			if c.Protocol != 0 {
				expression(e, "meta", func(e *netlink.AttributeEncoder) {
					e.Uint32(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
					e.Uint32(unix.NFTA_META_DREG, unix.NFT_REG_1)
				})
				expression(e, "cmp", func(e *netlink.AttributeEncoder) {
					e.Uint32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
					e.Uint32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
					e.Nested(unix.NFTA_CMP_DATA, func(e *netlink.AttributeEncoder) error {
						e.Bytes(unix.NFTA_DATA_VALUE, []byte{c.Protocol})
						return nil
					})
				})
			}
			for _, x := range c.Matches {
				expression(e, "match", func(e *netlink.AttributeEncoder) {
					e.String(unix.NFTA_MATCH_NAME, x.Name)
					e.Uint32(unix.NFTA_MATCH_REV, uint32(x.Revision))
					e.Bytes(unix.NFTA_MATCH_INFO, x.Data)
				})
			}
			expression(e, "counter", func(e *netlink.AttributeEncoder) {
				e.Uint64(unix.NFTA_COUNTER_BYTES, 0)
				e.Uint64(unix.NFTA_COUNTER_PACKETS, 0)
			})
			expression(e, "immediate", func(e *netlink.AttributeEncoder) {
				e.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
				e.Nested(unix.NFTA_IMMEDIATE_DATA, func(e *netlink.AttributeEncoder) error {
					e.Nested(unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) error {
						e.Uint32(unix.NFTA_VERDICT_CODE, uint32(verdict))
						if to != "" {
							e.String(unix.NFTA_VERDICT_CHAIN, to)
						}
						return nil
					})
					return nil
				})
			})
			return nil
		})
		if c.Protocol != 0 { // match tcp requires it (nft_compat.c, nft_parse_compat)
			e.Nested(unix.NFTA_RULE_COMPAT, func(e *netlink.AttributeEncoder) error {
				e.Uint32(unix.NFTA_RULE_COMPAT_PROTO, uint32(c.Protocol))
				e.Uint32(unix.NFTA_RULE_COMPAT_FLAGS, 0)
				return nil
			})
		}
	})
}

func expression(e *netlink.AttributeEncoder, name string, data func(*netlink.AttributeEncoder)) {
	e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
		e.String(unix.NFTA_EXPR_NAME, name)
		e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
			data(e)
			return nil
		})
		return nil
	})
}
