package docs

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// TestDocumentedFields: each field of the files that people write has its name in the page about them, as code.
func TestDocumentedFields(t *testing.T) {
	for _, tt := range []struct {
		page, tag string
		of        reflect.Type
	}{
		{"lab.md", "json", reflect.TypeFor[manifest.Lab]()},
		{"experiments.md", "yaml", reflect.TypeFor[experiment.Spec]()},
	} {
		text, err := os.ReadFile(tt.page)
		if err != nil {
			t.Fatal(err)
		}
		names := fieldsOf(tt.of, tt.tag, make(map[reflect.Type]bool))
		if len(names) < 20 {
			t.Fatalf("%s: only %q were found", tt.page, names)
		}
		code := codeOf(string(text))
		for _, name := range names {
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(code) {
				t.Errorf("%s: the field %s is not described", tt.page, name)
			}
		}
	}
}

// fieldsOf are the names of a type's fields in files, and of those of its parts that this project defines.
func fieldsOf(of reflect.Type, tag string, seen map[reflect.Type]bool) (names []string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || !strings.Contains(of.PkgPath(), "/nfqproxy/") || seen[of] {
		return nil
	}
	seen[of] = true
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get(tag), ",")
		if name == "-" {
			continue
		}
		if name != "" {
			names = append(names, name)
		}
		names = append(names, fieldsOf(f.Type, tag, seen)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var indentedCode = regexp.MustCompile(`(?m)^    .*$`)

// codeOf is what a page has as code.
func codeOf(page string) string {
	var b strings.Builder
	for _, pattern := range []*regexp.Regexp{fenced, indentedCode, inlineCode} {
		for _, found := range pattern.FindAllString(page, -1) {
			b.WriteString(found + "\n")
		}
	}
	return b.String()
}
