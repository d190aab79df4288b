package xtables

import (
	"cmp"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// rawExtension is a struct xt_entry_match or xt_entry_target.
func rawExtension(name string, revision uint8, data []byte) []byte {
	raw := make([]byte, extensionHeader+(len(data)+7)&^7)
	byteOrder.PutUint16(raw, uint16(len(raw)))
	copy(raw[2:], name)
	raw[31] = revision
	copy(raw[extensionHeader:], data)
	return raw
}

// rawEntry is a rule with a match and a target.
func rawEntry(f iptables.Family, match, target []byte) []byte {
	l := layoutOf(f)
	e := append(make([]byte, l.header), match...)
	byteOrder.PutUint16(e[l.targetOffset:], uint16(len(e)))
	e = append(e, target...)
	byteOrder.PutUint16(e[l.targetOffset+2:], uint16(len(e)))
	return e
}

func verdict(v int32) []byte {
	return rawExtension(StandardTarget, 0, byteOrder.AppendUint32(nil, uint32(v)))
}

// sampleTable is a table of one base chain, POSTROUTING, with one rule, and of one
// chain with none.
func sampleTable(f iptables.Family, match, target []byte) *Table {
	first := rawEntry(f, match, target)
	policy := rawEntry(f, nil, verdict(verdictAccept))
	data := append(append([]byte(nil), first...), policy...)
	data = append(data, rawEntry(f, nil, rawExtension(ErrorTarget, 0, append([]byte("inner"), make([]byte, 25)...)))...)
	data = append(data, rawEntry(f, nil, verdict(verdictReturn))...)
	data = append(data, rawEntry(f, nil, rawExtension(ErrorTarget, 0, append([]byte("ERROR"), make([]byte, 25)...)))...)
	t := &Table{Family: f, Name: "nat", ValidHooks: 1 << 4}
	t.Underflow[4] = uint32(len(first))
	if err := t.ParseEntries(data); err != nil {
		panic(err)
	}
	return t
}

func anySet(uint16) (string, bool) { return "set", true }

// FuzzRules: whatever the kernel gives, nothing panics, and no rule is lost.
func FuzzRules(f *testing.F) {
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		for x, d := range matches {
			t := sampleTable(family, rawExtension(x.name, x.n, make([]byte, d.size)), verdict(verdictAccept))
			f.Add(joined(t), family == iptables.IPv6, t.HookEntry[4], t.Underflow[4])
		}
		for x, d := range targets {
			t := sampleTable(family, nil, rawExtension(x.name, x.n, make([]byte, d.size)))
			f.Add(joined(t), family == iptables.IPv6, t.HookEntry[4], t.Underflow[4])
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, six bool, first, last uint32) {
		table := &Table{Family: iptables.IPv4, Name: "nat", ValidHooks: 1 << 4}
		if six {
			table.Family = iptables.IPv6
		}
		table.HookEntry[4], table.Underflow[4] = first, last
		if table.ParseEntries(data) != nil {
			return
		}
		_ = table.Fingerprint()
		spans, err := table.Spans()
		if err != nil {
			return
		}
		rules := 0
		for _, s := range spans {
			rules += s.End - s.First - 1
		}
		for _, set := range []SetName{nil, anySet} {
			out, err := table.Rules(set)
			if err == nil && len(out.Rules) != rules {
				t.Errorf("%d rules, want %d", len(out.Rules), rules)
			}
		}
	})
}

// FuzzExtension: every struct is read, of whatever length and content, without a panic; and
// gives something with the module's name.
func FuzzExtension(f *testing.F) {
	for x, d := range matches {
		f.Add(x.name, x.n, make([]byte, d.size))
	}
	for x, d := range targets {
		f.Add(x.name, x.n, make([]byte, d.size))
	}
	f.Fuzz(func(t *testing.T, name string, revision uint8, data []byte) {
		for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
			x := Extension{name, revision, data}
			m, target := DecodeMatch(family, x, anySet), DecodeTarget(family, x)
			if m == nil || target == nil {
				t.Fatalf("%s revision %d gives nothing", name, revision)
			}
			_ = iptables.Tokens([]iptables.Match{m}, target)
			if u, ok := m.(iptables.UnknownMatch); ok && u.Match != cmp.Or(name, nameless) {
				t.Errorf("%q is called %q", name, u.Match)
			}
		}
	})
}

func joined(t *Table) []byte {
	var data []byte
	for _, e := range t.Entries {
		data = append(data, e.Raw...)
	}
	return data
}

// TestTooShort: no decoder reads behind its size, whatever the struct says, and one byte less
// than that is not decoded.
func TestTooShort(t *testing.T) {
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		for _, fill := range []byte{0, 1, 2, 4, 0x7f, 0xff} {
			for x, d := range matches {
				_ = DecodeMatch(family, Extension{x.name, x.n, filled(d.size, fill)}, anySet)
				if _, ok := DecodeMatch(family, Extension{x.name, x.n, filled(d.size-1, fill)}, anySet).(iptables.UnknownMatch); !ok {
					t.Errorf("match %s, revision %d: %d bytes are enough", x.name, x.n, d.size-1)
				}
			}
			for x, d := range targets {
				_ = DecodeTarget(family, Extension{x.name, x.n, filled(d.size, fill)})
				if d.size == 0 {
					continue
				}
				if _, ok := DecodeTarget(family, Extension{x.name, x.n, filled(d.size-1, fill)}).(iptables.UnknownTarget); !ok {
					t.Errorf("target %s, revision %d: %d bytes are enough", x.name, x.n, d.size-1)
				}
			}
		}
	}
}

// filled is a buffer of just so many bytes.
func filled(size int, with byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = with
	}
	return b[:size:size]
}
