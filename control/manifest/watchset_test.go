package manifest

import (
	"os"
	"path/filepath"
	"testing"
)

func TestInterest(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, "", dir, "labs", "a.yaml")
	write(t, "", dir, "elsewhere", "b.yaml")
	write(t, "", dir, "v1", "c.yaml")
	symlink(t, "../elsewhere/b.yaml", dir, "labs", "b.yaml")
	symlink(t, filepath.Join(dir, "v1"), dir, "current")
	symlink(t, "loop", dir, "loop")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}

	tests := []struct {
		name, path string
		yes, no    []string
	}{
		{"directory", "labs",
			[]string{"labs/a.yaml", "labs/new.yaml", "labs/..data", "labs", "elsewhere/b.yaml", "elsewhere", "."},
			[]string{"elsewhere/other", "sub", "v1", "v1/c.yaml", "labs/deeper/x"}},
		{"file", "labs/a.yaml", []string{"labs/a.yaml", "labs"}, []string{"labs/b.yaml", "sub", "elsewhere/b.yaml"}},
		{"file by a link", "labs/b.yaml", []string{"labs/b.yaml", "elsewhere/b.yaml"}, []string{"labs/a.yaml", "elsewhere/a.yaml"}},
		{"link to a directory", "current", []string{"current", "v1", "v1/new.yaml"}, []string{"sub", "labs"}},
		{"file beyond a link", "current/c.yaml", []string{"current", "v1", "v1/c.yaml"}, []string{"v1/new.yaml", "sub"}},
		{"missing file", "labs/x.yaml", []string{"labs/x.yaml"}, []string{"labs/y.yaml"}},
		{"missing directory", "x/y/z.yaml", []string{"x"}, []string{"y"}},
		{"path below a file", "labs/a.yaml/x", []string{"labs/a.yaml"}, []string{"labs/b.yaml"}},
		{"loop", "loop", []string{"loop"}, []string{"sub"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := watchSetOf([]string{filepath.Join(dir, tt.path)})
			for _, p := range tt.yes {
				if !in.has(filepath.Join(dir, p)) {
					t.Errorf("no interest in %s", p)
				}
			}
			for _, p := range tt.no {
				if in.has(filepath.Join(dir, p)) {
					t.Errorf("interest in %s", p)
				}
			}
		})
	}
}
