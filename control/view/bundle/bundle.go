// Package bundle keeps what there is to know about one flow in one file, which opens anywhere: its record, the
// service and the service tables, and the node's rules, connection entries and packets.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"time"
)

// Version is the version of the format. It increases when a file changes its meaning.
const Version = 1

// The files of a bundle. All but FlowFile may be missing: the notes say why.
const (
	FlowFile      = "flow.json"       // the record, at the end, with its steps and history (datapath/flow/SCHEMA.md)
	ServiceFile   = "service.json"    // the service port with its endpoints and counts (flow API: Services)
	TablesFile    = "tables.json"     // the service table of each node (flow API: TableList)
	StatusFile    = "status.json"     // the daemon of each node (flow API: StatusList)
	EntriesFile   = "conntrack.json"  // the connection entries of the client and the service, see Entry
	RulesFile     = "iptables.rules"  // output of iptables-save
	Rules6File    = "ip6tables.rules" // output of ip6tables-save
	NFTablesFile  = "nftables.rules"  // output of nft list ruleset
	PacketsFile   = "packets.pcapng"  // packets between the client, the service and the endpoint, by interface
	manifestFile  = "bundle.json"
	maxSize       = 256 << 20 // of a bundle, unpacked, in bytes
	maxFiles      = 100
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
	Node    string    `json:"node"`    // that decided the flow
	Flow    string    `json:"flow"`    // its ID
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

// Write writes the bundle: a tar archive, compressed with gzip.
func (b *Bundle) Write(w io.Writer) error {
	b.Version = Version
	if b.Files == nil {
		b.Files = []File{}
	}
	if b.Notes == nil {
		b.Notes = []string{}
	}
	manifest, err := json.MarshalIndent(&b.Manifest, "", "  ")
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
	err = add(manifestFile, append(manifest, '\n'))
	for _, f := range b.Files {
		if err == nil {
			err = add(f.Name, b.contents[f.Name])
		}
	}
	return errors.Join(err, t.Close(), z.Close())
}

// Read reads a bundle. It refuses what is none, what is damaged, and what takes more than 256 MiB.
func Read(r io.Reader) (*Bundle, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a bundle: want a file of nfqproxy watch-for (%w)", err)
	}
	t := tar.NewReader(z)
	files := make(map[string][]byte)
	left := int64(maxSize)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("damaged bundle: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if left -= h.Size; left < 0 || len(files) == maxFiles {
			return nil, fmt.Errorf("the bundle is too large: want at most %d files and %d MiB", maxFiles, maxSize>>20)
		}
		var data bytes.Buffer
		if _, err := io.Copy(&data, t); err != nil {
			return nil, fmt.Errorf("damaged bundle: %s: %w", h.Name, err)
		}
		files[path.Base(path.Clean(h.Name))] = data.Bytes()
	}
	b := &Bundle{}
	manifest, ok := files[manifestFile]
	if !ok {
		return nil, fmt.Errorf("not a bundle: it has no %s", manifestFile)
	}
	if err := json.Unmarshal(manifest, &b.Manifest); err != nil {
		return nil, fmt.Errorf("damaged bundle: %s: %w", manifestFile, err)
	}
	if b.Version < 1 || b.Version > Version {
		return nil, fmt.Errorf("the bundle has version %d, and this nfqproxy reads version %d: use a newer nfqproxy", b.Version, Version)
	}
	listed := b.Files
	b.Files = nil
	for _, f := range listed {
		if data, ok := files[f.Name]; ok && f.Name != manifestFile {
			b.Add(f.Name, f.About, data)
		}
	}
	return b, nil
}
