// Package licenses collects the licences of what is linked into a program: whoever passes the program on has to
// pass on their texts.
package licenses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

// FileName is the name of the file with the text, wherever it is installed.
const FileName = "THIRD_PARTY_LICENSES"

// standard is the path of Go's standard library and runtime, as databases of vulnerabilities name it.
const standard = "stdlib"

// Module is a module that is linked into a program, Go's standard library, or an npm package of the web page.
type Module struct {
	Path, Version string
	Files         []File // the licence comes first
}

// String is the module's name in the text.
func (m Module) String() string {
	if m.Path == standard {
		return "Go " + m.Version
	}
	return m.Path + " " + m.Version
}

// Of returns what is linked into a program that was built from the directory source: Go's standard library, then the
// modules in the order of its build information, which is that of their paths, then the npm packages of the web page.
func Of(p *program.Program, source string) ([]Module, error) {
	first, err := ofGo(p, source)
	if err != nil {
		return nil, err
	}
	dirs, err := directories(p, source)
	if err != nil {
		return nil, err
	}
	modules := []Module{first}
	for i, dep := range p.Info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		m := Module{Path: dep.Path, Version: dep.Version}
		if m.Files, err = filesOf(dirs[i], "a program with it must not be distributed; replace the module, or have its authors add a licence"); err != nil {
			return nil, fmt.Errorf("module %s: %w", m, err)
		}
		modules = append(modules, m)
	}
	page, err := ofNPM(source)
	return append(modules, page...), err
}

// ofGo returns the standard library that the program contains. Its licence is in the directory of the same Go.
func ofGo(p *program.Program, source string) (Module, error) {
	m := Module{Path: standard, Version: strings.TrimPrefix(p.Info.GoVersion, "go")}
	out, err := command(source, "env", "GOVERSION", "GOROOT")
	if err != nil {
		return m, err
	}
	version, root, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if version != p.Info.GoVersion {
		return m, fmt.Errorf("%s was built by %s, and this is %s: build it again", p.Path, p.Info.GoVersion, version)
	}
	if m.Files, err = filesIn(root, "use Go from https://go.dev/dl"); err != nil {
		return m, fmt.Errorf("%s: %w", m, err)
	}
	return m, nil
}

// listed is a module as go list prints it.
type listed struct {
	Path, Version, Sum, Dir string
	Replace                 *listed
}

// directories are those of the program's modules, in the order of its build information. The checksums are compared, so
// that the texts are those of the very modules that it contains.
func directories(p *program.Program, source string) ([]string, error) {
	if len(p.Info.Deps) == 0 {
		return nil, nil
	}
	args := []string{"list", "-mod=readonly", "-m", "-json"}
	for _, dep := range p.Info.Deps {
		args = append(args, dep.Path)
	}
	out, err := command(source, args...)
	if err != nil {
		return nil, err
	}
	known := make(map[string]listed)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m listed
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list -m: %w", err)
		}
		path := m.Path
		if m.Replace != nil {
			m = *m.Replace
		}
		known[path] = m
	}
	var dirs []string
	for _, dep := range p.Info.Deps {
		m := known[dep.Path]
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if dep.Version != m.Version || dep.Sum != m.Sum {
			return nil, fmt.Errorf("%s contains %s %s %s, and go.mod has %s %s %s: build it again", p.Path, dep.Path, dep.Version, dep.Sum, m.Path, m.Version, m.Sum)
		}
		if m.Dir == "" {
			return nil, fmt.Errorf("module %s %s is not in the module cache: run go mod download", m.Path, m.Version)
		}
		dirs = append(dirs, m.Dir)
	}
	return dirs, nil
}

// command runs go in a directory: the one of make's variable GO.
func command(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command(cmp.Or(os.Getenv("GO"), "go"), args...)
	cmd.Dir = dir
	// The build has no workspace either, whose modules may be others.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w: %s", args[0], filepath.Clean(dir), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// vendored is the directory with the npm packages that the program contains for its web page, below that of the source.
const vendored = "control/view/web/vendored"

// ofNPM returns the npm packages of a program that was built from the directory source.
func ofNPM(source string) (modules []Module, err error) {
	manifests, err := filepath.Glob(filepath.Join(source, vendored, "*", "package.json"))
	if err != nil {
		return nil, err
	}
	for _, manifest := range manifests {
		text, err := os.ReadFile(manifest)
		if err != nil {
			return nil, err
		}
		var p struct{ Name, Version string }
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, fmt.Errorf("%s: %w", manifest, err)
		}
		m := Module{Path: p.Name, Version: p.Version}
		if !m.npm() || p.Version == "" {
			return nil, fmt.Errorf("%s: want a name with a scope, as @xterm/xterm, and a version", manifest)
		}
		if m.Files, err = filesIn(filepath.Dir(manifest), "copy it from the npm package"); err != nil {
			return nil, fmt.Errorf("npm package %s: %w", m, err)
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// npm reports whether the module is an npm package: only their paths have a scope.
func (m Module) npm() bool { return strings.HasPrefix(m.Path, "@") }

// URL is the package URL of the module, for programs that look for vulnerabilities.
func (m Module) URL() string {
	kind, path := "golang", m.Path
	if m.npm() {
		kind, path = "npm", "%40"+path[1:]
	}
	return "pkg:" + kind + "/" + path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
}

const (
	heading = `The program nfqproxy is under the Apache License 2.0: see the file LICENSE. It contains Go's standard library, and the modules
and npm packages of this list, under the licences below. Each text follows the modules and files that have it.
`
	line = "================================================================================"
)

// Text is the file of all licences and notices. A text that several modules have occurs once.
func Text(modules []Module) string {
	var texts []string // in the order of the modules
	owners := make(map[string][]string)
	var all strings.Builder
	all.WriteString(heading + "\n")
	for _, m := range modules {
		fmt.Fprintf(&all, "    %s\n", m)
		for _, f := range m.Files {
			text := plain(f.Text)
			if owners[text] == nil {
				texts = append(texts, text)
			}
			owners[text] = append(owners[text], m.String()+": "+f.Name)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&all, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(owners[text], "\n"), line, text)
	}
	return all.String()
}

// plain is a text without a byte order mark, and without the space and carriage returns at the ends of lines: copies of one
// licence differ in them.
func plain(text string) string {
	var lines []string
	for l := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		lines = append(lines, strings.TrimRight(l, " \t\r\n"))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}
