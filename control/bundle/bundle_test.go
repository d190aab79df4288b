package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func written(t *testing.T, b *Bundle) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := b.Write(&file); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestRoundTrip: what is written is read again, and the later file of a name counts.
func TestRoundTrip(t *testing.T) {
	b := &Bundle{Manifest: Manifest{Created: time.Unix(1_800_000_000, 0).UTC(), Program: "v1", Node: "node-a", Flow: "node-a-1"}}
	b.Add(FlowFile, "old", []byte("{}"))
	collected := &Bundle{}
	collected.Add(RulesFile, "output of iptables-save", []byte("*nat\nCOMMIT\n"))
	collected.Note("%s: the node has no program nft", NFTablesFile)
	b.Take(collected)
	if err := b.AddJSON(FlowFile, "the flow's record", map[string]string{"id": "node-a-1"}); err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(written(t, b)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, got, cmp.AllowUnexported(Bundle{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
	if string(got.File(RulesFile)) != "*nat\nCOMMIT\n" || !strings.Contains(string(got.File(FlowFile)), "node-a-1") || got.File("none") != nil {
		t.Errorf("files %+v", got.Files)
	}
}

// archive is a compressed tar archive of these files.
func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestRefused: what is no bundle, what is damaged, and what is too large have one clear error.
func TestRefused(t *testing.T) {
	whole := written(t, &Bundle{})
	many := make(map[string]string)
	for i := range maxFiles + 1 {
		many[fmt.Sprintf("file-%d", i)] = ""
	}
	for name, tt := range map[string]struct {
		file []byte
		want string
	}{
		"empty":          {nil, "not a bundle: want what nfqproxy collect, its script, or nfqproxy watch-for wrote"},
		"text":           {[]byte("apiVersion: v1\n"), "not a bundle"},
		"cut off":        {whole[:len(whole)-20], "damaged bundle"},
		"other archive":  {archive(t, map[string]string{"a": "b"}), "not a bundle: it has no bundle.json"},
		"broken":         {archive(t, map[string]string{"bundle.json": "{"}), "damaged bundle: bundle.json"},
		"later version":  {archive(t, map[string]string{"bundle.json": `{"version": 2}`}), "the bundle has version 2, and this nfqproxy reads version 1"},
		"no version":     {archive(t, map[string]string{"bundle.json": `{}`}), "the bundle has version 0"},
		"too many files": {archive(t, many), "the bundle is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(bytes.NewReader(tt.file)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestNames: a bundle names no files outside of itself.
func TestNames(t *testing.T) {
	b, err := Read(bytes.NewReader(archive(t, map[string]string{
		"../../x": "evil", "d/bundle.json": `{"version": 1, "files": [{"name": "../../x"}, {"name": "x", "about": "a file"}]}`,
	})))
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Files) != 1 || b.Files[0].Name != "x" || b.Files[0].About != "a file" || string(b.File("x")) != "evil" {
		t.Errorf("%+v", b.Files)
	}
}

// TestLinksAndSizes: links are not followed, and a size that a header claims is not believed.
func TestLinksAndSizes(t *testing.T) {
	pack := func(headers ...*tar.Header) []byte {
		var file bytes.Buffer
		z := gzip.NewWriter(&file)
		w := tar.NewWriter(z)
		for _, h := range headers {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Name == "bundle.json" {
				if _, err := w.Write([]byte(`{"version": 1}`)); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = w.Flush() // without the contents of what is large
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return file.Bytes()
	}
	manifest := &tar.Header{Name: "bundle.json", Mode: 0o600, Size: 14, Typeflag: tar.TypeReg}
	b, err := Read(bytes.NewReader(pack(manifest, &tar.Header{Name: "addr.json", Linkname: "/etc/shadow", Typeflag: tar.TypeSymlink})))
	if err != nil || len(b.Files) != 0 {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := Read(bytes.NewReader(pack(manifest, &tar.Header{Name: "addr.json", Size: 1 << 40, Typeflag: tar.TypeReg}))); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a file of 1 TiB: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "d")
	if err := b.Extract(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "addr.json")); err != nil {
		t.Fatal(err)
	}
	if b, err := Open(dir); err != nil || len(b.Files) != 0 {
		t.Errorf("%+v, %v", b, err)
	}
}
