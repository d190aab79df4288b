package experiment

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a bundle: its files, and their size in bytes, unpacked.
const (
	maxBundleFiles = 200_000
	maxBundleSize  = 4 << 30
)

// unpack unpacks a bundle into an empty directory, and checks all checksums. It returns the names of its files, with slashes and
// sorted. An archive with anything else than regular files in one directory is refused.
func unpack(from io.Reader, dir string) (names []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("not an experiment's bundle: %w", err)
	}
	z.Multistream(false)
	u := unpacking{root: root, sums: make(map[string]string)}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("damaged bundle: %w", err)
		}
		if h.Typeflag == tar.TypeDir {
			continue // of an archive that was packed again
		}
		if err := u.add(h, t); err != nil {
			return nil, err
		}
	}
	const padding = 1 << 20 // of archives; gzip's own checksum is after it
	if n, err := io.Copy(io.Discard, io.LimitReader(z, padding)); err != nil || n == padding {
		return nil, fmt.Errorf("damaged bundle: %w", cmp.Or(err, errors.New("extra data after the archive")))
	}
	sums, err := root.ReadFile(FileSums)
	if err != nil {
		return nil, fmt.Errorf("not an experiment's bundle: it has no %s", FileSums)
	}
	delete(u.sums, FileSums)
	if err := u.check(sums); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(u.sums)), nil
}

// unpacking is a bundle that is unpacked.
type unpacking struct {
	root *os.Root
	top  string // the directory of all its files
	size int64
	sums map[string]string // SHA-256 of what was unpacked, hexadecimal
}

// add unpacks a file.
func (u *unpacking) add(h *tar.Header, from io.Reader) error {
	top, name, _ := strings.Cut(strings.TrimPrefix(h.Name, "./"), "/")
	if u.top == "" {
		u.top = top
	}
	u.size += max(h.Size, 0)
	switch {
	case h.Typeflag != tar.TypeReg:
		return fmt.Errorf("not an experiment's bundle: %q is no file", h.Name)
	case top != u.top || name == "" || path.Clean(name) != name || !filepath.IsLocal(top) || !filepath.IsLocal(name) || strings.Count(name, "/") > 1 || strings.ContainsAny(name, "\\\r\n"):
		return fmt.Errorf("not an experiment's bundle: %q is not the name of a file in its directory", h.Name)
	case u.size > maxBundleSize || len(u.sums) == maxBundleFiles:
		return fmt.Errorf("the bundle is too large: want at most %d files and %d MiB", maxBundleFiles, maxBundleSize>>20)
	case u.sums[name] != "":
		return fmt.Errorf("damaged bundle: it has %s twice", name)
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err = io.Copy(io.MultiWriter(f, sum), from); err != nil {
		err = fmt.Errorf("damaged bundle: %s: %w", name, err)
	}
	u.sums[name] = hex.EncodeToString(sum.Sum(nil))
	return errors.Join(err, f.Close())
}

// check compares the checksums with those that the bundle has.
func (u *unpacking) check(sums []byte) error {
	listed := make(map[string]bool)
	for line := range bytes.Lines(sums) {
		sum, name, _ := strings.Cut(strings.TrimRight(string(line), "\n"), "  ")
		listed[name] = true
		switch u.sums[name] {
		case "":
			return fmt.Errorf("damaged bundle: %q is in %s, but not in the bundle", name, FileSums)
		case sum:
		default:
			return fmt.Errorf("damaged bundle: %s was changed: its SHA-256 is not the one in %s", name, FileSums)
		}
	}
	for name := range u.sums {
		if !listed[name] {
			return fmt.Errorf("damaged bundle: %s does not have %q", FileSums, name)
		}
	}
	return nil
}
