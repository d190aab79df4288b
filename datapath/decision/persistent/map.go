// Package persistent has an immutable map: a changed version shares all but a few nodes with the
// old one. Versions can be compared in time proportional to their difference.
//
// The form is Bagwell's hash array mapped trie ("Ideal Hash Trees", 2001): each level
// takes the next six bits of a key's hash.
//
// It is a ground package.
package persistent

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
)

// Map is one version of a map: immutable and safe for concurrent use. The zero
// value is the empty map. Copying it is cheap, and copies are the same version.
type Map[K comparable, V any] struct {
	root *node[K, V]
	len  int
}

const (
	width    = 6 // bits of the hash that a level takes
	hashBits = 64
)

// seed is random for each process, so that keys cannot be made to collide.
var seed = maphash.MakeSeed()

// node holds, for each value of its bits of the hash, nothing, a pair or a node. Below the last
// bit there are only pairs, in any order, and the bitmaps are unused.
type node[K comparable, V any] struct {
	hasPair, hasNode uint64
	pairs            []pair[K, V] // in the order of their bits
	nodes            []*node[K, V]
	owner            *byte // the edit that made the node and may change it
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// Len counts the keys.
func (m Map[K, V]) Len() int { return m.len }

// Same reports whether two versions are the same one. Equal maps that were made separately
// are not the same.
func (m Map[K, V]) Same(other Map[K, V]) bool { return m.root == other.root }

// Get looks a key up.
func (m Map[K, V]) Get(key K) (V, bool) { return m.root.get(key, maphash.Comparable(seed, key), 0) }

func (n *node[K, V]) get(key K, hash uint64, shift uint) (value V, ok bool) {
	for ; n != nil && shift < hashBits; shift += width {
		bit := bitOf(hash, shift)
		if n.hasPair&bit != 0 {
			p := &n.pairs[rank(n.hasPair, bit)]
			if p.key == key {
				return p.value, true
			}
			return value, false
		}
		if n.hasNode&bit == 0 {
			return value, false
		}
		n = n.nodes[rank(n.hasNode, bit)]
	}
	if n != nil {
		if i := n.find(key); i >= 0 {
			return n.pairs[i].value, true
		}
	}
	return value, false
}

// All returns the pairs in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.all(yield) }
}

func (n *node[K, V]) all(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for i := range n.pairs {
		if !yield(n.pairs[i].key, n.pairs[i].value) {
			return false
		}
	}
	for _, child := range n.nodes {
		if !child.all(yield) {
			return false
		}
	}
	return true
}

// find looks a key up in a node below the last bit; -1: it is missing.
func (n *node[K, V]) find(key K) int {
	return slices.IndexFunc(n.pairs, func(p pair[K, V]) bool { return p.key == key })
}

func bitOf(hash uint64, shift uint) uint64 { return 1 << (hash >> shift & (1<<width - 1)) }

// rank counts the bits below bit.
func rank(bitmap, bit uint64) int { return bits.OnesCount64(bitmap & (bit - 1)) }

// Diff calls changed for the keys whose pairs differ between two versions, with the old and the new value; the zero value if
// the key is missing. Pairs that were set again, and neighbours of changed ones, may be among them although their values are
// equal. The time is proportional to the changes from one version to the other, not to their size.
func Diff[K comparable, V any](from, to Map[K, V], changed func(key K, before, after V)) {
	diff(from.root, to.root, 0, changed)
}

func diff[K comparable, V any](a, b *node[K, V], shift uint, changed func(key K, before, after V)) {
	switch {
	case a == b:
		return
	case a == nil || b == nil || shift >= hashBits:
		diffPairs(place[K, V]{node: a}, place[K, V]{node: b}, shift, changed)
		return
	}
	for rest := a.hasPair | a.hasNode | b.hasPair | b.hasNode; rest != 0; rest &= rest - 1 {
		bit := uint64(1) << bits.TrailingZeros64(rest)
		left, right := a.at(bit), b.at(bit)
		if left.pair == nil && right.pair == nil {
			diff(left.node, right.node, shift+width, changed)
		} else {
			diffPairs(left, right, shift+width, changed)
		}
	}
}

// diffPairs compares pair by pair what is at two places; the level of a node there
// begins at shift.
func diffPairs[K comparable, V any](a, b place[K, V], shift uint, changed func(key K, before, after V)) {
	a.all(func(k K, before V) bool {
		after, _ := b.get(k, shift)
		changed(k, before, after)
		return true
	})
	b.all(func(k K, after V) bool {
		if before, ok := a.get(k, shift); !ok {
			changed(k, before, after)
		}
		return true
	})
}

// place is what a node has at one value of its bits: a pair, a node or nothing.
type place[K comparable, V any] struct {
	pair *pair[K, V]
	node *node[K, V]
}

func (n *node[K, V]) at(bit uint64) (p place[K, V]) {
	switch {
	case n.hasPair&bit != 0:
		p.pair = &n.pairs[rank(n.hasPair, bit)]
	case n.hasNode&bit != 0:
		p.node = n.nodes[rank(n.hasNode, bit)]
	}
	return p
}

func (p place[K, V]) all(yield func(K, V) bool) {
	if p.pair != nil {
		yield(p.pair.key, p.pair.value)
		return
	}
	p.node.all(yield)
}

func (p place[K, V]) get(key K, shift uint) (value V, ok bool) {
	if p.pair == nil {
		return p.node.get(key, maphash.Comparable(seed, key), shift)
	}
	if p.pair.key != key {
		return value, false
	}
	return p.pair.value, true
}
