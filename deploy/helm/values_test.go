package helm

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"
)

// required are the values without which there is no release.
const required = "apiServer: https://control-plane.example:6443\nclusterCIDR: 10.244.0.0/16\n"

const valuesArchive = "testdata/values.txtar"

// valueSet is one of testdata: values over the required ones.
type valueSet struct {
	name, values string
	diff         *[]byte // of what is rendered, from the required values to these
}

func valueSets(t *testing.T) (*txtar.Archive, []valueSet) {
	t.Helper()
	archive, err := txtar.ParseFile(valuesArchive)
	if err != nil {
		t.Fatal(err)
	}
	var sets []valueSet
	for i := 0; i+1 < len(archive.Files); i += 2 {
		values, changes := &archive.Files[i], &archive.Files[i+1]
		name, ok := strings.CutSuffix(values.Name, ".yaml")
		if !ok || changes.Name != name+".diff" {
			t.Fatalf("%s, %s: want NAME.yaml and NAME.diff", values.Name, changes.Name)
		}
		sets = append(sets, valueSet{name, string(values.Data), &changes.Data})
	}
	return archive, sets
}

// position is what depends on all other lines: the heads of a difference, and its line numbers.
var position = regexp.MustCompile(`(?m)^(diff|---|\+\+\+) .*(required|these)\n| -[0-9,]+ \+[0-9,]+ @@$`)

// all joins manifests in the order of their names.
func all(manifests map[string]string) []byte {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(manifests)) {
		text.WriteString("# " + name + "\n" + manifests[name])
	}
	return []byte(text.String())
}

// TestValues: what each value changes in the manifests.
func TestValues(t *testing.T) {
	archive, sets := valueSets(t)
	before := all(render(t, required))
	for _, set := range sets {
		t.Run(set.name, func(t *testing.T) {
			got := position.ReplaceAll(diff.Diff("required", before, "these", all(render(t, required, set.values))), nil)
			if *update {
				*set.diff = got
			}
			if d := cmp.Diff(string(*set.diff), string(got)); d != "" || len(got) == 0 {
				t.Errorf("values:\n%schange:\n%s%s", set.values, got, d)
			}
		})
	}
	if *update {
		if err := os.WriteFile(valuesArchive, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNamespace: all objects are in the namespace of the release, and refer to it.
func TestNamespace(t *testing.T) {
	out, errs, err := helm(t, append([]string{"template", "other", chart, "--namespace", "proxies"}, valueFiles(t, required, "podNames: true\ncleanup: {nodes: [worker]}")...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	if n := strings.Count(out, "namespace: proxies\n"); n != 7 || strings.Contains(out, "kube-system") || !strings.Contains(out, "--flow-api-service-account=proxies/nfqproxy-reader") {
		t.Errorf("%d references to the namespace:\n%s", n, out)
	}
}

// TestEveryValue: the schema has exactly the values of values.yaml, and some set of testdata changes
// each of them.
func TestEveryValue(t *testing.T) {
	decode := func(text string) (object map[string]any) {
		t.Helper()
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	// leaves are the paths of values; lists, and objects that are empty by default, are one value.
	var leaves func(object map[string]any, prefix string) []string
	leaves = func(object map[string]any, prefix string) (paths []string) {
		for key, value := range object {
			if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
				paths = append(paths, leaves(inner, prefix+key+".")...)
			} else {
				paths = append(paths, prefix+key)
			}
		}
		return paths
	}
	defaults := decode(readFile(t, chart+"/values.yaml"))
	values := leaves(defaults, "")

	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal([]byte(readFile(t, chart+"/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	delete(schema.Properties, "global") // Helm's own
	var properties func(of map[string]any, defaults map[string]any, prefix string) []string
	properties = func(of, defaults map[string]any, prefix string) (paths []string) {
		for key, value := range of {
			inner, _ := value.(map[string]any)["properties"].(map[string]any)
			if d, _ := defaults[key].(map[string]any); inner != nil && len(d) > 0 {
				paths = append(paths, properties(inner, d, prefix+key+".")...)
			} else {
				paths = append(paths, prefix+key)
			}
		}
		return paths
	}
	known := properties(schema.Properties, defaults, "")
	for _, path := range values {
		open := strings.HasPrefix(path, "nodeSelector.") || strings.HasPrefix(path, "resources.") || strings.HasPrefix(path, "view.resources.") || strings.HasPrefix(path, "history.resources.")
		if !open && !slices.Contains(known, path) {
			t.Errorf("values.schema.json lacks %s", path)
		}
	}
	for _, path := range known {
		if !slices.ContainsFunc(values, func(v string) bool { return v == path || strings.HasPrefix(v, path+".") }) && !strings.HasSuffix(path, "resources.limits") {
			t.Errorf("values.yaml lacks %s", path)
		}
	}

	changed := make(map[string]bool)
	_, sets := valueSets(t)
	for _, set := range sets {
		for _, path := range leaves(decode(set.values), "") {
			changed[path] = true
		}
	}
	for _, path := range values {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(changed)), func(c string) bool {
			return c == path || strings.HasPrefix(c, path+".") || strings.HasPrefix(path, c+".")
		}) {
			t.Errorf("no values in %s change %s", valuesArchive, path)
		}
	}
}
