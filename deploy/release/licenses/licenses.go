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
