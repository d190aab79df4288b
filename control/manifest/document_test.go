package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseSplitsDocuments(t *testing.T) {
	a, b := map[string]any{"a": int64(1)}, map[string]any{"b": int64(2)}
	tests := []struct {
		name, file, content string
		want                []any
	}{
		{"nothing", "x.yaml", "", nil},
		{"one", "x.yaml", "a: 1\n", []any{a}},
		{"no line break at the end", "x.yaml", "a: 1\n---\nb: 2", []any{a, b}},
		{"separators at the ends", "x.yaml", "---\na: 1\n---\nb: 2\n---\n", []any{a, b}},
		{"white space after the separator", "x.yaml", "a: 1\n---  \t\nb: 2\n", []any{a, b}},
		{"comment after the separator", "x.yaml", "a: 1\n--- # two\nb: 2\n", []any{a, b}},
		{"content after the separator", "x.yaml", "a: 1\n--- {b: 2}\n", []any{a, b}},
		{"end markers", "x.yaml", "a: 1\n...\n---\nb: 2\n...\n", []any{a, b}},
		{"an end marker alone separates too", "x.yaml", "a: 1\n...\nb: 2\n", []any{a, b}},
		{"empty documents are not counted", "x.yaml", "# head\n---\n---\na: 1\n---\n# nothing\n---\nb: 2\n", []any{a, b}},
		{"carriage returns", "x.yaml", "a: 1\r\n---\r\nb: 2\r\n", []any{a, b}},
		{"byte order mark", "x.yaml", "\xef\xbb\xbfa: 1\n", []any{a}},
		{"dashes within a text", "x.yaml", "a: |\n  ---\n  x\n", []any{map[string]any{"a": "---\nx\n"}}},
		{"a longer line of dashes is text", "x.yaml", "----\n", []any{"----"}},
		{"JSON values", "x.json", " {\"a\":1}\n\n{\"b\":2} ", []any{a, b}},
		{"JSON in a YAML stream", "x.yaml", "{\"a\":1}\n---\n{\"b\":2}\n", []any{a, b}},
		{"JSON escapes", "x.json", `{"a":"\ud83d\ude00\/"}`, []any{map[string]any{"a": "😀/"}}},
		{"keys that are no strings", "x.yaml", "{1: a, true: b, 1.5: c}", []any{map[string]any{"1": "a", "true": "b", "1.5": "c"}}},
		{"times stay text", "x.yaml", "a: 2024-04-17T18:14:59Z\n", []any{map[string]any{"a": "2024-04-17T18:14:59Z"}}},
		{"big numbers", "x.yaml", "{a: 9223372036854775807, b: 9223372036854775808}", []any{map[string]any{"a": int64(9223372036854775807), "b": float64(9223372036854775808)}}},
		{"big numbers in JSON", "x.json", `{"a": 9223372036854775807, "b": 9223372036854775808}`, []any{map[string]any{"a": int64(9223372036854775807), "b": float64(9223372036854775808)}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []any
			for d := range parse(tt.file, []byte(tt.content), largeList) {
				if d.Err != nil {
					t.Fatal(d.Err)
				}
				got = append(got, d.Value)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %#v, want %#v", got, tt.want)
			}
		})
	}
}

func TestSyntaxErrorsNameTheLineInTheFile(t *testing.T) {
	tests := []struct {
		name, file, content string
		want                []string // of each document; empty: no error
	}{
		{"first YAML document", "x.yaml", "a: 1\nb: [\n", []string{"line 2: did not find expected node content"}},
		{"third YAML document", "x.yaml", "a: 1\n---\n# two\n\nb: 1\n---\nc: {\n", []string{"", "", "line 7: did not find expected node content"}},
		{"the next document is read", "x.yaml", "a: *nowhere\n---\nb: 1\n", []string{"unknown anchor 'nowhere' referenced", ""}},
		{"JSON", "x.json", "{\"a\":1}\n{\n\"b\":}\n", []string{"", "line 3: invalid character '}' looking for beginning of value"}},
		{"JSON that ends early", "x.json", "{\"a\":1}\n{\n\"b\":", []string{"", "line 3: unexpected EOF"}},
		{"template of Helm", "x.yaml", "a: 1\nb: {{ .Values.name }}\n", []string{"line 2: a template, as of Helm: render it first (helm template), and give the result"}},
		{"key that is a map", "x.yaml", "{{a: 1}: 2}\n", []string{"line 1: a key is neither text nor a number"}},
		{"key that is null", "x.yaml", "{null: 2}\n", []string{"line 1: a key is neither text nor a number"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for d := range parse(tt.file, []byte(tt.content), largeList) {
				if d.Err == nil {
					got = append(got, "")
				} else {
					got = append(got, d.Err.Error())
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDuplicateKeysHavePaths(t *testing.T) {
	want := []string{"a[1].b", "c"}
	for file, content := range map[string]string{
		"x.yaml": "a: [{b: 1}, {b: 1, b: 2}]\nc: 1\n\"c\": 2\n",
		"x.json": `{"a": [{"b": 1}, {"b": 1, "b": 2}], "c": 1, "c": 2}`,
	} {
		docs := slices.Collect(parse(file, []byte(content), largeList))
		if len(docs) != 1 || docs[0].Err != nil || docs[0].Value == nil {
			t.Fatalf("%s: %+v", file, docs)
		}
		if got := docs[0].Duplicates; !slices.Equal(got, want) {
			t.Errorf("%s: duplicates %q, want %q", file, got, want)
		}
	}
}

// bomb is YAML in which each level names the one before nine times.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n")
	for i := 1; i < levels; i++ {
		ref := fmt.Sprintf("*a%d,", i-1)
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(ref, 9), ","))
	}
	return b.String()
}

func TestAliasBombsAreErrors(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for name, tt := range map[string]struct{ content, want string }{
		"aliases of aliases": {bomb(9), "document contains excessive aliasing"},
		"aliases of one long text": {"a: &a " + long + "\nb: [" + strings.Repeat("*a,", 2000) + "]\n",
			"aliases add more than 64 MiB"},
		"aliases of one long key": {"a: &a {" + long[:1000] + ": 1}\nb: [" + strings.Repeat("*a,", 70000) + "]\n",
			"aliases add more than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			docs := slices.Collect(parse("x.yaml", []byte(tt.content), largeList))
			if len(docs) != 1 || docs[0].Err == nil || docs[0].Err.Error() != tt.want {
				t.Errorf("%d documents, the error: %v, want %q", len(docs), docs[0].Err, tt.want)
			}
		})
	}
}

func TestDeepNestingIsAnError(t *testing.T) {
	const deep = 1 << 20
	for file, content := range map[string]string{
		"x.yaml":    "a: " + strings.Repeat("[", deep),
		"x.json":    `{"a":` + strings.Repeat("[", deep),
		"braces":    strings.Repeat(`{"a":`, deep),
		"block.yml": strings.Repeat("- ", deep),
	} {
		if _, err := loadBytes(file, []byte(content)); err == nil || !strings.Contains(err.Error(), "max depth") {
			t.Errorf("%s: %v", file, err)
		}
	}
}
