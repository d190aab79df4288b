package experiment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Verifier runs the experiments of bundles again, and compares the results.
type Verifier struct {
	// Cells is how many runs take place at the same time.
	Cells int
	// Files is a directory with the files that were too large for the bundle; empty: none is needed.
	Files string
	// Version and Progress are as in [Runner].
	Version  string
	Progress func(done float64, cells int)
}

// Verification is what a run of a bundle found.
type Verification struct {
	Name     string
	Was, Now Run        // what made the bundle's results, and the new ones
	Files    []Compared // of the results, sorted by name
}

// Compared is a file of the results with what the new one is in comparison.
type Compared struct {
	Name string
	// Differs: it has other bytes. Text says so, or why the file is not compared.
	Differs bool
	Text    string
}

// Verify runs the experiment of a bundle in a temporary directory, and compares all files of its results. The error is about a bundle
// that cannot be read, or run.
func (v *Verifier) Verify(ctx context.Context, bundle string) (*Verification, error) {
	f, err := os.Open(bundle)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir, err := os.MkdirTemp("", "nfqproxy-verify-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	found, err := v.verify(ctx, f, dir)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s: %w", bundle, err)
	}
	return found, err
}

func (v *Verifier) verify(ctx context.Context, bundle io.Reader, dir string) (*Verification, error) {
	packed, again := filepath.Join(dir, "bundle"), filepath.Join(dir, "again")
	if err := errors.Join(os.Mkdir(packed, 0o700), os.Mkdir(again, 0o700)); err != nil {
		return nil, err
	}
	names, err := unpack(bundle, packed)
	if err != nil {
		return nil, err
	}
	was, err := readRun(packed)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("not an experiment's bundle: it has no %s", FileRun)
	case err != nil:
		return nil, fmt.Errorf("damaged bundle: %w", err)
	case was.Backend != Simulate{}.Name():
		return nil, fmt.Errorf("all files match their SHA-256, but more cannot be verified: the results are from runs by %s, and no two of those are the same", was.Backend)
	}
	x, err := v.load(packed, &was)
	if err != nil {
		return nil, err
	}
	r := Runner{Experiment: x, Backend: Simulate{Cells: v.Cells}, Dir: again, Version: v.Version, Progress: v.Progress}
	results, err := r.Run(ctx)
	if err != nil {
		return nil, err
	}
	found := &Verification{Name: results.Name, Was: was, Now: results.Run}
	if found.Files, err = compareFiles(packed, again, names); err != nil {
		return nil, err
	}
	return found, nil
}

// load loads the experiment of an unpacked bundle.
func (v *Verifier) load(dir string, run *Run) (*Experiment, error) {
	for _, in := range run.Files {
		if err := v.checkLarge(dir, &in); err != nil {
			return nil, err
		}
	}
	x, err := loadSealed(dir, v.Files)
	switch {
	case err != nil:
		return nil, err
	case x.Digest != run.Digest:
		return nil, fmt.Errorf("the experiment does not belong to the results: its digest is %s, theirs %s", x.Digest, run.Digest)
	case run.Seeds < 1 || run.Seeds > MaxSeeds || run.Repeats != x.Repeats:
		return nil, fmt.Errorf("damaged bundle: %s: %d seeds with %d repeats", FileRun, run.Seeds, run.Repeats)
	}
	x.Seeds = run.Seeds
	return x, nil
}

// checkLarge checks a file that the bundle may not have.
func (v *Verifier) checkLarge(dir string, in *Input) error {
	if !filepath.IsLocal(in.Name) || filepath.Base(in.Name) != in.Name {
		return fmt.Errorf("damaged bundle: %s: file %q", FileRun, in.Name)
	}
	if _, err := os.Stat(filepath.Join(dir, dirFiles, in.Name)); err == nil {
		return nil
	}
	if v.Files == "" {
		return fmt.Errorf("it does not have %s (%d bytes, SHA-256 %s), which is too large: give its directory with --files", in.Name, in.Size, in.SHA256)
	}
	data, err := readFile(filepath.Join(v.Files, in.Name))
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != in.SHA256 {
		return fmt.Errorf("%s is not the file of the experiment: its SHA-256 is %x, want %s", filepath.Join(v.Files, in.Name), sum, in.SHA256)
	}
	return nil
}

// compareFiles compares the files of an unpacked bundle with those that were made again.
func compareFiles(packed, again string, names []string) (all []Compared, err error) {
	for _, name := range names {
		c := Compared{Name: name}
		switch {
		case name == FileCitation:
			continue // not of the program
		case name == FileCosts || name == FileReport || strings.HasSuffix(name, "-cost.json"):
			c.Text = "not compared: times of the machine"
		default:
			if c.Differs, c.Text, err = compareFile(packed, again, name); err != nil {
				return nil, err
			}
		}
		all = append(all, c)
	}
	err = fs.WalkDir(os.DirFS(again), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !slices.Contains(names, name) {
			all = append(all, Compared{Name: name, Text: "not compared: the bundle does not have it"})
		}
		return err
	})
	slices.SortFunc(all, func(a, b Compared) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

func compareFile(packed, again, name string) (differs bool, text string, err error) {
	was, err := os.ReadFile(filepath.Join(packed, filepath.FromSlash(name)))
	if err != nil {
		return false, "", err
	}
	now, err := os.ReadFile(filepath.Join(again, filepath.FromSlash(name)))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return true, "differs: this nfqproxy does not write it", nil
	case err != nil:
		return false, "", err
	case bytes.Equal(was, now):
		return false, "same", nil
	case name == FileRun && sameRun(was, now):
		return false, "same except for version and machine", nil
	}
	if strings.HasSuffix(name, ".parquet") {
		return true, "differs", nil
	}
	return true, fmt.Sprintf("differs from line %d on", 1+bytes.Count(was[:common(was, now)], []byte("\n"))), nil
}

// common is the number of bytes with which both begin.
func common(a, b []byte) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// sameRun reports whether two run.json differ only in what made the runs.
func sameRun(a, b []byte) bool {
	var runs [2]Run
	var texts [2][]byte
	for i, data := range [][]byte{a, b} {
		if json.Unmarshal(data, &runs[i]) != nil {
			return false
		}
		runs[i].Version, runs[i].Machine = "", Machine{}
		texts[i], _ = json.Marshal(runs[i]) // it was read from JSON
	}
	return bytes.Equal(texts[0], texts[1])
}

// Text has a line for each file, and for all cells together that are alike.
func (v *Verification) Text() string {
	var b strings.Builder
	by := func(what string, r *Run) {
		fmt.Fprintf(&b, "%s nfqproxy %s (%s, %s, Linux %s)\n", what, r.Version, r.Machine.Go, r.Machine.Platform, r.Machine.Kernel)
	}
	by("results by", &v.Was)
	by("run again by", &v.Now)
	cells := make(map[string]int)
	for _, c := range v.Files {
		if strings.HasPrefix(c.Name, dirCells+"/") && !c.Differs {
			cells[c.Text]++
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", c.Name, c.Text)
	}
	for _, text := range slices.Sorted(maps.Keys(cells)) {
		fmt.Fprintf(&b, "%d files in %s: %s\n", cells[text], dirCells, text)
	}
	return b.String()
}

// Verdict is nil if all files are the same.
func (v *Verification) Verdict() error {
	compared, differ := 0, 0
	for _, c := range v.Files {
		if !strings.HasPrefix(c.Text, "not compared") {
			compared++
		}
		if c.Differs {
			differ++
		}
	}
	if differ == 0 {
		return nil
	}
	why := ""
	if v.Was.Version != v.Now.Version {
		why = fmt.Sprintf("; they were made by nfqproxy %s, but this is %s", v.Was.Version, v.Now.Version)
	}
	return fmt.Errorf("%s: %d of %d files differ%s", v.Name, differ, compared, why)
}
