package docs

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/units"
)

// TestDocumentedFields: each field of the files that people write has its name in the page about them, as code.
func TestDocumentedFields(t *testing.T) {
	for _, tt := range []struct {
		page string
		of   reflect.Type
	}{
		{"reference/lab-file.md", reflect.TypeFor[labfile.Lab]()},
		{"reference/experiments.md", reflect.TypeFor[experiment.Spec]()},
	} {
		text, err := os.ReadFile(tt.page)
		if err != nil {
			t.Fatal(err)
		}
		names := fieldsOf(tt.of, make(map[reflect.Type]bool))
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

// TestDocumentedJSON: the tables about JSON have each field, and no other.
func TestDocumentedJSON(t *testing.T) {
	for _, tt := range []struct {
		page, table string // table is the head of its first column
		more        []string
		of          reflect.Type
	}{
		{"reference/why.md", "answer", nil, reflect.TypeFor[diagnose.Answer]()},
		{"reference/why.md", "finding", []string{"severity"}, reflect.TypeFor[diagnose.Finding]()},
		{"reference/why.md", "examined", nil, reflect.TypeFor[diagnose.Examined]()},
		{"reference/experiments.md", "summary.json", nil, reflect.TypeFor[experiment.Row]()},
		{"reference/experiments.md", "run.json", nil, reflect.TypeFor[experiment.Run]()},
	} {
		text, err := os.ReadFile(tt.page)
		if err != nil {
			t.Fatal(err)
		}
		// The record of a decision has a page of its own, and findings a table.
		seen := map[reflect.Type]bool{reflect.TypeFor[flow.Record](): true}
		if tt.table == "answer" {
			seen[reflect.TypeFor[diagnose.Finding]()] = true
		}
		want := append(tt.more, fieldsOf(tt.of, seen)...)
		_, table, found := strings.Cut(string(text), "\n| "+tt.table+" | meaning |\n")
		if !found {
			t.Fatalf("%s has no table %s", tt.page, tt.table)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		for _, name := range want {
			if !strings.Contains(table, "`"+name+"`") {
				t.Errorf("%s: table %s: the field %s is not described", tt.page, tt.table, name)
			}
		}
		for row := range strings.Lines(table) {
			first, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			for _, name := range inlineCode.FindAllString(first, -1) {
				if !slices.Contains(want, strings.Trim(name, "`")) {
					t.Errorf("%s: table %s: there is no field %s", tt.page, tt.table, name)
				}
			}
		}
	}
}

// TestDocumentedColumns: the table of metrics has each with its unit and its meaning, in the order of the columns.
func TestDocumentedColumns(t *testing.T) {
	text, err := os.ReadFile("reference/experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "| metric | unit | |\n|---|---|---|\n"
	for i := range experiment.Metrics {
		m := &experiment.Metrics[i]
		want += fmt.Sprintf("| `%s` | %s | %s |\n", m.Name, m.Unit(), m.Meaning)
	}
	if !strings.Contains(string(text), want+"\n") {
		t.Errorf("reference/experiments.md: want\n%s", want)
	}
	if version := fmt.Sprintf("### Columns (schema %d)\n", experiment.Schema); !strings.Contains(string(text), version) {
		t.Errorf("reference/experiments.md: want %s", version)
	}
}

// fieldsOf are the names of a type's fields in files, and of those of its parts that this project defines.
func fieldsOf(of reflect.Type, seen map[reflect.Type]bool) (names []string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || !strings.Contains(of.PkgPath(), "/nfqproxy/") || seen[of] {
		return nil
	}
	seen[of] = true
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name != "" {
			names = append(names, name)
		}
		names = append(names, fieldsOf(f.Type, seen)...)
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

// TestDocumentedCourse: docs/how-to/take-the-course.md has the chapters of the course, and the unit of its picture, by their titles.
func TestDocumentedCourse(t *testing.T) {
	page, err := os.ReadFile("how-to/take-the-course.md")
	if err != nil {
		t.Fatal(err)
	}
	c, err := learn.Load(units.Files(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, chapter := range c.Chapters {
		want = append(want, fmt.Sprintf("| %d %s |", chapter.Number, chapter.Title))
		for _, u := range chapter.Units {
			if text, ok := strings.CutPrefix(picturedUnit.FindString(string(page)), u.ID+" "); ok && text != u.Title {
				t.Errorf("the picture has unit %s %q, whose title is %q", u.ID, text, u.Title)
			}
		}
	}
	if got := chapterRow.FindAllString(string(page), -1); !slices.Equal(got, want) {
		t.Errorf("the chapters are %q, want %q", got, want)
	}
}

var (
	chapterRow   = regexp.MustCompile(`(?m)^\| \d [^|]* \|`)
	picturedUnit = regexp.MustCompile(`(?m)^\d\.\d [^(\n]*[^ (\n]`)
)
