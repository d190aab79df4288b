package helm

import (
	"os"
	"path/filepath"
	"testing"
)

// kubernetes is the directory of the manifests for kustomize.
const kubernetes = "../kubernetes"

// origin is the first line of each manifest that is rendered.
const origin = "# Rendered from deploy/helm/nfqproxy: change it there and run \"make manifests\".\n"

// TestManifests: the manifests for kustomize are what the chart renders.
func TestManifests(t *testing.T) {
	base := readFile(t, "base.yaml")
	files := make(map[string]string) // by path
	for name, text := range render(t, base) {
		files[filepath.Join("base", name)] = text
	}
	pods := render(t, base, "podNames: true")
	files["components/pod-names/clusterrole.yaml"] = pods["pod-names-clusterrole.yaml"]
	files["components/pod-names/clusterrolebinding.yaml"] = pods["pod-names-clusterrolebinding.yaml"]
	for name, text := range render(t, "plain: true\nmode: observe") {
		files[filepath.Join("observe", name)] = text
	}
	files["cleanup/pod.yaml"] = render(t, base, "cleanup: {nodes: [NODE]}")["cleanup.yaml"]

	for path, text := range files {
		file := filepath.Join(kubernetes, path)
		if *update {
			if err := os.WriteFile(file, []byte(origin+text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != origin+text {
			t.Errorf("%s is not what the chart renders, error %v: run \"make manifests\"", file, err)
		}
	}
	for _, dir := range []string{"base", "observe"} {
		rendered, err := filepath.Glob(filepath.Join(kubernetes, dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range rendered {
			if name := filepath.Base(file); name != "kustomization.yaml" && files[filepath.Join(dir, name)] == "" {
				t.Errorf("the chart does not render %s: remove it", file)
			}
		}
	}
}
