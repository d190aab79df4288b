package licenses

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

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
