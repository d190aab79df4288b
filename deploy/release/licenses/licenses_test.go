package licenses

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/github/go-spdx/v2/spdxexp"
	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/deploy/release/program"
	"github.com/nfqproxy/nfqproxy/deploy/release/program/programtest"
)

// write writes files below a new directory, by name and text.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFilesOf: the licence of a module comes first, then its notices, then those of copied code. Code and what no
// program contains is left out.
func TestFilesOf(t *testing.T) {
	for _, c := range []struct {
		names string
		want  []string
	}{
		{"LICENSE PATENTS NOTICE README.md", []string{"LICENSE", "NOTICE", "PATENTS"}},
		{"License", []string{"License"}},
		{"LICENCE.txt notice.md", []string{"LICENCE.txt", "notice.md"}},
		{"COPYING LICENSE-MIT LICENSE.libyaml license.go COPYRIGHT", []string{"COPYING", "LICENSE-MIT", "LICENSE.libyaml", "COPYRIGHT"}},
		{"UNLICENSE licensed noticeable.txt", []string{"UNLICENSE"}},
		{"LICENSE third_party/b/LICENSE third_party/b/PATENTS a/NOTICE testdata/LICENSE a/testdata/x/LICENSE .github/LICENSE a/copyright.go",
			[]string{"LICENSE", "a/NOTICE", "third_party/b/LICENSE", "third_party/b/PATENTS"}},
	} {
		files := make(map[string]string)
		for name := range strings.FieldsSeq(c.names) {
			files[name] = "text of " + name
		}
		found, err := filesOf(write(t, files), "")
		if err != nil {
			t.Errorf("%s: %v", c.names, err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.Name)
			if f.Text != "text of "+f.Name {
				t.Errorf("%s: %s has the text %q", c.names, f.Name, f.Text)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.names, diff)
		}
	}
}

// TestRefused: the error names the module or the program, and what to do.
func TestRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nfqproxy")
	programtest.Build(t, runtime.GOOS+"/"+runtime.GOARCH, path)
	source := programtest.Repository(t)
	// module is a repository whose module k8s.io/client-go is a directory with these files.
	module := func(files ...string) string {
		dir := map[string]string{
			"go.mod":     "module example.com/m\n\ngo 1.26.0\n\nrequire k8s.io/client-go v0.1.0\n\nreplace k8s.io/client-go => ./dep\n",
			"dep/go.mod": "module k8s.io/client-go\n",
		}
		for _, name := range files {
			dir["dep/"+name] = "x"
		}
		return write(t, dir)
	}
	replaced := func(p *program.Program) {
		p.Info.Deps[0].Replace = &debug.Module{Path: "./dep"}
	}
	if _, err := Of(change(t, path, replaced), module("LICENSE")); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		change func(*program.Program)
		source string
		want   []string
	}{
		"no licence":          {replaced, module("NOTICE", "sub/LICENSE", "license.go"), []string{"module ./dep", "has no file LICENSE or COPYING", "replace the module"}},
		"another version":     {func(p *program.Program) { p.Info.Deps[0].Version = "v0.1.2" }, source, []string{path, "k8s.io/client-go v0.1.2", "build it again"}},
		"another content":     {func(p *program.Program) { p.Info.Deps[0].Sum = "h1:x" }, source, []string{path, "k8s.io/client-go", "h1:x", "build it again"}},
		"no such module":      {func(p *program.Program) { p.Info.Deps[0].Path = "example.com/none" }, source, []string{"example.com/none"}},
		"another Go":          {func(p *program.Program) { p.Info.GoVersion = "go1.2.3" }, source, []string{path, "built by go1.2.3", "build it again"}},
		"no such source":      {func(*program.Program) {}, filepath.Join(source, "none"), []string{"none"}},
		"not in go.mod's use": {replaced, source, []string{path, "./dep", "build it again"}},
	} {
		_, err := Of(change(t, path, c.change), c.source)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
	}
	same := change(t, path, func(*program.Program) {})
	dep := same.Info.Deps[0]
	root := write(t, map[string]string{"LICENSE": "x"})
	for want, script := range map[string]string{
		// A distribution may keep Go's licence elsewhere.
		"/bin has no file LICENSE or COPYING: use Go from": "echo " + runtime.Version() + "; echo /bin",
		"module k8s.io/client-go " + dep.Version + " is not in the module cache: run go mod download": "case $1 in env) echo " + runtime.Version() + "; echo " + root + ";; *) echo '" +
			`{"Path": "k8s.io/client-go", "Version": "` + dep.Version + `", "Sum": "` + dep.Sum + `"}` + "';; esac",
	} {
		t.Setenv("GO", filepath.Join(write(t, map[string]string{"go": "#!/bin/sh\n" + script + "\n"}), "go"))
		if err := os.Chmod(os.Getenv("GO"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Of(same, source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// TestNPM: the packages of the page have a name, a version and a licence, and URLs of their kind.
func TestNPM(t *testing.T) {
	source := func(manifest string, licence bool) string {
		files := map[string]string{vendored + "/term/package.json": manifest, vendored + "/README.md": "x"}
		if licence {
			files[vendored+"/term/LICENSE"] = "the licence"
		}
		return write(t, files)
	}
	const manifest = `{"name": "@scope/term", "version": "1.2.3", "license": "MIT"}`
	got, err := ofNPM(source(manifest, true))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Module{{"@scope/term", "1.2.3", []File{{"LICENSE", "the licence"}}}}, got); diff != "" {
		t.Error(diff)
	}
	for want, m := range map[string]Module{"pkg:npm/%40scope/term@1.2.3": got[0], "pkg:golang/example.com/a@v1.0.0%2Bincompatible": {Path: "example.com/a", Version: "v1.0.0+incompatible"}} {
		if m.URL() != want {
			t.Errorf("%s, want %s", m.URL(), want)
		}
	}
	for want, dir := range map[string]string{
		"has no file LICENSE or COPYING: copy it": source(manifest, false),
		"want a name with a scope":                source(`{"name": "term", "version": "1.2.3"}`, true),
		"and a version":                           source(`{"name": "@scope/term"}`, true),
		"package.json: invalid character":         source(`x`, true),
	} {
		if _, err := ofNPM(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// change reads a program, and changes what it records.
func change(t *testing.T, path string, f func(*program.Program)) *program.Program {
	t.Helper()
	p, err := program.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	f(p)
	return p
}

// TestText: modules are listed in their order, and equal texts stand once, below all their owners.
func TestText(t *testing.T) {
	got := Text([]Module{
		{"stdlib", "1.2.3", []File{{"LICENSE", "Go's\n"}}},
		{"example.com/a", "v1.0.0", []File{{"LICENSE", "the same\n\n  text"}, {"NOTICE", "by a"}}},
		{"example.com/b", "v2.0.0", []File{{"COPYING", "\ufeffthe same \r\n\r\n  text\r\n\r\n"}, {"x/LICENSE", "Go's"}}},
	})
	want := heading + `
    Go 1.2.3
    example.com/a v1.0.0
    example.com/b v2.0.0

` + line + `
Go 1.2.3: LICENSE
example.com/b v2.0.0: x/LICENSE
` + line + `

Go's

` + line + `
example.com/a v1.0.0: LICENSE
example.com/b v2.0.0: COPYING
` + line + `

the same

  text

` + line + `
example.com/a v1.0.0: NOTICE
` + line + `

by a
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// permissive are the licences that the product's modules may have. They require the texts and notices that a release
// contains. Read a licence before you add it: others require more, such as the source code.
var permissive = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// TestIdentifier: a module has an identifier if it has one licence that is known.
func TestIdentifier(t *testing.T) {
	source := programtest.Repository(t)
	own, err := os.ReadFile(filepath.Join(source, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	bsd, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	apache, gos := File{"LICENSE", string(own)}, File{"COPYING", string(bsd)}
	for want, m := range map[string]Module{
		"Apache-2.0":                   {Files: []File{apache, {"NOTICE", "unknown"}, {"third_party/LICENSE", string(bsd)}}},
		"BSD-3-Clause":                 {Files: []File{gos, {"LICENSE", string(bsd)}}},
		"":                             {Files: []File{apache, gos}},
		"BSD-3-Clause OR GPL-2.0-only": {Files: []File{{"License", "/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */\n\none or the other\n"}}},
	} {
		if got := m.Identifier(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, m := range []Module{
		{Files: []File{{"LICENSE", "unknown"}}},
		{Files: []File{{"LICENSE", "SPDX-License-Identifier: House-Rules"}}},
		{Files: []File{apache, {"LICENSE-2", "unknown"}}},
		{Files: []File{{"LICENSE", string(own) + strings.Repeat(" and other terms", 1000)}}},
		{Files: []File{{"LICENSE", "https://www.apache.org/licenses/LICENSE-2.0"}}},
		{},
	} {
		if got := m.Identifier(); got != "" {
			t.Errorf("%+v: %q", m, got)
		}
	}
}

// TestProduct: all modules of the product have a licence file, on each platform, and permissive licences.
func TestProduct(t *testing.T) {
	source := programtest.Repository(t)
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"} {
		p := product(t, source, platform)
		modules, err := Of(p, source)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range modules {
			found := m.found()
			if len(found) == 0 {
				t.Errorf("%s: %s has an unknown licence", platform, m)
			}
			for _, id := range found {
				if ok, err := spdxexp.Satisfies(id, permissive); err != nil || !ok {
					t.Errorf("%s: %s has the licence %s: %v", platform, m, id, err)
				}
			}
		}
		text := Text(modules)
		for _, want := range []string{
			"    Go " + strings.TrimPrefix(runtime.Version(), "go") + "\n", "    k8s.io/client-go v",
			"Apache License\n                           Version 2.0", "Copyright 2009 The Go Authors.", ": third_party/forked/golang/PATENTS\n",
			"    @xterm/xterm ", "SourceLair Private Company", "    @xterm/addon-fit ",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the licences lack %q", platform, want)
			}
		}
		// Only on Linux.
		if has, linux := strings.Contains(text, "github.com/mdlayher/netlink "), p.OS == "linux"; has != linux {
			t.Errorf("%s: netlink: %v", platform, has)
		}
	}
}

// product is what a build of the product records, as far as it is needed.
func product(t *testing.T, source, platform string) *program.Program {
	t.Helper()
	system, arch, _ := strings.Cut(platform, "/")
	cmd := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Sum}}{{end}}{{end}}", "./cmd/nfqproxy")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	info := &debug.BuildInfo{GoVersion: runtime.Version()}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 3 && !slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == f[0] }) {
			info.Deps = append(info.Deps, &debug.Module{Path: f[0], Version: f[1], Sum: f[2]})
		}
	}
	if len(info.Deps) == 0 {
		t.Fatalf("no modules in %q", out)
	}
	slices.SortFunc(info.Deps, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	return &program.Program{Path: "nfqproxy", OS: system, Arch: arch, Info: info}
}
