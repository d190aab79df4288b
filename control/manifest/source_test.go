package manifest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// testTimeout is how long a test waits for what must happen: far longer than it
// takes, for only a failing test ever waits that long.
const testTimeout = time.Minute

// published is one call of a source's consumer.
type published struct {
	names []string
	err   error
}

// watched runs a source for a test.
type watched struct {
	t         *testing.T
	published chan published
	readings  chan bool // of each reading: whether it was published
}

func startSource(t *testing.T, paths ...string) *watched {
	t.Helper()
	w := &watched{t: t, published: make(chan published, 1000), readings: make(chan bool, 1000)}
	s := Options{}.NewSource(paths...)
	s.reloaded = func(p bool) { w.readings <- p }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(o *Objects, err error) {
			p := published{err: err}
			if o != nil {
				p.names = kept(o)
			}
			w.published <- p
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

// TestSourceLoad: what Load has read is not published again, and what has changed since then is.
func TestSourceLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte("apiVersion: v1\nkind: Node\nmetadata: {name: "+name+"}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, now := range []string{"a", "b"} {
		write("a")
		s := Options{}.NewSource(dir)
		if o, err := s.Load(); err != nil || len(o.Nodes) != 1 || o.Nodes[0].Name != "a" {
			t.Fatalf("%+v, %v", o, err)
		}
		write(now)
		ctx, cancel := context.WithCancel(t.Context())
		s.reloaded = func(bool) { cancel() }
		var got []string
		if err := s.Run(ctx, func(o *Objects, _ error) { got = append(got, o.Nodes[0].Name) }); err != nil {
			t.Fatal(err)
		}
		if want := now != "a"; (len(got) > 0) != want || want && got[0] != now {
			t.Errorf("published %q, the file has %s", got, now)
		}
	}
}

func (w *watched) next() published {
	w.t.Helper()
	select {
	case p := <-w.published:
		return p
	case <-time.After(testTimeout):
		w.t.Fatal("nothing was published")
		panic("unreachable")
	}
}

// want waits for objects with these names. What is published before it is passed
// over if it is what a half-made change looks like.
func (w *watched) want(names ...string) {
	w.t.Helper()
	for {
		p := w.next()
		if p.err == nil && slices.Equal(p.names, names) {
			return
		}
		w.t.Logf("passed over: %v, %v", p.names, p.err)
	}
}

// replace puts a file in the place of another as careful editors do.
func replace(t *testing.T, name, content string) {
	t.Helper()
	temporary := write(t, content, filepath.Dir(name), ".new")
	if err := os.Rename(temporary, name); err != nil {
		t.Fatal(err)
	}
}

func TestSourcePublishesAtOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, node("a"), dir, "a.yaml")
	if p := startSource(t, dir).next(); p.err != nil || !slices.Equal(p.names, []string{"Node /a"}) {
		t.Errorf("first: %+v", p)
	}
}

func TestSourceSeesChanges(t *testing.T) {
	tests := []struct {
		name string
		// prepare makes Node a visible in dir and gives the path to watch.
		prepare func(t *testing.T, dir string) string
		// change makes it Node b.
		change func(t *testing.T, dir string)
	}{
		{"written in place",
			func(t *testing.T, dir string) string { return write(t, node("a"), dir, "lab.yaml") },
			func(t *testing.T, dir string) { write(t, node("b"), dir, "lab.yaml") }},
		{"file renamed over",
			func(t *testing.T, dir string) string { return write(t, node("a"), dir, "lab.yaml") },
			func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "lab.yaml"), node("b")) }},
		{"file removed and made again",
			func(t *testing.T, dir string) string { return write(t, node("a"), dir, "lab.yaml") },
			func(t *testing.T, dir string) {
				if err := os.Remove(filepath.Join(dir, "lab.yaml")); err != nil {
					t.Fatal(err)
				}
				write(t, node("b"), dir, "lab.yaml")
			}},
		{"one file removed from a directory, another made",
			func(t *testing.T, dir string) string { write(t, node("a"), dir, "a.yaml"); return dir },
			func(t *testing.T, dir string) {
				if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
					t.Fatal(err)
				}
				write(t, node("b"), dir, "b.yaml")
			}},
		{"ConfigMap swapped, watched as a directory", mountConfigMap, swapConfigMap},
		{"ConfigMap swapped, watched as a file",
			func(t *testing.T, dir string) string { return filepath.Join(mountConfigMap(t, dir), "lab.yaml") }, swapConfigMap},
		{"link to a directory swapped",
			func(t *testing.T, dir string) string {
				write(t, node("a"), dir, "v1", "lab.yaml")
				write(t, node("b"), dir, "v2", "lab.yaml")
				symlink(t, "v1", dir, "current")
				return filepath.Join(dir, "current")
			},
			func(t *testing.T, dir string) {
				symlink(t, "v2", dir, "next")
				if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")); err != nil {
					t.Fatal(err)
				}
			}},
		{"file elsewhere that a link leads to",
			func(t *testing.T, dir string) string {
				write(t, node("a"), dir, "elsewhere", "lab.yaml")
				write(t, "", dir, "labs", "empty.yaml")
				symlink(t, filepath.Join("..", "elsewhere", "lab.yaml"), dir, "labs", "lab.yaml")
				return filepath.Join(dir, "labs")
			},
			func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "elsewhere", "lab.yaml"), node("b")) }},
		{"directory above replaced",
			func(t *testing.T, dir string) string {
				return filepath.Dir(write(t, node("a"), dir, "above", "labs", "lab.yaml"))
			},
			func(t *testing.T, dir string) {
				if err := os.Rename(filepath.Join(dir, "above"), filepath.Join(dir, "away")); err != nil {
					t.Fatal(err)
				}
				write(t, node("b"), dir, "above", "labs", "lab.yaml")
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			w := startSource(t, tt.prepare(t, dir))
			w.want("Node /a")
			tt.change(t, dir)
			w.want("Node /b")
		})
	}
}

// mountConfigMap makes a directory as the kubelet mounts a ConfigMap.
func mountConfigMap(t *testing.T, dir string) string {
	write(t, node("a"), dir, "..1", "lab.yaml")
	symlink(t, "..1", dir, "..data")
	symlink(t, filepath.Join("..data", "lab.yaml"), dir, "lab.yaml")
	return dir
}

// swapConfigMap changes it as the kubelet does (pkg/volume/util/atomic_writer.go).
func swapConfigMap(t *testing.T, dir string) {
	write(t, node("b"), dir, "..2", "lab.yaml")
	symlink(t, "..2", dir, "..data_tmp")
	err := errors.Join(
		os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
		os.RemoveAll(filepath.Join(dir, "..1")))
	if err != nil {
		t.Fatal(err)
	}
}

func TestSourceSeesTheChangeAfterAChange(t *testing.T) {
	dir := t.TempDir()
	name := write(t, node("a"), dir, "labs", "lab.yaml")
	w := startSource(t, filepath.Dir(name))
	w.want("Node /a")
	for _, n := range []string{"b", "c", "d"} {
		if err := os.RemoveAll(filepath.Dir(name)); err != nil {
			t.Fatal(err)
		}
		write(t, node(n), dir, "labs", "lab.yaml")
		w.want("Node /" + n)
		replace(t, name, node(n+n))
		w.want("Node /" + n + n)
	}
}

func TestSourcePublishesErrorsAndRecovery(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lab.yaml")
	w := startSource(t, name)
	if p := w.next(); !errors.Is(p.err, fs.ErrNotExist) || p.names != nil {
		t.Errorf("missing file: %+v", p)
	}
	replace(t, name, node("a"))
	w.want("Node /a")
	replace(t, name, "kind: Node\n")
	if p := w.next(); p.err == nil || !strings.Contains(p.err.Error(), "apiVersion: missing") {
		t.Errorf("broken file: %+v", p)
	}
	replace(t, name, node("a"))
	w.want("Node /a") // the same objects as before the error, but the error is over
}

func TestSourceDoesNotPublishWhatDidNotChange(t *testing.T) {
	dir := t.TempDir()
	name := write(t, node("a"), dir, "lab.yaml")
	w := startSource(t, dir)
	w.want("Node /a")
	if first := <-w.readings; !first {
		t.Error("the first reading was not published")
	}
	replace(t, name, node("a"))
	select {
	case again := <-w.readings:
		if again {
			t.Error("the same content was published again")
		}
	case <-time.After(testTimeout):
		t.Fatal("the replaced file was not read")
	}
	replace(t, name, node("b"))
	if p := w.next(); !slices.Equal(p.names, []string{"Node /b"}) {
		t.Errorf("after a change: %+v", p)
	}
}

func TestSourceDoesNotWaitForEverForQuiet(t *testing.T) {
	dir := t.TempDir()
	name := write(t, node("a"), dir, "lab.yaml")
	w := startSource(t, dir)
	w.want("Node /a")
	replace(t, name, node("b"))
	// Changes come faster than it takes to be quiet, and do not stop.
	tick := time.NewTicker(debounceQuiet / 5)
	defer tick.Stop()
	deadline := time.After(testTimeout)
	for {
		select {
		case <-tick.C:
			write(t, "", dir, "noise")
		case p := <-w.published:
			if !slices.Equal(p.names, []string{"Node /b"}) {
				t.Errorf("published %+v", p)
			}
			return
		case <-deadline:
			t.Fatal("nothing was published while changes went on")
		}
	}
}

func TestBurstEndsAfterQuietOrAtLast(t *testing.T) {
	tests := []struct {
		name    string
		touches []time.Duration // since the start
		want    time.Duration
	}{
		{"one change", []time.Duration{0}, debounceQuiet},
		{"each change prolongs it", []time.Duration{0, 40 * time.Millisecond, 80 * time.Millisecond}, 80*time.Millisecond + debounceQuiet},
		{"but not beyond the maximum", slices.Collect(func(yield func(time.Duration) bool) {
			for d := time.Duration(0); d < time.Second && yield(d); d += 30 * time.Millisecond {
			}
		}), debounceMax},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var b burst
				touches := tt.touches
				for {
					var next <-chan time.Time
					if len(touches) > 0 {
						next = time.After(touches[0] - time.Since(start))
					}
					select {
					case <-next:
						b.touch()
						touches = touches[1:]
						continue
					case <-b.quiet:
					case <-b.latest:
					}
					break
				}
				if got := time.Since(start); got != tt.want {
					t.Errorf("over after %v, want %v", got, tt.want)
				}
				b.end()
				if b.quiet != nil || b.latest != nil {
					t.Error("the next burst has begun already")
				}
			})
		})
	}
}

func TestReaderReportsChanges(t *testing.T) {
	dir := t.TempDir()
	a := write(t, node("a"), dir, "a.yaml")
	r := reader{in: &input{paths: []string{dir}}}
	steps := []struct {
		name    string
		do      func() error
		changed bool
	}{
		{"the first time", func() error { return nil }, true},
		{"nothing", func() error { return nil }, false},
		{"time stamp", func() error { return os.Chtimes(a, time.Unix(1, 0), time.Unix(1, 0)) }, false},
		{"file that is none of ours", func() error { return os.WriteFile(filepath.Join(dir, "x"), nil, 0o644) }, false},
		{"content", func() error { return os.WriteFile(a, []byte(node("b")), 0o644) }, true},
		{"name", func() error { return os.Rename(a, filepath.Join(dir, "b.yaml")) }, true},
		{"empty file", func() error { return os.WriteFile(filepath.Join(dir, "c.yaml"), nil, 0o644) }, true},
		{"dangling link", func() error { return os.Symlink("nowhere", filepath.Join(dir, "d.yaml")) }, true},
		{"the same error", func() error { return nil }, false},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatal(err)
		}
		o, err, changed := r.read()
		if changed != s.changed {
			t.Errorf("%s: changed %t, want %t", s.name, changed, s.changed)
		}
		if changed == (o == nil && err == nil) {
			t.Errorf("%s: changed %t with %v, %v", s.name, changed, o, err)
		}
	}
}
