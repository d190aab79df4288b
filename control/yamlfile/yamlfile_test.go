package yamlfile_test

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

type document struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	Items []struct {
		Name string           `json:"name"`
		Size int              `json:"size"`
		Tags map[string][]int `json:"tags"`
	} `json:"items"`
}

// TestDecode: mistakes have the line and the field.
func TestDecode(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"valid", "name: a\nitems:\n- {name: b, size: 1}\n", ""},
		{"numbers and bools for texts", "name: 080\nitems:\n- {name: on}\n- {name: true}\n", ""},
		{"a value", "name: a\ncount: many\n", `f:2: count: want an integer, have the string "many"`},
		{"a value in a list", "items:\n- size: 1\n- size: big\n", `f:3: items[1].size: want an integer, have the string "big"`},
		{"a value on the next line", "count:\n  many\n", `f:1: count: want an integer, have the string "many"`},
		{"values on one line", "items: [{size: big}, {name: b, tags: {a: [big]}}]\n", "f:1: items[0].size: want an integer, have the string \"big\"\nf:1: items[1].tags[a][0]: want an integer, have the string \"big\""},
		{"a number", "name: a\nitems: 2\n", "f:2: items: want a list, have 2"},
		{"a list", "name: [a]\n", "f:1: name: want a string, have a list"},
		{"fields", "items:\n- name: b\n  size: {a: b}\n", "f:3: items[0].size: want an integer, have an object"},
		{"a text for fields", "items:\n- b\n", `f:2: items[0]: want an object, have the string "b"`},
		{"an unknown field", "nam: a\n", "f:1: nam: unknown field"},
		{"a field in the wrong case", "items:\n- name: b\n  Size: 1\n", `f:3: items[0].Size: unknown field, did you mean "size"?`},
		{"a field twice", "items:\n- name: b\n  size: 1\n  size: 2\n", "f:4: items[0].size: given twice: first in line 3"},
		{"an alias", "name: &a x\ncount: *a\n", `f:2: count: want an integer, have the string "x"`},
		{"an alias of itself", "name: &a [*a]\n", `f:1: anchor "a" contains itself`},
		{"a merge", "items:\n- &a {name: b, size: 1}\n- {<<: *a, size: 2}\n", ""},
		{"no YAML", "name: [\n", "f:1: did not find expected node content"},
		{"several", "nam: a\ncount: many\nitems: x\n", "f:1: nam: unknown field\nf:2: count: want an integer, have the string \"many\"\nf:3: items: want a list, have the string \"x\""},
		{"two documents", "name: a\n---\nname: b\n", "f:2: has a second document: want one"},
		{"nothing", "", "f: is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := yamlfile.File{Name: "f"}
			if v := f.Read([]byte(tt.text)); v != nil {
				f.Into(v, new(document))
			}
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

// TestHeader: a file has its version and kind.
func TestHeader(t *testing.T) {
	const text = "apiVersion: nfqproxy.io/v1alpha1\nkind: Test\nname: a\n"
	for _, tt := range []struct{ old, new, want string }{
		{"", "", ""},
		{"v1alpha1", "v2", "f:1: apiVersion: want nfqproxy.io/v1alpha1"},
		{"kind: Test\n", "", "f:1: kind: want Test"},
		{"name: a", "name: []", "f:3: name: want a string, have a list"},
	} {
		f, d := yamlfile.File{Name: "f"}, new(document)
		f.Decode([]byte(strings.Replace(text, tt.old, tt.new, 1)), "Test", d)
		if err := f.Err(); tt.want == "" && (err != nil || d.Name != "a") || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%v, %+v, want %s", err, d, tt.want)
		}
	}
}
