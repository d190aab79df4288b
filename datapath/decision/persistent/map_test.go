package persistent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// Random edits, held against Go's own map: every version keeps what it had, and the
// difference of two versions is exactly what turns one into the other.
func TestVersions(t *testing.T) {
	type version struct {
		m    Map[int, int]
		want map[int]int
	}
	for _, keys := range []int{3, 70, 5000} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(keys)))
			versions := []version{{want: map[int]int{}}}
			for range 60 {
				from := versions[r.IntN(len(versions))]
				e, want := from.m.Edit(), maps.Clone(from.want)
				for range r.IntN(2 * keys) {
					k := r.IntN(keys)
					if r.IntN(2) == 0 {
						v := 1 + r.IntN(1<<40)
						e.Set(k, v)
						want[k] = v
					} else {
						e.Delete(k)
						delete(want, k)
					}
				}
				versions = append(versions, version{e.Map(), want})
				if r.IntN(2) == 0 { // an edit that goes on leaves the version alone
					e.Set(-1, 0)
					e.Delete(r.IntN(keys))
				}
			}
			for _, v := range versions {
				if got := maps.Collect(v.m.All()); !maps.Equal(got, v.want) || v.m.Len() != len(v.want) {
					t.Fatalf("%d pairs, length %d, want %d", len(got), v.m.Len(), len(v.want))
				}
				for k := range keys {
					got, ok := v.m.Get(k)
					if want, has := v.want[k]; got != want || ok != has {
						t.Fatalf("key %d: %d %v, want %d %v", k, got, ok, want, has)
					}
				}
			}
			for range 100 {
				a, b := versions[r.IntN(len(versions))], versions[r.IntN(len(versions))]
				got := maps.Clone(a.want)
				seen := make(map[int]bool)
				Diff(a.m, b.m, func(k, before, after int) {
					if was := a.want[k]; was != before { // 0: it is missing
						t.Fatalf("key %d: before %d", k, before)
					}
					if seen[k] {
						t.Fatalf("key %d: returned twice", k)
					}
					seen[k] = true
					if after == 0 {
						delete(got, k)
					} else {
						got[k] = after
					}
				})
				if !maps.Equal(got, b.want) {
					t.Fatal("the difference does not lead to the other version")
				}
			}
		})
	}
}

// Keys whose hashes are the same down to the last bit.
func TestCollisions(t *testing.T) {
	const hash = 0xfedcba9876543210
	e := Map[int, string]{}.Edit()
	n := &node[int, string]{}
	for k := range 3 {
		n, _ = e.set(n, pair[int, string]{k, fmt.Sprint(k)}, hash, hashBits)
	}
	for k := range 3 {
		if v, ok := n.get(k, hash, hashBits); !ok || v != fmt.Sprint(k) {
			t.Errorf("key %d: %q %v", k, v, ok)
		}
	}
	n, deleted := e.delete(n, 1, hash, hashBits)
	if _, ok := n.get(1, hash, hashBits); !deleted || ok || len(n.pairs) != 2 {
		t.Errorf("after deletion: %v %v", n.pairs, ok)
	}
	if n, deleted = e.delete(n, 1, hash, hashBits); deleted || n == nil {
		t.Error("deleted twice")
	}
	var changed []int
	diff(n, nil, hashBits, func(k int, _, after string) {
		if after == "" {
			changed = append(changed, k)
		}
	})
	if len(changed) != 2 {
		t.Errorf("differences %v", changed)
	}
}

// What was deleted leaves nothing behind.
func TestDeletingLeavesTheEmptyMap(t *testing.T) {
	e := Map[int, int]{}.Edit()
	for k := range 10_000 {
		e.Set(k, k)
	}
	full := e.Map()
	for k := range 10_000 {
		e.Delete(k)
	}
	if empty := e.Map(); empty.root != nil || empty.Len() != 0 || full.Len() != 10_000 {
		t.Errorf("root %v, length %d; before %d", empty.root, empty.Len(), full.Len())
	}
}

// One change costs the same whatever the size.
func BenchmarkSet(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			e := Map[int, int]{}.Edit()
			for k := range n {
				e.Set(k, k)
			}
			m := e.Map()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e := m.Edit()
				e.Set(i%n, -1)
				next := e.Map()
				Diff(m, next, func(int, int, int) {})
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			type key struct {
				addr        [16]byte
				port, proto uint16
			}
			e := Map[key, *int]{}.Edit()
			keyOf := func(i int) key { return key{[16]byte{byte(i), byte(i >> 8), byte(i >> 16)}, 80, 6} }
			for k := range n {
				e.Set(keyOf(k), new(int))
			}
			m := e.Map()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, ok := m.Get(keyOf(i * 7919 % n)); !ok {
					b.Fatal("missing")
				}
			}
		})
	}
}
