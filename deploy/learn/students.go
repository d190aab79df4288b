package learn

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxStudents is the largest class.
const maxStudents = 10000

// Student is a line of a list of students. All but the name may be empty.
type Student struct {
	Name string
	// Email, IDNumber and Username identify a user of Moodle.
	Email, IDNumber, Username string
	// CanvasID, SISUser, SISLogin and Section are the columns of a gradebook of Canvas.
	CanvasID, SISUser, SISLogin, Section string

	first, last string
}

// columns are the headings of a list of students, in lower case: those of people, of Moodle's lists of participants and
// grades, and of Canvas's gradebook.
var columns = []struct {
	headings []string
	of       func(s *Student) *string
}{
	{[]string{"name", "student"}, func(s *Student) *string { return &s.Name }},
	{[]string{"first name", "firstname"}, func(s *Student) *string { return &s.first }},
	{[]string{"last name", "lastname", "surname"}, func(s *Student) *string { return &s.last }},
	{[]string{"email address", "email", "e-mail", "mail"}, func(s *Student) *string { return &s.Email }},
	{[]string{"id number", "idnumber"}, func(s *Student) *string { return &s.IDNumber }},
	{[]string{"username"}, func(s *Student) *string { return &s.Username }},
	{[]string{"id"}, func(s *Student) *string { return &s.CanvasID }},
	{[]string{"sis user id"}, func(s *Student) *string { return &s.SISUser }},
	{[]string{"sis login id"}, func(s *Student) *string { return &s.SISLogin }},
	{[]string{"section"}, func(s *Student) *string { return &s.Section }},
}

// heading returns, for each column of a list, the field of a student that it has, or nil. It returns nil if the line is not a heading.
func heading(fields []string) []func(*Student) *string {
	of := make([]func(*Student) *string, len(fields))
	for i, f := range fields {
		for j, c := range columns {
			if slices.Contains(c.headings, strings.ToLower(strings.TrimSpace(f))) {
				of[i] = c.of
			} else if i == 0 && j == 2 && of[0] == nil {
				return nil // the first column is that of a name
			}
		}
	}
	return of
}

// ParseStudents reads a list of students: CSV, with a name in the first column. A first line "name" or "student", or "first
// name" and "last name", is a heading, which names the other columns. So lists that Moodle and Canvas export can be read.
// Names become the names of files.
func ParseStudents(file string, text []byte) (all []Student, _ error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%s: is not UTF-8: save it as CSV in UTF-8", file)
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff"))))
	r.FieldsPerRecord, r.TrimLeadingSpace, r.Comment = -1, true, '#'
	seen := make(map[string]int)
	var of []func(*Student) *string
	for first := true; ; first = false {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		line, _ := r.FieldPos(0)
		if first {
			if of = heading(fields); of != nil {
				continue
			}
		}
		s := Student{Name: fields[0]}
		for i, f := range fields {
			if i < len(of) && of[i] != nil {
				*of[i](&s) = strings.TrimSpace(f)
			}
		}
		if s.first != "" && s.last != "" {
			s.Name = s.first + " " + s.last
		}
		s.Name = strings.TrimSpace(s.Name)
		switch key := fileName(s.Name); {
		case len(all) == 0 && s.CanvasID == "" && (s.Name == "Points Possible" || slices.Contains(fields, "Manual Posting")):
			continue // of Canvas, between the heading and the students
		case key == "":
			return nil, fmt.Errorf("%s:%d: want the name of a student in the first column", file, line)
		case seen[key] > 0:
			return nil, fmt.Errorf("%s:%d: %s has the same file name as the student in line %d: change one of the names", file, line, s.Name, seen[key])
		default:
			seen[key] = line
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no students: want a name in each line", file)
	}
	if len(all) > maxStudents {
		return nil, fmt.Errorf("%s: %d students: want at most %d", file, len(all), maxStudents)
	}
	return all, nil
}
