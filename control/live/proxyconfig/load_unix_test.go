//go:build unix

package proxyconfig

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAPipeIsNoFile: to open one would wait for a writer.
func TestAPipeIsNoFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := Load(name)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || err.Error() != name+": not a regular file" {
			t.Errorf("error %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("hangs")
	}
}
