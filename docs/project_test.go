package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
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

// TestAlgorithmInGo: the page has the code that the tests of package balance compile and run.
func TestAlgorithmInGo(t *testing.T) {
	page := e2etest.ReadFile(t, filepath.Join(repository, "docs/how-to/write-a-balancer-in-go.md"))
	code := e2etest.ReadFile(t, filepath.Join(repository, "datapath/balance/example_test.go"))
	if !strings.Contains(page, "```go\n"+code+"```\n") {
		t.Error("docs/how-to/write-a-balancer-in-go.md: the code is not that of datapath/balance/example_test.go")
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
