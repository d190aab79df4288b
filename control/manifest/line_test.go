package manifest

import "testing"

func TestLineOf(t *testing.T) {
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
		{2, "items[1].b", 16}, {2, "items[1]", 16}, {3, "", 0}, {0, "", 0},
	} {
		if got := LineOf([]byte(text), tt.document, tt.field); got != tt.want {
			t.Errorf("document %d, %q: line %d, want %d", tt.document, tt.field, got, tt.want)
		}
	}
	if got := LineOf([]byte("{\n \"a\": {\n  \"b\": 1}}"), 1, "a.b"); got != 3 {
		t.Errorf("JSON: line %d", got)
	}
	if got := LineOf([]byte("a: [\n"), 1, "a"); got != 0 {
		t.Errorf("no YAML: line %d", got)
	}
	e := &Error{Document: 2, Item: 1, Field: "b"}
	if got := e.Line([]byte(text)); got != 16 {
		t.Errorf("line %d", got)
	}
}
