package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/nfqproxy/nfqproxy/deploy/release/program/programtest"
)

var platforms = []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"}

// built is a repository with programs, a manual and images that do nothing. The changelog has version 1.2.3.
func built(t *testing.T) *release {
	t.Helper()
	source := t.TempDir()
	here, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"LICENSE", "README.md", "deploy"} {
		if err := os.Symlink(filepath.Join(here, name), filepath.Join(source, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"CHANGELOG.md":                        "# Changelog\n\n## [Unreleased]\n\n- next\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- this\n\n## [1.2.2] - 2026-01-01\n\n- that\n",
		"bin/manual/man1/nfqproxy.1":          ".TH nfqproxy 1\n",
		"bin/manual/man1/nfqproxy-x.1":        ".TH nfqproxy-x 1\n",
		"bin/manual/completion/nfqproxy.bash": "bash\n", "bin/manual/completion/nfqproxy.fish": "fish\n", "bin/manual/completion/nfqproxy.zsh": "zsh\n",
		"bin/nfqproxy-image.tar": "all", "bin/nfqproxy-image-amd64.tar": "amd64", "bin/nfqproxy-image-arm64.tar": "arm64",
	} {
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, platform := range platforms {
		path := filepath.Join(source, "bin", platform, "nfqproxy")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		programtest.Build(t, strings.ReplaceAll(platform, "-", "/"), path)
	}
	return &release{source: source, version: "v1.2.3", revision: "0123abc", platforms: platforms}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestFiles: the release has these files and no others, SHA256SUMS those of all, and a second release of
// another directory is equal.
func TestFiles(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var sums []string
	for range 2 {
		r := built(t)
		if err := r.run(false); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(r.source, "bin", "release")
		got := names(t, dir)
		if diff := cmp.Diff([]string{
			"NOTES.md", "SHA256SUMS", "nfqproxy-1.2.3-1.aarch64.rpm", "nfqproxy-1.2.3-1.x86_64.rpm",
			"nfqproxy-v1.2.3-darwin-amd64.spdx.json", "nfqproxy-v1.2.3-darwin-amd64.tar.gz", "nfqproxy-v1.2.3-darwin-arm64.spdx.json", "nfqproxy-v1.2.3-darwin-arm64.tar.gz",
			"nfqproxy-v1.2.3-image-amd64.tar", "nfqproxy-v1.2.3-image-arm64.tar", "nfqproxy-v1.2.3-image.tar",
			"nfqproxy-v1.2.3-linux-amd64.spdx.json", "nfqproxy-v1.2.3-linux-amd64.tar.gz", "nfqproxy-v1.2.3-linux-arm64.spdx.json", "nfqproxy-v1.2.3-linux-arm64.tar.gz",
			"nfqproxy_1.2.3_amd64.deb", "nfqproxy_1.2.3_arm64.deb",
		}, got); diff != "" {
			t.Error(diff)
		}
		text := read(t, dir, "SHA256SUMS")
		for _, name := range got {
			sum, err := sumOf(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if listed := strings.Contains(text, sum+"  "+name+"\n"); listed == (name == "SHA256SUMS") {
				t.Errorf("SHA256SUMS: %s is listed: %v", name, listed)
			}
		}
		if rest := names(t, filepath.Join(r.source, "bin")); slices.ContainsFunc(rest, func(n string) bool { return strings.HasPrefix(n, "release-") }) {
			t.Errorf("left behind: %q", rest)
		}
		if notes := read(t, dir, "NOTES.md"); notes != "### Added\n\n- this\n" {
			t.Errorf("notes: %q", notes)
		}
		sums = append(sums, text)
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
		t.Error(diff)
	}
}

// TestArchive: an archive has regular files only, of the time of the commit.
func TestArchive(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	r := built(t)
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	common := "-rw-r--r-- LICENSE\n-rw-r--r-- README.md\n%s" +
		"-rw-r--r-- completion/nfqproxy.bash\n-rw-r--r-- completion/nfqproxy.fish\n-rw-r--r-- completion/nfqproxy.zsh\n-rw-r--r-- man1/nfqproxy-x.1\n-rw-r--r-- man1/nfqproxy.1\n"
	for platform, unit := range map[string]string{"linux-arm64": "-rw-r--r-- nfqproxy.service\n", "darwin-amd64": ""} {
		f, err := os.Open(filepath.Join(r.source, "bin/release/nfqproxy-v1.2.3-"+platform+".tar.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		zip, err := gzip.NewReader(bufio.NewReader(f))
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for a := tar.NewReader(zip); ; {
			h, err := a.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&got, "%s %s\n", h.FileInfo().Mode(), h.Name)
			if h.ModTime.Unix() != 1700000000 || h.Uid != 0 || h.Typeflag != tar.TypeReg {
				t.Errorf("%s: %+v", platform, h)
			}
			if content, err := io.ReadAll(a); err != nil || h.Name == "nfqproxy" && string(content) != read(t, r.source, "bin", platform, "nfqproxy") {
				t.Errorf("%s has another program: %v", platform, err)
			}
		}
		if diff := cmp.Diff("-rwxr-xr-x nfqproxy\n"+fmt.Sprintf(common, unit), got.String()); diff != "" {
			t.Errorf("%s: %s", platform, diff)
		}
	}
}

// TestBill: the bill of materials is valid, and names the program and what it is built of.
func TestBill(t *testing.T) {
	r := built(t)
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	const name = "nfqproxy-v1.2.3-linux-amd64.spdx.json"
	text := read(t, r.source, "bin/release", name)
	doc, err := spdxjson.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	sum, err := sumOf(filepath.Join(r.source, "bin/linux-amd64/nfqproxy"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{sum, `"spdxVersion": "SPDX-2.3"`, `"versionInfo": "v1.2.3"`, `"commit 0123abc"`, `"pkg:golang/stdlib@1.`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", name, want)
		}
	}
}

// TestRefused: one message, no files, and an earlier release stays.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*release) error
		want   string
	}{
		{"no version", func(r *release) error { r.version = ""; return nil }, `the version is ""`},
		{"no v", func(r *release) error { r.version = "1.2.3"; return nil }, `the version is "1.2.3"`},
		{"a commit", func(r *release) error { r.version = "v1.2.3-4-g0123abc-dirty+x"; return nil }, "the version is"},
		{"no notes", func(r *release) error { r.version = "v1.2.4"; return nil }, `has no text below a heading "## [1.2.4]"`},
		{"a prefix of a version", func(r *release) error { r.version = "v1.2.30"; return nil }, `"## [1.2.30]"`},
		{"no platform", func(r *release) error { r.platforms = nil; return nil }, "a release has programs"},
		{"no program", func(r *release) error { return os.Remove(r.bin("darwin-arm64", "nfqproxy")) }, "darwin-arm64/nfqproxy"},
		{"a platform in another's place", func(r *release) error {
			return copyFile(r.bin("linux-arm64", "nfqproxy"), r.bin("linux-amd64", "nfqproxy"))
		}, "linux-arm64/nfqproxy is for linux-amd64"},
		{"no image", func(r *release) error { return os.Remove(r.bin("nfqproxy-image-arm64.tar")) }, "nfqproxy-image-arm64.tar"},
		{"no manual", func(r *release) error { return os.RemoveAll(r.bin("manual")) }, "has no pages man1/*.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := built(t)
			if err := os.MkdirAll(r.bin("release", "earlier"), 0o755); err != nil {
				t.Fatal(err)
			}
			before := names(t, r.bin())
			if err := c.change(r); err != nil {
				t.Fatal(err)
			}
			err := r.run(false)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			for _, name := range names(t, r.bin()) {
				if !slices.Contains(before, name) {
					t.Errorf("left behind: %s", name)
				}
			}
			if got := names(t, r.bin("release")); !slices.Equal(got, []string{"earlier"}) {
				t.Errorf("the earlier release has changed: %q", got)
			}
		})
	}
}
