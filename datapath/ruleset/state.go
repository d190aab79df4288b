package ruleset

import (
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// state is our table as the kernel has it, without handles, counters and elements of sets. States
// as the kernel returns them are compared with each other, so that attributes that only some
// kernels have do no harm.
type state struct {
	table  bool // there is one, and it is not dormant
	chains map[string]chainState
	sets   map[string]string // their definitions
}

// chainState is a chain: its definition and its rules, each as bytes.
type chainState struct {
	definition string
	rules      []string
}

// readState reads the table of the calling thread's network namespace.
func readState() (*state, error) {
	s := &state{chains: make(map[string]chainState), sets: make(map[string]string)}
	err := nft.Dump(unix.NFPROTO_INET, unix.NFT_MSG_GETTABLE, nil, func(_ uint8, ad *netlink.AttributeDecoder) {
		name, flags := "", uint32(0)
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_TABLE_NAME:
				name = ad.String()
			case unix.NFTA_TABLE_FLAGS:
				flags = ad.Uint32()
			}
		}
		s.table = s.table || name == TableName && flags&unix.NFT_TABLE_F_DORMANT == 0
	})
	if err != nil || !s.table {
		return s, err
	}
	err = nft.Dump(unix.NFPROTO_INET, unix.NFT_MSG_GETCHAIN, nil, func(_ uint8, ad *netlink.AttributeDecoder) {
		table, name, definition := "", "", ""
		for ad.Next() {
			switch t := ad.Type(); t {
			case unix.NFTA_CHAIN_TABLE:
				table = ad.String()
			case unix.NFTA_CHAIN_NAME:
				name = ad.String()
			case unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_TYPE, unix.NFTA_CHAIN_POLICY:
				definition += fmt.Sprintf("%d %x ", t, ad.Bytes())
			}
		}
		if table == TableName {
			s.chains[name] = chainState{definition: definition}
		}
	})
	if err != nil {
		return s, err
	}
	err = nft.Dump(unix.NFPROTO_INET, unix.NFT_MSG_GETSET, ofTable(unix.NFTA_SET_TABLE), func(_ uint8, ad *netlink.AttributeDecoder) {
		table, name, definition := "", "", ""
		for ad.Next() {
			switch t := ad.Type(); t {
			case unix.NFTA_SET_TABLE:
				table = ad.String()
			case unix.NFTA_SET_NAME:
				name = ad.String()
			case unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_TIMEOUT:
				definition += fmt.Sprintf("%d %x ", t, ad.Bytes())
			}
		}
		if table == TableName {
			s.sets[name] = definition
		}
	})
	if err != nil {
		return s, err
	}
	return s, nft.Dump(unix.NFPROTO_INET, unix.NFT_MSG_GETRULE, ofTable(unix.NFTA_RULE_TABLE), func(_ uint8, ad *netlink.AttributeDecoder) {
		table, chain, rule := "", "", ""
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				chain = ad.String()
			case unix.NFTA_RULE_EXPRESSIONS:
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(func(e *netlink.AttributeDecoder) error {
							rule += expression(e)
							return nil
						})
					}
					return nil
				})
			}
		}
		if table == TableName {
			c := s.chains[chain]
			c.rules = append(c.rules, rule)
			s.chains[chain] = c
		}
	})
}

// ofTable is a filter for our table, which older kernels ignore for some kinds.
func ofTable(attribute uint16) func(*netlink.AttributeEncoder) {
	return func(e *netlink.AttributeEncoder) { e.String(attribute, TableName) }
}

// expression is an expression of a rule as bytes, without the values of counters.
func expression(ad *netlink.AttributeDecoder) string {
	name, data := "", ""
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data = fmt.Sprintf("%x", ad.Bytes())
		}
	}
	if name == "counter" {
		data = ""
	}
	return name + " " + data + ";"
}

// readElements reads the keys of a set. A missing set has none.
func readElements(name string) (map[string]bool, error) {
	keys := make(map[string]bool)
	filter := func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		e.String(unix.NFTA_SET_ELEM_LIST_SET, name)
	}
	err := nft.Dump(unix.NFPROTO_INET, unix.NFT_MSG_GETSETELEM, filter, func(_ uint8, ad *netlink.AttributeDecoder) {
		for ad.Next() {
			if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				for _, key := range keysOf(ad) {
					keys[key] = true
				}
			}
		}
	})
	return keys, err
}

func keysOf(ad *netlink.AttributeDecoder) (keys []string) {
	descend := func(ad *netlink.AttributeDecoder, attribute uint16, do func(*netlink.AttributeDecoder)) {
		ad.Nested(func(inner *netlink.AttributeDecoder) error {
			for inner.Next() {
				if inner.Type() == attribute {
					do(inner)
				}
			}
			return nil
		})
	}
	descend(ad, unix.NFTA_LIST_ELEM, func(element *netlink.AttributeDecoder) {
		descend(element, unix.NFTA_SET_ELEM_KEY, func(key *netlink.AttributeDecoder) {
			descend(key, unix.NFTA_DATA_VALUE, func(value *netlink.AttributeDecoder) { keys = append(keys, string(value.Bytes())) })
		})
	})
	return keys
}

// matches reports whether the state has the ruleset's chains, with the same number of rules, and
// its sets.
func (s *state) matches(chains []chain, sets []*set) bool {
	if !s.table || len(s.chains) != len(chains) || len(s.sets) != len(sets) {
		return false
	}
	for _, c := range chains {
		if have, ok := s.chains[c.name]; !ok || len(have.rules) != len(c.rules) {
			return false
		}
	}
	return !slices.ContainsFunc(sets, func(set *set) bool { _, ok := s.sets[set.name]; return !ok })
}
