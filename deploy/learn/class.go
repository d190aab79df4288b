package learn

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxStudents is the largest class.
const maxStudents = 10000

// ParseStudents reads a list of students: CSV, with a name in the first column. A first line "name" or "student" is a
// heading. Names become the names of files.
func ParseStudents(file string, text []byte) (names []string, _ error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%s: is not UTF-8: save it as CSV in UTF-8", file)
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff"))))
	r.FieldsPerRecord, r.TrimLeadingSpace, r.Comment = -1, true, '#'
	seen := make(map[string]int)
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		line, _ := r.FieldPos(0)
		name := strings.TrimSpace(fields[0])
		switch key := fileName(name); {
		case len(seen) == 0 && (strings.EqualFold(name, "name") || strings.EqualFold(name, "student")):
			continue
		case key == "":
			return nil, fmt.Errorf("%s:%d: want the name of a student in the first column", file, line)
		case seen[key] > 0:
			return nil, fmt.Errorf("%s:%d: %s has the same file name as the student in line %d", file, line, name, seen[key])
		default:
			seen[key] = line
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no students: want a name in each line", file)
	}
	if len(names) > maxStudents {
		return nil, fmt.Errorf("%s: %d students: want at most %d", file, len(names), maxStudents)
	}
	return names, nil
}

var notInFile = regexp.MustCompile(`[^\p{L}\p{M}\p{N}._-]+`)

// fileName is a student's name as that of a file.
func fileName(name string) string {
	return strings.ToLower(strings.Trim(notInFile.ReplaceAllString(name, "-"), "-."))
}

// WriteClass writes a record without events for each student, with a seed of his own that the seed of the class and his name
// make. It returns the files. None may exist: a class is not overwritten.
func WriteClass(dir string, students, units []string, seed uint64) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range students {
		file := filepath.Join(dir, fileName(name)+".json")
		if _, err := os.Lstat(file); err == nil {
			return nil, fmt.Errorf("%s exists: give another directory", file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		files = append(files, file)
	}
	for i, name := range students {
		r := &Record{Version: RecordVersion, Student: name, Seed: UnitSeed(seed, name), Units: units, Events: []Event{}, path: files[i]}
		if err := r.Write(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// Grade is the result of a student in a unit.
type Grade struct {
	File, Student string
	Unit          string
	Progress
	// Fault is why the record cannot be trusted; empty: no reason is known.
	Fault string
}

// ReadGrades reads the records in a directory, and returns the results of all units of each, in the order of files and units.
// class are the seeds of the class: see [WriteClass]; with 0, the seeds are not compared. A file that is no record is a
// result with a fault.
func ReadGrades(dir string, c *Course, class uint64) ([]Grade, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	var all []Grade
	first := make(map[string]string) // the first file of a student
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		file := filepath.Join(dir, e.Name())
		r, err := OpenRecord(file)
		if err != nil {
			all = append(all, Grade{File: file, Fault: err.Error()})
			continue
		}
		same := ""
		if other := first[r.Student]; other != "" && r.Student != "" {
			same = fmt.Sprintf("%s is of the same student", other)
		} else {
			first[r.Student] = e.Name()
		}
		units := r.Course(c)
		if len(units) == 0 {
			all = append(all, Grade{File: file, Student: r.Student, Fault: "the course has none of its units: " + strings.Join(r.Units, ", ")})
		}
		for _, u := range units {
			g := Grade{File: file, Student: r.Student, Unit: u.ID, Progress: r.Progress(u.ID)}
			g.Fault = cmp.Or(r.fault(u, class), same)
			all = append(all, g)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no results: want files *.json", dir)
	}
	return all, nil
}

// fault is why a record cannot be trusted.
func (r *Record) fault(u *Unit, class uint64) string {
	if i := r.Verify(); i >= 0 {
		return fmt.Sprintf("the record was edited: event %d does not follow from those before", i+1)
	}
	if class != 0 && r.Seed != UnitSeed(class, r.Student) {
		return "the seed is not that of the student"
	}
	own := strconv.FormatUint(UnitSeed(r.Seed, u.ID), 10)
	passed := make(map[string]bool)
	for i := range r.Events {
		e := &r.Events[i]
		if e.Unit != u.ID {
			continue
		}
		switch e.Kind {
		case Began:
			if e.Detail != own {
				return fmt.Sprintf("event %d: the unit has another seed", i+1)
			}
			clear(passed)
		case Passed:
			passed[e.Step] = true
		case Finished:
			for _, s := range u.Steps {
				if !passed[s.Name] {
					return fmt.Sprintf("event %d: the unit is finished without step %s", i+1, s.Name)
				}
			}
		}
	}
	return ""
}

// WriteGrades writes results as CSV, with a heading.
func WriteGrades(w io.Writer, all []Grade) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"student", "unit", "state", "began", "finished", "active_seconds", "answers", "wrong_answers", "hints", "solutions", "fault", "file"}}
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339)
	}
	for _, g := range all {
		rows = append(rows, []string{harmless(g.Student), g.Unit, g.State(), at(g.Began), at(g.Progress.Finished), strconv.Itoa(int(g.Active.Seconds())),
			strconv.Itoa(g.Answers), strconv.Itoa(g.Wrong), strconv.Itoa(g.Hints), strconv.Itoa(g.Solved), harmless(g.Fault), harmless(filepath.Base(g.File))})
	}
	return c.WriteAll(rows)
}

// harmless is a text that a spreadsheet does not take for a formula (OWASP, CSV injection).
func harmless(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
