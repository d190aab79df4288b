package experiment_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// others run cells in parts, from the last to the first, by the archive and the log that other machines get and give.
type others struct {
	t      *testing.T
	each   int
	worker experiment.Worker
	after  int // parts, then they fail; 0: they do not
	works  int // how often there was one
}

var errAway = errors.New("they are away")

func (o *others) Run(ctx context.Context, x *experiment.Experiment, cells []experiment.Key, done func(*experiment.Part) error) error {
	o.works++
	work := &experiment.Work{Version: "test", Each: o.each, Cells: cells}
	archive, err := work.Pack(x)
	if err != nil {
		return err
	}
	if again, err := work.Pack(x); err != nil || !bytes.Equal(again, archive) {
		o.t.Errorf("the same work has two archives: %v", err)
	}
	for i := range work.Parts() {
		if o.after > 0 && i == o.after {
			return errAway
		}
		index := work.Parts() - 1 - i
		made, err := o.worker.Run(ctx, archive, index)
		if err != nil {
			return err
		}
		text, err := made.Encode()
		if err != nil {
			return err
		}
		part, err := experiment.DecodePart([]byte("a line before\n" + string(text) + "a line after\n"))
		if err != nil {
			return err
		}
		if err := errors.Join(part.Check(x, "test", work.Part(index)), done(part)); err != nil {
			return err
		}
	}
	return nil
}

func newOthers(t *testing.T, each int) *others {
	return &others{t: t, each: each, worker: experiment.Worker{Backend: experiment.Simulate{}, Version: "test"}}
}

// sameTree compares all files of two directories of results.
func sameTree(t *testing.T, want, got string) {
	t.Helper()
	a, b := tree(t, want), tree(t, got)
	for name, data := range a {
		if !bytes.Equal(data, b[name]) {
			t.Errorf("%s is another one", name)
		}
	}
	if len(a) != len(b) || len(a) < 12 {
		t.Errorf("%d files, want %d", len(b), len(a))
	}
}

// experiments of the tests here.
var divided = map[string]func(t *testing.T) *experiment.Experiment{
	"script and sweep": func(t *testing.T) *experiment.Experiment {
		dir := t.TempDir()
		write(t, dir, map[string]string{"x.yaml": swept, "first.star": firstOnly})
		return load(t, filepath.Join(dir, "x.yaml"), 2)
	},
	"lab and files": func(t *testing.T) *experiment.Experiment {
		dir := t.TempDir()
		write(t, dir, map[string]string{"x.yaml": named, "a/times.txt": "1ms\n3ms\n", "b/times.txt": "100ms\n", "lab.yaml": scriptedLab, "policies/first.star": firstOnly})
		return load(t, filepath.Join(dir, "x.yaml"), 2)
	},
	"until": func(t *testing.T) *experiment.Experiment {
		return parse(t, small+"until: {metric: response_mean, half: 3%, max: 6}\n")
	},
	"shipped": func(t *testing.T) *experiment.Experiment { return load(t, "rolling-update", 2) },
}

// TestElsewhere: results that other machines made in parts have the bytes of those of one machine.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	for name, make := range divided {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := make(t)
			_, want := run(t, x)
			for _, each := range []int{1, 3} {
				o, dir, last := newOthers(t, each), t.TempDir(), 0.0
				r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{}, Elsewhere: o, Dir: dir, Version: "test", Progress: func(done float64, cells int) { last = done - float64(cells) }}
				if _, err := r.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				sameTree(t, want, dir)
				if last != 0 || (o.works > 1) != (name == "until") {
					t.Errorf("the progress ended %v before the end, and there were %d works", -last, o.works)
				}
			}
		})
	}
}

// TestElsewhereContinues: what was done before an error is kept, and the rest follows, here or elsewhere.
func TestElsewhereContinues(t *testing.T) {
	t.Parallel()
	x := divided["script and sweep"](t)
	_, want := run(t, x)
	for _, there := range []bool{false, true} {
		o, dir := newOthers(t, 1), t.TempDir()
		o.after = 3
		r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{}, Elsewhere: o, Dir: dir, Version: "test"}
		if _, err := r.Run(t.Context()); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		if cells, err := filepath.Glob(filepath.Join(dir, "cells", "*[0-9].json")); err != nil || len(cells) != 3 {
			t.Errorf("%v, %d cells are done, want 3", err, len(cells))
		}
		if o.after = 0; !there {
			r.Elsewhere = nil
		}
		if _, err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		sameTree(t, want, dir)
	}
	// A run that brings nothing does not begin again for ever.
	r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{}, Elsewhere: nobody{}, Dir: t.TempDir(), Version: "test"}
	if _, err := r.Run(t.Context()); err == nil || err.Error() != "no run was done" {
		t.Error(err)
	}
}

type nobody struct{}

func (nobody) Run(context.Context, *experiment.Experiment, []experiment.Key, func(*experiment.Part) error) error {
	return nil
}

// once fails with each cell after the first ones.
type once struct {
	experiment.Simulate
	cells *int
}

func (o once) Run(ctx context.Context, x *experiment.Experiment, k experiment.Key, progress func(float64)) (*experiment.Cell, *experiment.Cost, error) {
	if *o.cells--; *o.cells < 0 {
		return nil, nil, errAway
	}
	return o.Simulate.Run(ctx, x, k, progress)
}

// TestWorkerKeeps: a worker that was interrupted continues with the cells in its directory, of the same experiment and version only.
func TestWorkerKeeps(t *testing.T) {
	t.Parallel()
	x, keep := divided["script and sweep"](t), t.TempDir()
	cells := []experiment.Key{{Algorithm: "random", Point: "load=0.3", Seed: 1, Repeat: 1}, {Algorithm: "random", Point: "load=0.6", Seed: 1, Repeat: 1}, {Algorithm: "script:first.star", Point: "load=0.6", Seed: 2, Repeat: 1}}
	archive, err := (&experiment.Work{Version: "test", Each: 3, Cells: cells}).Pack(x)
	if err != nil {
		t.Fatal(err)
	}
	try := func(archive []byte, keep string, runs int) ([]byte, error) {
		p, err := (&experiment.Worker{Backend: once{experiment.Simulate{}, &runs}, Version: "test", Keep: keep}).Run(t.Context(), archive, 0)
		if err != nil {
			return nil, err
		}
		if runs != 0 {
			t.Errorf("%d runs fewer than expected", runs)
		}
		return p.Encode()
	}
	want, err := try(archive, "", 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := try(archive, keep, 2); !errors.Is(err, errAway) || !strings.Contains(err.Error(), "script:first.star at load=0.6 with seed 2: ") {
		t.Fatal(err)
	}
	for _, runs := range []int{1, 0} {
		if got, err := try(archive, keep, runs); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d runs missing: %v, or another result", runs, err)
		}
	}
	// A file that was cut off is written again.
	paths, err := filepath.Glob(filepath.Join(keep, "*", "cells", "random-load=0.3-1-1.json"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%v, %q", err, paths)
	}
	if err := os.Truncate(paths[0], 100); err != nil {
		t.Fatal(err)
	}
	if got, err := try(archive, keep, 1); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a damaged file: %v, or another result", err)
	}
	if left, _ := filepath.Glob(filepath.Join(keep, "*", "cells", "*.tmp")); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
	// Another text is another experiment.
	x.File = append(bytes.Clone(x.File), "# changed\n"...)
	if _, err := (&experiment.Work{Version: "test", Each: 3, Cells: cells}).Pack(x); err == nil || !strings.Contains(err.Error(), "its digest differs") {
		t.Errorf("a text that is not that of the digest: %v", err)
	}
	y := parse(t, strings.Replace(swept, ", script:first.star", ", rr", 1)+"# changed\n")
	if archive, err = (&experiment.Work{Version: "test", Each: 2, Cells: cells[:2]}).Pack(y); err != nil {
		t.Fatal(err)
	}
	if _, err := try(archive, keep, 2); err != nil {
		t.Errorf("another experiment in the same directory: %v", err)
	}
}

// TestPartRefused: a part of something else, and a log that is not complete, are errors.
func TestPartRefused(t *testing.T) {
	t.Parallel()
	x := parse(t, small)
	cells := []experiment.Key{{Algorithm: x.Algorithms[0], Seed: 1, Repeat: 1}}
	work := &experiment.Work{Version: "test", Each: 1, Cells: cells}
	archive, err := work.Pack(x)
	if err != nil {
		t.Fatal(err)
	}
	worker := experiment.Worker{Backend: experiment.Simulate{}, Version: "test"}
	part, err := worker.Run(t.Context(), archive, 0)
	if err != nil {
		t.Fatal(err)
	}
	other := worker
	other.Version = "v9"
	for _, tt := range []struct {
		worker experiment.Worker
		index  int
		want   string
	}{
		{other, 0, "the experiment needs nfqproxy test, but this is v9"},
		{worker, 1, "part 1 does not exist: there are 1, from 0 on"},
		{worker, -1, "part -1 does not exist"},
	} {
		if _, err := tt.worker.Run(t.Context(), archive, tt.index); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	if _, err := worker.Run(t.Context(), archive[:len(archive)/2], 0); err == nil {
		t.Error("half of an archive")
	}
	changed := parse(t, small+"# changed\n")
	for _, tt := range []struct {
		x       *experiment.Experiment
		version string
		cells   []experiment.Key
		want    string
	}{
		{x, "v9", cells, "results of nfqproxy test, but this is v9"},
		{changed, "test", cells, "or of another version of this one"},
		{x, "test", []experiment.Key{{Algorithm: x.Algorithms[0], Seed: 2, Repeat: 1}}, "results of other runs"},
		{x, "test", nil, "results of other runs"},
	} {
		if err := part.Check(tt.x, tt.version, tt.cells); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	text, err := part.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, log := range []string{"", "only messages\n", string(text[:len(text)/2]), string(text[100:])} {
		if _, err := experiment.DecodePart([]byte(log)); !errors.Is(err, experiment.ErrNoPart) {
			t.Errorf("a log of %d bytes: %v", len(log), err)
		}
	}
	// What gzip cannot make smaller is too long for a log.
	part.Cells[0].ScriptErrors = []string{noise(8 << 20)}
	if _, err := part.Encode(); err == nil || !strings.Contains(err.Error(), "but a log holds at most 8388608") {
		t.Error(err)
	}
	x.Own = []balance.Entry{{Name: "own"}}
	if _, err := work.Pack(x); err == nil || !strings.Contains(err.Error(), "algorithms that are compiled into this program cannot run elsewhere") {
		t.Error(err)
	}
}

// noise is a text that does not repeat itself.
func noise(bytes int) string {
	random := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < bytes {
		b.WriteByte(byte('0' + random.IntN(64)))
	}
	return b.String()
}
