package results

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	own := Named{"nfqproxy", Run{[]string{"Kubernetes v1.36.3", "3 nodes"}, List{
		{"[sig-network] Services should serve [Conformance]", Passed, 1, ""},
		{"[sig-network] Services should | also", Failed, 1, ""},
		{"[sig-network] KubeProxy should count", Skipped, 0, "not iptables"},
	}}}
	control := Named{"kube-proxy", Run{[]string{"Kubernetes v1.36.3"}, List{
		{"[sig-network] Services should serve [Conformance]", Passed, 1, ""},
		{"[sig-network] Services should | also", Passed, 1, ""},
		{"[sig-network] KubeProxy should count", Passed, 1, ""},
	}}}
	page := Page([]Named{own, control})
	for _, want := range []string{
		"- **nfqproxy**: Kubernetes v1.36.3, 3 nodes. 1 passed, 1 failed, 1 skipped.\n",
		"| Subject | nfqproxy | kube-proxy |\n| --- | ---: | ---: |\n| Services | 1 | 2 |\n| KubeProxy | 0 | 1 |\n",
		"| **all** | **1** | **3** |\n| conformance tests among them | 1 | 1 |\n",
		"- passes with kube-proxy only: [sig-network] KubeProxy should count (skipped: not iptables)\n",
		"- passes with kube-proxy only: [sig-network] Services should | also (failed)\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if page := Page([]Named{own, {"nfqproxy-helm", control.Run}}); strings.Contains(page, "## Differences") || !strings.Contains(page, "| Subject | nfqproxy | nfqproxy-helm |") {
		t.Errorf("nfqproxy is its own control:\n%s", page)
	}
	if page := Page([]Named{own, {"again", own.Run}}); !strings.Contains(page, "None: the same tests pass.") {
		t.Errorf("two equal runs: %s", page)
	}
}

// TestPublished: the page in docs is what the results beside it say.
func TestPublished(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs", "reference")
	runs, err := ReadPublished(docs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(docs, PageFile))
	if err != nil || string(got) != Page(runs) {
		t.Errorf("docs/reference/%s differs from the results beside it, error %v: run go run ./bench/e2e publish", PageFile, err)
	}
}
