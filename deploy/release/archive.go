package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/deploy/release/licenses"
	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

// entry is a file of an archive.
type entry struct {
	name, path string
	mode       int64
}

// writeArchive writes a platform's archive.
func (r *release) writeArchive(p *program.Program, platform string) error {
	entries := []entry{
		{"nfqproxy", p.Path, 0o755},
		{"LICENSE", filepath.Join(r.source, "LICENSE"), 0o644},
		{licenses.FileName, r.licenses(platform), 0o644},
		{"README.md", filepath.Join(r.source, "README.md"), 0o644},
	}
	if p.OS == "linux" {
		entries = slices.Insert(entries, 1, entry{"nfqproxyd", p.Daemon, 0o755})
		entries = append(entries, entry{"nfqproxy.service", filepath.Join(r.source, "deploy/systemd/nfqproxy.service"), 0o644})
	}
	for _, pattern := range []string{"completion/*", "man1/*.1"} {
		files, err := filepath.Glob(r.bin("manual", pattern)) // sorted
		if err != nil {
			return err
		}
		for _, path := range files {
			name, err := filepath.Rel(r.bin("manual"), path)
			if err != nil {
				return err
			}
			entries = append(entries, entry{filepath.ToSlash(name), path, 0o644})
		}
	}
	return r.writeTar(r.base(platform)+".tar.gz", entries)
}

// writeTar writes an archive. It has regular files only, which krew requires.
func (r *release) writeTar(name string, entries []entry) error {
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer out.Close()
	zip, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zip)
	for _, e := range entries {
		content, err := os.ReadFile(e.path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(content)), ModTime: r.date, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), zip.Close(), out.Close())
}

// writeStage writes the licences of each platform, and compresses what packages contain in compressed form.
func (r *release) writeStage(modules map[string][]licenses.Module) error {
	for platform, list := range modules {
		if err := os.WriteFile(r.licenses(platform), []byte(licenses.Text(list)), 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(r.stage, "man1"), 0o755); err != nil {
		return err
	}
	pages, err := filepath.Glob(r.bin("manual", "man1", "*.1"))
	if err != nil {
		return err
	}
	if len(pages) == 0 {
		return fmt.Errorf("%s has no pages man1/*.1: make release writes them", r.bin("manual"))
	}
	for _, page := range pages {
		if err := compress(filepath.Join(r.stage, "man1", filepath.Base(page)+".gz"), page); err != nil {
			return err
		}
	}
	return compress(filepath.Join(r.stage, "changelog.gz"), filepath.Join(r.source, "CHANGELOG.md"))
}

func compress(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var zipped strings.Builder
	zip, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = zip.Write(content)
	if err := errors.Join(err, zip.Close()); err != nil {
		return err
	}
	return os.WriteFile(to, []byte(zipped.String()), 0o644)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// sumOf is the SHA-256 of a file, in hexadecimal.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// writeSums writes the checksums of all files of a directory, as sha256sum does.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		sum, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
