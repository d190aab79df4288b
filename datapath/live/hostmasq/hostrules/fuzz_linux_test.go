package hostrules

import (
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// encode makes attributes of numbers (of 32 bits), strings, bytes, and nested attributes.
func encode(pairs ...any) []byte {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = nft.ByteOrder
	for i := 0; i < len(pairs); i += 2 {
		t := uint16(pairs[i].(int))
		switch v := pairs[i+1].(type) {
		case int:
			e.Uint32(t, uint32(v))
		case uint64:
			e.Uint64(t, v)
		case string:
			e.String(t, v)
		case []byte:
			e.Bytes(t, v)
		}
	}
	b, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return b
}

func value(b ...byte) []byte { return encode(unix.NFTA_DATA_VALUE, b) }

// expression is one of a rule.
func expression(name string, pairs ...any) []byte {
	return encode(unix.NFTA_LIST_ELEM, encode(unix.NFTA_EXPR_NAME, name, unix.NFTA_EXPR_DATA, encode(pairs...)))
}

func concat(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// samples are rules, one for each kind of expression at least.
var samples = func() [][]byte {
	meta := func(key int) []byte { return expression("meta", unix.NFTA_META_DREG, 1, unix.NFTA_META_KEY, key) }
	cmp := func(op int, b ...byte) []byte {
		return expression("cmp", unix.NFTA_CMP_SREG, 1, unix.NFTA_CMP_OP, op, unix.NFTA_CMP_DATA, value(b...))
	}
	payload := func(base, offset, size int) []byte {
		return expression("payload", unix.NFTA_PAYLOAD_DREG, 1, unix.NFTA_PAYLOAD_BASE, base, unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, size)
	}
	verdict := func(code int, chain string) []byte {
		return expression("immediate", unix.NFTA_IMMEDIATE_DREG, 0, unix.NFTA_IMMEDIATE_DATA,
			encode(unix.NFTA_DATA_VERDICT, encode(unix.NFTA_VERDICT_CODE, code, unix.NFTA_VERDICT_CHAIN, chain)))
	}
	immediate := expression("immediate", unix.NFTA_IMMEDIATE_DREG, 1, unix.NFTA_IMMEDIATE_DATA, value(192, 0, 2, 1))
	bitwise := expression("bitwise", unix.NFTA_BITWISE_SREG, 1, unix.NFTA_BITWISE_DREG, 1, unix.NFTA_BITWISE_LEN, 4,
		unix.NFTA_BITWISE_MASK, value(0, 0x40, 0, 0), unix.NFTA_BITWISE_XOR, value(0, 0, 0, 1))
	lookup := func(set string, pairs ...any) []byte {
		return expression("lookup", append([]any{unix.NFTA_LOOKUP_SREG, 1, unix.NFTA_LOOKUP_SET, set}, pairs...)...)
	}
	ct := func(key int, pairs ...any) []byte {
		return expression("ct", append([]any{unix.NFTA_CT_DREG, 1, unix.NFTA_CT_KEY, key}, pairs...)...)
	}
	tcp := concat(meta(unix.NFT_META_L4PROTO), cmp(unix.NFT_CMP_EQ, 6))
	return [][]byte{
		concat(meta(unix.NFT_META_NFPROTO), cmp(unix.NFT_CMP_EQ, 2), payload(1, 16, 4), cmp(unix.NFT_CMP_NEQ, 192, 0, 2, 1), verdict(unix.NFT_RETURN, "")),
		concat(payload(1, 12, 4), bitwise, cmp(unix.NFT_CMP_EQ, 0, 0, 0, 0), verdict(unix.NFT_JUMP, "a")),
		concat(payload(1, 12, 4), lookup("hosts"), payload(1, 16, 4), lookup("nets", unix.NFTA_LOOKUP_FLAGS, 1), verdict(unix.NFT_GOTO, "a")),
		concat(payload(1, 12, 4), lookup("verdicts", unix.NFTA_LOOKUP_DREG, 0)),
		concat(tcp, payload(2, 2, 2), cmp(unix.NFT_CMP_GTE, 0, 80), cmp(unix.NFT_CMP_LTE, 0, 90), payload(2, 13, 1), cmp(unix.NFT_CMP_NEQ, 0), verdict(1, "")),
		concat(tcp, payload(2, 0, 2), lookup("ports"), expression("range", unix.NFTA_RANGE_SREG, 1, unix.NFTA_RANGE_OP, 1, unix.NFTA_RANGE_FROM_DATA, value(0, 1), unix.NFTA_RANGE_TO_DATA, value(0, 9))),
		concat(meta(unix.NFT_META_OIFNAME), cmp(unix.NFT_CMP_EQ, 'e', 't', 'h'), meta(unix.NFT_META_IIF), cmp(unix.NFT_CMP_EQ, 1, 0, 0, 0), expression("masq", unix.NFTA_MASQ_FLAGS, 16)),
		concat(meta(unix.NFT_META_MARK), bitwise, expression("meta", unix.NFTA_META_SREG, 1, unix.NFTA_META_KEY, unix.NFT_META_MARK), immediate,
			expression("nat", unix.NFTA_NAT_TYPE, 0, unix.NFTA_NAT_FAMILY, 2, unix.NFTA_NAT_REG_ADDR_MIN, 1)),
		concat(ct(unix.NFT_CT_STATE), bitwise, cmp(unix.NFT_CMP_NEQ, 0, 0, 0, 0), ct(unix.NFT_CT_MARK), expression("ct", unix.NFTA_CT_SREG, 1, unix.NFTA_CT_KEY, unix.NFT_CT_MARK)),
		concat(ct(unix.NFT_CT_SRC, unix.NFTA_CT_DIRECTION, []byte{0}), cmp(unix.NFT_CMP_EQ, 192, 0, 2), ct(unix.NFT_CT_PROTO_DST, unix.NFTA_CT_DIRECTION, []byte{1}), cmp(unix.NFT_CMP_EQ, 0, 80)),
		concat(expression("fib", unix.NFTA_FIB_DREG, 1, unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR), cmp(unix.NFT_CMP_EQ, 2, 0, 0, 0)),
		concat(expression("limit", unix.NFTA_LIMIT_RATE, uint64(5), unix.NFTA_LIMIT_UNIT, uint64(60), unix.NFTA_LIMIT_BURST, 5), expression("log", unix.NFTA_LOG_PREFIX, "x"), expression("redir"), expression("counter")),
		concat(expression("match", unix.NFTA_MATCH_NAME, "mark", unix.NFTA_MATCH_REV, 1, unix.NFTA_MATCH_INFO, make([]byte, 12)),
			expression("target", unix.NFTA_TARGET_NAME, "MASQUERADE", unix.NFTA_TARGET_REV, 0, unix.NFTA_TARGET_INFO, make([]byte, 24))),
		concat(expression("numgen"), expression("byteorder", unix.NFTA_BYTEORDER_SREG, 1, unix.NFTA_BYTEORDER_DREG, 1), expression("dynset"), expression("queue")),
		concat(expression("match"), expression("match"), expression("target"), expression("")),
	}
}()

// sampleSets are what the samples look up.
func sampleSets(data []byte) map[string]*collected {
	sets := make(map[string]*collected)
	for name, s := range map[string]*collected{
		"hosts": {keySize: 4, valueSize: 4}, "nets": {keySize: 4, flags: unix.NFT_SET_INTERVAL}, "ports": {keySize: 2}, "verdicts": {keySize: 4, flags: unix.NFT_SET_MAP},
	} {
		s.elements = nft.Elements(data)
		s.sort()
		sets[name] = s
	}
	return sets
}

// FuzzTranslate: no message of the kernel causes a panic; each rule that is made has a
// place, and a rule with an unknown expression is marked so.
func FuzzTranslate(f *testing.F) {
	element := func(pairs ...any) []byte { return encode(unix.NFTA_LIST_ELEM, encode(pairs...)) }
	sampleElements := concat(
		element(unix.NFTA_SET_ELEM_KEY, value(192, 0, 2, 1), unix.NFTA_SET_ELEM_DATA, encode(unix.NFTA_DATA_VERDICT, encode(unix.NFTA_VERDICT_CODE, 1))),
		element(unix.NFTA_SET_ELEM_KEY, value(192, 0, 2, 9), unix.NFTA_SET_ELEM_FLAGS, 1),
		element(unix.NFTA_SET_ELEM_KEY, value(0, 80)))
	for _, s := range samples {
		f.Add(s, sampleElements, true)
		f.Add(s, []byte(nil), false)
	}
	f.Fuzz(func(t *testing.T, expressions, setElements []byte, six bool) {
		family := decision.IPv4
		if six {
			family = decision.IPv6
		}
		table := &nftTable{Table: &nft.Table{Family: unix.NFPROTO_INET, Name: "t", Chains: []*nft.Chain{{Name: "POSTROUTING"}, {Name: "aux"}}}, sets: sampleSets(setElements)}
		list := nft.Expressions(expressions)
		table.rules = []*nft.Rule{{Chain: "POSTROUTING", Expressions: list}, {Chain: "POSTROUTING", Expressions: append([]nft.Expression{{Name: "unknown-expression"}}, list...)}}
		chains := table.chains(family)
		evaluate(family, chains)
		rules := chains[0].Rules
		if len(rules) != 2 || !strings.Contains(rules[1].String(), "unknown-expression …") {
			t.Errorf("%d rules; what is unknown is lost: %s", len(rules), rules)
		}
		_ = commentIn(expressions)
	})
}
