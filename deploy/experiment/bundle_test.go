package experiment_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// packed is the bundle of a directory.
func packed(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	if large, err := experiment.Bundle(dir, &b); err != nil || len(large) > 0 {
		t.Fatalf("%v, without %q", err, large)
	}
	return b.Bytes()
}

// unpacked are the files of a bundle.
func unpacked(t *testing.T, bundle []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		data, err2 := io.ReadAll(r)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		files[h.Name] = string(data)
	}
}

// archived packs headers, whose names and sizes it takes as they are, with their contents.
func archived(t *testing.T, headers []*tar.Header, contents []string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for i, h := range headers {
		h.Mode = 0o600
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if i < len(contents) {
			if _, err := io.WriteString(w, contents[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = w.Close() // of a size that is not there it is an error
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// repacked packs files with new checksums.
func repacked(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var headers []*tar.Header
	var contents []string
	sums, top := "", ""
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var inner string
		if top, inner, _ = strings.Cut(name, "/"); inner == experiment.FileSums {
			continue
		}
		headers, contents = append(headers, &tar.Header{Name: name, Size: int64(len(files[name]))}), append(contents, files[name])
		sums += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(files[name])), inner)
	}
	return archived(t, append(headers, &tar.Header{Name: top + "/" + experiment.FileSums, Size: int64(len(sums))}), append(contents, sums))
}

// verify verifies a bundle.
func verify(t *testing.T, bundle []byte, v experiment.Verifier) (*experiment.Verification, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := os.WriteFile(path, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	if v.Version == "" {
		v.Version = "test"
	}
	v.Cells = 2
	return v.Verify(t.Context(), path)
}

// TestBundle: a bundle has all that it takes to run the experiment again, the same directory gives the same bytes, and a run of it
// has the same bytes in each file.
func TestBundle(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T) string{
		"script and sweep": func(t *testing.T) string { _, dir := runSwept(t); return dir },
		"lab and files": func(t *testing.T) string {
			dir := t.TempDir()
			write(t, dir, map[string]string{"x.yaml": named, "a/times.txt": "1ms\n3ms\n", "b/times.txt": "100ms\n", "lab.yaml": scriptedLab, "policies/first.star": firstOnly})
			_, results := run(t, load(t, filepath.Join(dir, "x.yaml"), 1))
			return results
		},
		"until": func(t *testing.T) string {
			x, err := experiment.Parse("x.yaml", ".", []byte(small+"until: {metric: response_mean, half: 3%, max: 6}\n"))
			if err != nil {
				t.Fatal(err)
			}
			_, dir := run(t, x)
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := make(t)
			write(t, dir, map[string]string{"thesis.tex": "not of the program"})
			bundle := packed(t, dir)
			if !bytes.Equal(bundle, packed(t, dir)) {
				t.Error("the same directory has two bundles")
			}
			want := tree(t, dir)
			delete(want, "thesis.tex")
			got := unpacked(t, bundle)
			for inner, data := range want {
				found := false
				for path, text := range got {
					_, name, _ := strings.Cut(path, "/")
					found = found || name == inner && text == string(data)
				}
				if !found {
					t.Errorf("the bundle does not have %s", inner)
				}
			}
			if len(got) != len(want)+2 {
				t.Errorf("%d files of %d results", len(got), len(want))
			}
			found, err := verify(t, bundle, experiment.Verifier{})
			if err != nil {
				t.Fatal(err)
			}
			same := 0
			for _, c := range found.Files {
				if c.Text == "same" {
					same++
				} else if c.Differs || !strings.Contains(c.Text, "times of the machine") {
					t.Errorf("%s: %s", c.Name, c.Text)
				}
			}
			if err := found.Verdict(); err != nil || same < 12 {
				t.Errorf("%v, %d files are the same:\n%s", err, same, found.Text())
			}
		})
	}
}

// TestBundleDiffers: a result that was changed is named, and so is another version.
func TestBundleDiffers(t *testing.T) {
	t.Parallel()
	_, dir := runSwept(t)
	bundle := packed(t, dir)
	files := unpacked(t, bundle)
	lines := strings.SplitAfter(files["swept/runs.csv"], "\n")
	lines[2] = strings.Replace(lines[2], "0.", "1.", 1)
	files["swept/runs.csv"] = strings.Join(lines, "")
	found, err := verify(t, repacked(t, files), experiment.Verifier{Version: "v9"})
	if err != nil {
		t.Fatal(err)
	}
	if err := found.Verdict(); err == nil || !strings.Contains(err.Error(), "files differ; they were made by nfqproxy test, but this is v9") {
		t.Errorf("verdict %v", err)
	}
	for _, want := range []string{"results by nfqproxy test (go", "run again by nfqproxy v9 (go", "runs.csv: differs from line 3 on\n", "windows.csv: same\n", "run.json: same except for version and machine\n"} {
		if !strings.Contains(found.Text(), want) {
			t.Errorf("no %q in\n%s", want, found.Text())
		}
	}
	if strings.Count(found.Text(), "differs") != 1 {
		t.Errorf("other files differ:\n%s", found.Text())
	}
	// Another version alone is no difference.
	found, err = verify(t, bundle, experiment.Verifier{Version: "v9"})
	if err != nil || found.Verdict() != nil {
		t.Errorf("%v, %v", err, found.Verdict())
	}
}

// TestBundleRefused: damaged archives, and those with anything but files in a directory, have one clear error, and write nothing
// elsewhere.
func TestBundleRefused(t *testing.T) {
	t.Parallel()
	_, dir := runSwept(t)
	bundle := packed(t, dir)
	with := func(change func(files map[string]string)) []byte {
		files := unpacked(t, bundle)
		change(files)
		return repacked(t, files)
	}
	one := func(h *tar.Header, contents ...string) []byte { return archived(t, []*tar.Header{h}, contents) }
	changed := unpacked(t, bundle)
	changed["swept/summary.txt"] += "!"
	var headers []*tar.Header
	var contents []string
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		headers, contents = append(headers, &tar.Header{Name: name, Size: int64(len(changed[name]))}), append(contents, changed[name])
	}
	flipped := bytes.Clone(bundle)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	live := func(f map[string]string) {
		f["swept/run.json"] = strings.Replace(f["swept/run.json"], `"simulate"`, `"live"`, 1)
	}
	for name, tt := range map[string]struct {
		bundle []byte
		want   string
	}{
		"text":              {[]byte("apiVersion: v1\n"), "not an experiment's bundle"},
		"cut off":           {bundle[:len(bundle)/2], "damaged bundle"},
		"flipped bit":       {flipped, "damaged bundle"},
		"other archive":     {one(&tar.Header{Name: "a/b", Size: 1}, "x"), "it has no SHA256SUMS"},
		"changed file":      {archived(t, headers, contents), "summary.txt was changed: its SHA-256 is not the one"},
		"parent":            {one(&tar.Header{Name: "a/../../b"}), `"a/../../b" is not the name of a file in its directory`},
		"top is the parent": {one(&tar.Header{Name: "../b"}), `"../b" is not the name`},
		"absolute":          {one(&tar.Header{Name: "/etc/b"}), `"/etc/b" is not the name`},
		"two directories":   {archived(t, []*tar.Header{{Name: "a/b"}, {Name: "c/b"}}, nil), `"c/b" is not the name`},
		"deep":              {one(&tar.Header{Name: "a/b/c/d"}), `"a/b/c/d" is not the name`},
		"symbolic link":     {one(&tar.Header{Name: "a/b", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), `"a/b" is no file`},
		"hard link":         {one(&tar.Header{Name: "a/b", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), `"a/b" is no file`},
		"huge":              {one(&tar.Header{Name: "a/b", Size: 1 << 40}), "the bundle is too large: want at most 200000 files and 4096 MiB"},
		"twice":             {archived(t, []*tar.Header{{Name: "a/b"}, {Name: "a/b"}}, nil), "it has b twice"},
		"no run.json":       {with(func(f map[string]string) { delete(f, "swept/run.json") }), "it has no run.json"},
		"broken run.json":   {with(func(f map[string]string) { f["swept/run.json"] = "{" }), "damaged bundle"},
		"other experiment":  {with(func(f map[string]string) { f["swept/experiment.yaml"] += "# more\n" }), "the experiment does not belong to the results"},
		"other script":      {with(func(f map[string]string) { f["swept/scripts/first.star"] = failing }), "the experiment does not belong to the results"},
		"file of the reader": {with(func(f map[string]string) {
			f["swept/experiment.yaml"] = strings.Replace(swept, "exponential, mean: 5ms", "empirical, file: /etc/hostname", 1)
		}), "hostname is not among the files of the results"},
		"many seeds": {with(func(f map[string]string) {
			f["swept/run.json"] = strings.Replace(f["swept/run.json"], `"seeds": 2`, `"seeds": 2000000`, 1)
		}), "2000000 seeds"},
		"live": {with(live), "no two of those are the same"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if found, err := verify(t, tt.bundle, experiment.Verifier{}); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v, want %q", found, err, tt.want)
			}
		})
	}
}

// TestBundleLarge: a large file that the experiment names is not in the bundle; who verifies it gives the same file.
func TestBundleLarge(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	times := strings.Repeat("#"+strings.Repeat("-", 62)+"\n", 1<<20) + "2ms\n"
	write(t, dir, map[string]string{"x.yaml": strings.Replace(small, "exponential, mean: 5ms", "empirical, file: times.txt", 1), "times.txt": times})
	write(t, other, map[string]string{"times.txt": "3ms\n"})
	_, results := run(t, load(t, filepath.Join(dir, "x.yaml"), 1))
	var b bytes.Buffer
	if large, err := experiment.Bundle(results, &b); err != nil || !slices.Equal(large, []string{"times.txt"}) || b.Len() > 1<<20 {
		t.Fatalf("%v, without %q, %d bytes", err, large, b.Len())
	}
	for files, want := range map[string]string{"": "it does not have times.txt (67108868 bytes, SHA-256 ", other: "is not the file of the experiment: its SHA-256 is "} {
		if _, err := verify(t, b.Bytes(), experiment.Verifier{Files: files}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("files in %q: %v, want %s", files, err, want)
		}
	}
	if found, err := verify(t, b.Bytes(), experiment.Verifier{Files: dir}); err != nil || found.Verdict() != nil {
		t.Errorf("%v, %v", err, found.Verdict())
	}
}

// TestNoBundle: results that cannot be run again from their directory have none.
func TestNoBundle(t *testing.T) {
	t.Parallel()
	oneFile := fstest.MapFS{experiment.FileRun: {Data: []byte("{}")}}
	for _, tt := range []struct {
		name   string
		change func(dir string) error
		want   string
	}{
		{"incomplete", func(dir string) error {
			cells, err := filepath.Glob(filepath.Join(dir, "cells", "*-1.json"))
			return errors.Join(err, os.Remove(cells[0]))
		}, "is incomplete: 1 run is missing; run the experiment to its end first"},
		{"script", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "scripts/first.star"), []byte(failing), 0o600)
		}, "a file of the experiment was changed after the runs"},
		{"both", func(dir string) error {
			return errors.Join(os.CopyFS(filepath.Join(dir, "simulate"), oneFile), os.CopyFS(filepath.Join(dir, "live"), oneFile))
		}, "has the results of a simulation and of live runs: bundle "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, dir := runSwept(t)
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := experiment.Bundle(dir, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// TestNoBundleOfObjects: the directory of results does not have the objects that a lab names.
func TestNoBundleOfObjects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lab, service, _ := strings.Cut(scriptedLab, "---\n")
	lab = strings.Replace(lab, "policies/first.star", "first.star", 1) + "objects: [service.yaml]\n"
	write(t, dir, map[string]string{"x.yaml": named, "a/times.txt": "1ms\n", "b/times.txt": "1ms\n", "lab.yaml": lab, "service.yaml": service, "first.star": firstOnly})
	_, results := run(t, load(t, filepath.Join(dir, "x.yaml"), 1))
	if _, err := experiment.Bundle(results, io.Discard); err == nil || !strings.Contains(err.Error(), "lab.yaml names files with objects, which results do not keep: put the objects into it") {
		t.Error(err)
	}
}

// TestCitation: a bundle has the citation of the repository, with the version, or the directory's own.
func TestCitation(t *testing.T) {
	t.Parallel()
	_, dir := runSwept(t)
	own, err := os.ReadFile("../../CITATION.cff")
	if err != nil {
		t.Fatal(err)
	}
	if got := unpacked(t, packed(t, dir))["swept/CITATION.cff"]; got != string(own)+"version: \"test\"\n" {
		t.Errorf("the bundle has\n%s", got)
	}
	write(t, dir, map[string]string{"CITATION.cff": "title: mine\n"})
	if got := unpacked(t, packed(t, dir))["swept/CITATION.cff"]; got != "title: mine\n" {
		t.Errorf("the bundle has\n%s", got)
	}
}
