package experiment

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/algorithms"
)

// algorithms are those of one cell: those of programs and publications, and the experiment's scripts, compiled for the cell, so that
// their failures are the cell's own.
func (x *Experiment) algorithms() (*balance.Registry, *failures, error) {
	r, f := registry(x.Own), &failures{errors: make(map[string]bool)}
	for _, s := range x.Scripts {
		own, err := script.New(s.Path(), s.Source())
		if err != nil {
			return nil, nil, err
		}
		own.Failed = func(_ decision.ServicePortName, message string) {
			if len(f.errors) < maxErrors {
				f.errors[message] = true
			}
		}
		f.scripts = append(f.scripts, own)
	}
	return r, f, script.Register(r, f.scripts...)
}

// registry has the algorithms that need no file.
func registry(own []balance.Entry) *balance.Registry {
	r := algorithms.Names()
	for _, e := range own {
		r.Add(e)
	}
	return r
}

// maxErrors bounds the messages of a cell.
const maxErrors = 16

// failures are what went wrong in the scripts of a cell. It is for one goroutine at a time.
type failures struct {
	scripts []*script.Script
	errors  map[string]bool
}

// report writes them into the cell.
func (f *failures) report(c *Cell) {
	c.ScriptErrors = slices.Sorted(maps.Keys(f.errors))
	for _, s := range f.scripts {
		c.ScriptFailures += s.Failures()
	}
}

// algorithm checks the name of an algorithm, and loads the script that it names. It returns the name without the
// script's directory; false: there is a mistake.
func (p *reader) algorithm(field, text string) (name string, ok bool) {
	before := len(p.Mistakes)
	name, path := script.Path(text)
	if path != "" {
		p.script(field, p.relative(path))
	}
	r := registry(p.own)
	// What is wrong with a script is reported when it is loaded.
	r.Add(script.Entry(func(string) (balance.Algorithm, error) { return balance.Algorithm{}, nil }))
	if _, err := r.Parse(name); err != nil && !p.withoutScripts {
		p.Fail(field, "%w", err)
	}
	return name, len(p.Mistakes) == before
}

// script loads a script, unless it is loaded.
func (p *reader) script(field, at string) {
	if p.withoutScripts {
		return
	}
	if p.kept {
		at = filepath.Join(p.dir, dirScripts, filepath.Base(at))
	}
	for _, other := range p.scripts {
		if other.Name() == filepath.Base(at) {
			p.Want(field, other.Path() == at, "scripts %s and %s: want different file names", other.Path(), at)
			return
		}
	}
	s, err := script.Load(at)
	if err != nil {
		p.Fail(field, "%w", err)
		return
	}
	p.digest.Write(s.Source())
	p.scripts = append(p.scripts, s)
}

// registry has the algorithms that the files may name.
func (p *reader) registry(field string) *balance.Registry {
	r := registry(p.own)
	if err := script.Register(r, p.scripts...); err != nil {
		p.Fail(field, "%w", err)
	}
	return r
}

// Script is a script of an experiment.
type Script struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // of its text, hexadecimal
}

// Source is the text of a script.
type Source struct {
	Name string
	Text []byte
}

// writeScripts writes the scripts of an experiment into the directory of its results.
func writeScripts(dir string, scripts []*script.Script) (all []Script, err error) {
	if len(scripts) == 0 {
		return nil, nil
	}
	dir = filepath.Join(dir, dirScripts)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, s := range scripts {
		if err := writeFile(filepath.Join(dir, s.Name()), s.Source()); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(s.Source())
		all = append(all, Script{s.Name(), hex.EncodeToString(sum[:])})
	}
	slices.SortFunc(all, func(a, b Script) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// readScripts reads the scripts in the directory of results.
func readScripts(dir string, scripts []Script) (all []Source, err error) {
	for _, s := range scripts {
		text, err := os.ReadFile(filepath.Join(dir, dirScripts, filepath.Base(s.Name)))
		if err != nil {
			return nil, err
		}
		all = append(all, Source{s.Name, text})
	}
	return all, nil
}

// scriptNote says in how many runs scripts failed; empty: in none.
func (r *Results) scriptNote() string {
	failed, calls, first := 0, uint64(0), ""
	for _, c := range r.Cells {
		if len(c.ScriptErrors) == 0 {
			continue
		}
		failed, calls = failed+1, calls+c.ScriptFailures
		if first == "" {
			first = c.ScriptErrors[0]
		}
	}
	if failed == 0 {
		return ""
	}
	count := "" // live runs do not count
	if calls > 0 {
		count = fmt.Sprintf(" (%d calls)", calls)
	}
	return fmt.Sprintf("a script failed in %d of %d runs%s; endpoints were then selected at random: %s", failed, len(r.Cells), count, first)
}
