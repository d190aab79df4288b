package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// wanted is what errors about other files ask for.
const wanted = "want what nfqproxy collect, its script, or nfqproxy watch-for wrote"

// Read reads a bundle that is an archive. It refuses what is none, what is damaged, and what takes more than 1 GiB.
func Read(r io.Reader) (*Bundle, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a bundle: %s (%w)", wanted, err)
	}
	t := tar.NewReader(z)
	c := contents{files: make(map[string][]byte)}
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return c.bundle()
		}
		if err != nil {
			return nil, fmt.Errorf("damaged bundle: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := c.add(path.Clean(h.Name), h.Size, t); err != nil {
			return nil, err
		}
	}
}

// Open reads a bundle from a directory or an archive.
func Open(name string) (*Bundle, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	read := func() (*Bundle, error) { return Read(file) }
	if info.IsDir() {
		read = func() (*Bundle, error) { return readDirectory(name) }
	}
	b, err := read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// readDirectory reads the regular files of a directory.
func readDirectory(name string) (*Bundle, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	c := contents{files: make(map[string][]byte)}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := c.addFile(filepath.Join(name, e.Name())); err != nil {
			return nil, err
		}
	}
	return c.bundle()
}

// contents are the files of a bundle that is being read, by their names without directories.
type contents struct {
	files map[string][]byte
	size  int64
}

func (c *contents) add(name string, size int64, r io.Reader) error {
	if c.size += size; size < 0 || c.size > maxSize || len(c.files) == maxFiles {
		return fmt.Errorf("the bundle is too large: want at most %d files and %d MiB", maxFiles, maxSize>>20)
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(r, size)); err != nil {
		return fmt.Errorf("damaged bundle: %s: %w", name, err)
	}
	c.files[path.Base(name)] = data.Bytes()
	return nil
}

func (c *contents) addFile(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return c.add(filepath.Base(name), info.Size(), file)
}

// bundle makes the bundle. It has the files that the manifest leaves out, too: the script does not list them.
func (c *contents) bundle() (*Bundle, error) {
	b := &Bundle{}
	manifest, ok := c.files[manifestFile]
	if !ok {
		return nil, fmt.Errorf("not a bundle: it has no %s: %s", manifestFile, wanted)
	}
	if err := json.Unmarshal(manifest, &b.Manifest); err != nil {
		return nil, fmt.Errorf("damaged bundle: %s: %w", manifestFile, err)
	}
	if b.Version < 1 || b.Version > Version {
		return nil, fmt.Errorf("the bundle has version %d, and this nfqproxy reads version %d: use a newer nfqproxy", b.Version, Version)
	}
	listed := b.Files
	b.Files = nil
	for name, data := range c.files {
		if name == manifestFile || name == notesFile {
			continue
		}
		text := about[name]
		if i := slices.IndexFunc(listed, func(f File) bool { return f.Name == name }); i >= 0 {
			text = listed[i].About
		}
		b.Add(name, text, data)
	}
	b.addNotes(string(c.files[notesFile]))
	return b, nil
}

// addNotes adds the notes of the script.
func (b *Bundle) addNotes(text string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && len(b.Notes) < maxNotes {
			b.Notes = append(b.Notes, line)
		}
	}
}
