package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plainSlice is as kubectl prints it, with all that is plain.
const plainSlice = `- addressType: IPv4
  apiVersion: discovery.k8s.io/v1
  endpoints:
  - addresses:
    - 10.244.1.2
    conditions:
      ready: true
      terminating: false
    nodeName: node-a
    targetRef:
      kind: Pod
      uid: 4c6f0a2e-0000-4000-8000-000000000001
    zone: "1"
  kind: EndpointSlice
  metadata:
    annotations: {}
    creationTimestamp: "2026-11-20T10:00:00Z"
    labels:
      kubernetes.io/service-name: web
    name: web-1
    managedFields:
  ports:
  - name: ''
    port: 8080
`

func TestPlainYAML(t *testing.T) {
	got, ok := parsePlain([]byte(plainSlice))
	if !ok {
		t.Fatal("not taken for plain")
	}
	want, _ := parseYAML([]byte(plainSlice), 1)
	if diff := cmp.Diff(want.Value, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{
		"a: b\n c", "a: 1.5", "a: 1:30", "a: 2026-11-20", "a: yes", "a: ~", "a: |\n  b", "a: &x b", "a: [b]", "a: \"b\\n\"", "a: 'b''c'", "a: b # c",
		"a: 010", "a: 1e3", "a: 0x1", "y: 1", "1: a", "a: b: c", "a:\n\n  b: c", "a: 1\na: 2", "- - a", "a:\tb", "a: <<", "<<: {}", "a: b ", "a: b\r\n", "-", "a",
	} {
		if v, ok := parsePlain([]byte(text)); ok {
			t.Errorf("%q is taken for plain: %v", text, v)
		}
	}
}

// FuzzPlainYAML looks for texts that are something else to a whole parser.
func FuzzPlainYAML(f *testing.F) {
	for _, s := range []string{plainSlice, "a:\n- b\n- c: d\n  e:\n    f: 1\ng: []", "- a\n- 10.0.0.0/8\n- \"\"\n", "a:\nb:\n- c\n", "a:\n  - b\n  c: d", "- a: b\n- c\nd: e", "---\na: b", "a: b\n...\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, ok := parsePlain(data)
		if !ok {
			return
		}
		want, ok := parseYAML(data, 1)
		if !ok || want.Err != nil || len(want.Duplicates) > 0 {
			t.Fatalf("%q: %v, but %+v", data, got, want)
		}
		if diff := cmp.Diff(want.Value, got); diff != "" {
			t.Error(diff)
		}
	})
}
