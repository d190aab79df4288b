package docs

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/netns/netnstest"
)

const module = "github.com/nfqproxy/nfqproxy/"

// goList runs "go list" in the module's folder and gives its lines.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	netnstest.RequireTool(t, "go")
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = repository
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", strings.Join(args, " "), err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestLayout: every package stands in one wing of the table in docs/architecture.md, and
// imports what that wing may.
func TestLayout(t *testing.T) {
	type wing struct {
		name string
		may  []string
	}
	wings := make(map[string]*wing) // by package
	row := regexp.MustCompile("(?m)^\\| ([a-z ]+) \\| ([a-z ]+) \\| ((?:`[a-z0-9/]+` ?)+)\\|$")
	for _, m := range row.FindAllStringSubmatch(e2etest.ReadFile(t, "architecture.md"), -1) {
		w := &wing{m[1], strings.Fields(m[2])}
		for _, p := range strings.Fields(strings.ReplaceAll(m[3], "`", "")) {
			if wings[p] != nil {
				t.Errorf("package %s stands in two wings", p)
			}
			wings[p] = w
		}
	}
	known := 0
	for _, line := range goList(t, "-f", `{{if .GoFiles}}{{.ImportPath}} {{join .Imports " "}}{{end}}`, "./...") {
		paths := strings.Fields(line)
		if len(paths) == 0 {
			continue
		}
		name := strings.TrimPrefix(paths[0], module)
		w := wings[name]
		if w == nil {
			t.Errorf("package %s stands in no wing of docs/architecture.md", name)
			continue
		}
		known++
		for _, p := range paths[1:] {
			p, own := strings.CutPrefix(p, module)
			if own && wings[p] != nil && !slices.Contains(w.may, wings[p].name) {
				t.Errorf("%s (%s) imports %s (%s)", name, w.name, p, wings[p].name)
			}
		}
	}
	if known != len(wings) {
		t.Errorf("docs/architecture.md lists %d packages, and %d of them exist", len(wings), known)
	}
}

// TestNoTestSupportInTheBinary: what only tests need is in packages whose names end with "test".
func TestNoTestSupportInTheBinary(t *testing.T) {
	for _, p := range goList(t, "-deps", "./cmd/nfqproxy") {
		if p, own := strings.CutPrefix(p, module); own && strings.HasSuffix(p, "test") || p == "testing" {
			t.Errorf("%s is linked into the program", p)
		}
	}
}
