package learn

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Grade is the result of a student in a unit.
type Grade struct {
	File, Student string
	Unit          string
	OwnCourse     bool // the record's, see [Record]
	Progress
	// Tasks are the steps of the unit that have a task, and Alone those of them that the student passed without having seen
	// the solution.
	Tasks, Alone int
	// Fault is why the record cannot be trusted; empty: no reason is known.
	Fault string
	// Notice is what the student should explain, which may be innocent; empty: nothing.
	Notice string
}

// ReadGrades reads the records in a directory, and returns the results of all units of each, in the order of files and units.
// class are the seeds of the class: see [WriteClass]; with 0, the seeds are not compared. now is the time of grading. A file
// that is no record is a result with a fault.
func ReadGrades(dir string, c *Course, class uint64, now time.Time) ([]Grade, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	var all []Grade
	var records []*Record
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
		records = append(records, r)
	}
	others := compare(records)
	for _, r := range records {
		units := r.Course(c)
		if len(units) == 0 {
			all = append(all, Grade{File: r.path, Student: r.Student, OwnCourse: r.OwnCourse, Fault: "the course has none of its units: " + strings.Join(r.Units, ", ")})
		} else if f := others[r].list; f != "" {
			all = append(all, Grade{File: r.path, Student: r.Student, OwnCourse: r.OwnCourse, Fault: f})
			continue
		}
		for _, u := range units {
			g := Grade{File: r.path, Student: r.Student, Unit: u.ID, OwnCourse: r.OwnCourse, Progress: r.Progress(u.ID)}
			g.Tasks, g.Alone = r.tasks(u)
			if g.Fault, err = r.fault(u, class); err != nil {
				return nil, err
			}
			if g.Fault == "" {
				g.Fault = others[r].fault(u.ID)
			}
			g.Notice = r.notice(u, now)
			all = append(all, g)
		}
	}
	slices.SortStableFunc(all, func(a, b Grade) int { return strings.Compare(a.File, b.File) })
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no results: want files *.json", dir)
	}
	return all, nil
}

// tasks counts the steps with a task, and those of them that were passed before their solution was shown.
func (r *Record) tasks(u *Unit) (all, alone int) {
	done := make(map[string]bool) // passed, or the solution was shown
	passed := make(map[string]bool)
	for i := range r.Events {
		e := &r.Events[i]
		if e.Unit != u.ID || e.Kind != Passed && e.Kind != Solved {
			continue
		}
		passed[e.Step] = passed[e.Step] || e.Kind == Passed && !done[e.Step]
		done[e.Step] = true
	}
	for _, s := range u.Steps {
		if s.Read() {
			continue
		}
		all++
		if passed[s.Name] {
			alone++
		}
	}
	return all, alone
}

// WriteGrades writes results as CSV, with a heading.
func WriteGrades(w io.Writer, all []Grade) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"student", "unit", "state", "began", "finished", "active_seconds", "answers", "wrong_answers", "hints", "solutions", "fault", "file", "tasks", "tasks_alone", "notice"}}
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339)
	}
	for _, g := range all {
		rows = append(rows, []string{harmless(g.Student), g.Unit, g.State(), at(g.Began), at(g.Progress.Finished), strconv.Itoa(int(g.Active.Seconds())),
			strconv.Itoa(g.Answers), strconv.Itoa(g.Wrong), strconv.Itoa(g.Hints), strconv.Itoa(g.Solved), harmless(g.Fault), harmless(filepath.Base(g.File)),
			strconv.Itoa(g.Tasks), strconv.Itoa(g.Alone), harmless(g.Notice)})
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
