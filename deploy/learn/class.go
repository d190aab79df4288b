package learn

import (
	"archive/zip"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

var notInFile = regexp.MustCompile(`[^\p{L}\p{M}\p{N}._-]+`)

// fileName makes a file name of a student's name.
func fileName(name string) string {
	return strings.ToLower(strings.Trim(notInFile.ReplaceAllString(name, "-"), "-."))
}

// CourseFile is the name of a course that is handed to students: a ZIP archive.
const CourseFile = "course.zip"

// Class is what [WriteClass] writes.
type Class struct {
	Students []Student
	Units    []string // IDs; empty: all
	Seed     uint64
	// Own is the course, if it is not the built-in one, and Files are its files.
	Own   *Course
	Files fs.FS
}

// WriteClass writes a record without events for each student, with a seed of his own that the seed of the class and his name
// make, and a course that is not built in. It returns the files. None may exist: a class is not overwritten.
func WriteClass(dir string, c Class) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, s := range c.Students {
		names = append(names, fileName(s.Name)+".json")
	}
	if c.Own != nil {
		names = append(names, CourseFile)
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		if _, err := os.Lstat(file); err == nil {
			return nil, fmt.Errorf("%s exists: give another directory", file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		files = append(files, file)
	}
	if c.Own != nil {
		text, err := c.Own.archive(c.Files)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, CourseFile), text, 0o644); err != nil {
			return nil, err
		}
	}
	for i, s := range c.Students {
		r := &Record{Version: RecordVersion, Student: s.Name, Seed: UnitSeed(c.Seed, s.Name), Units: c.Units, OwnCourse: c.Own != nil, Events: []Event{}, path: files[i]}
		if err := r.Write(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// archive packs the course into a ZIP archive, without files that belong to no unit.
func (c *Course) archive(files fs.FS) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	add := func(name string, text []byte) error {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write(text)
		}
		return err
	}
	for _, chapter := range c.Chapters {
		name := path.Join(path.Dir(chapter.Units[0].dir), chapterFile)
		text, err := fs.ReadFile(files, name)
		if err == nil {
			err = add(name, text)
		}
		if err != nil {
			return nil, err
		}
		for _, u := range chapter.Units {
			for _, name := range slices.Sorted(maps.Keys(u.templates)) {
				if err := add(path.Join(u.dir, name), u.templates[name]); err != nil {
					return nil, err
				}
			}
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

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
