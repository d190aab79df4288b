package iptables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDumpsUnchanged reads what real nodes, and iptables-save 1.8.9 with every match
// and target that it could load, wrote, and the rules of hosts of many kinds: the text
// comes back as it was, and the typed rules mean the same as the text.
func TestDumpsUnchanged(t *testing.T) {
	files, err := filepath.Glob("testdata/*.rules")
	hosts, _ := filepath.Glob("testdata/hosts/*.rules")
	if files = append(files, hosts...); err != nil || len(files) < 28 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d, err := Parse(strings.NewReader(string(text)), Options{})
			if err != nil {
				t.Fatal(err)
			}
			want := IPv4
			if strings.Contains(file, "ipv6") {
				want = IPv6
			}
			if d.Family != want {
				t.Errorf("family %s, want %s", d.Family, want)
			}
			if got := d.String(); got != string(text) {
				t.Errorf("printed:\n%s", firstDifference(got, string(text)))
			}
			sameTyped(t, d)
		})
	}
}

// sameTyped compares each rule's text with that of its matches and target.
func sameTyped(t *testing.T, d *Dump) {
	t.Helper()
	for _, table := range d.Tables {
		for _, r := range table.Rules {
			made := Rule{Chain: r.Chain, words: new(Tokens(r.Matches, r.Target))}
			if made.String() != r.String() {
				t.Errorf("line %d: typed %s\nwas        %s", r.Line, &made, r)
			}
		}
	}
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "got  " + a[i] + "\nwant " + b[i]
		}
	}
	return "one is longer"
}
