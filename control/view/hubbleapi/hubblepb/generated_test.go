package hubblepb

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestGenerated generates the code anew and compares it with the files here.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the generators")
	}
	netnstest.RequireTool(t, "go")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", "-to", dir)
	cmd.Dir = "generate"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	generated, err := filepath.Glob(dir + "/*.pb.go")
	peers, err2 := filepath.Glob(dir + "/peer/*.pb.go")
	if err := errors.Join(err, err2); err != nil || len(generated) != 4 || len(peers) != 2 {
		t.Fatalf("generated files %v and %v, error %v", generated, peers, err)
	}
	for _, path := range append(generated, peers...) {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		if file, err := os.ReadFile(name); err != nil || !bytes.Equal(file, want) {
			t.Errorf("%s is not what its .proto file generates (%v): run go generate", name, err)
		}
	}
}
