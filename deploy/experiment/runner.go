package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The files of a run's directory.
const (
	FileExperiment     = "experiment.yaml" // the file
	FileRun            = "run.json"        // Run
	FileRuns           = "runs.csv"        // a row for each cell
	FileWindows        = "windows.csv"     // the time series
	FileRunsParquet    = "runs.parquet"    // as FileRuns, with types
	FileWindowsParquet = "windows.parquet"
	FileChanges        = "changes.csv"     // the changes of sets of endpoints
	FileCosts          = "costs.csv"       // the time of decisions on this machine
	FileExpected       = "expected.csv"    // expected values and verdicts
	FileDifference     = "differences.csv" // of algorithms, with the same flows
	FileSummary        = "summary.json"
	FileTable          = "summary.txt"
	FileMarkdown       = "summary.md"
	FileLaTeX          = "summary.tex"
	FileReport         = "report.html"
	dirCells           = "cells"
	dirScripts         = "scripts" // the balancing scripts that it names
	dirFiles           = "files"   // the other files that it names
	dirPlots           = "plots"   // the charts of the report
	extensionSVG       = ".svg"
	extensionPDF       = ".pdf"
	extensionVegaLite  = ".vl.json"
)

// Run is what a directory is the run of.
type Run struct {
	Schema  int     `json:"schema,omitempty"` // of the tables, see [Schema]
	Backend string  `json:"backend"`
	Version string  `json:"version"` // of the program
	Digest  string  `json:"digest"`  // of the file, and of those that it names
	Seeds   int     `json:"seeds"`
	Repeats int     `json:"repeats"`
	Machine Machine `json:"machine"`
	// Scripts are the files in the directory scripts, without their directory.
	Scripts []Script `json:"scripts,omitempty"`
	// Files are the others that the file names: those in the directory files, and larger ones.
	Files []Input `json:"files,omitempty"`
	Until *Goal   `json:"until,omitempty"`
	// Series are the algorithms at all points, with the length of their runs.
	Series []Series `json:"series"`
	// Expected, Differences and Warnings are complete once the run is.
	Expected    []Expectation `json:"expected,omitempty"`
	Differences []Difference  `json:"differences,omitempty"`
	Warnings    []string      `json:"warnings,omitempty"`
}

// Goal is [Until] in the form of results.
type Goal struct {
	Metric   string  `json:"metric"`
	Half     float64 `json:"half"` // in the metric's unit or, if Relative, as a share of the mean
	Relative bool    `json:"relative"`
	Max      int     `json:"max"`
}

// Machine is the machine that ran the cells last. It has no influence on simulated results.
type Machine struct {
	Go       string `json:"go"`       // the compiler's version
	Platform string `json:"platform"` // linux/amd64
	CPUs     int    `json:"cpus"`
	Model    string `json:"model"` // of the CPU
	Kernel   string `json:"kernel"`
}

// Runner runs an experiment.
type Runner struct {
	Experiment *Experiment
	Backend    Backend
	// Dir is the directory for the results. One with results of the same experiment, backend and program
	// is continued.
	Dir     string
	Version string
	// Progress is called with the number of cells that are done, with parts of those that run. Nil: it is
	// not. It is called by one goroutine at a time.
	Progress func(done float64, cells int)
	// Elsewhere runs the cells instead of Backend, which then only has its name in the results; nil: Backend runs them, here.
	Elsewhere Elsewhere
}

// Run runs the cells that the directory does not have, and writes all results. If the context ends, it writes
// those of the cells that are done, and returns the context's error.
func (r *Runner) Run(ctx context.Context) (*Results, error) {
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.prepare(); err != nil {
		return nil, err
	}
	for {
		results, err := Open(r.Dir)
		if err != nil {
			return nil, err
		}
		if results.Missing == 0 || ctx.Err() != nil {
			if len(results.Cells) > 0 {
				err = results.Write(r.Dir)
			}
			return results, errors.Join(ctx.Err(), err)
		}
		// With more cells, more may be wanted: see Until.
		if err := r.runAll(ctx, results.missing, len(results.Cells)+results.Missing); err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
}

// path is the file of a cell. suffix is "-cost" for that of its cost.
func (r *Runner) path(k Key, suffix string) string {
	name := k.Algorithm
	if k.Point != "" {
		name += "-" + k.Point
	}
	name = strings.NewReplacer("(", "_", ")", "", ":", "_").Replace(name)
	return filepath.Join(r.Dir, dirCells, fmt.Sprintf("%s-%d-%d%s.json", name, k.Seed, k.Repeat, suffix))
}

// lock makes the directory, and keeps other runs out of it until unlock is called.
func (r *Runner) lock() (unlock func(), err error) {
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(r.Dir)
	if err != nil {
		return nil, err
	}
	// Some file systems have no locks.
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		_ = dir.Close()
		return nil, fmt.Errorf("another run is writing to %s: wait until it ends, or give another directory with --output-directory", r.Dir)
	}
	return func() { _ = dir.Close() }, nil
}

// prepare makes the directory, or checks that it is one of the same run.
func (r *Runner) prepare() error {
	x := r.Experiment
	run := Run{
		Backend: r.Backend.Name(), Version: r.Version, Digest: x.Digest, Seeds: x.Seeds, Repeats: x.Repeats, Machine: thisMachine(),
		Series: x.series(), Expected: x.Expected,
	}
	if u := x.Until; u != nil {
		run.Until = &Goal{u.Metric, u.Half.Value, u.Half.Relative, max(u.Max, x.Seeds)}
	}
	entries, err := os.ReadDir(r.Dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if len(entries) > 0 {
		before, err := readRun(r.Dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("%s is neither empty nor an experiment's directory: give another one with --output-directory", r.Dir)
		case err != nil:
			return err
		case before.Digest != run.Digest:
			return fmt.Errorf("%s has the results of another experiment, or of another version of this one: give another directory with --output-directory, or remove it", r.Dir)
		case before.Backend != run.Backend || before.Version != run.Version:
			return fmt.Errorf("%s has results of nfqproxy %s (%s), but this is %s (%s): give another directory with --output-directory, or remove it", r.Dir, before.Version, before.Backend, run.Version, run.Backend)
		}
		if r.Elsewhere != nil {
			run.Machine = before.Machine
		}
	}
	if err := os.MkdirAll(filepath.Join(r.Dir, dirCells), 0o755); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(r.Dir, FileExperiment), x.File); err != nil {
		return err
	}
	if run.Scripts, err = writeScripts(r.Dir, x.Scripts); err != nil {
		return err
	}
	if run.Files, err = writeInputs(r.Dir, x.Inputs); err != nil {
		return err
	}
	return writeRun(r.Dir, &run)
}

func writeRun(dir string, run *Run) error { return writeJSON(filepath.Join(dir, FileRun), run) }

// runAll runs cells, several at a time.
func (r *Runner) runAll(ctx context.Context, missing []Key, cells int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &progress{parts: make(map[Key]float64), done: cells - len(missing), cells: cells, report: r.Progress}
	p.set(Key{}, 0)
	if r.Elsewhere != nil {
		return r.elsewhere(ctx, missing, p)
	}
	work := make(chan Key)
	var workers sync.WaitGroup
	for range min(r.Backend.Parallel(), len(missing)) {
		workers.Go(func() {
			for k := range work {
				if err := r.one(ctx, k, p); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, k := range missing {
		select {
		case work <- k:
		case <-ctx.Done():
		}
	}
	close(work)
	workers.Wait()
	return context.Cause(ctx)
}

// one runs a cell. Its file is complete, or does not exist.
func (r *Runner) one(ctx context.Context, k Key, p *progress) error {
	cell, cost, err := r.Backend.Run(ctx, r.Experiment, k, func(done float64) { p.set(k, done) })
	if err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	return r.keep(cell, cost, p)
}

// keep writes the files of a cell.
func (r *Runner) keep(cell *Cell, cost *Cost, p *progress) error {
	if err := writeJSON(r.path(cell.Key, "-cost"), cost); err != nil {
		return err
	}
	if err := writeJSON(r.path(cell.Key, ""), cell); err != nil {
		return err
	}
	p.finish(cell.Key)
	return nil
}

// elsewhere has other machines run cells.
func (r *Runner) elsewhere(ctx context.Context, missing []Key, p *progress) error {
	wanted := make(map[Key]bool)
	for _, k := range missing {
		wanted[k] = true
	}
	var machine *Machine
	before := len(wanted)
	err := r.Elsewhere.Run(ctx, r.Experiment, missing, func(part *Part) error {
		for i, cell := range part.Cells {
			if !wanted[cell.Key] {
				continue // it is here
			}
			if err := r.keep(cell, part.Costs[i], p); err != nil {
				return err
			}
			delete(wanted, cell.Key)
			machine = &part.Machine
		}
		return nil
	})
	if err == nil && len(wanted) == before {
		err = errors.New("no run was done")
	}
	if machine == nil {
		return err
	}
	run, readErr := readRun(r.Dir)
	run.Machine = *machine
	if readErr == nil {
		readErr = writeRun(r.Dir, &run)
	}
	return errors.Join(err, readErr)
}

// progress adds up the progress of cells.
type progress struct {
	mu     sync.Mutex
	parts  map[Key]float64
	done   int
	cells  int
	report func(float64, int)
}

func (p *progress) set(k Key, part float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts[k] = part
	p.notify()
}

func (p *progress) finish(k Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.parts, k)
	p.done++
	p.notify()
}

func (p *progress) notify() {
	if p.report == nil {
		return
	}
	sum := float64(p.done)
	for _, part := range p.parts {
		sum += part
	}
	p.report(sum, p.cells)
}

func readRun(dir string) (run Run, err error) {
	return run, readJSON(filepath.Join(dir, FileRun), &run)
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: damaged: %w: restore it, or run the experiment again in another directory", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := toJSON(v)
	if err != nil {
		return err
	}
	return writeFile(path, data)
}

func toJSON(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", " ")
	return append(data, '\n'), err
}

// writeFile writes a file that has its name only once it is complete.
func writeFile(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// thisMachine describes this machine.
func thisMachine() Machine {
	m := Machine{Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Model: "unknown", Kernel: "unknown"}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				m.Model = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
}
