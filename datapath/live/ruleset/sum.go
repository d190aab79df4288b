package ruleset

import (
	"hash/maphash"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

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
	details  difference // from empty sets; nil: not needed yet
}

func (r *Ruleset) expect(t *decision.Table) *expected {
	e := &expected{Ruleset: r, table: t, sums: make(map[*set]*sum)}
	e.hairpins = r.empty().changes(t, additions(e.add))
	r.tables.noteReversePath(additions(e.add), hostnet.ReversePath{}, r.reversePath)
	return e
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
	return is == *should, is.elements, err
}

// elements are those that a set should have: their keys and data.
func (e *expected) elements(s *set) map[string]string {
	if e.details == nil {
		e.details = make(difference)
		e.empty().changes(e.table, e.details)
		e.tables.noteReversePath(e.details, hostnet.ReversePath{}, e.reversePath)
	}
	return e.details.elements(s)
}
