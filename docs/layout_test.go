package docs

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
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

// folders are the top-level folders, the lowest first: imports go down.
var folders = []string{"conntrack", "datapath", "control", "deploy", "cmd"}

// wings are which wings a package of a wing may import, of those in datapath and control.
var wings = map[string][]string{
	"ground": {"ground"},
	"live":   {"ground", "live"},
	"paper":  {"ground", "paper"},
	"view":   {"ground", "live", "paper", "view"},
}

// wingOf is the wing of a package; empty: it stands above them.
func wingOf(path string) string {
	if folder := slices.Index(folders, strings.Split(path, "/")[0]); folder < 0 || folder > slices.Index(folders, "control") {
		return ""
	}
	for _, w := range []string{"live", "paper", "view"} {
		if slices.Contains(strings.Split(path, "/"), w) {
			return w
		}
	}
	return "ground"
}

// TestLayout: imports go down the folders, and from a wing only to those that it may know: see
// docs/explanation/architecture.md.
func TestLayout(t *testing.T) {
	checked := 0
	for _, line := range goList(t, "-f", `{{if .GoFiles}}{{.ImportPath}} {{join .Imports " "}}{{end}}`, "./...") {
		name, imports, _ := strings.Cut(strings.TrimPrefix(line, module), " ")
		if strings.HasSuffix(name, "test") {
			continue
		}
		for p := range strings.FieldsSeq(imports) {
			p, own := strings.CutPrefix(p, module)
			if !own {
				continue
			}
			checked++
			from, to := slices.Index(folders, strings.Split(name, "/")[0]), slices.Index(folders, strings.Split(p, "/")[0])
			if from >= 0 && to > from {
				t.Errorf("%s imports %s, which is in a folder above it", name, p)
			}
			if may, here := wings[wingOf(name)]; here && !slices.Contains(may, wingOf(p)) {
				t.Errorf("%s (%s) imports %s (%s)", name, wingOf(name), p, wingOf(p))
			}
		}
	}
	if checked < 300 {
		t.Errorf("checked %d imports", checked)
	}
}

// TestPackageComments: go doc says what each package is, and of a ground package, whose path does not have its wing, that it
// is one.
func TestPackageComments(t *testing.T) {
	for _, line := range goList(t, "-f", `{{if .GoFiles}}{{.ImportPath}} {{.Name}} {{.Dir}} {{join .GoFiles " "}}{{end}}`, "./...") {
		parts := strings.Fields(strings.TrimPrefix(line, module))
		name, want := parts[0], "Package "+parts[1]+" "
		if parts[1] == "main" {
			want = "Command "
		}
		var comment string
		for _, file := range parts[3:] {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(parts[2], file), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if text := f.Doc.Text(); strings.HasPrefix(text, want) {
				comment = text
			}
		}
		isGround := wingOf(name) == "ground" && !strings.HasSuffix(name, "test")
		if saysGround := strings.HasSuffix(comment, "\n\nIt is a ground package.\n"); comment == "" || saysGround != isGround {
			t.Errorf("%s: want a comment that begins with %q, with \"It is a ground package.\" at its end: %t", name, want, isGround)
		}
	}
}

// TestNoTestSupportInTheBinary: what only tests need is in packages whose names end with "test".
func TestNoTestSupportInTheBinary(t *testing.T) {
	for _, p := range goList(t, "-deps", "./cmd/nfqproxy", "./cmd/nfqproxyd") {
		if p, own := strings.CutPrefix(p, module); own && strings.HasSuffix(p, "test") || p == "testing" {
			t.Errorf("%s is linked into a program", p)
		}
	}
}

// TestTopLevel: beside the source folders stand documents, and what other programs look for there. Programs that somebody has built
// there are none of these.
func TestTopLevel(t *testing.T) {
	others := strings.Fields(`.ci .git .github .gitignore .golangci.yml CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE Makefile README.md SECURITY.md
		bench bin docs go.mod go.sum`)
	entries, err := os.ReadDir(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(folders, e.Name()) && !slices.Contains(others, e.Name()) {
			t.Errorf("%s does not belong at the top of the repository", e.Name())
		}
	}
}
