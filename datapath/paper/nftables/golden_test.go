package nftables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGoldenListings reads what nft lists of the rulesets in testdata/rulesets: the print is the same, and the JSON has the same
// values. "go test -run TestRulesets -update" writes the listings.
func TestGoldenListings(t *testing.T) {
	files, err := filepath.Glob("testdata/listings/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, json := readTestFile(t, file), readTestFile(t, strings.TrimSuffix(file, ".txt")+".json")
			r := readString(t, file, text)
			noUnknowns(t, r)
			if d := firstDifference(text, printed(t, r, Format{Handles: true})); d != "" {
				t.Errorf("the print differs: %s", d)
			}
			checkJSON(t, text, json, strings.Contains(file, ".installed."))
			for _, table := range r.Tables {
				for _, c := range table.Chains {
					for _, rule := range c.Rules {
						if s := rule.String(); s != rule.Text {
							t.Errorf("%s: %q is printed %q", rule.Position, rule.Text, s)
						}
					}
				}
			}
		})
	}
}

func readTestFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
