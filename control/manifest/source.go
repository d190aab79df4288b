package manifest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A burst of changes (an editor's save, kubectl in a loop) is one change once it
// has been quiet for debounceQuiet, or after debounceMax if it never is.
const (
	debounceQuiet = 50 * time.Millisecond
	debounceMax   = 500 * time.Millisecond
)

// Source reads the objects of files and directories again whenever they change.
// Paths mean what they mean to [Load].
type Source struct {
	paths  []string
	reader reader
	// reloaded, if not nil, is called for each reading: whether it was published.
	// It lets tests see the readings that are not.
	reloaded func(published bool)
}

// NewSource returns a source that runs once.
func (o Options) NewSource(paths ...string) *Source {
	return &Source{paths: paths, reader: reader{options: o, in: o.input(paths)}}
}

// Load reads the objects, once and before Run, which then publishes nothing until they change.
func (s *Source) Load() (*Objects, error) {
	objects, err, _ := s.reader.read()
	return objects, err
}

// Run publishes what Load gives, at once and then after each change of names or
// contents, until the context ends; then it returns nil. publish is called from
// Run's goroutine only; while it runs, changes wait. Of the objects and the
// error it is given, exactly one is nil. An error of the files is published and
// does not end Run; an error of the watching does.
func (s *Source) Run(ctx context.Context, publish func(*Objects, error)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch manifests: %w", err)
	}
	defer watcher.Close() // nothing is left to be done about it

	var relevant watchSet
	reload := func() error {
		// Watches come before the reading, so that no change falls between. Files that only
		// the reading finds are read again.
		for {
			watched := slices.Concat(s.paths, s.reader.further)
			var err error
			if relevant, err = watch(watcher, watched); err != nil {
				return fmt.Errorf("watch manifests: %w", err)
			}
			objects, err, changed := s.reader.read()
			if changed {
				publish(objects, err)
			}
			if s.reloaded != nil {
				s.reloaded(changed)
			}
			if slices.Equal(watched, slices.Concat(s.paths, s.reader.further)) {
				return nil
			}
		}
	}
	if err := reload(); err != nil {
		return err
	}

	var burst burst
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watcher.Events:
			if !ok {
				return errors.New("watch manifests: the watcher ended")
			}
			if relevant.has(event.Name) {
				burst.touch()
			}
			continue
		case _, ok := <-watcher.Errors:
			if !ok {
				return errors.New("watch manifests: the watcher ended")
			}
			// Mostly an overflow. Whatever it was, events may be lost, and
			// reading again makes up for that.
			burst.touch()
			continue
		case <-burst.quiet:
		case <-burst.latest:
		}
		burst.end()
		if err := reload(); err != nil {
			return err
		}
	}
}

// burst detects the end of a burst of changes. Its channels are nil, and so never
// ready, while there is none.
type burst struct {
	quiet, latest <-chan time.Time
}

func (b *burst) touch() {
	b.quiet = time.After(debounceQuiet)
	if b.latest == nil {
		b.latest = time.After(debounceMax)
	}
}

func (b *burst) end() { *b = burst{} }

// reader reads files and remembers what it has read.
type reader struct {
	options Options
	in      *input
	last    digest
	once    bool
	// further are the files that objects named when they were read.
	further []string
}

// read is Load, and reports whether the files are others than those of the
// previous call; if not, objects and error are both nil.
func (r *reader) read() (objects *Objects, err error, changed bool) {
	if r.once && r.digest() == r.last {
		return nil, nil, false
	}
	// Files are read a second time, and one by one: all of them at once may be more than
	// fits into memory.
	h, l := sha256.New(), newLoader(r.options)
	r.in.each(func(f file) []string {
		f.sum(h)
		l.take(f)
		return l.further
	})
	r.further = l.further
	r.last, r.once = digest(h.Sum(nil)), true
	objects, err = l.result()
	return objects, err, true
}

// digest reads all files, for their digest only.
func (r *reader) digest() digest {
	h := sha256.New()
	r.in.each(func(f file) []string {
		f.sum(h)
		return r.further
	})
	return digest(h.Sum(nil))
}

// watch adds watches for all the paths depend on and takes away those left over
// from before. Directories are watched, not files, for editors and ConfigMap
// mounts replace files and links instead of writing to them.
func watch(watcher *fsnotify.Watcher, paths []string) (watchSet, error) {
	in := watchSetOf(paths)
	for _, dir := range watcher.WatchList() {
		if _, ok := in[dir]; !ok {
			// It may have taken its watch along already; and the events of one
			// that stays are of no interest.
			_ = watcher.Remove(dir)
		}
	}
	for dir, what := range in {
		// Adding twice is harmless, and needed where a directory was replaced.
		err := watcher.Add(dir)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, fs.ErrPermission) && !what.required:
			// Some directory far above, which is not likely to be replaced.
		default:
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	return in, nil
}
