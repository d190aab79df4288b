package experiment

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Files that only a bundle has.
const (
	FileCitation = "CITATION.cff" // how to cite the results: the directory's own, or how to cite nfqproxy
	FileSums     = "SHA256SUMS"   // of all other files, as sha256sum writes and checks them
)

// citation is the CITATION.cff of nfqproxy. A test compares them.
const citation = `cff-version: 1.2.0
message: If you use nfqproxy in your research, please cite it.
type: software
title: nfqproxy
abstract: >-
  A userspace service proxy for Kubernetes, and a simulator of kube-proxy and netfilter, to see, teach and research how
  a Service becomes a connection.
authors:
  - name: The nfqproxy maintainers
license: Apache-2.0
keywords: [kubernetes, kube-proxy, netfilter, nfqueue, load balancing, simulation]
`

// Bundle writes an archive (tar, compressed with gzip) with all that the results in a directory were made of, the results, and their
// checksums. The same directory gives the same bytes. It returns the names of files that are too large to be in it. All runs must be
// done.
func Bundle(dir string, w io.Writer) (large []string, err error) {
	if hasBoth(dir) {
		return nil, fmt.Errorf("%s has the results of a simulation and of live runs: bundle %[1]s/%s and %[1]s/%s", dir, DirSimulated, DirLive)
	}
	r, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if r.Missing > 0 {
		return nil, fmt.Errorf("%s is incomplete: %s; run the experiment to its end first", dir, r.Lacks())
	}
	for _, in := range r.Run.Files {
		if _, err := os.Stat(filepath.Join(dir, dirFiles, in.Name)); err != nil {
			large = append(large, in.Name)
		}
	}
	if len(large) == 0 { // otherwise only those who have the files can tell
		if x, err := loadSealed(dir, ""); err != nil {
			return nil, fmt.Errorf("%s does not contain everything needed to run it again: %w", dir, err)
		} else if x.Digest != r.Run.Digest {
			return nil, fmt.Errorf("%s: a file of the experiment was changed after the runs: its digest is %s, and that of the runs %s", dir, x.Digest, r.Run.Digest)
		}
	}
	z := gzip.NewWriter(w)
	a := newArchive(z, r.Name)
	for _, name := range r.files(dir) {
		data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if errors.Is(err, os.ErrNotExist) && name == FileCitation {
			data, err = fmt.Appendf(nil, "%sversion: %q\n", citation, r.Run.Version), nil
		}
		if err != nil {
			return nil, err
		}
		if err := a.add(name, data); err != nil {
			return nil, err
		}
	}
	return large, errors.Join(a.close(), z.Close())
}

// archive is an archive that is written.
type archive struct {
	tar  *tar.Writer
	top  string // the directory of all files
	sums strings.Builder
}

func newArchive(w io.Writer, top string) *archive { return &archive{tar: tar.NewWriter(w), top: top} }

// close ends the archive with the checksums.
func (a *archive) close() error {
	return errors.Join(a.add(FileSums, []byte(a.sums.String())), a.tar.Close())
}

func (a *archive) add(name string, data []byte) error {
	if strings.ContainsAny(name, "\\\r\n") {
		return fmt.Errorf("%q cannot be bundled: rename it, and run the experiment again", name)
	}
	fmt.Fprintf(&a.sums, "%x  %s\n", sha256.Sum256(data), name)
	h := &tar.Header{Name: path.Join(a.top, name), Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if err := a.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := a.tar.Write(data)
	return err
}

// files are the files of results in a directory, sorted, with slashes; others in it are not of nfqproxy.
func (r *Results) files(dir string) (names []string) {
	add := func(name string) {
		if info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name))); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	for _, name := range resultFiles {
		add(name)
	}
	for _, c := range r.Cells {
		for _, suffix := range []string{"", "-cost"} {
			add(path.Join(dirCells, filepath.Base((&Runner{}).path(c.Key, suffix))))
		}
	}
	for _, s := range r.Run.Scripts {
		add(path.Join(dirScripts, s.Name))
	}
	for _, in := range r.Run.Files {
		add(path.Join(dirFiles, in.Name))
	}
	for _, p := range r.plots(r.Summary()) {
		for _, extension := range []string{extensionSVG, extensionPDF, extensionVegaLite} {
			add(path.Join(dirPlots, p.name+extension))
		}
	}
	names = append(names, FileCitation)
	slices.Sort(names)
	return names
}

// resultFiles are the files in the directory of results itself.
var resultFiles = []string{
	FileExperiment, FileRun, FileRuns, FileRunsParquet, FileWindows, FileWindowsParquet, FileChanges, FileCosts, FileExpected, FileDifference, FileSummary, FileTable, FileMarkdown, FileLaTeX, FileReport,
}

// loadSealed loads the experiment of a directory of results, and reads no other files but those that are too large to be kept, from the
// directory large.
func loadSealed(dir, large string) (*Experiment, error) {
	name := filepath.Join(dir, FileExperiment)
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	p := newReader(FileExperiment, dir)
	p.kept, p.sealed, p.large = true, true, large
	return p.experiment(data)
}
