package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestObjectFiles: the objects are read again when a file changes, appears or goes, and only then.
func TestObjectFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, service string, age time.Duration) string {
		t.Helper()
		path := filepath.Join(dir, name)
		text := "apiVersion: v1\nkind: Service\nmetadata: {name: " + service + "}\nspec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("a.yaml", "one", time.Hour)
	files := &objectFiles{paths: []string{dir}}
	names := func() (list []string) {
		t.Helper()
		o, _, err := files.load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range o.Services {
			list = append(list, s.Name)
		}
		return list
	}
	if got := names(); len(got) != 1 || got[0] != "one" {
		t.Fatalf("services %q", got)
	}
	before, _, _ := files.load(t.Context())
	if again, _, _ := files.load(t.Context()); again != before {
		t.Error("read again, and nothing has changed")
	}
	write("a.yaml", "two", time.Minute)
	if got := names(); len(got) != 1 || got[0] != "two" {
		t.Errorf("after a change: services %q", got)
	}
	b := write("b.yaml", "one", time.Minute)
	if got := names(); len(got) != 2 {
		t.Errorf("with another file: services %q", got)
	}
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if got := names(); len(got) != 1 {
		t.Errorf("without it: services %q", got)
	}
	write("a.yaml", "{", 0)
	if _, _, err := files.load(t.Context()); err == nil {
		t.Error("no error for a file that is damaged")
	}
}
