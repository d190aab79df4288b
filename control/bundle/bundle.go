// Package bundle keeps what there is to know about a node, and perhaps about one flow, in one file or directory, which
// opens anywhere: the node's rules, addresses, routes, sysctls and connection entries; the flow's record, the service
// and the service tables, and packets.
//
// It is a ground package.
package bundle

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// Version is the version of the format. It increases when a file changes its meaning.
const Version = 1

const (
	manifestFile  = "bundle.json"
	notesFile     = "notes.txt" // of the script: a line for each command without a result
	maxSize       = 1 << 30     // of a bundle, unpacked, in bytes
	maxFiles      = 100
	maxNotes      = 200
	directoryName = "nfqproxy-bundle" // in the archive, so that tar x makes one directory
)

// Bundle is a set of files. It is not safe for concurrent use.
type Bundle struct {
	Manifest
	contents map[string][]byte
}

// Manifest describes a bundle.
type Manifest struct {
	Version int       `json:"version"`
	Created time.Time `json:"created"`
	Program string    `json:"program"` // version of nfqproxy
	Node    string    `json:"node"`    // the node's host name, or the node that decided the flow
	Flow    string    `json:"flow"`    // its ID; empty: the bundle is about the node only
	Files   []File    `json:"files"`   // sorted by name
	// Notes are about what is missing, one sentence each.
	Notes []string `json:"notes"`
}

// File is a file of a bundle.
type File struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Size  int    `json:"size"` // in bytes
}

// Add adds a file, or replaces it. The bundle keeps data.
func (b *Bundle) Add(name, about string, data []byte) {
	if b.contents == nil {
		b.contents = make(map[string][]byte)
	}
	b.contents[name] = data
	b.Files = slices.DeleteFunc(b.Files, func(f File) bool { return f.Name == name })
	b.Files = append(b.Files, File{Name: name, About: about, Size: len(data)})
	slices.SortFunc(b.Files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
}

// AddJSON adds a value as JSON.
func (b *Bundle) AddJSON(name, about string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err == nil {
		b.Add(name, about, append(data, '\n'))
	}
	return err
}

// Note adds a note.
func (b *Bundle) Note(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

// File returns the contents of a file, which belong to the bundle; nil: there is none.
func (b *Bundle) File(name string) []byte { return b.contents[name] }

// Take adds the files and notes of another bundle.
func (b *Bundle) Take(o *Bundle) {
	for _, f := range o.Files {
		b.Add(f.Name, f.About, o.contents[f.Name])
	}
	b.Notes = append(b.Notes, o.Notes...)
}

// manifest prepares the manifest for writing, and returns it as JSON.
func (b *Bundle) manifest() ([]byte, error) {
	b.Version = Version
	if b.Files == nil {
		b.Files = []File{}
	}
	if b.Notes == nil {
		b.Notes = []string{}
	}
	data, err := json.MarshalIndent(&b.Manifest, "", "  ")
	return append(data, '\n'), err
}

// Write writes the bundle: a tar archive, compressed with gzip.
func (b *Bundle) Write(w io.Writer) error {
	manifest, err := b.manifest()
	if err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	add := func(name string, data []byte) error {
		h := &tar.Header{Name: path.Join(directoryName, name), Mode: 0o644, Size: int64(len(data)), ModTime: b.Created, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
	err = add(manifestFile, manifest)
	for _, f := range b.Files {
		if err == nil {
			err = add(f.Name, b.contents[f.Name])
		}
	}
	return errors.Join(err, t.Close(), z.Close())
}

// Extract writes the bundle into a directory, which must not exist.
func (b *Bundle) Extract(dir string) error {
	manifest, err := b.manifest()
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, manifestFile), manifest, 0o644)
	for _, f := range b.Files {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f.Name), b.contents[f.Name], 0o644)
		}
	}
	return err
}
