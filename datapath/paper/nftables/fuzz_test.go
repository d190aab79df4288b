package nftables

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzText reads anything as text: an error has a place, and what is read can be printed and read again with the same values.
func FuzzText(f *testing.F) {
	for _, pattern := range []string{"testdata/rulesets/[a-j]*.nft", "testdata/every/[a-hj-z]*.nft"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			f.Add(readTestFile(&testing.T{}, file))
		}
	}
	for _, s := range handWritten {
		f.Add(s.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.HasPrefix(strings.TrimSpace(text), "{") {
			return
		}
		again(t, text)
	})
}

// FuzzJSON reads anything as JSON.
func FuzzJSON(f *testing.F) {
	files, _ := filepath.Glob("testdata/listings/[a-g]*.json")
	for _, file := range files {
		f.Add(readTestFile(&testing.T{}, file))
	}
	f.Add(`{"nftables":[{"add":{"rule":{"family":"ip","table":"t","chain":"c","expr":[{"accept":null},{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["new",{"|":[1,2]}]}}]}}},{"flush":{"ruleset":null}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(strings.TrimSpace(text), "{") {
			return
		}
		r, ok := readAny(t, text)
		if ok {
			printed(t, r, Format{Handles: true})
		}
	})
}

func readAny(t *testing.T, text string) (*Ruleset, bool) {
	r, err := Read("f", strings.NewReader(text))
	if err == nil {
		return r, true
	}
	if e := (*Error)(nil); !errors.As(err, &e) || e.Line < 1 || e.Column < 1 || e.Want == "" && e.Err == nil {
		t.Fatalf("the error has no place: %#v", err)
	}
	return nil, false
}

// again checks that the print of a text can be read, and that it is the same when printed once more.
func again(t *testing.T, text string) {
	r, ok := readAny(t, text)
	if !ok {
		return
	}
	first := printed(t, r, Format{})
	if strings.Contains(dump(r), ": Unknown") || strings.ContainsAny(text, "$\"*") {
		return // the text of an unknown statement is kept, with its variables; names in quotation marks lose them
	}
	second, err := Read("again", strings.NewReader(first))
	if err != nil {
		t.Fatalf("cannot read what was printed: %v\n%s", err, first)
	}
	if d := firstDifference(first, printed(t, second, Format{})); d != "" {
		t.Fatalf("printed, read and printed: %s", d)
	}
}
