package learn

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// Gradebook is how grades are written for the gradebook of a learning platform.
type Gradebook struct {
	Canvas bool   // for Canvas; otherwise for Moodle
	By     string // what a column is of: "chapter", "unit" or "course"
	// Students are the lines, in their order. Empty: all students with a record, for Canvas only, which finds them by name.
	Students []Student
}

// maxGrade is the best grade: the maximum of a new grade item of Moodle, unless the site has another one.
const maxGrade = 100

// WriteGradebook writes grades as CSV that Moodle or Canvas imports: a line for each student, and a column for each chapter,
// unit or the course. A grade is the percentage of the tasks that the student did without having seen the solution. Where
// there is a fault, or no record, there is no grade; problems tell why, and which notices there are.
func WriteGradebook(w io.Writer, c *Course, all []Grade, o Gradebook) (problems []string, err error) {
	listed := make(map[string]bool)
	for _, s := range o.Students {
		listed[s.Name] = true
	}
	students, grades := o.Students, make(map[string][]Grade) // by student
	for _, g := range all {
		switch {
		case g.Unit == "" && g.Student == "":
			problems = append(problems, g.Fault) // of a file that is no record
			continue
		case len(listed) > 0 && !listed[g.Student]:
			problems = append(problems, fmt.Sprintf("%s: student %q is not in the list of students", g.File, g.Student))
			continue
		case g.Fault != "":
			problems = append(problems, g.File+": no grade: "+g.Fault)
		case g.Notice != "":
			problems = append(problems, g.File+": graded, but ask the student: "+g.Notice)
		}
		if len(listed) == 0 && len(grades[g.Student]) == 0 {
			students = append(students, Student{Name: g.Student})
		}
		grades[g.Student] = append(grades[g.Student], g)
	}
	who := moodleColumns(students)
	if o.Canvas {
		who = canvasColumns
	} else if len(listed) == 0 || len(who) < 2 {
		return nil, errors.New("the list of students needs a heading, and a column \"Email address\", \"ID number\" or \"Username\" that no student lacks: Moodle finds users by it")
	}
	titles, units := o.columns(c, all)
	var heading []string
	for _, col := range who {
		heading = append(heading, col.title)
	}
	rows := [][]string{append(heading, titles...)}
	if o.Canvas {
		points := make([]string, len(who)+len(titles))
		points[0] = "Points Possible"
		for i := range titles {
			points[len(who)+i] = strconv.Itoa(maxGrade)
		}
		rows = append(rows, points)
	}
	for i := range students {
		s, row := &students[i], []string(nil)
		if len(grades[s.Name]) == 0 && len(listed) > 0 {
			problems = append(problems, s.Name+": no grade: no file of this student")
		}
		for _, col := range who {
			text := *col.of(s)
			if len(listed) == 0 { // of the student's file, not of the teacher's list
				text = harmless(text)
			}
			row = append(row, text)
		}
		for _, ids := range units {
			cell := grade(grades[s.Name], ids)
			if cell == "" && !o.Canvas {
				cell = "-" // an empty cell would be 0
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	slices.Sort(problems)
	return slices.Compact(problems), csv.NewWriter(w).WriteAll(rows)
}

// identity is a column that tells who a student is.
type identity struct {
	title string
	of    func(*Student) *string
}

// canvasColumns are the first columns of a gradebook of Canvas, which it wants in this order.
var canvasColumns = []identity{
	{"Student", func(s *Student) *string { return &s.Name }},
	{"ID", func(s *Student) *string { return &s.CanvasID }},
	{"SIS User ID", func(s *Student) *string { return &s.SISUser }},
	{"SIS Login ID", func(s *Student) *string { return &s.SISLogin }},
	{"Section", func(s *Student) *string { return &s.Section }},
}

// moodleColumns are the student's name, and a column that identifies every student as a user of Moodle: Moodle ends an import at the
// first user that it does not find.
func moodleColumns(students []Student) []identity {
	all := []identity{
		{"Name", func(s *Student) *string { return &s.Name }},
		{"Email address", func(s *Student) *string { return &s.Email }},
		{"ID number", func(s *Student) *string { return &s.IDNumber }},
		{"Username", func(s *Student) *string { return &s.Username }},
	}
	return slices.DeleteFunc(all, func(c identity) bool {
		for i := range students {
			if *c.of(&students[i]) == "" {
				return true
			}
		}
		return false
	})
}

// columns are the titles of the columns with grades, and the units of each. Units that no student has are left out.
func (o Gradebook) columns(c *Course, all []Grade) (titles []string, units [][]string) {
	add := func(title string, of []*Unit) {
		var ids []string
		for _, u := range of {
			if slices.ContainsFunc(all, func(g Grade) bool { return g.Unit == u.ID }) {
				ids = append(ids, u.ID)
			}
		}
		if len(ids) > 0 {
			titles, units = append(titles, title), append(units, ids)
		}
	}
	if o.By == "course" {
		add("nfqproxy", c.Units())
		return titles, units
	}
	for _, chapter := range c.Chapters {
		if o.By == "chapter" {
			add(fmt.Sprintf("nfqproxy %d %s", chapter.Number, chapter.Title), chapter.Units)
			continue
		}
		for _, u := range chapter.Units {
			add(fmt.Sprintf("nfqproxy %s %s", u.ID, u.Title), []*Unit{u})
		}
	}
	return titles, units
}

// grade is the percentage of the tasks in units that a student did alone; empty: he has none.
func grade(all []Grade, ids []string) string {
	tasks, alone := 0, 0
	for _, g := range all {
		if g.Unit != "" && !slices.Contains(ids, g.Unit) {
			continue
		}
		if g.Fault != "" { // of the unit or, without one, of the record
			return ""
		}
		tasks, alone = tasks+g.Tasks, alone+g.Alone
	}
	if tasks == 0 {
		return ""
	}
	return strconv.FormatFloat(math.Round(100*maxGrade*float64(alone)/float64(tasks))/100, 'f', -1, 64)
}
