package learn

import (
	"archive/zip"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestParseStudents(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
		err        string
	}{
		{"names", "Ada Lovelace\nAlan Turing\n", []string{"Ada Lovelace", "Alan Turing"}, ""},
		{"a heading and other columns", "Name,Mail\n\"Lovelace, Ada\",ada@example.org\n\n# absent\n  Alan  ,\n", []string{"Lovelace, Ada", "Alan"}, ""},
		{"a heading \"student\"", "student\nAda", []string{"Ada"}, ""},
		{"a byte order mark, lines of Windows", "\ufeffname\r\nAda\r\nJürgen\r\n", []string{"Ada", "Jürgen"}, ""},
		{"a name like a heading", "Ada\nName\n", []string{"Ada", "Name"}, ""},
		{"names of other scripts", "李雷\nआदित्य\nJose\u0301\n", []string{"李雷", "आदित्य", "Jose\u0301"}, ""},
		{"one file for two", "Ada Lovelace\nBob\nada-lovelace\n", nil, "list.csv:3: ada-lovelace has the same file name as the student in line 1: change one of the names"},
		{"no name", "Ada\n,bob@example.org\n", nil, "list.csv:2: want the name of a student in the first column"},
		{"a name without letters", "..\n", nil, "list.csv:1: want the name of a student in the first column"},
		{"a heading only", "name\n", nil, "list.csv: no students: want a name in each line"},
		{"nothing", "", nil, "list.csv: no students: want a name in each line"},
		{"a quote that does not end", "Ada\n\"Bob\n", nil, `list.csv: parse error on line 2, column 6: extraneous or missing " in quoted-field`},
		{"Latin-1", "J\xfcrgen\n", nil, "list.csv: is not UTF-8: save it as CSV in UTF-8"},
		{"UTF-16", "\xff\xfeA\x00\n\x00", nil, "list.csv: is not UTF-8: save it as CSV in UTF-8"},
		{"too many", strings.Join(numbers(maxStudents+1), "\n"), nil, "list.csv: 10001 students: want at most 10000"},
	} {
		got, err := ParseStudents("list.csv", []byte(tc.text))
		message := ""
		if err != nil {
			message = err.Error()
		}
		var names []string
		for _, s := range got {
			names = append(names, s.Name)
		}
		if !slices.Equal(names, tc.want) || message != tc.err {
			t.Errorf("%s: %q, %s, want %q, %s", tc.name, names, message, tc.want, tc.err)
		}
	}
}

// TestExportedLists: what Moodle and Canvas export is a list of students.
func TestExportedLists(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []Student
	}{
		{"participants of Moodle", "\ufeff\"First name\",\"Last name\",\"Email address\",Groups\nAda,Lovelace,ada@example.org,A\nAda,Byron,byron@example.org,\n",
			[]Student{{Name: "Ada Lovelace", Email: "ada@example.org", first: "Ada", last: "Lovelace"}, {Name: "Ada Byron", Email: "byron@example.org", first: "Ada", last: "Byron"}}},
		{"grades of Moodle", "\"First name\",Surname,\"ID number\",Institution,Department,\"Email address\",\"Course total (Real)\"\nAda,Lovelace,0042,,,ada@example.org,-\n",
			[]Student{{Name: "Ada Lovelace", Email: "ada@example.org", IDNumber: "0042", first: "Ada", last: "Lovelace"}}},
		{"the gradebook of Canvas", "Student,ID,SIS User ID,SIS Login ID,Section,Essay (77)\n,,,,,Manual Posting\n    Points Possible,,,,,10\n\"Lovelace, Ada\",31,S-1,ada,Monday,9\n",
			[]Student{{Name: "Lovelace, Ada", CanvasID: "31", SISUser: "S-1", SISLogin: "ada", Section: "Monday"}}},
		{"one's own", "name,username\nAda, ada \nBob\n", []Student{{Name: "Ada", Username: "ada"}, {Name: "Bob"}}},
	} {
		if got, err := ParseStudents("list.csv", []byte(tc.text)); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %+v, %v, want %+v", tc.name, got, err, tc.want)
		}
	}
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// No name of a student leads out of the directory of the class, or to a hidden file.
func TestFileName(t *testing.T) {
	for name, want := range map[string]string{
		"Ada Lovelace": "ada-lovelace", "../../etc/passwd": "etc-passwd", ".hidden": "hidden", "a\x00b": "a-b", "-rf": "rf", "O'Brien": "o-brien", "": "", "/": "", "x.json": "x.json",
	} {
		if got := fileName(name); got != want {
			t.Errorf("the file of %q is %q, want %q", name, got, want)
		}
	}
}

// named are students without more than a name.
func named(names ...string) (all []Student) {
	for _, n := range names {
		all = append(all, Student{Name: n})
	}
	return all
}

// newClass is a class of three, in a new directory.
func newClass(t testing.TB, units ...string) (dir string, files []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "class [1]", "files")
	files, err := WriteClass(dir, Class{Students: named("Ada Lovelace", "=Bob", "Zoë"), Units: units, Seed: 42})
	if err != nil {
		t.Fatal(err)
	}
	return dir, files
}

func TestWriteClass(t *testing.T) {
	dir, files := newClass(t, "1.1", "2.1")
	want := []string{filepath.Join(dir, "ada-lovelace.json"), filepath.Join(dir, "bob.json"), filepath.Join(dir, "zoë.json")}
	if !slices.Equal(files, want) {
		t.Errorf("the files are %q, want %q", files, want)
	}
	seeds := make(map[uint64]bool)
	for i, name := range []string{"Ada Lovelace", "=Bob", "Zoë"} {
		r := reopened(t, files[i])
		if r.Student != name || r.Seed != UnitSeed(42, name) || !slices.Equal(r.Units, []string{"1.1", "2.1"}) || len(r.Events) != 0 || r.Verify() != -1 {
			t.Errorf("the record of %s is %+v", name, r)
		}
		seeds[r.Seed] = true
	}
	if len(seeds) != 3 {
		t.Error("two students have one seed")
	}
	before, err := os.ReadFile(files[2])
	if err != nil {
		t.Fatal(err)
	}
	// One of the files exists: none is written.
	if _, err := WriteClass(dir, Class{Students: named("New", "Zoë"), Seed: 43}); err == nil || err.Error() != files[2]+" exists: give another directory" {
		t.Errorf("a class is overwritten: %v", err)
	}
	if after, err := os.ReadFile(files[2]); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new.json")); !os.IsNotExist(err) {
		t.Errorf("a part of the class was written: %v", err)
	}
	if _, err := WriteClass(dir, Class{Students: named(strings.Repeat("a", 300)), Seed: 1}); err == nil || strings.Contains(err.Error(), "exists") {
		t.Errorf("a name that is too long for a file: %v", err)
	}
	if _, err := WriteClass(files[0], Class{Students: named("A"), Seed: 1}); err == nil {
		t.Error("a class in a file")
	}
}

// TestOwnCourse: a class gets a course that is not built in, and grades say that a record is of it.
func TestOwnCourse(t *testing.T) {
	files := edited(t, "", "", "")
	files["1-services/notes.txt"], files["secret.txt"] = &fstest.MapFile{Data: []byte("x")}, &fstest.MapFile{Data: []byte("x")} // of the teacher
	c, dir := loaded(t, files, 0), t.TempDir()
	class := Class{Students: named("Ada"), Seed: 42, Own: c, Files: files}
	all, err := WriteClass(dir, class)
	if want := []string{filepath.Join(dir, "ada.json"), filepath.Join(dir, CourseFile)}; err != nil || !slices.Equal(all, want) {
		t.Fatalf("%q, %v, want %q", all, err, want)
	}
	z, err := zip.OpenReader(all[1])
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	if want := []string{"1-services/chapter.yaml", labPath, textPath, unitPath}; !slices.Equal(names, want) {
		t.Errorf("the archive has %q, want %q", names, want)
	}
	handed := loaded(t, z, 0)
	if got, want := handed.Units()[0].Digest(), c.Units()[0].Digest(); got != want {
		t.Errorf("the unit in the archive has the digest %s, want %s", got, want)
	}
	do(t, all[0], Began, Passed)
	grades, err := ReadGrades(dir, handed, 42, at(1000))
	if err != nil || len(grades) != 1 || !grades[0].OwnCourse || grades[0].Fault != "" {
		t.Errorf("%+v, %v", grades, err)
	}
	r := reopened(t, all[0])
	r.OwnCourse = false
	if r.Verify() != 0 {
		t.Error("a record of another course has the same hashes")
	}
	if err := os.Remove(all[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteClass(dir, class); err == nil || err.Error() != all[1]+" exists: give another directory" {
		t.Errorf("a course is overwritten: %v", err)
	}
}

// do adds what a student does in unit 1.1 of the course, with the own values. An answer is right.
func do(t testing.TB, file string, kinds ...EventKind) *Record {
	t.Helper()
	r := reopened(t, file)
	steps := []string{"read", "ask", "do"}
	for i, k := range kinds {
		e := Event{Time: at(float64(i)), Kind: k, Unit: "1.1"}
		switch k {
		case Began:
			e.Detail = fmt.Sprint(UnitSeed(r.Seed, "1.1"))
		case Answered:
			e.Step, e.Detail, e.Right = steps[0], "2", true
		case Hinted, Solved:
			e.Step = steps[0]
		case Passed:
			e.Step, steps = steps[0], steps[1:]
		}
		if err := r.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestGrades(t *testing.T) {
	c := three(t)
	dir, files := newClass(t, "1.1", "2.1")
	do(t, files[0], Began, Passed, Answered, Passed, Hinted, Solved, Passed, Finished)
	do(t, files[1], Began, Passed)
	for name, text := range map[string]string{"x.json": "{", "notes.txt": "x", ".learn-1.json": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := ReadGrades(dir, c, 42, at(1000))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := WriteGrades(&b, all); err != nil {
		t.Fatal(err)
	}
	want := `student,unit,state,began,finished,active_seconds,answers,wrong_answers,hints,solutions,fault,file,tasks,tasks_alone,notice
Ada Lovelace,1.1,finished,2030-01-02T02:04:05Z,2030-01-02T02:11:05Z,420,1,0,1,1,,ada-lovelace.json,2,1,
Ada Lovelace,2.1,new,,,0,0,0,0,0,,ada-lovelace.json,2,0,
'=Bob,1.1,begun,2030-01-02T02:04:05Z,,60,0,0,0,0,,bob.json,2,0,
'=Bob,2.1,new,,,0,0,0,0,0,,bob.json,2,0,
,,new,,,0,0,0,0,0,DIR/x.json is not a record of nfqproxy learn: unexpected end of JSON input (move it away to start over),x.json,0,0,
Zoë,1.1,new,,,0,0,0,0,0,,zoë.json,2,0,
Zoë,2.1,new,,,0,0,0,0,0,,zoë.json,2,0,
`
	if got := strings.ReplaceAll(b.String(), dir, "DIR"); got != want {
		t.Errorf("the grades are\n%s\nwant\n%s", got, want)
	}
}

// TestFaults: what is wrong with a record that a student hands in.
func TestFaults(t *testing.T) {
	finished := []EventKind{Began, Passed, Answered, Passed, Passed, Finished}
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, files []string)
		class  uint64
		want   string // the fault of Ada's unit 1.1
	}{
		{"nothing", func(t *testing.T, files []string) { do(t, files[0], finished...) }, 42, ""},
		{"an edited event", func(t *testing.T, files []string) {
			r := do(t, files[0], finished...)
			r.Events[3].Time = at(0)
			write(t, r)
		}, 42, "the record was edited: event 4 does not follow from the events before it"},
		{"a removed event", func(t *testing.T, files []string) {
			r := do(t, files[0], Began, Passed, Answered, Passed, Passed)
			r.Events = slices.Delete(r.Events, 1, 2)
			write(t, r)
		}, 42, "the record was edited: event 2 does not follow from the events before it"},
		{"the name of another student", func(t *testing.T, files []string) {
			r := do(t, files[1])
			r.Student = "Ada Lovelace"
			write(t, r)
			if err := os.Rename(files[1], files[0]); err != nil {
				t.Fatal(err)
			}
		}, 42, "the seed is not the student's"},
		{"another class", func(t *testing.T, files []string) { do(t, files[0], finished...) }, 43, "the seed is not the student's"},
		{"no class", func(t *testing.T, files []string) { do(t, files[0], finished...) }, 0, ""},
		{"other values", func(t *testing.T, files []string) {
			r := reopened(t, files[0])
			if err := r.Add(Event{Time: at(0), Kind: Began, Unit: "1.1", Detail: "1"}); err != nil {
				t.Fatal(err)
			}
		}, 42, "event 1: the unit has another seed"},
		{"a step too few", func(t *testing.T, files []string) { do(t, files[0], Began, Passed, Answered, Passed, Finished) }, 42, "event 5: the unit is finished without step do"},
		{"steps of another time", func(t *testing.T, files []string) {
			r := do(t, files[0], Began, Passed, Answered, Passed, Passed)
			for _, e := range []Event{{Time: at(6), Kind: Began, Unit: "1.1", Detail: r.Events[0].Detail}, {Time: at(7), Kind: Finished, Unit: "1.1"}} {
				if err := r.Add(e); err != nil {
					t.Fatal(err)
				}
			}
		}, 42, "event 7: the unit is finished without step read"},
		{"a copy", func(t *testing.T, files []string) {
			do(t, files[0], finished...)
			text, err := os.ReadFile(files[0])
			if err == nil {
				err = os.WriteFile(filepath.Join(filepath.Dir(files[0]), "aaa.json"), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, 42, "aaa.json is of the same student"},
		{"units of another course", func(t *testing.T, files []string) {
			if err := os.Remove(files[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := WriteClass(filepath.Dir(files[0]), Class{Students: named("Ada Lovelace"), Units: []string{"7.1", "7.2"}, Seed: 42}); err != nil {
				t.Fatal(err)
			}
		}, 42, "the course has none of its units: 7.1, 7.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, files := newClass(t)
			tc.change(t, files)
			all, err := ReadGrades(dir, three(t), tc.class, at(1000))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, g := range all {
				if filepath.Base(g.File) == "ada-lovelace.json" && (g.Unit == "1.1" || g.Unit == "") {
					found = true
					if g.Fault != tc.want || g.Student != "Ada Lovelace" {
						t.Errorf("the fault of %s is %q, want %q", g.Student, g.Fault, tc.want)
					}
				}
			}
			if !found {
				t.Errorf("no result among %+v", all)
			}
		})
	}
}

func write(t testing.TB, r *Record) {
	t.Helper()
	if err := r.Write(); err != nil {
		t.Fatal(err)
	}
}

func TestNoGrades(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadGrades(dir, three(t), 0, at(1000)); err == nil || err.Error() != dir+" has no results: want files *.json" {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := ReadGrades(filepath.Join(dir, "no"), three(t), 0, at(1000)); !os.IsNotExist(err) {
		t.Errorf("no directory: %v", err)
	}
}

// A spreadsheet takes none of the texts for a formula; each row has all columns.
func TestFormulas(t *testing.T) {
	var all []Grade
	names := []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "a\"b,c\nd", "Ada"}
	for _, name := range names {
		all = append(all, Grade{File: "/x/" + name, Student: name, Fault: name, Progress: Progress{Began: at(0), Active: 90 * time.Second}})
	}
	var b strings.Builder
	if err := WriteGrades(&b, all); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil || len(rows) != len(names)+1 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, row := range rows[1:] {
		for i, cell := range row {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				t.Errorf("column %s: %q", rows[0][i], cell)
			}
		}
	}
	if rows[8][0] != "Ada" || rows[8][5] != "90" {
		t.Errorf("a harmless row: %q", rows[8])
	}
}
