// Package programtest builds programs that do nothing, for tests of what packs programs.
package programtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var (
	mu    sync.Mutex
	built = make(map[string][]byte) // by platform
)

// Build writes a program of a platform, such as linux/arm64, to a file.
func Build(t testing.TB, platform, path string) {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if built[platform] == nil {
		built[platform] = build(t, platform)
	}
	if err := os.WriteFile(path, built[platform], 0o755); err != nil {
		t.Fatal(err)
	}
}

func build(t testing.TB, platform string) []byte {
	dir := t.TempDir()
	for file, text := range map[string]string{"go.mod": "module nothing\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	system, arch, _ := strings.Cut(platform, "/")
	cmd := exec.Command("go", "build", "-trimpath", "-o", "nothing", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+system, "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "nothing"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
