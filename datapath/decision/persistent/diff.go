package persistent

import (
	"hash/maphash"
	"math/bits"
)

// Diff returns the keys whose pairs differ between two versions, with the old and the new value;
// nil: the key is missing. A pair that was set again may be among them although its value is
// equal. The time is proportional to the changes from one version to the other, not to their size.
// The values are read only.
func Diff[K comparable, V any](from, to Map[K, V], changed func(key K, before, after *V)) {
	diff(from.root, to.root, 0, changed)
}

func diff[K comparable, V any](a, b *node[K, V], shift uint, changed func(key K, before, after *V)) {
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
func diffPairs[K comparable, V any](a, b place[K, V], shift uint, changed func(key K, before, after *V)) {
	a.all(func(k K, before V) bool {
		if after, ok := b.get(k, shift); ok {
			changed(k, &before, &after)
		} else {
			changed(k, &before, nil)
		}
		return true
	})
	b.all(func(k K, after V) bool {
		if _, ok := a.get(k, shift); !ok {
			changed(k, nil, &after)
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
