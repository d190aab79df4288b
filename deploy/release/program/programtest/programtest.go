// Package programtest builds programs that do almost nothing, for tests of what packs programs.
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

// source has one of the product's modules linked: k8s.io/client-go.
const source = "package main\n\nimport \"k8s.io/client-go/util/homedir\"\n\nfunc main() { println(homedir.HomeDir()) }\n"

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

// BuildTool is [Build] and, for Linux, writes a program nfqproxyd beside it.
func BuildTool(t testing.TB, platform, path string) {
	t.Helper()
	Build(t, platform, path)
	if strings.HasPrefix(platform, "linux/") {
		Build(t, platform, filepath.Join(filepath.Dir(path), "nfqproxyd"))
	}
}

func build(t testing.TB, platform string) []byte {
	dir := t.TempDir()
	main, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "nothing")
	if err := os.WriteFile(main, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	system, arch, _ := strings.Cut(platform, "/")
	// The file is compiled as if it were in the product's module.
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", out, main)
	cmd.Dir = Repository(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+system, "GOARCH="+arch)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, text)
	}
	content, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Repository is the directory of the product's module.
func Repository(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "..", "..")
}
