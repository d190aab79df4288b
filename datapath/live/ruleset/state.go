package ruleset

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// state is one of our tables as the kernel has it, without handles, counters and elements of sets. States
// as the kernel returns them are compared with each other, so that attributes that only some
// kernels have do no harm.
type state struct {
	table bool // there is one, and it is not dormant
	// persistent: it stays when its owner goes.
	persistent bool
	chains     map[string]chainState
	sets       map[string]string // their definitions
}

// chainState is a chain: its definition and its rules, each as bytes.
type chainState struct {
	definition string
	rules      []string
}

// readState reads the table in the calling thread's network namespace.
func (t *table) readState() (*state, error) {
	s := &state{chains: make(map[string]chainState), sets: make(map[string]string)}
	err := nft.Dump(t.nfproto, unix.NFT_MSG_GETTABLE, nil, func(_ uint8, a nft.Attributes) {
		if flags := a.Uint32(unix.NFTA_TABLE_FLAGS); a.Text(unix.NFTA_TABLE_NAME) == TableName && flags&unix.NFT_TABLE_F_DORMANT == 0 {
			s.table, s.persistent = true, flags&tablePersist != 0
		}
	})
	if err != nil || !s.table {
		return s, err
	}
	err = nft.Dump(t.nfproto, unix.NFT_MSG_GETCHAIN, nil, func(_ uint8, a nft.Attributes) {
		if a.Text(unix.NFTA_CHAIN_TABLE) == TableName {
			s.chains[a.Text(unix.NFTA_CHAIN_NAME)] = chainState{definition: definition(a, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_TYPE, unix.NFTA_CHAIN_POLICY)}
		}
	})
	if err != nil {
		return s, err
	}
	// Older kernels ignore the filters.
	err = nft.Dump(t.nfproto, unix.NFT_MSG_GETSET, nft.SetsOf(TableName), func(_ uint8, a nft.Attributes) {
		if a.Text(unix.NFTA_SET_TABLE) == TableName {
			s.sets[a.Text(unix.NFTA_SET_NAME)] = definition(a, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_TIMEOUT)
		}
	})
	if err != nil {
		return s, err
	}
	return s, nft.Dump(t.nfproto, unix.NFT_MSG_GETRULE, nft.RulesOf(TableName, ""), func(_ uint8, a nft.Attributes) {
		if r := nft.RuleOf(a); r.Table == TableName {
			c := s.chains[r.Chain]
			c.rules = append(c.rules, ruleText(r))
			s.chains[r.Chain] = c
		}
	})
}

// definition is the attributes of these types as text.
func definition(a nft.Attributes, types ...uint16) (text string) {
	for _, t := range types {
		if value := a.Get(t); value != nil {
			text += fmt.Sprintf("%d %x ", t, value)
		}
	}
	return text
}

// ruleText is the expressions of a rule as text, without the values of counters.
func ruleText(r nft.Rule) (text string) {
	for _, e := range r.Expressions {
		if e.Name == "counter" {
			e.Data = nil
		}
		text += fmt.Sprintf("%s %x;", e.Name, e.Data)
	}
	return text
}

// readElements reads the elements of a set: their keys and, in a map, their data. A missing set has
// none.
func (t *table) readElements(s *set) (elements map[string]string, err error) {
	read := func() (int, error) {
		elements = make(map[string]string)
		err := nft.Dump(t.nfproto, unix.NFT_MSG_GETSETELEM, nft.ElementsOf(TableName, s.name), func(_ uint8, a nft.Attributes) {
			nft.EachElement(a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(key, data []byte) { elements[string(key)] = string(data) })
		})
		return len(elements), err
	}
	if s.dynamic { // the kernel counts expired elements, too
		_, err = read()
	} else {
		err = nft.ReadSet(t.nfproto, TableName, s.name, read)
	}
	return elements, err
}

// matches reports whether the state has these chains, with the same number of rules, and these sets.
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
