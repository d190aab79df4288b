package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// read returns the headers and the contents of a tar archive, in order.
func read(t *testing.T, archive []byte) (names []string, headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names, headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		headers[h.Name], contents[h.Name] = h, text
	}
}

func TestLayer(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	var l Layer
	l.Text("/etc/passwd", "root", 0o644)
	l.Link("/bin/again", "program")
	l.Dir("/tmp", 0o777|fs.ModeSticky)
	if err := l.Copy("/usr/bin/program", source); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := l.write(&out); err != nil {
		t.Fatal(err)
	}
	names, headers, contents := read(t, out.Bytes())
	if want := []string{"bin/", "bin/again", "etc/", "etc/passwd", "tmp/", "usr/", "usr/bin/", "usr/bin/program"}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
	for name, want := range map[string]struct {
		kind byte
		mode int64
		text string
	}{
		"bin/":            {tar.TypeDir, 0o755, ""},
		"bin/again":       {tar.TypeSymlink, 0o777, ""},
		"etc/passwd":      {tar.TypeReg, 0o644, "root"},
		"tmp/":            {tar.TypeDir, 0o1777, ""},
		"usr/bin/program": {tar.TypeReg, 0o755, "binary"},
	} {
		if h := headers[name]; h == nil || h.Typeflag != want.kind || h.Mode != want.mode || string(contents[name]) != want.text || h.Uid != 0 {
			t.Errorf("%s: %+v with %q, want %+v", name, h, contents[name], want)
		}
	}
	if headers["bin/again"].Linkname != "program" {
		t.Errorf("the link leads to %q", headers["bin/again"].Linkname)
	}
	if err := l.Copy("/x", t.TempDir()); err == nil {
		t.Error("a directory was copied as a file")
	}
	if err := l.Programs("no-such-program"); err == nil {
		t.Error("a program that is missing was copied")
	}
}

func TestLibraries(t *testing.T) {
	const ldd = `	linux-vdso.so.1 (0x00007ffc5a5d6000)
	libtinfo.so.6 => /lib/x86_64-linux-gnu/libtinfo.so.6 (0x00007f3f5f9d5000)
	/lib64/ld-linux-x86-64.so.2 (0x00007f3f5fb8c000)
`
	want := []string{"/lib/x86_64-linux-gnu/libtinfo.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if got := libraries(ldd); !slices.Equal(got, want) {
		t.Errorf("libraries %q, want %q", got, want)
	}
}

// TestWrite: each layer is there once, under its digest, and the manifest leads to it.
func TestWrite(t *testing.T) {
	var shared, own Layer
	shared.Text("/bin/sh", "shell", 0o755)
	own.Text("/server", "server", 0o755)
	images := []Image{
		{Names: []string{"images.invalid/shell:1"}, Layers: []*Layer{&shared}, Cmd: []string{"sh"}},
		{Names: []string{"images.invalid/server:2", "images.invalid/server:3"}, Layers: []*Layer{&shared, &own}, Entrypoint: []string{"/server"}},
	}
	var out, again bytes.Buffer
	if err := Write(&out, images...); err != nil {
		t.Fatal(err)
	}
	if err := Write(&again, images...); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("a second archive differs, error %v", err)
	}
	names, _, contents := read(t, out.Bytes())
	if len(names) != 2+2+1 {
		t.Errorf("files %q, want two layers, two configurations and the manifest", names)
	}
	var manifest []entry
	if err := json.Unmarshal(contents["manifest.json"], &manifest); err != nil || len(manifest) != 2 {
		t.Fatalf("manifest %s, error %v", contents["manifest.json"], err)
	}
	for i, e := range manifest {
		if !slices.Equal(e.RepoTags, images[i].Names) || len(e.Layers) != len(images[i].Layers) {
			t.Errorf("entry %+v, want that of %+v", e, images[i])
		}
		var c config
		if err := json.Unmarshal(contents[e.Config], &c); err != nil || c.OS != "linux" || !slices.Equal(c.Config.Entrypoint, images[i].Entrypoint) || !slices.Equal(c.Config.Cmd, images[i].Cmd) {
			t.Errorf("configuration %s, error %v", contents[e.Config], err)
		}
		for j, name := range e.Layers {
			sum := sha256.Sum256(contents[name])
			if want := "sha256:" + hex.EncodeToString(sum[:]); len(contents[name]) == 0 || c.RootFS.DiffIDs[j] != want {
				t.Errorf("layer %s has the digest %s, configuration: %s", name, want, c.RootFS.DiffIDs[j])
			}
		}
	}
}
