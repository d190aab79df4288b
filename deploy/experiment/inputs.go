package experiment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Input is a file that the file of an experiment names, other than a script: a trace, times, or a lab. The directory of results has a
// copy, in files, unless it is larger than 64 MiB.
type Input struct {
	Name   string `json:"name"`   // of the copy, without its directory
	Size   int64  `json:"size"`   // in bytes
	SHA256 string `json:"sha256"` // hexadecimal

	path string // as the file has it
	data []byte // nil: it is too large for a copy
}

// maxKept bounds the files in the directory of results, in bytes.
const maxKept = 64 << 20

// input reads a file that a field names, and returns where it was.
func (p *reader) input(path, field string) (data []byte, at string, ok bool) {
	in := p.inputOf(path)
	at = p.relative(path)
	if p.kept {
		kept := filepath.Join(p.dir, dirFiles, in.Name)
		if _, err := os.Stat(kept); err != nil && p.large != "" {
			kept = filepath.Join(p.large, in.Name)
		}
		// Results of earlier versions have no files.
		if _, err := os.Stat(kept); err == nil || p.sealed {
			at = kept
		}
	}
	data, err := readFile(at)
	if err != nil && p.sealed && errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s is not among the files of the results", in.Name)
	}
	if err != nil {
		p.Fail(field, "%w", err)
		return nil, at, false
	}
	p.digest.Write(data)
	sum := sha256.Sum256(data)
	in.Size, in.SHA256 = int64(len(data)), hex.EncodeToString(sum[:])
	if len(data) <= maxKept {
		in.data = data
	}
	return data, at, true
}

// inputOf is the file of a path. Names follow from the order in which the file of the experiment is read: they are the same in the
// directory of its results.
func (p *reader) inputOf(path string) *Input {
	for _, in := range p.inputs {
		if in.path == path {
			return in
		}
	}
	name, n := filepath.Base(path), 1
	for slices.ContainsFunc(p.inputs, func(in *Input) bool { return in.Name == name }) {
		n++
		name = fmt.Sprintf("%d-%s", n, filepath.Base(path))
	}
	in := &Input{Name: name, path: path}
	p.inputs = append(p.inputs, in)
	return in
}

// writeInputs writes copies of the files into the directory of results, and returns what run.json has of them.
func writeInputs(dir string, all []*Input) (list []Input, err error) {
	for _, in := range all {
		list = append(list, Input{Name: in.Name, Size: in.Size, SHA256: in.SHA256})
		if in.data == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, dirFiles), 0o755); err != nil {
			return nil, err
		}
		if err := writeFile(filepath.Join(dir, dirFiles, in.Name), in.data); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// namesFiles reports whether the text of a lab names files with objects, which are not kept.
func namesFiles(lab []byte) bool {
	for text, line := range yamlfile.Split(lab) {
		document, _ := yamlfile.Parse(text, line)
		fields, _ := document.Value.(map[string]any)
		if fields["kind"] == labfile.Kind && fields["objects"] != nil {
			return true
		}
	}
	return false
}
