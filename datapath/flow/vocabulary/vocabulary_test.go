package vocabulary_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// TestEveryCodeHasWords: the vocabulary has a text for all codes.
func TestEveryCodeHasWords(t *testing.T) {
	v := vocabulary.Words()
	var all []vocabulary.Word
	for _, w := range v.Events {
		all = append(all, w.Word)
		if w.Tone == "" {
			t.Errorf("no tone for %s", w.Code)
		}
	}
	for _, w := range v.Verdicts {
		all = append(all, w.Word)
	}
	all = slices.Concat(all, v.Reasons, v.Exclusions, v.Masquerades, v.Entries, v.Branches, v.Outcomes, v.Holds)
	for _, w := range all {
		if w.Code == "" || w.Text == "" {
			t.Errorf("code %q: words %q", w.Code, w.Text)
		}
	}
	if text := v.Entries.Of("later"); text != "later" {
		t.Errorf("an entry of a later version: %q, want its code", text)
	}
	// All lists of the vocabulary are there: a field of a later version that is empty shows here.
	for f, value := range reflect.ValueOf(v).Elem().Fields() {
		if value.Len() == 0 {
			t.Errorf("there are no %s", f.Name)
		}
	}
}
