package learn

import (
	"slices"
	"strings"
	"testing"
)

// TestGradebook: the rows are those that the importers of Moodle (grade/import/csv) and Canvas (lib/gradebook_importer.rb)
// read: Canvas wants its five columns first and the row "Points Possible"; Moodle takes "-" for no grade.
func TestGradebook(t *testing.T) {
	list := []Student{
		{Name: "Ada Lovelace", Email: "ada@example.org", CanvasID: "31", SISLogin: "ada", Section: "A, B"},
		{Name: "=Bob", Email: "bob@example.org", IDNumber: "2"},
		{Name: "Eve", Email: "eve@example.org", IDNumber: "3"},
	}
	for _, tc := range []struct {
		name string
		o    Gradebook
		want string
	}{
		{"Moodle", Gradebook{By: "chapter", Students: list}, `Name,Email address,nfqproxy 1 Services,nfqproxy 2 Nodes
Ada Lovelace,ada@example.org,50,0
=Bob,bob@example.org,-,-
Eve,eve@example.org,-,-
`},
		{"Canvas", Gradebook{By: "chapter", Canvas: true, Students: list}, `Student,ID,SIS User ID,SIS Login ID,Section,nfqproxy 1 Services,nfqproxy 2 Nodes
Points Possible,,,,,100,100
Ada Lovelace,31,,ada,"A, B",50,0
=Bob,,,,,,
Eve,,,,,,
`},
		{"Canvas, the whole course", Gradebook{By: "course", Canvas: true, Students: list[:1]}, `Student,ID,SIS User ID,SIS Login ID,Section,nfqproxy
Points Possible,,,,,100
Ada Lovelace,31,,ada,"A, B",25
`},
		{"Canvas, units, no list", Gradebook{By: "unit", Canvas: true}, `Student,ID,SIS User ID,SIS Login ID,Section,nfqproxy 1.1 A first unit,nfqproxy 2.1 A first unit
Points Possible,,,,,100,100
Ada Lovelace,,,,,50,0
'=Bob,,,,,,
Zoë,,,,,0,0
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := three(t)
			dir, files := newClass(t, "1.1", "2.1")
			do(t, files[0], Began, Passed, Answered, Passed, Hinted, Solved, Passed, Finished)
			r := do(t, files[1], Began, Passed)
			r.Events[1].Step = "ask"
			write(t, r)
			all, err := ReadGrades(dir, c, 42, at(1000))
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			problems, err := WriteGradebook(&b, c, all, tc.o)
			if err != nil || b.String() != tc.want {
				t.Errorf("%v\n%s\nwant\n%s", err, b.String(), tc.want)
			}
			want := []string{files[1] + ": no grade: the record was edited: event 2 does not follow from the events before it"}
			switch len(tc.o.Students) {
			case 1:
				want = []string{files[1] + `: student "=Bob" is not in the list of students`, files[2] + `: student "Zoë" is not in the list of students`}
			case 3:
				want = append(want, files[2]+`: student "Zoë" is not in the list of students`, "Eve: no grade: no file of this student")
			}
			slices.Sort(want)
			if !slices.Equal(problems, want) {
				t.Errorf("the problems are %q, want %q", problems, want)
			}
		})
	}
}

// Moodle ends an import at a user that it does not find: all must have the column that finds them.
func TestGradebookWithoutUsers(t *testing.T) {
	for _, list := range [][]Student{nil, named("Ada Lovelace"), {{Name: "Ada Lovelace", Email: "a@example.org"}, {Name: "Zoë", IDNumber: "7"}}} {
		var b strings.Builder
		all := []Grade{{Student: "Ada Lovelace", Unit: "1.1", Tasks: 1}}
		if _, err := WriteGradebook(&b, three(t), all, Gradebook{By: "unit", Students: list}); err == nil || !strings.HasPrefix(err.Error(), "the list of students needs a heading") {
			t.Errorf("%+v: %v\n%s", list, err, b.String())
		}
	}
}
