package executable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindDaemon: the environment has precedence, and must be right; else the program beside this one or in PATH is found.
func TestFindDaemon(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Daemon)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ variable, path, want, fault string }{
		{path, "", path, ""},
		{filepath.Join(dir, "none"), dir, "", Variable + ": "},
		{"", dir, path, ""},
		{"", "", "", "the daemon nfqproxyd is neither in "},
	} {
		t.Setenv(Variable, c.variable)
		t.Setenv("PATH", c.path)
		got, err := FindDaemon()
		if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.HasPrefix(err.Error(), c.fault) {
			t.Errorf("%s=%s PATH=%s: %q, %v", Variable, c.variable, c.path, got, err)
		}
	}
}
