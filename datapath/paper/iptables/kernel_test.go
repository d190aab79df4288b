package iptables

import (
	"bytes"
	"cmp"
	"testing"
)

func anySet(uint16) (string, bool) { return "set", true }

// revisions calls do for every struct that is known, of a match or a target, with its size.
func revisions(do func(x Extension, size int, target bool)) {
	for name, m := range modules {
		for _, r := range m.kernel {
			do(Extension{Name: name, Revision: r.number}, r.size, false)
		}
	}
	for name, t := range targets {
		for _, r := range t.kernel {
			do(Extension{Name: name, Revision: r.number}, r.size, true)
		}
	}
}

// FuzzExtension: every struct is read, of whatever length and content, without a panic; and
// gives something with the module's name.
func FuzzExtension(f *testing.F) {
	revisions(func(x Extension, size int, _ bool) { f.Add(x.Name, x.Revision, make([]byte, size)) })
	f.Fuzz(func(t *testing.T, name string, revision uint8, data []byte) {
		for _, family := range []Family{IPv4, IPv6} {
			x := Extension{name, revision, data}
			m, target := DecodeMatch(family, x, anySet), DecodeTarget(family, x)
			if m == nil || target == nil {
				t.Fatalf("%s revision %d gives nothing", name, revision)
			}
			_ = Tokens([]Match{m}, target)
			if u, ok := m.(UnknownMatch); ok && u.Match != cmp.Or(name, nameless) {
				t.Errorf("%q is called %q", name, u.Match)
			}
		}
	})
}

// TestTooShort: no decoder reads behind its size, whatever the struct contains, and one byte less
// than that is not decoded.
func TestTooShort(t *testing.T) {
	count := 0
	for _, family := range []Family{IPv4, IPv6} {
		for _, fill := range []byte{0, 1, 2, 4, 0x7f, 0xff} {
			revisions(func(x Extension, size int, target bool) {
				count++
				decoded := func(size int) (ok bool) {
					x.Data = bytes.Repeat([]byte{fill}, size)[:size:size]
					if target {
						_, unknown := DecodeTarget(family, x).(UnknownTarget)
						return !unknown
					}
					_, unknown := DecodeMatch(family, x, anySet).(UnknownMatch)
					return !unknown
				}
				_ = decoded(size)
				if size > 0 && decoded(size-1) {
					t.Errorf("%s, revision %d: %d bytes are enough", x.Name, x.Revision, size-1)
				}
			})
		}
	}
	if count == 0 {
		t.Error("no structs are known")
	}
}
