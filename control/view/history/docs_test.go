package history

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

const page = "../../../docs/reference/history.md"

// TestDocumentedColumns: the table has each column, in order, with its type.
func TestDocumentedColumns(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Columns\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\| ([a-z, ]+) \\|").FindAllStringSubmatch(text, -1) {
		types := strings.Split(m[2], ", ")
		for i, name := range strings.Split(m[1], ", ") {
			got = append(got, strings.Trim(name, "`")+" "+types[min(i, len(types)-1)])
		}
	}
	var want []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[row]()) {
		name, options, _ := strings.Cut(field.Tag.Get("parquet"), ",")
		kind := field.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		what := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "double"}[kind.Kind()]
		switch {
		case strings.Contains(options, "timestamp"):
			what = "timestamp"
		case what == "":
			what = "integer"
		}
		want = append(want, name+" "+what)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the page has %q\nwant %q", got, want)
	}
}

// TestDocumentedQueries: each name in the queries is a column, or is theirs.
func TestDocumentedQueries(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```(sql|python)\n(.*?)```").FindAllStringSubmatch(string(b), -1)
	if len(blocks) < 5 {
		t.Fatalf("%d queries", len(blocks))
	}
	known := map[string]bool{}
	for _, path := range parquet.SchemaOf(row{}).Columns() {
		known[path[0]] = true
	}
	named := regexp.MustCompile(`\b[a-z]+(_[a-z0-9]+)+\b`) // with an underscore: hardly a word of the language
	theirs := strings.Fields("read_parquet union_by_name row_number quantile_cont p50_ms p99_ms sort_values drop_duplicates")
	used := 0
	for _, block := range blocks {
		for _, name := range named.FindAllString(block[2], -1) {
			switch {
			case known[name]:
				used++
			case !slices.Contains(theirs, name):
				t.Errorf("%s: %s is no column", fmt.Sprintf("%.60q", block[2]), name)
			}
		}
	}
	if used < 15 {
		t.Errorf("%d columns in queries", used)
	}
}
