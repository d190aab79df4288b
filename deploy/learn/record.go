package learn

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// RecordVersion is the version of the format of a record.
const RecordVersion = 1

// Record is what a student has done, in the order of time: his progress and, in a class, what he hands in. It is a file of
// JSON. Each event has the hash of all before it, so that a changed, removed or inserted event shows; it does not show that
// all hashes were computed anew. Its methods may be called concurrently.
type Record struct {
	Version int `json:"version"`
	// Student is the student's name in a class; empty: there is no class.
	Student string `json:"student,omitempty"`
	// Seed draws the values of all units.
	Seed uint64 `json:"seed"`
	// Units are the IDs of the units of the class; empty: all.
	Units []string `json:"units,omitempty"`
	// OwnCourse: the course is in the file [CourseFile] beside the record, and not the built-in one.
	OwnCourse bool    `json:"ownCourse,omitempty"`
	Events    []Event `json:"events"`

	path string
	mu   sync.Mutex // guards Events
}

// EventKind is a kind of event.
type EventKind string

// The kinds of events.
const (
	Began    EventKind = "began"    // the unit; its seed is Detail, its files have the digest Files
	Answered EventKind = "answered" // a question, with Detail; Right is the judgement
	Hinted   EventKind = "hinted"   // Detail is the number of the hint, from 1
	Solved   EventKind = "solved"   // the solution was shown
	Passed   EventKind = "passed"   // the step
	Finished EventKind = "finished" // the unit
)

// Event is something that a student did.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   EventKind `json:"kind"`
	Unit   string    `json:"unit"`           // ID
	Step   string    `json:"step,omitempty"` // name
	Detail string    `json:"detail,omitempty"`
	Right  bool      `json:"right,omitempty"`
	Files  string    `json:"files,omitempty"`
	// Hash is SHA-256, in hexadecimal, of the hash before it, and of this event without a hash, as JSON. The first hash
	// before is that of the record without events.
	Hash string `json:"hash"`
}

// hash computes the hash of an event.
func (e Event) hash(before string) string {
	e.Hash = ""
	return sum(before, e)
}

// start is the hash before the first event.
func (r *Record) start() string {
	of := map[string]any{"version": r.Version, "student": r.Student, "seed": r.Seed, "units": append([]string{}, r.Units...)}
	if r.OwnCourse {
		of["ownCourse"] = true
	}
	return sum("", of)
}

// State is new, begun or finished.
func (p Progress) State() string {
	switch {
	case !p.Finished.IsZero():
		return "finished"
	case !p.Began.IsZero():
		return "begun"
	}
	return "new"
}

func sum(before string, of any) string {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // texts, numbers and times
	}
	s := sha256.Sum256(append([]byte(before), text...))
	return hex.EncodeToString(s[:])
}

// DefaultRecord is the file of the user's own progress: in $XDG_STATE_HOME or ~/.local/state.
func DefaultRecord() (string, error) {
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // XDG Base Directory Specification: others are ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("cannot remember progress: %w (set HOME or XDG_STATE_HOME, or give a file)", err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "nfqproxy", "learn.json"), nil
}

// maxRecord bounds a record's file, in bytes.
const maxRecord = 16 << 20

// OpenRecord reads the record in a file. One that does not exist is a new one, with a random seed; the file comes with the
// first event.
func OpenRecord(path string) (*Record, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Record{Version: RecordVersion, Seed: rand.Uint64() >> 11, path: path}, nil
	}
	if err == nil && info.Size() > maxRecord {
		err = fmt.Errorf("%s is larger than %d MiB", path, maxRecord>>20)
	}
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var format struct {
		Version int `json:"version"`
	}
	r := &Record{path: path}
	err = json.Unmarshal(data, &format)
	if err == nil && format.Version != 0 && format.Version != RecordVersion {
		return nil, fmt.Errorf("%s has version %d of the format: this program reads version %d", path, format.Version, RecordVersion)
	}
	if err == nil && format.Version == 0 {
		err = errors.New("it has no version")
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a record of nfqproxy learn: %w (move it away to start over)", path, err)
	}
	return r, nil
}

// Write writes the file.
func (r *Record) Write() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write()
}

// Verify checks the hashes, and returns the number of the first event that does not match, from 0; -1: all match.
func (r *Record) Verify() int {
	before := r.start()
	for i := range r.Events {
		if before = r.Events[i].hash(before); before != r.Events[i].Hash {
			return i
		}
	}
	return -1
}

// Add adds an event, and writes the file, so that it has either all of it or nothing.
func (r *Record) Add(e Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.start()
	if n := len(r.Events); n > 0 {
		before = r.Events[n-1].Hash
	}
	// As JSON has them: the hash is computed anew of what is read.
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	e.Detail = strings.ToValidUTF8(e.Detail, string(utf8.RuneError))
	e.Hash = e.hash(before)
	r.Events = append(r.Events, e)
	return r.write()
}

func (r *Record) write() error {
	if r.path == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(r.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".learn-")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), r.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Progress is how far a student is in a unit.
type Progress struct {
	Began    time.Time // the first time; zero: he has not
	Finished time.Time // the first time; zero: he has not
	Seed     string    // of the unit, when it began last
	Steps    int       // passed, since the unit began last
	Answers  int       // given
	Wrong    int       // of these
	Hints    int
	Solved   int // solutions shown
	// Active is the time spent, without breaks of more than ten minutes between two events.
	Active time.Duration
}

// longestStep is the longest time between two events that counts as work.
const longestStep = 10 * time.Minute

// Progress is the progress in a unit.
func (r *Record) Progress(unit string) (p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for i := range r.Events {
		e := &r.Events[i]
		if e.Unit != unit {
			continue
		}
		if d := e.Time.Sub(last); !last.IsZero() && e.Kind != Began && d > 0 {
			p.Active += min(d, longestStep)
		}
		last = e.Time
		switch e.Kind {
		case Began:
			p.Steps, p.Seed = 0, e.Detail
			if p.Began.IsZero() {
				p.Began = e.Time
			}
		case Answered:
			p.Answers++
			if !e.Right {
				p.Wrong++
			}
		case Hinted:
			p.Hints++
		case Solved:
			p.Solved++
		case Passed:
			p.Steps++
		case Finished:
			if p.Finished.IsZero() {
				p.Finished = e.Time
			}
		}
	}
	return p
}

// Next is the first unit of the course that the student has not finished, of those of his class; nil: he has finished all.
func (r *Record) Next(c *Course) *Unit {
	for _, u := range r.Course(c) {
		if r.Progress(u.ID).Finished.IsZero() {
			return u
		}
	}
	return nil
}

// List lists the units of the student's class, with his progress.
func List(c *Course, r *Record) []labapi.LessonUnit {
	all, mine := []labapi.LessonUnit{}, r.Course(c)
	for _, chapter := range c.Chapters {
		for _, u := range chapter.Units {
			if slices.Contains(mine, u) {
				all = append(all, labapi.LessonUnit{ID: u.ID, Chapter: chapter.Title, Title: u.Title, Minutes: u.Minutes, State: r.Progress(u.ID).State()})
			}
		}
	}
	return all
}

// Course are the units of the student's class, in order.
func (r *Record) Course(c *Course) []*Unit {
	return slices.DeleteFunc(c.Units(), func(u *Unit) bool { return len(r.Units) > 0 && !slices.Contains(r.Units, u.ID) })
}
