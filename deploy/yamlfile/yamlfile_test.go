package yamlfile_test

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/yamlfile"
)

type document struct {
	Name  string
	Count int
	Items []struct {
		Name string
		Size int
		Tags map[string][]int
	}
}

// TestDecode: mistakes have the line and the field.
func TestDecode(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"valid", "name: a\nitems:\n- {name: b, size: 1}\n", ""},
		{"a value", "name: a\ncount: many\n", "f:2: count: want a number, not the text `many`"},
		{"a long value", "count: a text of many words\n", "f:1: count: want a number, not the text `a text ...`"},
		{"a value in a list", "items:\n- size: 1\n- size: big\n", "f:3: items[1].size: want a number, not the text `big`"},
		{"a value on the next line", "count:\n  many\n", "f:2: count: want a number, not the text `many`"},
		{"equal values on one line", "items: [{size: big}, {name: b, tags: {a: [big]}}]\n", "f:1: items: want a number, not the text `big`"},
		{"one of two values on one line", "items: [{size: big}, {size: 1}]\n", "f:1: items[0].size: want a number, not the text `big`"},
		{"a number", "name: a\nitems: 2\n", "f:2: items: want a list, not the value `2`"},
		{"a list", "name: [a]\n", "f:1: name: want a text, not a list"},
		{"fields", "items:\n- name: b\n  size: {a: b}\n", "f:3: items[0].size: want a number, not fields"},
		{"a text for fields", "items:\n- b\n", "f:2: items[0]: want fields with values, not the text `b`"},
		{"an unknown field", "nam: a\n", `f:1: unknown field "nam"`},
		{"an unknown field below", "items:\n- name: b\n  sizes: 1\n", `f:3: items[0]: unknown field "sizes"`},
		{"a field twice", "items:\n- name: b\n  size: 1\n  size: 2\n", `f:4: items[0].size: mapping key "size" already defined at line 3`},
		{"an alias", "name: &a x\ncount: *a\n", "f:1: name: want a number, not the text `x`"}, // where the text is
		{"no YAML", "name: [\n", "f:2: did not find expected node content"},
		{"several", "nam: a\ncount: many\nitems: x\n", "f:1: unknown field \"nam\"\nf:2: count: want a number, not the text `many`\nf:3: items: want a list, not the text `x`"},
		{"two documents", "name: a\n---\nname: b\n", "f:2: has a second document: want one"},
		{"nothing", "", "f: is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := yamlfile.File{Name: "f"}
			f.Decode([]byte(tt.text), new(document))
			got := ""
			if err := f.Err(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("the mistakes are\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}
