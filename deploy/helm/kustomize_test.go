package helm

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
)

// TestOverlays: what kustomize makes of the base is what the chart renders with values.
func TestOverlays(t *testing.T) {
	kubectl := clustertest.RequireProgram(t, cluster.Kubectl)
	kubeadm := "plain: true\nkubeadm: true\n"
	for dir, values := range map[string]string{
		"base":             readFile(t, "base.yaml"),
		"observe":          "plain: true\nmode: observe",
		"overlays/kubeadm": kubeadm,
		"overlays/kind":    kubeadm + "image: {pullPolicy: Never}",
		"testdata/own":     kubeadm + "podNames: true\nimage: {repository: registry.example/nfqproxy, tag: v1}",
	} {
		path := kubernetes + "/" + dir
		if strings.HasPrefix(dir, "testdata/") {
			path = dir
		}
		out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", path).Output()
		if err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		var rendered []string
		for _, text := range render(t, values) {
			rendered = append(rendered, text)
		}
		if diff := cmp.Diff(objects(t, strings.Join(rendered, "---\n")), objects(t, string(out))); diff != "" {
			t.Errorf("from the chart (-) to %s (+):\n%s", dir, diff)
		}
	}
}

// objects are those of a stream, by kind and name.
func objects(t *testing.T, stream string) map[string]any {
	t.Helper()
	all := make(map[string]any)
	for document := range strings.SplitSeq(stream, "\n---\n") {
		object := decoded(t, document)
		name, _ := object["metadata"].(map[string]any)["name"].(string)
		all[object["kind"].(string)+" "+name] = object
	}
	return all
}
