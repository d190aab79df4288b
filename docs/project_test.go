package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestHostPaths: the pages about the container's privileges name every directory of the host that it gets.
func TestHostPaths(t *testing.T) {
	manifest := e2etest.ReadFile(t, filepath.Join(repository, "deploy/kubernetes/base/daemonset.yaml"))
	paths := regexp.MustCompile(`hostPath:\s+path: (\S+)`).FindAllStringSubmatch(manifest, -1)
	if len(paths) < 3 || len(paths) != strings.Count(manifest, "hostPath:") {
		t.Fatalf("found %q in the DaemonSet", paths)
	}
	for _, page := range []string{"SECURITY.md", "deploy/kubernetes/README.md"} {
		text := e2etest.ReadFile(t, filepath.Join(repository, page))
		for _, p := range paths {
			if !strings.Contains(text, "`"+p[1]+"` of the host") && !strings.Contains(text, "`"+p[1]+"`**") {
				t.Errorf("%s does not name %s", page, p[1])
			}
		}
	}
}

// TestExperimentInGo: the program of the page runs the experiment of the page, with the output of the page.
func TestExperimentInGo(t *testing.T) {
	page := e2etest.ReadFile(t, filepath.Join(repository, "docs/how-to/write-a-balancer-in-go.md"))
	dir := t.TempDir()
	for file, begin := range map[string]string{"main.go": "```go\npackage main\n", "own.yaml": "```yaml\n"} {
		_, code, ok := strings.Cut(page, begin)
		code, _, closed := strings.Cut(code, "```\n")
		if !ok || !closed {
			t.Fatalf("the page has no block that begins with %q", begin)
		}
		_, head, _ := strings.Cut(begin, "\n")
		if err := os.WriteFile(filepath.Join(dir, file), []byte(head+code), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	netnstest.RequireTool(t, "go")
	cmd := exec.Command("go", "run", filepath.Join(dir, "main.go"), filepath.Join(dir, "own.yaml"), filepath.Join(dir, "results"))
	cmd.Dir = repository
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(page, "\n    "+line) {
			t.Errorf("the page lacks %q of the output", line)
		}
	}
}

// TestCitation: CITATION.cff has the keys that version 1.2.0 of the format requires, and no others than it knows.
func TestCitation(t *testing.T) {
	var citation struct {
		Version  string              `json:"cff-version"`
		Message  string              `json:"message"`
		Type     string              `json:"type"`
		Title    string              `json:"title"`
		Abstract string              `json:"abstract"`
		Authors  []map[string]string `json:"authors"`
		License  string              `json:"license"`
		Keywords []string            `json:"keywords"`
	}
	if err := yaml.UnmarshalStrict([]byte(e2etest.ReadFile(t, filepath.Join(repository, "CITATION.cff"))), &citation); err != nil {
		t.Fatal(err)
	}
	if citation.Version != "1.2.0" || citation.Type != "software" || citation.Message == "" || citation.Title == "" || len(citation.Authors) == 0 || citation.Authors[0]["name"] == "" {
		t.Errorf("%+v", citation)
	}
	if license := e2etest.ReadFile(t, filepath.Join(repository, "LICENSE")); citation.License != "Apache-2.0" || !strings.Contains(license, "Apache License") {
		t.Errorf("licence %s", citation.License)
	}
}
