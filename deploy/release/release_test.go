package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/blakesmith/ar"
	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/deploy/release/program/programtest"
)

var platforms = []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"}

// krew is the manifest of a plugin.
const krew = "# VERSION, SHA256_OS_ARCH\napiVersion: v1\nspec: {version: VERSION, platforms: [SHA256_LINUX_AMD64, SHA256_LINUX_ARM64, SHA256_DARWIN_AMD64, SHA256_DARWIN_ARM64]}\n"

// built is a repository with programs, a manual and images that do nothing. The changelog has version 1.2.3.
func built(t *testing.T) *release {
	t.Helper()
	source := t.TempDir()
	here, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(source, "deploy"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"LICENSE", "README.md", "deploy/release", "deploy/systemd", "go.mod", "go.sum"} {
		if err := os.Symlink(filepath.Join(here, name), filepath.Join(source, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"CHANGELOG.md":                          "# Changelog\n\n## [Unreleased]\n\n- next\n\n## [1.2.30] - 2026-02-01\n\n- later\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- this\n\n## [1.2.2] - 2026-01-01\n\n- that\n",
		"deploy/krew/nfqproxy.yaml":             krew,
		"deploy/krew/kubectl_complete-nfqproxy": "#!/bin/sh\n",
		"bin/manual/man1/nfqproxy.1":            ".TH nfqproxy 1\n",
		"bin/manual/man1/nfqproxy-x.1":          ".TH nfqproxy-x 1\n",
		"bin/manual/completion/nfqproxy.bash":   "bash\n", "bin/manual/completion/nfqproxy.fish": "fish\n", "bin/manual/completion/nfqproxy.zsh": "zsh\n",
		"bin/nfqproxy-image.tar": "all", "bin/nfqproxy-image-amd64.tar": "amd64", "bin/nfqproxy-image-arm64.tar": "arm64",
		"bin/chart/nfqproxy-1.2.3.tgz": "chart", "bin/chart/nfqproxy-1.2.4.tgz": "another chart",
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
		programtest.BuildTool(t, strings.ReplaceAll(platform, "-", "/"), path)
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
		if err := os.MkdirAll(r.bin("release", "earlier"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := r.run(false); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(r.source, "bin", "release")
		got := names(t, dir)
		if diff := cmp.Diff([]string{
			"NOTES.md", "SHA256SUMS",
			"kubectl-nfqproxy_darwin_amd64.tar.gz", "kubectl-nfqproxy_darwin_arm64.tar.gz", "kubectl-nfqproxy_linux_amd64.tar.gz", "kubectl-nfqproxy_linux_arm64.tar.gz",
			"nfqproxy-1.2.3-1.aarch64.rpm", "nfqproxy-1.2.3-1.x86_64.rpm", "nfqproxy-1.2.3.tgz",
			"nfqproxy-v1.2.3-darwin-amd64.spdx.json", "nfqproxy-v1.2.3-darwin-amd64.tar.gz", "nfqproxy-v1.2.3-darwin-arm64.spdx.json", "nfqproxy-v1.2.3-darwin-arm64.tar.gz",
			"nfqproxy-v1.2.3-image-amd64.tar", "nfqproxy-v1.2.3-image-arm64.tar", "nfqproxy-v1.2.3-image.tar",
			"nfqproxy-v1.2.3-linux-amd64.spdx.json", "nfqproxy-v1.2.3-linux-amd64.tar.gz", "nfqproxy-v1.2.3-linux-arm64.spdx.json", "nfqproxy-v1.2.3-linux-arm64.tar.gz",
			"nfqproxy.krew.yaml", "nfqproxy_1.2.3_amd64.deb", "nfqproxy_1.2.3_arm64.deb",
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
	common := "-rwxr-xr-x nfqproxy\n%s-rw-r--r-- LICENSE\n-rw-r--r-- THIRD_PARTY_LICENSES\n-rw-r--r-- README.md\n%s" +
		"-rw-r--r-- completion/nfqproxy.bash\n-rw-r--r-- completion/nfqproxy.fish\n-rw-r--r-- completion/nfqproxy.zsh\n-rw-r--r-- man1/nfqproxy-x.1\n-rw-r--r-- man1/nfqproxy.1\n"
	const plugin = "-rwxr-xr-x kubectl-nfqproxy\n-rwxr-xr-x nfqproxyd\n-rwxr-xr-x kubectl_complete-nfqproxy\n-rw-r--r-- LICENSE\n-rw-r--r-- THIRD_PARTY_LICENSES\n"
	for _, c := range []struct{ archive, platform, want string }{
		{"nfqproxy-v1.2.3-linux-arm64.tar.gz", "linux-arm64", fmt.Sprintf(common, "-rwxr-xr-x nfqproxyd\n", "-rw-r--r-- nfqproxy.service\n")},
		{"nfqproxy-v1.2.3-darwin-amd64.tar.gz", "darwin-amd64", fmt.Sprintf(common, "", "")},
		{"kubectl-nfqproxy_linux_amd64.tar.gz", "linux-amd64", plugin},
	} {
		files := extracted(t, filepath.Join(r.source, "bin/release", c.archive))
		if diff := cmp.Diff(c.want, listed(t, c.archive, files)); diff != "" {
			t.Errorf("%s: %s", c.archive, diff)
		}
		if files[0].text != read(t, r.source, "bin", c.platform, "nfqproxy") {
			t.Errorf("%s has another program", c.archive)
		}
		checkLicenses(t, files)
	}
}

// tarred is a file of an archive.
type tarred struct {
	*tar.Header
	text string
}

// extracted is the files of a compressed archive.
func extracted(t *testing.T, path string) []tarred {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return untar(t, bufio.NewReader(f))
}

func untar(t *testing.T, r io.Reader) (files []tarred) {
	t.Helper()
	zip, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	for a := tar.NewReader(zip); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, tarred{h, string(text)})
	}
}

// listed has one line for each file of an archive: mode and name.
func listed(t *testing.T, archive string, files []tarred) string {
	t.Helper()
	var got strings.Builder
	for _, f := range files {
		fmt.Fprintf(&got, "%s %s\n", f.FileInfo().Mode(), f.Name)
		if f.ModTime.Unix() != 1700000000 || f.Uid != 0 || f.Typeflag != tar.TypeReg {
			t.Errorf("%s: %+v", archive, f.Header)
		}
	}
	return got.String()
}

// checkLicenses: one of the files has the licences of Go and of the program's module.
func checkLicenses(t *testing.T, files []tarred) {
	t.Helper()
	for _, f := range files {
		if filepath.Base(f.Name) != "THIRD_PARTY_LICENSES" {
			continue
		}
		for _, want := range []string{"k8s.io/client-go v", "Apache License\n", "    Go 1.", "Copyright 2009 The Go Authors."} {
			if !strings.Contains(f.text, want) {
				t.Errorf("%s lacks %q", f.Name, want)
			}
		}
		return
	}
	t.Error("THIRD_PARTY_LICENSES is missing")
}

// TestDeb: the package has the program, as a plugin of kubectl, too, and the licences.
func TestDeb(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	r := built(t)
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(r.bin("release", "nfqproxy_1.2.3_arm64.deb"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for a := ar.NewReader(f); ; {
		h, err := a.Next()
		if err != nil {
			t.Fatalf("data.tar.gz: %v", err)
		}
		switch strings.TrimSuffix(h.Name, "/") {
		case "control.tar.gz":
			if !slices.ContainsFunc(untar(t, a), func(f tarred) bool {
				return f.Name == "./control" && strings.Contains(f.text, "\nRecommends: bash-completion\n")
			}) {
				t.Error("the package does not recommend bash-completion")
			}
			continue
		case "data.tar.gz":
		default:
			continue
		}
		files := untar(t, a)
		var got strings.Builder
		for _, f := range files {
			if strings.HasPrefix(f.Name, "./usr/bin/") && f.Typeflag != tar.TypeDir {
				fmt.Fprintf(&got, "%s %s %s\n", f.FileInfo().Mode(), f.Name, f.Linkname)
			}
		}
		const want = "Lrwxrwxrwx ./usr/bin/kubectl-nfqproxy nfqproxy\n-rwxr-xr-x ./usr/bin/kubectl_complete-nfqproxy \n-rwxr-xr-x ./usr/bin/nfqproxy \n-rwxr-xr-x ./usr/bin/nfqproxyd \n"
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Error(diff)
		}
		checkLicenses(t, files)
		return
	}
}

// TestPlugin: krew's manifest has the checksums of the plugin's archives.
func TestPlugin(t *testing.T) {
	r := built(t)
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, platform := range platforms {
		sum, err := sumOf(r.bin("release", "kubectl-nfqproxy_"+strings.ReplaceAll(platform, "-", "_")+".tar.gz"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sum)
	}
	want := "apiVersion: v1\nspec: {version: v1.2.3, platforms: [" + strings.Join(all, ", ") + "]}\n"
	if diff := cmp.Diff(want, read(t, r.bin("release", "nfqproxy.krew.yaml"))); diff != "" {
		t.Error(diff)
	}
	r.platforms = platforms[:2]
	if err := r.run(false); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(names(t, r.bin("release")), "nfqproxy.krew.yaml") {
		t.Error("a manifest without the checksums of all platforms")
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
		{"no platform", func(r *release) error { r.platforms = nil; return nil }, "a release has programs"},
		{"no program", func(r *release) error { return os.Remove(r.bin("darwin-arm64", "nfqproxy")) }, "darwin-arm64/nfqproxy"},
		{"a platform in another's place", func(r *release) error {
			return copyFile(r.bin("linux-arm64", "nfqproxy"), r.bin("linux-amd64", "nfqproxy"))
		}, "linux-arm64/nfqproxy is for linux-amd64"},
		{"no image", func(r *release) error { return os.Remove(r.bin("nfqproxy-image-arm64.tar")) }, "nfqproxy-image-arm64.tar"},
		{"no chart", func(r *release) error { return os.Remove(r.chart()) }, "nfqproxy-1.2.3.tgz"},
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
