package hostrules

import (
	"bytes"
	"cmp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// set is a set or map of an nftables table.
type set struct {
	name  string
	flags uint32 // NFT_SET_...
	// keySize is that of a key in bytes, each part of a concatenation filled up to
	// registers.
	keySize  int
	elements []element
	ranges   bool // elements include their ends
	// broken is set if an element could not be read.
	broken bool
}

// element is one key, or an interval of them.
type element struct {
	in interval
	// verdict is what a map of verdicts gives; nil for others.
	verdict nft.Attributes
	catchall,
	end bool // valid only while elements are collected: marks where an interval has ended
}

// add takes an element as the kernel returns it.
func (s *set) add(a nft.Attributes) {
	flags := a.Uint32(unix.NFTA_SET_ELEM_FLAGS)
	e := element{catchall: flags&elementCatchall != 0, end: flags&unix.NFT_SET_ELEM_INTERVAL_END != 0}
	key := a.Nested(unix.NFTA_SET_ELEM_KEY)[unix.NFTA_DATA_VALUE]
	e.in = exactly(key)
	if a.Has(nftaSetElemKeyEnd) {
		e.in.last, s.ranges = a.Nested(nftaSetElemKeyEnd)[unix.NFTA_DATA_VALUE], true
	}
	if d := a.Nested(unix.NFTA_SET_ELEM_DATA); d.Has(unix.NFTA_DATA_VERDICT) {
		e.verdict = d.Nested(unix.NFTA_DATA_VERDICT)
	}
	if !e.catchall && (len(key) == 0 || len(key) != len(e.in.last) || len(key) > s.keySize) {
		s.broken = true
		return
	}
	s.elements = append(s.elements, e)
}

// What the unix package does not have (nf_tables.h).
const (
	nftaSetElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END
	elementCatchall   = 2  // NFT_SET_ELEM_CATCHALL
)

// finish sorts the elements, which come in the order of a hash table, and makes intervals from
// beginnings and ends, as sets with intervals of one part (nft_set_rbtree.c) store them.
func (s *set) finish() {
	marks := s.elements
	slices.SortStableFunc(marks, func(a, b element) int {
		ends := func(e element) int {
			if e.end {
				return 0
			}
			return 1
		}
		return cmp.Or(bytes.Compare(a.in.first, b.in.first), cmp.Compare(ends(a), ends(b)))
	})
	if s.flags&unix.NFT_SET_INTERVAL == 0 || s.ranges || s.broken {
		return
	}
	s.elements = nil
	for i, e := range marks {
		switch {
		case e.catchall:
			s.elements = append(s.elements, e)
			continue
		case e.end:
			continue
		}
		e.in.last = bytes.Repeat([]byte{0xff}, len(e.in.first))
		if i+1 < len(marks) {
			e.in.last = before(marks[i+1].in.first)
		}
		if bytes.Compare(e.in.first, e.in.last) > 0 {
			s.broken = true
			return
		}
		s.elements = append(s.elements, e)
	}
}

// before is the number before this one; of zero, the greatest.
func before(n []byte) []byte {
	n = slices.Clone(n)
	for i := len(n) - 1; i >= 0; i-- {
		n[i]--
		if n[i] != 0xff {
			break
		}
	}
	return n
}

// parts cuts an interval of concatenated keys into those of its parts, of these sizes.
func (i interval) parts(loads []*load) ([]interval, bool) {
	var parts []interval
	at := 0
	for _, l := range loads {
		if at+l.size > len(i.first) || len(i.first) != len(i.last) {
			return nil, false
		}
		parts = append(parts, interval{i.first[at : at+l.size], i.last[at : at+l.size]})
		at += words(l.size) * 4
	}
	return parts, true
}
