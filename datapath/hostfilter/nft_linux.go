package hostfilter

import (
	"bytes"
	"errors"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/nft"
	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// hooks are those of the built-in chains (linux/netfilter.h, NF_INET_...).
var hooks = map[string]uint32{"INPUT": 1, "FORWARD": 2}

// readNFT reads only the relevant chains: there may be many others.
func (p place) readNFT(want []chain) (*found, error) {
	f := newFound()
	for _, c := range want {
		hook, there, err := p.hookOf(c.from)
		if err != nil {
			return nil, err
		}
		if there && hook == int(hooks[c.from]) {
			f.built[c.from] = nil
			if err := p.eachRule(c.from, f.add); err != nil {
				return nil, err
			}
		}
		if _, there, err = p.hookOf(c.name); err != nil {
			return nil, err
		}
		if there {
			f.own[c.name] = nil
			if err := p.eachRule(c.name, f.add); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// hookOf reports whether the table has the chain, and the hook of a base chain of type filter; -1:
// no such base chain.
func (p place) hookOf(name string) (hook int, there bool, err error) {
	encoder := netlink.NewAttributeEncoder()
	encoder.ByteOrder = nft.ByteOrder
	encoder.String(unix.NFTA_CHAIN_TABLE, filterTable)
	encoder.String(unix.NFTA_CHAIN_NAME, name)
	attributes, err := encoder.Encode()
	if err != nil {
		return 0, false, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, false, err
	}
	defer conn.Close() // nothing was written
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: nft.MessageType(unix.NFT_MSG_GETCHAIN), Flags: netlink.Request},
		Data:   append(nft.Header(nft.Family(p.family)), attributes...),
	})
	switch {
	// No chain or table; no nftables.
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	hook, kind := -1, ""
	for _, m := range messages {
		_, ad, err := nft.Body(m)
		if err != nil {
			return 0, false, err
		}
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TYPE:
				kind = ad.String()
			case unix.NFTA_CHAIN_HOOK:
				ad.Nested(func(h *netlink.AttributeDecoder) error {
					for h.Next() {
						if h.Type() == unix.NFTA_HOOK_HOOKNUM {
							hook = int(h.Uint32())
						}
					}
					return nil
				})
			}
		}
		if err := ad.Err(); err != nil {
			return 0, false, err
		}
	}
	if kind != "filter" {
		hook = -1
	}
	return hook, true, nil
}

// eachRule calls do for each rule of a chain, in order.
func (p place) eachRule(chain string, do func(chain string, id uint64, r rule)) error {
	filter := func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, filterTable)
		e.String(unix.NFTA_RULE_CHAIN, chain)
	}
	return nft.Dump(nft.Family(p.family), unix.NFT_MSG_GETRULE, filter, func(_ uint8, ad *netlink.AttributeDecoder) {
		table, in, id := "", "", uint64(0)
		var r decoded
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				in = ad.String()
			case unix.NFTA_RULE_HANDLE:
				id = ad.Uint64()
			case unix.NFTA_RULE_EXPRESSIONS:
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(r.expression)
					}
					return nil
				})
			}
		}
		if table == filterTable && in == chain {
			do(chain, id, r.rule)
		}
	})
}

// decoded is a rule that is being decoded.
type decoded struct {
	rule
	l4proto bool // the protocol is in the register
}

// fields are the attributes of an expression's data.
type fields map[uint16][]byte

func (f fields) u32(t uint16) uint32 {
	if b := f[t]; len(b) == 4 {
		return nft.ByteOrder.Uint32(b)
	}
	return 0
}

func (f fields) text(t uint16) string { return strings.TrimRight(string(f[t]), "\x00") }

func (f fields) nested(t uint16) fields {
	ad, err := netlink.NewAttributeDecoder(f[t])
	if err != nil {
		return nil
	}
	return fieldsOf(ad)
}

func fieldsOf(ad *netlink.AttributeDecoder) fields {
	f := make(fields)
	for ad.Next() {
		f[ad.Type()] = bytes.Clone(ad.Bytes())
	}
	return f
}

func (r *decoded) expression(ad *netlink.AttributeDecoder) error {
	e := fieldsOf(ad)
	data := e.nested(unix.NFTA_EXPR_DATA)
	switch e.text(unix.NFTA_EXPR_NAME) {
	case "counter":
	case "match":
		r.Matches = append(r.Matches, xtables.Extension{
			Name: data.text(unix.NFTA_MATCH_NAME), Revision: uint8(data.u32(unix.NFTA_MATCH_REV)), Data: data[unix.NFTA_MATCH_INFO],
		})
	case "meta":
		r.l4proto = data.u32(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO
		r.other = r.other || !r.l4proto
	case "cmp":
		value := data.nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE]
		if !r.l4proto || data.u32(unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ || len(value) != 1 {
			r.other = true
			break
		}
		r.other = r.other || r.Protocol != 0 || value[0] == 0
		r.Protocol = value[0]
	case "immediate":
		verdict := data.nested(unix.NFTA_IMMEDIATE_DATA).nested(unix.NFTA_DATA_VERDICT)
		switch int32(verdict.u32(unix.NFTA_VERDICT_CODE)) {
		case nfAccept:
			r.accept, r.to = true, ""
		case unix.NFT_JUMP:
			r.accept, r.to = false, verdict.text(unix.NFTA_VERDICT_CHAIN)
		default:
			r.other = true
		}
	default:
		r.other = true
	}
	return nil
}

const nfAccept = 1 // NF_ACCEPT (linux/netfilter.h)

// changeNFT makes the changes in one transaction.
func (p place) changeNFT(differences []difference) error {
	var t nft.Transaction
	for _, d := range differences {
		named := func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, filterTable)
			e.String(unix.NFTA_CHAIN_NAME, d.name)
		}
		rulesOf := func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_RULE_TABLE, filterTable)
			e.String(unix.NFTA_RULE_CHAIN, d.name)
		}
		if d.remove {
			for _, id := range d.jumps {
				t.Add(nft.Family(p.family), unix.NFT_MSG_DELRULE, 0, func(e *netlink.AttributeEncoder) {
					e.String(unix.NFTA_RULE_TABLE, filterTable)
					e.String(unix.NFTA_RULE_CHAIN, d.from)
					e.Uint64(unix.NFTA_RULE_HANDLE, id)
				})
			}
			t.Add(nft.Family(p.family), unix.NFT_MSG_DELRULE, 0, rulesOf)
			t.Add(nft.Family(p.family), unix.NFT_MSG_DELCHAIN, 0, named)
			continue
		}
		if d.create {
			t.Add(nft.Family(p.family), unix.NFT_MSG_NEWCHAIN, netlink.Create, named)
		}
		if d.refill && !d.create {
			t.Add(nft.Family(p.family), unix.NFT_MSG_DELRULE, 0, rulesOf)
		}
		if d.refill {
			for _, c := range d.want {
				p.addRule(&t, d.name, netlink.Append, c, nfAccept, "")
			}
		}
		if d.hook { // without NLM_F_APPEND: at the top
			p.addRule(&t, d.from, 0, d.jump, unix.NFT_JUMP, d.name)
		}
	}
	err := t.Run()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ERESTART) {
		return errors.Join(errChanged, err)
	}
	return err
}

// addRule adds a rule in the form that iptables-nft gives it: matches in xtables' structs, a
// counter and a verdict.
func (p place) addRule(t *nft.Transaction, chain string, flags netlink.HeaderFlags, c xtables.Conditions, verdict int32, to string) {
	t.Add(nft.Family(p.family), unix.NFT_MSG_NEWRULE, netlink.Create|flags, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, filterTable)
		e.String(unix.NFTA_RULE_CHAIN, chain)
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
