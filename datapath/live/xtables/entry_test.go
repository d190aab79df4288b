package xtables

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

var families = []decision.Family{decision.IPv4, decision.IPv6}

// sample is a table with one base chain, INPUT, without rules.
func sample(t *testing.T, f decision.Family) *Table {
	t.Helper()
	policy := Conditions{}.entry(f, verdictTarget(Accept))
	table := &Table{Family: f, Name: "filter", ValidHooks: 1 << 1}
	if err := table.ParseEntries(append(policy, Conditions{}.entry(f, headTarget(ErrorTarget))...)); err != nil {
		t.Fatal(err)
	}
	return table
}

var samples = []Conditions{
	{},
	{Protocol: 6},
	{Matches: []Extension{Comment("a comment")}},
	{Matches: []Extension{Comment(""), Mark(1, 3)}},
	{Matches: []Extension{Mark(1, 3), Comment("")}},
	{Matches: []Extension{Comment(""), Mark(2, 3)}},
	{Matches: []Extension{States(Related)}},
	{Protocol: 6, Matches: []Extension{DestinationPort(80)}},
	{Protocol: 6, Matches: []Extension{DestinationPort(81)}},
	{Protocol: 6, Matches: []Extension{{Name: "tcp", Revision: 1, Data: DestinationPort(81).Data}}},
	{Protocol: 6, Matches: []Extension{{Name: "odd", Data: []byte{1, 2, 3}}}},
}

// TestConditions: what is written is read again, equal to itself and to nothing else.
func TestConditions(t *testing.T) {
	for _, f := range families {
		d, err := sample(t, f).Draft()
		if err != nil {
			t.Fatal(err)
		}
		own := d.AddChain("own")
		for _, c := range samples {
			d.Chain("INPUT").Rules = append(d.Chain("INPUT").Rules, d.Jump(own, c))
			own.Rules = append(own.Rules, d.Accept(c))
		}
		table, from, err := d.Table()
		if err != nil {
			t.Fatal(err)
		}
		if want := len(samples)*2 + 4; len(from) != want {
			t.Fatalf("%s: %d entries, want %d", f, len(from), want)
		}
		chains, err := table.Chains()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range chains {
			for i, e := range s.Rules {
				got, all := e.Conditions(f)
				for k, c := range samples {
					if same := got.Equal(c); same != (i == k) || !all {
						t.Errorf("%s, chain %s: conditions %v, of which all: %t; equal to %v: %t", f, s.Name, got, all, c, same)
					}
				}
				if (e.To != nil && e.To.Name == "own") != s.Base || (e.Target == StandardTarget && e.Verdict == Accept) == s.Base {
					t.Errorf("%s, chain %s: jumps to %v, verdict %d", f, s.Name, e.To, e.Verdict)
				}
			}
		}
	}
}

// TestJumpToNoChain: a table in which a rule jumps to a place between chains is malformed.
func TestJumpToNoChain(t *testing.T) {
	for _, f := range families {
		d, err := sample(t, f).Draft()
		if err != nil {
			t.Fatal(err)
		}
		d.Chain("INPUT").Rules = []Rule{d.Jump(d.AddChain("own"), Conditions{})}
		table, _, err := d.Table()
		if err != nil {
			t.Fatal(err)
		}
		table.Entries[0].SetVerdict(f, 8)
		if _, err := table.Chains(); err == nil || err.Error() != "chain INPUT, rule 1: a jump to 8, where no chain begins" {
			t.Errorf("%s: error %v", f, err)
		}
	}
}

// TestOtherConditions: a bit anywhere in the generic part but for the protocol is a condition
// that the others do not show.
func TestOtherConditions(t *testing.T) {
	for _, f := range families {
		c := Conditions{Protocol: 6, Matches: []Extension{Mark(1, 1)}}
		protocol := bytes.IndexByte(c.generic(f), c.Protocol)
		for at := range layoutOf(f).generic {
			e := Entry{Raw: c.entry(f, verdictTarget(Accept))}
			e.Raw[at] ^= 2
			if got, all := e.Conditions(f); all != (at == protocol) || got.Equal(c) != (at != protocol) {
				t.Errorf("%s: with a bit at %d conditions %v, of which all: %t", f, at, got, all)
			}
		}
	}
}

// TestMalformed: a match whose size cannot be ends the matches.
func TestMalformed(t *testing.T) {
	for _, f := range families {
		for _, size := range []uint16{0, 31, 1000} {
			e := Entry{Raw: Conditions{Matches: []Extension{Mark(1, 1), Comment("")}}.entry(f, verdictTarget(Accept))}
			byteOrder.PutUint16(e.Raw[layoutOf(f).header+extensionHeader+16:], size)
			p := e.Parts(f)
			if len(p.Matches) != 2 || !p.Matches[0].Equal(Mark(1, 1)) || p.Matches[1].Name != Malformed {
				t.Errorf("%s: size %d: %v", f, size, p.Matches)
			}
			byteOrder.PutUint16(e.Raw[byteOrder.Uint16(e.Raw[layoutOf(f).targetOffset:]):], size)
			if p := e.Parts(f); p.Target.Name != Malformed {
				t.Errorf("%s: size %d: target %v", f, size, p.Target)
			}
		}
	}
}

// TestPadding: of the bytes behind a struct only zeros do not count.
func TestPadding(t *testing.T) {
	x := Extension{Name: "x", Data: []byte{0, 1}}
	for _, c := range []struct {
		data []byte
		want bool
	}{
		{[]byte{0, 1}, true}, {[]byte{0, 1, 0, 0}, true}, {[]byte{0, 1, 0, 2}, false}, {[]byte{0}, false}, {[]byte{1}, false}, {nil, false},
	} {
		y := Extension{Name: "x", Data: c.data}
		if x.Equal(y) != c.want || y.Equal(x) != c.want {
			t.Errorf("%v equals %v: %t, want %t", x, y, !c.want, c.want)
		}
	}
	if x.Equal(Extension{Name: "y", Data: x.Data}) || x.Equal(Extension{Name: "x", Revision: 1, Data: x.Data}) {
		t.Error("name and revision do not count")
	}
}

// TestLongComment: it is cut off, and ends with a NUL.
func TestLongComment(t *testing.T) {
	data := Comment(strings.Repeat("x", 300)).Data
	if len(data) != 256 || data[254] != 'x' || data[255] != 0 || !slices.Equal(data, Comment(strings.Repeat("x", 255)).Data) {
		t.Errorf("%d bytes, the last ones %q", len(data), data[250:])
	}
}
