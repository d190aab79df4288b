package experiment

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// Work is the cells of an experiment that run elsewhere, in parts.
type Work struct {
	Version string `json:"version"` // of the program that is to run them
	Each    int    `json:"each"`    // cells of a part; the last one may have fewer
	Cells   []Key  `json:"cells"`
}

// Parts is the number of parts.
func (w *Work) Parts() int { return (len(w.Cells) + w.Each - 1) / w.Each }

// Part returns the cells of a part, from 0 on; none: there is no such part.
func (w *Work) Part(i int) []Key {
	if i < 0 || i >= w.Parts() {
		return nil
	}
	return w.Cells[i*w.Each : min((i+1)*w.Each, len(w.Cells))]
}

// fileWork is the file of an archive with a Work, beside those of the experiment.
const fileWork = "work.json"

// Pack returns an archive (tar, compressed with gzip) with the work and all files that it takes to run it: the same archive for the same
// work. The error names what cannot be in it.
func (w *Work) Pack(x *Experiment) ([]byte, error) {
	if len(x.Own) > 0 {
		return nil, errors.New("algorithms that are compiled into this program cannot run elsewhere")
	}
	list, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	a := newArchive(z, x.Metadata.Name)
	errs := []error{a.add(FileExperiment, x.File), a.add(fileWork, list)}
	for _, s := range x.Scripts {
		errs = append(errs, a.add(path.Join(dirScripts, s.Name()), s.Source()))
	}
	for _, in := range x.Inputs {
		if in.data == nil {
			return nil, fmt.Errorf("%s is larger than %d MiB: it cannot be sent elsewhere", in.Name, maxKept>>20)
		}
		errs = append(errs, a.add(path.Join(dirFiles, in.Name), in.data))
	}
	if err := errors.Join(append(errs, a.close(), z.Close())...); err != nil {
		return nil, err
	}
	// Whoever unpacks it must get the same experiment.
	err = inTemporary(func(dir string) error {
		packed, _, err := unpackWork(b.Bytes(), dir)
		if err == nil && packed.Digest != x.Digest {
			err = errors.New("its digest differs")
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s cannot run elsewhere: the files of its archive are not all that it takes: %w", x.Metadata.Name, err)
	}
	return b.Bytes(), nil
}

// ReadWork returns the work of an archive of [Work.Pack].
func ReadWork(archive []byte) (w *Work, err error) {
	err = inTemporary(func(dir string) error {
		w, err = readWork(archive, dir)
		return err
	})
	return w, err
}

func readWork(archive []byte, dir string) (*Work, error) {
	if _, err := unpack(bytes.NewReader(archive), dir); err != nil {
		return nil, err
	}
	w := new(Work)
	if err := readJSON(filepath.Join(dir, fileWork), w); err != nil {
		return nil, err
	}
	if w.Each < 1 || len(w.Cells) == 0 {
		return nil, fmt.Errorf("%s: %d cells, %d in a part", fileWork, len(w.Cells), w.Each)
	}
	return w, nil
}

func unpackWork(archive []byte, dir string) (*Experiment, *Work, error) {
	w, err := readWork(archive, dir)
	if err != nil {
		return nil, nil, err
	}
	x, err := loadSealed(dir, "")
	return x, w, err
}

func inTemporary(do func(dir string) error) error {
	dir, err := os.MkdirTemp("", "nfqproxy-experiment-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return do(dir)
}

// Worker runs one part of a work.
type Worker struct {
	Backend Backend
	Version string // of this program
	// Keep is a directory, which several workers may share, that keeps each cell once it is done, in a directory for the experiment and the
	// version; cells that it has are not run. Empty: none.
	Keep string
	// Log is called with each cell that is done; nil: it is not.
	Log func(text string)
}

// Run runs the cells of a part, one after the other.
func (w *Worker) Run(ctx context.Context, archive []byte, index int) (p *Part, err error) {
	err = inTemporary(func(dir string) error {
		x, work, err := unpackWork(archive, dir)
		if err != nil {
			return err
		}
		if work.Version != w.Version {
			return fmt.Errorf("the experiment needs nfqproxy %s, but this is %s", work.Version, w.Version)
		}
		cells := work.Part(index)
		if len(cells) == 0 {
			return fmt.Errorf("part %d does not exist: there are %d, from 0 on", index, work.Parts())
		}
		p, err = w.run(ctx, x, cells)
		return err
	})
	return p, err
}

func (w *Worker) run(ctx context.Context, x *Experiment, cells []Key) (*Part, error) {
	p := &Part{Digest: x.Digest, Version: w.Version, Machine: thisMachine()}
	kept := Runner{Dir: filepath.Join(w.Keep, fmt.Sprintf("%x", sha256.Sum256([]byte(x.Digest+" "+w.Version))))}
	if w.Keep != "" {
		if err := os.MkdirAll(filepath.Join(kept.Dir, dirCells), 0o755); err != nil {
			return nil, err
		}
	}
	for i, k := range cells {
		cell, cost := new(Cell), new(Cost)
		how := "was there"
		if w.Keep == "" || readJSON(kept.path(k, ""), cell) != nil || readJSON(kept.path(k, "-cost"), cost) != nil || cell.Key != k || cost.Key != k {
			how = "is done"
			var err error
			if cell, cost, err = w.Backend.Run(ctx, x, k, func(float64) {}); err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			if w.Keep != "" {
				// Another worker may have the same cell, when a node was lost: each has a temporary file of its own.
				if err := errors.Join(keepJSON(kept.path(k, "-cost"), cost), keepJSON(kept.path(k, ""), cell)); err != nil {
					return nil, err
				}
			}
		}
		p.Cells, p.Costs = append(p.Cells, cell), append(p.Costs, cost)
		if w.Log != nil {
			w.Log(fmt.Sprintf("%s %s, %d of %d", k, how, i+1, len(cells)))
		}
	}
	return p, nil
}

// keepJSON writes a file beside other writers of the same one.
func keepJSON(path string, v any) error {
	data, err := toJSON(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// Part is the result of a part of a [Work].
type Part struct {
	Digest  string  `json:"digest"` // of the experiment
	Version string  `json:"version"`
	Machine Machine `json:"machine"`
	Cells   []*Cell `json:"cells"`
	Costs   []*Cost `json:"costs"` // of the same cells
}

const (
	partType = "NFQPROXY EXPERIMENT PART"
	// maxPart bounds a part in a log, in bytes: a kubelet begins a new log after 10 MiB by default, and shows the new one only.
	maxPart = 8 << 20
	// maxUnpacked bounds it without compression.
	maxUnpacked = 1 << 30
)

// Encode returns the part as a block of lines for a log: JSON, compressed with gzip, in PEM.
func (p *Part) Encode() ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(z).Encode(p), z.Close()); err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: partType, Bytes: b.Bytes()})
	if len(text) > maxPart {
		return nil, fmt.Errorf("the results of %d runs have %d bytes, but a log holds at most %d: use fewer runs per part, or a longer window", len(p.Cells), len(text), maxPart)
	}
	return text, nil
}

// ErrNoPart is the error for a log without a complete part.
var ErrNoPart = errors.New("the log has no complete part")

// DecodePart returns the part in a log, which may have other lines.
func DecodePart(log []byte) (*Part, error) {
	block, _ := pem.Decode(log)
	if block == nil || block.Type != partType {
		return nil, ErrNoPart
	}
	z, err := gzip.NewReader(bytes.NewReader(block.Bytes))
	if err != nil {
		return nil, fmt.Errorf("damaged part: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(z, maxUnpacked))
	p := new(Part)
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err == nil && (len(p.Cells) != len(p.Costs) || slices.Contains(p.Cells, nil) || slices.Contains(p.Costs, nil)) {
		err = fmt.Errorf("%d cells, and costs of %d", len(p.Cells), len(p.Costs))
	}
	if err != nil {
		return nil, fmt.Errorf("damaged part: %w", err)
	}
	return p, nil
}

// Check is an error unless the part is that of the experiment with these cells, by the same version.
func (p *Part) Check(x *Experiment, version string, cells []Key) error {
	switch {
	case p.Version != version:
		return fmt.Errorf("results of nfqproxy %s, but this is %s", p.Version, version)
	case p.Digest != x.Digest:
		return fmt.Errorf("results of another experiment, or of another version of this one: digest %s, want %s", p.Digest, x.Digest)
	}
	for i, c := range p.Cells {
		if len(p.Cells) != len(cells) || c.Key != cells[i] || p.Costs[i].Key != cells[i] {
			return errors.New("results of other runs")
		}
	}
	if len(p.Cells) != len(cells) {
		return fmt.Errorf("results of %d runs, want %d", len(p.Cells), len(cells))
	}
	return nil
}

// Elsewhere runs cells on other machines.
type Elsewhere interface {
	// Run runs cells of an experiment, as many as it can at a time, and calls done with each part that is done, of those cells and maybe
	// others. The context may end before all are done.
	Run(ctx context.Context, x *Experiment, cells []Key, done func(*Part) error) error
}
