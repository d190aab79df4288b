package ruleset

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
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
	// usable are the names of the sets that are defined as ours.
	usable map[string]bool
}

// chainState is a chain: its definition and its rules, each as bytes.
type chainState struct {
	definition string
	rules      []string
}

// dump passes on the objects of a kind (NFT_MSG_GET...) of the table.
func (t *table) dump(kind int, each func(nft.Attributes)) error {
	return nft.Dump(t.nfproto, kind, nft.NamedTable(TableName), func(_ uint8, a nft.Attributes) {
		// The first attribute of objects of any kind. Older kernels ignore the filter, and some kinds of objects have none.
		if a.IsText(unix.NFTA_TABLE_NAME, TableName) {
			each(a)
		}
	})
}

// readState reads the table in the calling thread's network namespace.
func (t *table) readState() (*state, error) {
	s := &state{chains: make(map[string]chainState), sets: make(map[string]string), usable: make(map[string]bool)}
	err := t.dump(unix.NFT_MSG_GETTABLE, func(a nft.Attributes) {
		flags := a.Uint32(unix.NFTA_TABLE_FLAGS)
		s.table, s.persistent = flags&unix.NFT_TABLE_F_DORMANT == 0, flags&tablePersist != 0
	})
	if err != nil || !s.table {
		return s, err
	}
	return s, errors.Join(
		t.dump(unix.NFT_MSG_GETCHAIN, func(a nft.Attributes) {
			s.chains[a.Text(unix.NFTA_CHAIN_NAME)] = chainState{definition: definition(a, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_TYPE, unix.NFTA_CHAIN_POLICY)}
		}),
		t.dump(unix.NFT_MSG_GETSET, func(a nft.Attributes) {
			name := a.Text(unix.NFTA_SET_NAME)
			s.sets[name] = definition(a, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_TIMEOUT)
			s.usable[name] = slices.ContainsFunc(t.sets, func(own *set) bool { return own.name == name && own.isLike(a) })
		}),
		t.dump(unix.NFT_MSG_GETRULE, func(a nft.Attributes) {
			r := nft.RuleOf(a)
			c := s.chains[r.Chain]
			c.rules = append(c.rules, ruleText(r))
			s.chains[r.Chain] = c
		}))
}

// isLike reports whether the definition of a set is ours.
func (s *set) isLike(a nft.Attributes) bool {
	var dataLength uint32
	if !s.isVerdicts() {
		dataLength = s.data.Bytes
	}
	const all = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT | unix.NFT_SET_MAP | unix.NFT_SET_INTERVAL | unix.NFT_SET_CONSTANT
	// The kernel rounds to its clock's ticks.
	const tick = 10 * time.Millisecond
	rounded := time.Duration(a.Uint64(unix.NFTA_SET_TIMEOUT))*time.Millisecond - s.timeout
	size := a.Nested(unix.NFTA_SET_DESC).Uint32(unix.NFTA_SET_DESC_SIZE)
	return a.Uint32(unix.NFTA_SET_FLAGS)&all == s.flags() && a.Uint32(unix.NFTA_SET_KEY_LEN) == s.key.Bytes &&
		(dataLength == 0 || a.Uint32(unix.NFTA_SET_DATA_LEN) == dataLength) && size == s.size && rounded.Abs() <= tick
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
	if err != nil {
		return nil, fmt.Errorf("read set %s of nftables table %s: %w", s.name, t, err)
	}
	return elements, nil
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

// sum is the same for sets with the same elements, in any order, and practically never for others. With
// it, large sets are compared without a copy of their elements.
type sum struct {
	elements int
	hashes   [2]uint64
}

// sumSeeds make hashes that cannot be foreseen outside of the process.
var sumSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// add adds an element: its key, which has the same length in a whole set, followed by its data.
func (s *sum) add(element []byte) {
	s.elements++
	for i, seed := range sumSeeds {
		s.hashes[i] += maphash.Bytes(seed, element)
	}
}

// expected are the elements that the sets should have for a table.
type expected struct {
	*Ruleset
	table    *decision.Table
	hairpins hairpins
	sums     map[*set]*sum
	element  []byte
	details  map[*set]map[string]string // keys and data; nil: not needed yet
}

func (r *Ruleset) expect(t *decision.Table) *expected {
	e := &expected{Ruleset: r, table: t, sums: make(map[*set]*sum)}
	e.hairpins = e.each(e.add)
	return e
}

// each passes on all elements, and returns the counts of hairpins.
func (e *expected) each(to additions) hairpins {
	e.tables.noteReversePath(to, hostnet.ReversePath{}, e.reversePath)
	return e.empty().changes(e.table, to)
}

// add adds an element that a set should have.
func (e *expected) add(s *set, key, data string) {
	if e.sums[s] == nil {
		e.sums[s] = new(sum)
	}
	e.element = append(append(e.element[:0], key...), data...)
	e.sums[s].add(e.element)
}

// has reports whether a set has exactly these elements, and how many it has. It may be false although it
// has: if the kernel resizes the set, or if several service ports demand one element.
func (e *expected) has(s *set) (bool, int, error) {
	is, should := sum{}, e.sums[s]
	if should == nil {
		should = new(sum)
	}
	err := nft.Dump(s.table.nfproto, unix.NFT_MSG_GETSETELEM, nft.ElementsOf(TableName, s.name), func(_ uint8, a nft.Attributes) {
		nft.EachElement(a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(key, data []byte) {
			e.element = append(append(e.element[:0], key...), data...)
			is.add(e.element)
		})
	})
	if err != nil {
		return false, 0, fmt.Errorf("read set %s of nftables table %s: %w", s.name, s.table, err)
	}
	return is == *should, is.elements, nil
}

// elements are those that a set should have: their keys and data.
func (e *expected) elements(s *set) map[string]string {
	if e.details == nil {
		e.details = make(map[*set]map[string]string)
		for _, of := range e.tables.sets() {
			e.details[of] = make(map[string]string)
		}
		e.each(func(s *set, key, data string) { e.details[s][key] = data })
	}
	return e.details[s]
}

// compare records the changes from the elements that a set has to those that it should have. It returns how many it has,
// how many it lacks, and how many others it has.
func (e *expected) compare(s *set, to difference) (elements, missing, foreign int, err error) {
	equal, elements, err := e.has(s)
	if equal || err != nil {
		return elements, 0, 0, err
	}
	have, err := s.table.readElements(s)
	if err != nil {
		return 0, 0, 0, err
	}
	missing, foreign = to.replace(s, have, e.elements(s))
	return len(have), missing, foreign, nil
}
