package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// TestLabImage: an image of labs has the files of a root file system as they are, but for owners and times, and the program.
func TestLabImage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	root := filepath.Join(t.TempDir(), "amd64")
	for _, dir := range []string{"usr/bin", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/bash"), []byte("a shell"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{"tmp": os.ModeSticky | 0o777, "usr/bin/bash": os.ModeSetuid | 0o755} {
		if err := os.Chmod(filepath.Join(root, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	lab := from
	lab.lab = filepath.Dir(root)
	paths, first, second := programs(t, "linux/amd64"), t.TempDir(), t.TempDir()
	for _, out := range []string{first, second} {
		if err := run(t.Context(), "nfqproxy-lab:dev", lab, out, false, paths); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(sums(t, first), sums(t, second)); diff != "" {
		t.Error(diff)
	}
	tag, err := name.NewTag("nfqproxy-lab:dev")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(filepath.Join(first, "nfqproxy-lab-image-amd64.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(first, "nfqproxy-lab-image.tar")); err != nil {
		t.Error(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; !reflect.DeepEqual(c.Entrypoint, []string{"/usr/local/bin/lab-entry"}) || !reflect.DeepEqual(c.Cmd, []string{"bash"}) || c.Labels["org.opencontainers.image.title"] != "nfqproxy-lab" {
		t.Errorf("%+v", c)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 3 {
		t.Fatal(layers, err)
	}
	if diff := cmp.Diff([]string{
		"Lrwxrwxrwx 0:0 0 bin ",
		"dtrwxrwxrwx 0:0 0 tmp/ ",
		"drwxr-xr-x 0:0 0 usr/ ",
		"drwxr-xr-x 0:0 0 usr/bin/ ",
		`urwxr-xr-x 0:0 0 usr/bin/bash "a shell"`,
	}, list(t, layers[0])); diff != "" {
		t.Error(diff)
	}
	program, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := list(t, layers[2]), fmt.Sprintf("-rwxr-xr-x 0:0 0 usr/local/bin/nfqproxy %x", sha256.Sum256(program)); len(got) != 3 || !strings.HasPrefix(got[0], "-rwxr-xr-x 0:0 0 usr/local/bin/lab-entry ") || got[1] != want {
		t.Errorf("%q", got)
	}

	// The root file systems of other architectures, and special files.
	lab.lab = t.TempDir()
	if err := run(t.Context(), "nfqproxy-lab:dev", lab, t.TempDir(), false, paths); err == nil || !strings.Contains(err.Error(), "no root file system in ") {
		t.Error(err)
	}
	other := filepath.Join(lab.lab, "amd64")
	if err := errors.Join(os.Mkdir(other, 0o755), syscall.Mkfifo(filepath.Join(other, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), "nfqproxy-lab:dev", lab, t.TempDir(), false, paths); err == nil || !strings.Contains(err.Error(), "pipe is neither a file, nor a directory or link") {
		t.Error(err)
	}
}
