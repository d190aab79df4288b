package node

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFind(t *testing.T) {
	path := filepath.Join(t.TempDir(), Socket)
	if pid, err := Find(path); err == nil {
		t.Errorf("without a socket: process %d", pid)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := Find(path); err != nil || pid != os.Getpid() {
		t.Errorf("process %d, %v; want %d", pid, err, os.Getpid())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// Its file stays, and another process may listen there.
	if pid, err := Find(path); err == nil {
		t.Errorf("a closed socket: process %d", pid)
	}
	again, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
