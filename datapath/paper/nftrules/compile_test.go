package nftrules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// unsupportedRules are the statements that are not understood, with why.
func unsupportedRules(t *testing.T, name string, rs *nftables.Ruleset) (rules int, all []string) {
	t.Helper()
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		d, _ := Compile(rs, family)
		if d == nil {
			continue
		}
		for _, table := range d.Tables {
			for _, r := range table.Rules {
				rules++
				for _, m := range r.Matches {
					if n, ok := m.(iptables.NativeMatch); ok {
						if u, ok := n.Native.(fixed); ok && u.result == iptables.Unknown {
							all = append(all, name+": "+table.Name+" "+r.Chain+": "+u.words+": "+u.why)
						}
					}
				}
			}
		}
	}
	return rules, all
}

// TestListings: the listings of package nftables are understood.
func TestListings(t *testing.T) {
	files, err := filepath.Glob("../nftables/testdata/listings/*")
	if err != nil || len(files) == 0 {
		t.Fatal("no listings", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rs, err := nftables.Read(filepath.Base(name), strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		rules, not := unsupportedRules(t, filepath.Base(name), rs)
		t.Logf("%s: %d rules, %d not understood", filepath.Base(name), rules, len(not))
		for _, n := range not {
			t.Error(n)
		}
	}
}

// TestLowBits: nft lists the module statistic of iptables as a comparison of the low bits of a random number.
func TestLowBits(t *testing.T) {
	random := func() *numgen { return &numgen{mod: 1 << 32} }
	for _, tt := range []struct {
		op   string
		mask []byte
		mod  uint64
	}{
		{"&", []byte{0x7f, 0xff, 0xff, 0xff}, 1 << 31}, {"&", []byte{0xff, 0xff, 0xff, 0xff}, 1 << 32}, {"&", []byte{0, 0, 0, 1}, 2},
		{"&", []byte{0, 0, 0, 2}, 0}, {"&", []byte{0, 0, 0, 0}, 0}, {"|", []byte{0, 0, 0, 1}, 0},
	} {
		n := lowBits(random(), tt.op, tt.mask)
		if (n == nil) != (tt.mod == 0) || n != nil && n.mod != tt.mod {
			t.Errorf("%s %x: %+v, want mod %d", tt.op, tt.mask, n, tt.mod)
		}
	}
	if lowBits(&numgen{mod: 8}, "&", []byte{0, 0, 0, 1}) != nil {
		t.Error("the low bits of numgen")
	}
}
