// Package script has balancing policies that users write in Starlark, a small dialect of Python: a
// function pick(candidates, flow, state) in a file. docs/how-to/write-a-balancing-script.md describes what a policy
// gets and returns.
//
// A policy cannot take the datapath with it: its steps, values and state have bounds (see bounds.go),
// it reads no files, and where it fails, kube-proxy's random draw selects. Starlark values are for one
// goroutine at a time: a policy's state has a mutex, so the workers of a node wait for each other when
// they decide flows of the same service port.
//
// It is a ground package.
package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// prefix begins the names of scripts as algorithms: "script:my.star".
const prefix = "script:"

// Script is a policy's file. It is safe for concurrent use.
type Script struct {
	// Failed is called when a policy fails at run time, once for each different message of a service
	// port, up to 16. It is set before the script is in use, and must not wait. nil: nothing is called.
	Failed func(port decision.ServicePortName, message string)

	failures   atomic.Uint64
	name, path string
	note       string // evidence of picks without a sentence of their own
	program    atomic.Pointer[program]
	source     []byte // that was read last; nil: it could not be read. Of Load, then of Watch
}

// names are the file names that fit into the name of an algorithm, which annotations have, too.
var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Load reads and compiles a policy. Errors of the text have the file, the line and the column.
func Load(path string) (*Script, error) { return load(path, read) }

// New compiles a policy whose text was read before. The path names it, as for [Load].
func New(path string, source []byte) (*Script, error) {
	return load(path, func(string) ([]byte, error) { return source, nil })
}

func load(path string, read func(path string) ([]byte, error)) (*Script, error) {
	name := filepath.Base(path)
	if !names.MatchString(name) {
		return nil, fmt.Errorf("balancing script %s: want a file name of letters, digits, \".\", \"-\" and \"_\"", path)
	}
	source, err := read(path)
	if err != nil {
		return nil, err
	}
	s := &Script{name: name, path: path, note: "selected by " + name, source: source}
	return s, s.compile(source)
}

// Name is the file's name without its folder, by which algorithms name the script.
func (s *Script) Name() string { return s.name }

// Failures is how many calls of the policy failed since Load. Endpoints of such flows were drawn at random.
func (s *Script) Failures() uint64 { return s.failures.Load() }

// Source is the text that was read last. It is not to be called while Watch runs.
func (s *Script) Source() []byte { return s.source }

// Path is the file's path.
func (s *Script) Path() string { return s.path }

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("balancing script: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxSource {
		return nil, fmt.Errorf("balancing script %s: want a file of at most %d bytes", path, maxSource)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("balancing script: %w", err)
	}
	return source, nil
}

// compile puts a version into use. After an error the version before stays.
func (s *Script) compile(source []byte) error {
	p, err := compile(s.path, source)
	if err != nil {
		return fmt.Errorf("balancing script %w", err)
	}
	s.program.Store(p)
	return nil
}

// Path splits the name of an algorithm as operators write it, with the path of a script:
// "script:/etc/nfqproxy/my.star", "eject(script:my.star)" or "subset(20:script:my.star)". It returns the name that
// [balance.Registry.Parse] reads, and the path; empty: the algorithm is no script.
func Path(text string) (name, path string) {
	before, rest, ok := strings.Cut(text, prefix)
	if !ok || before != "" && before[len(before)-1] != '(' && before[len(before)-1] != ':' {
		return text, ""
	}
	if path = strings.TrimRight(rest, ")"); path == "" {
		return text, ""
	}
	return before + prefix + filepath.Base(path) + rest[len(path):], path
}

// Register adds the algorithms script:NAME to a registry, in place of those registered before. Only
// these scripts can be named: names read no files.
func Register(r *balance.Registry, scripts ...*Script) error {
	byName := make(map[string]*Script)
	var known []string
	for _, s := range scripts {
		if other := byName[s.name]; other != nil {
			return fmt.Errorf("balancing scripts %s and %s: want different file names", other.path, s.path)
		}
		byName[s.name] = s
		known = append(known, prefix+s.name)
	}
	slices.Sort(known)
	r.Add(Entry(func(name string) (balance.Algorithm, error) {
		switch s := byName[name]; {
		case s != nil:
			return balance.Algorithm{Feedback: true, New: s.newPicker}, nil
		case len(known) == 0:
			return balance.Algorithm{}, errors.New("no script was loaded at the start: --balance-script loads files")
		default:
			return balance.Algorithm{}, fmt.Errorf("no such script was loaded at the start; want one of %s", strings.Join(known, ", "))
		}
	}))
	return nil
}

// Entry is the entry of a registry for the algorithms script:NAME.
func Entry(make func(name string) (balance.Algorithm, error)) balance.Entry {
	return balance.Entry{
		Name: strings.TrimSuffix(prefix, ":"), Parameter: "FILE", Colon: true,
		Summary: "a policy in Starlark: function pick(candidates, flow, state) of a file", Make: make,
	}
}

// quiet is how long a folder must be quiet before a script is read: an editor saves in several steps.
const quiet = 50 * time.Millisecond

// Watch compiles the script anew whenever its file changes, until the context ends; then it returns
// nil. Pickers use the new version from their next flow on, with the state they have. Of a version
// that cannot be read or compiled reloaded gets the error, and the version before stays; otherwise
// it gets nil. reloaded is called from Watch's goroutine only. An error of the watching ends Watch.
func (s *Script) Watch(ctx context.Context, reloaded func(error)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch balancing script: %w", err)
	}
	defer watcher.Close() // nothing is left to be done about it
	// The folder, not the file: editors and ConfigMap mounts replace files and links.
	if err := watcher.Add(filepath.Dir(s.path)); err != nil {
		return fmt.Errorf("watch balancing script %s: %w", s.path, err)
	}
	// The file may have changed between Load and now.
	s.reload(reloaded)
	var read <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return errors.New("watch balancing script: the watcher ended")
			}
			read = time.After(quiet)
		case _, ok := <-watcher.Errors:
			if !ok {
				return errors.New("watch balancing script: the watcher ended")
			}
			read = time.After(quiet) // events may be lost
		case <-read:
			read = nil
			s.reload(reloaded)
		}
	}
}

// reload compiles the file if it is another one than before.
func (s *Script) reload(reloaded func(error)) {
	source, err := read(s.path)
	switch {
	case err != nil && s.source == nil:
		return // it is known
	case err != nil:
		s.source = nil
	case bytes.Equal(source, s.source):
		return
	default:
		s.source = source
		err = s.compile(source)
	}
	reloaded(err)
}
