package yamlfile

import "testing"

// TestTabs: a tab is what the library does not name.
func TestTabs(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Service\nmetadata:\n\tname: web\n":      "line 12: a tab in front of a field: YAML is indented with spaces",
		"kind: Service\nmetadata:\n  \tname: web: x\n": "line 12: a tab in front of a field: YAML is indented with spaces",
	} {
		if d, _ := Parse([]byte(text), 10); d.Err == nil || d.Err.Error() != want {
			t.Errorf("%q: %v", text, d.Err)
		}
	}
	if d, _ := Parse([]byte("kind:\tService\nmetadata:\n  name:\tweb\t# a comment\n"), 1); d.Err != nil {
		t.Error(d.Err)
	}
}

func TestLine(t *testing.T) {
	const text = `# a comment
apiVersion: v1
kind: Service
metadata: {name: web,
  labels: {a.b/c: d}}
spec:
  ports:
  - name: http
    port: 80
  - port: 81
---
# nothing
---
items:
- a: 1
- b: 2
`
	for _, tt := range []struct {
		document int
		field    string
		want     int
	}{
		{1, "", 2}, {1, "kind", 3}, {1, "metadata.labels[a.b/c]", 5}, {1, "spec.ports[0].port", 9}, {1, "spec.ports[1]", 10},
		{1, "spec.ports[1].name", 10}, {1, "spec.clusterIP", 6}, {1, "nothing", 2}, {1, "spec.ports[7].port", 7},
		{2, "items[1].b", 16}, {2, "items[1]", 16},
	} {
		if got := lineIn(text, tt.document, tt.field); got != tt.want {
			t.Errorf("document %d, %q: line %d, want %d", tt.document, tt.field, got, tt.want)
		}
	}
	if got := lineIn("{\n \"a\": {\n  \"b\": 1}}", 1, "a.b"); got != 3 {
		t.Errorf("JSON as YAML: line %d", got)
	}
	docs, err := ParseJSON([]byte("{}\n{\n \"a\": {\n  \"b\": 1}}"))
	if err != nil || len(docs) != 2 || docs[1].Line("a.b") != 4 {
		t.Errorf("JSON: %+v, %v", docs, err)
	}
	if got := lineIn("a: [\n", 1, "a"); got != 0 {
		t.Errorf("no YAML: line %d", got)
	}
}

// lineIn is the line of a field in a document of a text, from 1.
func lineIn(text string, document int, field string) int {
	for text, line := range Split([]byte(text)) {
		if d, ok := Parse(text, line); ok {
			if document--; document == 0 {
				return d.Line(field)
			}
		}
	}
	return -1
}
