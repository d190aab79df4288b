package manifest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write makes a file and the directories above it.
func write(t *testing.T, content string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func symlink(t *testing.T, target string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
	return name
}

func node(name string) string {
	return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\n"
}

func TestLoadReadsADirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, node("c"), dir, "c.yaml")
	write(t, node("b"), dir, "b.yml")
	write(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}`, dir, "a.json")
	write(t, "not YAML: [", dir, "README.md")
	write(t, "not YAML: [", dir, ".hidden.yaml")
	write(t, "not YAML: [", dir, "deeper", "d.yaml")
	write(t, "not YAML: [", dir, "directory.yaml", "d.txt")
	symlink(t, "nowhere", dir, ".#c.yaml") // an editor's lock

	o, err := Load([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := kept(o), []string{"Node /a", "Node /b", "Node /c"}; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	want := []string{filepath.Join(dir, "a.json"), filepath.Join(dir, "b.yml"), filepath.Join(dir, "c.yaml")}
	if !slices.Equal(o.Files, want) {
		t.Errorf("read %v, want %v", o.Files, want)
	}
}

// TestLoadReadsADump: of the directories of kubectl cluster-info dump, must-gather and sonobuoy, files below them are read.
func TestLoadReadsADump(t *testing.T) {
	for _, files := range [][]string{
		{"nodes.json", "shop/services.json", "shop/pods.json"},
		{"image-1/cluster-scoped-resources/core/nodes/a.yaml", "image-1/namespaces/shop/core/services.yaml", "image-1/namespaces/shop/core/pods.yaml"},
		{"resources/cluster/core_v1_nodes.json", "resources/ns/shop/core_v1_services.json", "resources/ns/shop/core_v1_pods.json"},
	} {
		dir := t.TempDir()
		write(t, node("a"), dir, files[0])
		write(t, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}\n", dir, files[1])
		write(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web-1, namespace: shop}\n", dir, files[2])
		write(t, "not YAML: [", dir, filepath.Dir(files[2]), "web-1", "web-1.yaml")
		if o, err := Load([]string{dir}); err != nil || len(o.Nodes) != 1 || len(o.Services) != 1 || len(o.Pods) != 1 {
			t.Errorf("%s: %v, %+v", files[1], err, o)
		}
	}
}

func TestLoadReadsANamedFileWhateverItsName(t *testing.T) {
	name := write(t, node("a"), t.TempDir(), ".objects.txt")
	if o, err := Load([]string{name}); err != nil || len(o.Nodes) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestLoadReadsEachFileOnce(t *testing.T) {
	dir := t.TempDir()
	name := write(t, node("a"), dir, "a.yaml")
	o, err := Load([]string{name, dir, filepath.Join(dir, ".", "a.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.Files, []string{name}) {
		t.Errorf("read %v", o.Files)
	}
}

func TestLoadFollowsAMountedConfigMap(t *testing.T) {
	dir := t.TempDir()
	write(t, node("a"), dir, "..2024_04_17", "lab.yaml")
	symlink(t, "..2024_04_17", dir, "..data")
	symlink(t, "..data/lab.yaml", dir, "lab.yaml")
	o, err := Load([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.Files, []string{filepath.Join(dir, "lab.yaml")}) || len(o.Nodes) != 1 {
		t.Errorf("read %v, kept %v", o.Files, kept(o))
	}
}

func TestNothingToReadIsNoError(t *testing.T) {
	empty := t.TempDir()
	for _, paths := range [][]string{nil, {empty}} {
		if o, err := Load(paths); err != nil || !o.Empty() || len(o.Files) != 0 {
			t.Errorf("%v: %+v, %v", paths, o, err)
		}
	}
	name := write(t, "", t.TempDir(), "a.yaml")
	if o, err := Load([]string{name}); err != nil || !o.Empty() || len(o.Files) != 1 {
		t.Errorf("empty file: %+v, %v", o, err)
	}
}

func TestFilesThatCannotBeReadAreErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.yaml")
	bad := write(t, "kind: Node\n", dir, "bad.yaml")
	dangling := symlink(t, "nowhere.yaml", dir, "dangling.yaml")

	o, err := Load([]string{missing, dir})
	if o != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%+v, %v", o, err)
	}
	want := missing + ": no such file or directory\n" +
		bad + ":1: document 1: apiVersion: missing: not a Kubernetes object\n" +
		dangling + ": no such file or directory"
	if err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestDuplicatesInTwoFilesNameBoth(t *testing.T) {
	dir := t.TempDir()
	a, b := write(t, node("worker"), dir, "a.yaml"), write(t, node("worker"), dir, "b.yaml")
	_, err := Load([]string{dir})
	if want := b + ":1: document 1: Node worker: is already defined in " + a + ": document 1"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestFileSizeIsBounded(t *testing.T) {
	name := write(t, "0123456789", t.TempDir(), "a.yaml")
	if data, err := readFile(name, 10, false); err != nil || string(data) != "0123456789" {
		t.Errorf("at the limit: %q, %v", data, err)
	}
	if _, err := readFile(name, 9, false); err == nil || err.Error() != "larger than 9 bytes: split it into several files" {
		t.Errorf("beyond the limit: %v", err)
	}

	// A file with a hole: large, but not on the disk.
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(maxFileSize+1), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Load([]string{name}); err == nil || err.Error() != name+": larger than 512 MiB: split it into several files" {
		t.Errorf("Load: %v", err)
	}
}

func TestErrorIsOneLine(t *testing.T) {
	e := &Error{File: "a.yaml", Document: 1, Item: -1, Err: errors.New("first\n  second")}
	if got := e.Error(); strings.Contains(got, "\n") || got != "a.yaml: document 1: first second" {
		t.Errorf("%q", got)
	}
}

// TestRemovedMeanwhile: a file that goes away after its directory was listed is no error.
func TestRemovedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")}
	for _, name := range names {
		if err := os.WriteFile(name, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var taken []string
	in := input{paths: []string{dir}}
	in.each(func(f file) []string {
		if f.err != nil {
			t.Error(f.err)
		}
		taken = append(taken, f.name)
		_ = os.Remove(names[1])
		return nil
	})
	if len(taken) != 1 || taken[0] != names[0] {
		t.Errorf("read %v, want %s", taken, names[0])
	}
}
