package learn

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// withPorts is a course whose only unit has an answer that differs between students: the port, of 1000. changes are pairs of
// an old and a new text in the unit.
func withPorts(t testing.TB, changes ...string) *Course {
	t.Helper()
	changes = append(changes, "shell: shell\n", "shell: shell\nvariables:\n- {name: port, from: 30000, to: 30999}\n", `["2", two]`, `["${port}"]`)
	return loaded(t, edited(t, unitPath, "", strings.NewReplacer(changes...).Replace(small[unitPath])), 0)
}

// worked is a record of a student's work in unit 1.1 with his own values: each event some seconds after the one before.
func worked(t testing.TB, file string, c *Course, from time.Time, gaps ...float64) *Record {
	t.Helper()
	r := reopened(t, file)
	own := UnitSeed(r.Seed, "1.1")
	u, err := c.Units()[0].Draw(own)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range []Event{
		{Kind: Began, Detail: fmt.Sprint(own), Files: u.Digest()},
		{Kind: Passed, Step: "read"},
		{Kind: Answered, Step: "ask", Detail: "1"},
		{Kind: Answered, Step: "ask", Detail: u.Steps[1].Question.Answer.Is[0], Right: true},
		{Kind: Passed, Step: "ask"},
		{Kind: Passed, Step: "do"},
		{Kind: Finished},
	} {
		from = from.Add(time.Duration(gaps[i] * float64(time.Second)))
		e.Time, e.Unit = from, "1.1"
		if err := r.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// forge computes the hashes of a record anew, as a student can who reads this program, and writes it to a file.
func forge(t testing.TB, r *Record, file string) {
	t.Helper()
	f := &Record{Version: r.Version, Student: r.Student, Seed: r.Seed, Units: r.Units, path: file}
	for _, e := range r.Events {
		if err := f.Add(e); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheats: a class of two, of whom Ada has worked, and what Bob hands in. The last cases are those that nothing finds.
func TestCheats(t *testing.T) {
	ada, bob := []float64{0, 40.123, 31.5, 12.75, 0.001, 95.031, 0}, []float64{0, 52.4, 20.25, 33.125, 0.001, 71.6, 0}
	const edit, copied = "the record was edited: event %d does not follow from the events before it", "its times follow each other as in %s: one is a copy of the other"
	for _, tc := range []struct {
		name  string
		class uint64 // of "learn grade --seed"
		// cheat makes Bob's file; a is Ada's record, file Bob's, which is empty.
		cheat         func(t *testing.T, c *Course, a *Record, file string)
		fault, notice string
		ada           string // the fault of Ada
	}{
		{"honest work", 42, func(t *testing.T, c *Course, _ *Record, file string) { worked(t, file, c, at(7), bob...) }, "", "", ""},
		{"honest work, with one time as Ada has it", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(7), 0, 52.4, 20.25, 33.125, 0.001, ada[5], 0)
		}, "", "", ""},

		// 1. He edits his record.
		{"a wrong answer is made right", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			r := worked(t, file, c, at(7), bob...)
			r.Events[2].Right = true
			write(t, r)
		}, fmt.Sprintf(edit, 3), "", ""},
		{"the same, with new hashes", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			r := worked(t, file, c, at(7), bob...)
			r.Events[2].Right = true
			forge(t, r, file)
		}, `event 3: the answer "1" to step ask is recorded as right, but with the student's values it is wrong`, "", ""},
		{"an answer to no step, with new hashes", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			r := worked(t, file, c, at(7), bob...)
			r.Events[2].Step = ""
			forge(t, r, file)
		}, `event 3: step "" has no question`, "", ""},
		{"the steps are added, with new hashes", 42, func(t *testing.T, _ *Course, _ *Record, file string) {
			do(t, file, Began, Passed, Passed, Passed, Finished)
		}, "event 3: step ask was passed without a right answer", "", ""},
		{"a time before the year 1, with new hashes", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			r := worked(t, file, c, at(7), bob...)
			r.Events[0].Time = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
			forge(t, r, file)
		}, "", "", ""},
		{"only the end is added, with new hashes", 42, func(t *testing.T, _ *Course, _ *Record, file string) {
			do(t, file, Began, Finished)
		}, "event 2: the unit is finished without step read", "", ""},
		{"the unit was never started", 42, func(t *testing.T, _ *Course, _ *Record, file string) {
			do(t, file, Passed)
		}, "event 1: passed, but the unit was not started", "", ""},

		// 2. He hands in a copy of Ada's record.
		{"a copy with his name", 42, func(t *testing.T, _ *Course, a *Record, file string) {
			a.Student, a.path = "Bob", file
			write(t, a)
		}, fmt.Sprintf(edit, 1), "", "bob.json has the same seed: one is a copy of the other"},
		{"a copy with his name and new hashes, the seed of the class is not given", 0, func(t *testing.T, _ *Course, a *Record, file string) {
			a.Student = "Bob"
			forge(t, a, file)
		}, "ada.json has the same seed: one is a copy of the other", "", "bob.json has the same seed: one is a copy of the other"},
		{"a copy with his name, seeds and new hashes", 42, func(t *testing.T, _ *Course, a *Record, file string) {
			r := reopened(t, file)
			a.Events[0].Detail = fmt.Sprint(UnitSeed(r.Seed, "1.1"))
			a.Student, a.Seed = r.Student, r.Seed
			forge(t, a, file)
		}, "ANSWER", "", fmt.Sprintf(copied, "bob.json")},
		{"the same with his answers, hours later", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(500), ada...)
		}, fmt.Sprintf(copied, "ada.json"), "", fmt.Sprintf(copied, "bob.json")},

		{"fewer units, with new hashes", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			if _, err := WriteClass(filepath.Dir(file), Class{Students: named("Eve"), Seed: 42}); err != nil {
				t.Fatal(err)
			}
			r := worked(t, file, c, at(7), bob...)
			r.Units = []string{"1.1"}
			forge(t, r, file)
		}, "its units are 1.1, those of most files are all: was the list changed?", "", ""},

		// 3. He hands in his record of another class.
		{"of last year's class", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			files, err := WriteClass(filepath.Dir(file), Class{Students: named("Bob"), Seed: 41})
			if err != nil {
				t.Fatal(err)
			}
			worked(t, files[0], c, at(7), bob...)
		}, "the seed is not the student's", "", ""},

		// 4. He does not do the work.
		{"a script types the solutions", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(7), 0, 1.2, 0.5, 0.5, 0.001, 2.25, 0)
		}, "", "2 of 2 tasks were done in less than 5s each: by a script, or for the second time", ""},

		// 5. The record is of another course, or the clock is another one.
		{"of another version of the unit", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			r := worked(t, file, c, at(7), bob...)
			r.Events[1].Step = "introduction"
			forge(t, r, file)
		}, `event 2: the unit has no step "introduction": is the record of another version of the course?`, "", ""},
		{"he makes the checks of the unit easier", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, withPorts(t, "service: default/web, ", ""), at(7), bob...)
		}, "", "event 1: the unit had other files: of another version of the course, or changed by the student", ""},
		{"the clock is set back while he works", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(700), 0, 52.4, 20.25, 33.125, 0.001, -3600, 0)
		}, "", "event 6 is 1h0m0s earlier than the one before it: the clock was set back", ""},
		{"the clock is a day ahead", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(2440), bob...)
		}, "", "event 1 is of 2030-01-03T18:44:05Z, which is in the future: the clock was wrong", ""},

		{"not found: all hashes anew, with right answers and credible times", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(7), bob...) // typed by a program
		}, "", "", ""},
		{"not found: of last year's class with the same seed", 42, func(t *testing.T, c *Course, _ *Record, file string) {
			worked(t, file, c, at(-365*24*60), bob...)
		}, "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, dir := withPorts(t), t.TempDir()
			files, err := WriteClass(dir, Class{Students: named("Ada", "Bob"), Seed: 42})
			if err != nil {
				t.Fatal(err)
			}
			a := worked(t, files[0], c, at(0), ada...)
			answer := a.Events[3].Detail
			tc.cheat(t, c, a, files[1])
			all, err := ReadGrades(dir, c, tc.class, at(1000))
			if err != nil || len(all) < 2 {
				t.Fatalf("%+v, %v", all, err)
			}
			want := tc.fault
			if want == "ANSWER" {
				want = fmt.Sprintf("event 4: the answer %q to step ask is recorded as right, but with the student's values it is wrong", answer)
			}
			if got := all[1]; got.Fault != want || got.Notice != tc.notice {
				t.Errorf("Bob has the fault %q and the notice %q, want %q and %q", got.Fault, got.Notice, want, tc.notice)
			}
			if all[0].Fault != tc.ada {
				t.Errorf("Ada has the fault %q, want %q", all[0].Fault, tc.ada)
			}
		})
	}
}

// TestSolutionsShown: a task whose solution was shown before it was passed is not done alone; a look at it afterwards does not count.
func TestSolutionsShown(t *testing.T) {
	_, files := newClass(t)
	u := three(t).Units()[0]
	r := do(t, files[0], Began, Passed, Solved, Answered, Passed, Passed, Finished)
	if all, alone := r.tasks(u); all != 2 || alone != 1 {
		t.Errorf("%d of %d tasks alone, want 1 of 2", alone, all)
	}
	for _, e := range []Event{{Kind: Began, Detail: r.Events[0].Detail}, {Kind: Passed, Step: "read"}, {Kind: Solved, Step: "do"}} {
		e.Time, e.Unit = at(20), "1.1"
		if err := r.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if all, alone := r.tasks(u); all != 2 || alone != 1 {
		t.Errorf("after a look at the solution later: %d of %d tasks alone, want 1 of 2", alone, all)
	}
}
