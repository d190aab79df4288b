package persistent

import (
	"hash/maphash"
	"slices"
)

// Edit is a set of uncommitted changes. It starts from a version, which it does not change. It is
// not safe for concurrent use.
type Edit[K comparable, V any] struct {
	m     Map[K, V]
	owner *byte // marks the nodes that no version has yet
}

// Edit begins a change.
func (m Map[K, V]) Edit() *Edit[K, V] { return &Edit[K, V]{m: m, owner: new(byte)} }

// Map returns the version as changed so far. The edit can continue.
func (e *Edit[K, V]) Map() Map[K, V] {
	e.owner = new(byte) // its nodes belong to the version from now on
	return e.m
}

// Get looks a key up in the version as changed so far.
func (e *Edit[K, V]) Get(key K) (V, bool) { return e.m.Get(key) }

// Set sets the value of a key.
func (e *Edit[K, V]) Set(key K, value V) {
	root, added := e.set(e.m.root, pair[K, V]{key, value}, maphash.Comparable(seed, key), 0)
	e.m.root = root
	if added {
		e.m.len++
	}
}

// Delete removes a key, if it exists.
func (e *Edit[K, V]) Delete(key K) {
	root, deleted := e.delete(e.m.root, key, maphash.Comparable(seed, key), 0)
	if deleted {
		e.m.root = root
		e.m.len--
	}
}

// own returns a node that may be changed.
func (e *Edit[K, V]) own(n *node[K, V]) *node[K, V] {
	switch {
	case n == nil:
		return &node[K, V]{owner: e.owner}
	case n.owner == e.owner:
		return n
	}
	return &node[K, V]{n.hasPair, n.hasNode, slices.Clone(n.pairs), slices.Clone(n.nodes), e.owner}
}

func (e *Edit[K, V]) set(n *node[K, V], p pair[K, V], hash uint64, shift uint) (_ *node[K, V], added bool) {
	n = e.own(n)
	if shift >= hashBits {
		if i := n.find(p.key); i >= 0 {
			n.pairs[i] = p
			return n, false
		}
		n.pairs = append(n.pairs, p)
		return n, true
	}
	bit := bitOf(hash, shift)
	switch {
	case n.hasNode&bit != 0:
		i := rank(n.hasNode, bit)
		n.nodes[i], added = e.set(n.nodes[i], p, hash, shift+width)
		return n, added
	case n.hasPair&bit == 0:
		n.pairs = slices.Insert(n.pairs, rank(n.hasPair, bit), p)
		n.hasPair |= bit
		return n, true
	}
	i := rank(n.hasPair, bit)
	if n.pairs[i].key == p.key {
		n.pairs[i] = p
		return n, false
	}
	// Two keys at one place: both go down a level.
	other := n.pairs[i]
	child, _ := e.set(nil, other, maphash.Comparable(seed, other.key), shift+width)
	child, _ = e.set(child, p, hash, shift+width)
	n.pairs, n.hasPair = slices.Delete(n.pairs, i, i+1), n.hasPair&^bit
	n.nodes, n.hasNode = slices.Insert(n.nodes, rank(n.hasNode, bit), child), n.hasNode|bit
	return n, true
}

// delete returns nil for a node that has become empty.
func (e *Edit[K, V]) delete(n *node[K, V], key K, hash uint64, shift uint) (_ *node[K, V], deleted bool) {
	if n == nil {
		return n, false
	}
	if shift >= hashBits {
		i := n.find(key)
		if i < 0 {
			return n, false
		}
		n = e.own(n)
		n.pairs = slices.Delete(n.pairs, i, i+1)
		return n.orNil(), true
	}
	bit := bitOf(hash, shift)
	switch {
	case n.hasPair&bit != 0:
		i := rank(n.hasPair, bit)
		if n.pairs[i].key != key {
			return n, false
		}
		n = e.own(n)
		n.pairs, n.hasPair = slices.Delete(n.pairs, i, i+1), n.hasPair&^bit
		return n.orNil(), true
	case n.hasNode&bit == 0:
		return n, false
	}
	i := rank(n.hasNode, bit)
	child, deleted := e.delete(n.nodes[i], key, hash, shift+width)
	if !deleted {
		return n, false
	}
	n = e.own(n)
	switch {
	case child == nil:
		n.nodes, n.hasNode = slices.Delete(n.nodes, i, i+1), n.hasNode&^bit
	case len(child.nodes) == 0 && len(child.pairs) == 1:
		// The last pair moves up, so that the trie shrinks.
		n.nodes, n.hasNode = slices.Delete(n.nodes, i, i+1), n.hasNode&^bit
		n.pairs, n.hasPair = slices.Insert(n.pairs, rank(n.hasPair, bit), child.pairs[0]), n.hasPair|bit
	default:
		n.nodes[i] = child
	}
	return n.orNil(), true
}

func (n *node[K, V]) orNil() *node[K, V] {
	if len(n.pairs)+len(n.nodes) == 0 {
		return nil
	}
	return n
}
