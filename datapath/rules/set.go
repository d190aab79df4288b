package rules

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Key is what is looked up in a set: one value, or several of a concatenation. Each of these begins
// at a multiple of four bytes (nf_tables' registers).
type Key []Value

func (k Key) present(p Packet) bool {
	for _, v := range k {
		if _, present := v.Read(p); !present {
			return false
		}
	}
	return true
}

// String is "ip saddr . tcp dport".
func (k Key) String() string {
	var names []string
	for _, v := range k {
		names = append(names, v.String())
	}
	return strings.Join(names, " . ")
}

// Set is a set or a map of nftables.
type Set struct {
	Name string
	// Unreadable: the elements are not known, or change by themselves.
	Unreadable bool
	// KeySize is the size of the keys, each part of a concatenation filled up to registers, and ValueSize that of a
	// map's values, both in bytes.
	KeySize, ValueSize int
	// Elements do not overlap. [Set.Sort] puts them in order.
	Elements []Element
	// Any is the element for all other keys; nil: there is none.
	Any *Element

	single bool // each element is one key: set by Sort
}

// Element is one element, and what a map has for it.
type Element struct {
	Key     Range
	Value   []byte
	Verdict Verdict
}

// Sort puts the elements in the order that lookups need.
func (s *Set) Sort() {
	slices.SortFunc(s.Elements, func(a, b Element) int { return bytes.Compare(a.Key.First, b.Key.First) })
	s.single = !slices.ContainsFunc(s.Elements, func(e Element) bool { return !e.Key.single() })
}

// Find returns the element with the key. A key that is not present has none.
func (s *Set) Find(p Packet, k Key) (e Element, t Truth) {
	if s == nil || s.Unreadable || len(k) == 0 {
		return e, Unknown
	}
	if len(k) == 1 {
		b, present := k[0].Read(p)
		if !present {
			return e, False
		}
		if b.All() {
			return s.search(b.Bytes())
		}
	} else if s.single {
		var room [5 * room]byte
		switch key, t := k.bytes(p, room[:0]); t {
		case True:
			return s.search(key)
		case False:
			return e, False
		}
	}
	for _, e := range s.Elements {
		switch e.Key.matches(p, k) {
		case True:
			return e, True
		case Unknown:
			return e, Unknown
		}
	}
	return s.other()
}

// bytes appends the key as elements have it: False if a part is not present, Unknown if one is not known.
func (k Key) bytes(p Packet, to []byte) ([]byte, Truth) {
	for _, v := range k {
		b, present := v.Read(p)
		switch {
		case !present:
			return nil, False
		case !b.All():
			return nil, Unknown
		}
		to = append(to, b.Bytes()...)
		for len(to)%4 != 0 {
			to = append(to, 0)
		}
	}
	return to, True
}

// other is the result for a key without an element.
func (s *Set) other() (Element, Truth) {
	if s.Any != nil {
		return *s.Any, True
	}
	return Element{}, False
}

// search finds a key of one value that is known.
func (s *Set) search(key []byte) (Element, Truth) {
	i := sort.Search(len(s.Elements), func(i int) bool { return bytes.Compare(s.Elements[i].Key.First, key) > 0 })
	if i > 0 && len(s.Elements[i-1].Key.Last) == len(key) && bytes.Compare(key, s.Elements[i-1].Key.Last) <= 0 {
		return s.Elements[i-1], True
	}
	return s.other()
}

// matches compares a concatenation, part by part.
func (r Range) matches(p Packet, k Key) Truth {
	result, at := True, 0
	for _, v := range k {
		end := at + v.Size()
		if end > len(r.First) || len(r.First) != len(r.Last) {
			return Unknown
		}
		b, present := v.Read(p)
		if !present {
			return False
		}
		switch (Range{r.First[at:end], r.Last[at:end]}).contains(&b) {
		case False:
			return False
		case Unknown:
			result = Unknown
		}
		at += (v.Size() + 3) &^ 3
	}
	return result
}

// String is the set as nft refers to it.
func (s *Set) String() string { return fmt.Sprintf("@%s", s.Name) }
