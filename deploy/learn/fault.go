package learn

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// fault is why a record cannot be trusted. The error is about the unit.
func (r *Record) fault(u *Unit, class uint64) (string, error) {
	if i := r.Verify(); i >= 0 {
		return fmt.Sprintf("the record was edited: event %d does not follow from the events before it", i+1), nil
	}
	if class != 0 && r.Seed != UnitSeed(class, r.Student) {
		return "the seed is not the student's", nil
	}
	seed, judged := UnitSeed(r.Seed, u.ID), false
	next, right := -1, false // the step under way; -1: the unit has not begun
	for i := range r.Events {
		e := &r.Events[i]
		if e.Unit != u.ID {
			continue
		}
		fault := func(format string, args ...any) (string, error) {
			return fmt.Sprintf("event %d: %s", i+1, fmt.Sprintf(format, args...)), nil
		}
		if e.Kind == Began {
			if e.Detail != strconv.FormatUint(seed, 10) {
				return fault("the unit has another seed")
			}
			next, right = 0, false
			continue
		}
		if next < 0 {
			return fault("%s, but the unit was not started", e.Kind)
		}
		if e.Step != "" && u.step(e.Step) == nil {
			return fault("the unit has no step %q: is the record of another version of the course?", e.Step)
		}
		switch e.Kind {
		case Answered:
			if u.Differs() && !judged { // with the student's values
				var err error
				if u, err = u.Draw(seed); err != nil {
					return "", err
				}
				judged = true
			}
			s := u.step(e.Step)
			if s == nil || s.Question == nil {
				return fault("step %q has no question", e.Step)
			}
			if is, known := s.Question.Answer.fixed(e.Detail); known && e.Right && !is {
				return fault("the answer %q to step %s is recorded as right, but with the student's values it is wrong", e.Detail, e.Step)
			}
			right = right || e.Right && next < len(u.Steps) && u.Steps[next].Name == e.Step
		case Passed:
			if next == len(u.Steps) || u.Steps[next].Name != e.Step {
				return fault("step %s was passed without the steps before it, or twice", e.Step)
			}
			if u.Steps[next].Question != nil && !right {
				return fault("step %s was passed without a right answer", e.Step)
			}
			next, right = next+1, false
		case Finished:
			if next < len(u.Steps) {
				return fault("the unit is finished without step %s", u.Steps[next].Name)
			}
		}
	}
	return "", nil
}

// step finds a step by its name; nil: there is none.
func (u *Unit) step(name string) *Step {
	for _, s := range u.Steps {
		if s.Name == name {
			return s
		}
	}
	return nil
}

const (
	// fastTask is less than a student needs to read the text of a step and to type its solution.
	fastTask = 5 * time.Second
	// clockError is how much a clock may be wrong without a notice.
	clockError = 2 * time.Minute
)

// notice is what a student should explain about a unit. Each may be innocent: a clock that was wrong, a new
// version of the course, or a student who does the tasks for the second time.
func (r *Record) notice(u *Unit, now time.Time) string {
	var all []string
	var last time.Time // of any unit
	var before time.Time
	seen := make(map[string]bool)
	tasks, fast, back, future, changed := 0, 0, 0, 0, 0
	digest := u.Digest()
	for i := range r.Events {
		e := &r.Events[i]
		if e.Unit == u.ID {
			if back == 0 && i > 0 && e.Time.Before(last.Add(-clockError)) {
				back = i + 1
			}
			if changed == 0 && e.Kind == Began && e.Files != "" && e.Files != digest {
				changed = i + 1
			}
			if future == 0 && e.Time.After(now.Add(clockError)) {
				future = i + 1
			}
			if s := u.step(e.Step); e.Kind == Passed && s != nil && !s.Read() && !seen[e.Step] {
				tasks++
				if seen[e.Step] = true; e.Time.Sub(before) < fastTask {
					fast++
				}
			}
			if e.Kind == Began || e.Kind == Passed {
				before = e.Time
			}
		}
		last = e.Time
	}
	if back > 0 {
		all = append(all, fmt.Sprintf("event %d is %v earlier than the one before it: the clock was set back", back, r.Events[back-2].Time.Sub(r.Events[back-1].Time).Round(time.Second)))
	}
	if future > 0 {
		all = append(all, fmt.Sprintf("event %d is of %s, which is in the future: the clock was wrong", future, r.Events[future-1].Time.Format(time.RFC3339)))
	}
	if changed > 0 {
		all = append(all, fmt.Sprintf("event %d: the unit had other files: of another version of the course, or changed by the student", changed))
	}
	if fast >= 2 && 2*fast >= tasks {
		all = append(all, fmt.Sprintf("%d of %d tasks were done in less than %v each: by a script, or for the second time", fast, tasks, fastTask))
	}
	return strings.Join(all, "; ")
}

// others is what a record shares with the records of other students.
type others struct {
	list   string            // fault of its list of units; empty: none
	record string            // fault of all units; empty: none
	units  map[string]string // faults by unit
}

func (o *others) fault(unit string) string { return cmp.Or(o.record, o.units[unit]) }

// compare finds records of which one is a copy of the other. It cannot tell which is the original.
func compare(records []*Record) map[*Record]*others {
	all := make(map[*Record]*others)
	lists, most := make(map[string]int), ""
	for _, r := range records {
		list := listed(r.Units)
		if lists[list]++; lists[list] > lists[most] {
			most = list
		}
	}
	students, seeds, rhythms := make(map[string]*Record), make(map[uint64]*Record), make(map[string]*Record)
	for _, r := range records {
		all[r] = &others{units: make(map[string]string)}
		if list := listed(r.Units); list != most {
			all[r].list = fmt.Sprintf("its units are %s, those of most files are %s: was the list changed?", list, most)
		}
		if first := students[r.Student]; first != nil && r.Student != "" {
			all[r].record = filepath.Base(first.path) + " is of the same student"
			continue
		}
		students[r.Student] = r
		if first := seeds[r.Seed]; first != nil {
			all[r].record = fmt.Sprintf("%s has the same seed: one is a copy of the other", filepath.Base(first.path))
			all[first].record = cmp.Or(all[first].record, fmt.Sprintf("%s has the same seed: one is a copy of the other", filepath.Base(r.path)))
			continue
		}
		seeds[r.Seed] = r
		for unit, own := range r.rhythms() {
			for _, rhythm := range own {
				first := rhythms[rhythm]
				if first == nil {
					rhythms[rhythm] = r
				} else if first != r {
					all[r].units[unit] = fmt.Sprintf("its times follow each other as in %s: one is a copy of the other", filepath.Base(first.path))
					all[first].units[unit] = cmp.Or(all[first].units[unit], fmt.Sprintf("its times follow each other as in %s: one is a copy of the other", filepath.Base(r.path)))
				}
			}
		}
	}
	return all
}

// listed is a list of units in words.
func listed(units []string) string {
	return cmp.Or(strings.Join(units, ", "), "all")
}

// rhythms are, for each unit, the sequences of four consecutive events with the times between them, in milliseconds. No two students
// have the same sequence by chance, and a copy keeps it under any name, seed and date. Events that the program adds, and not the
// student, come within a second and are left out.
func (r *Record) rhythms() map[string][]string {
	all := make(map[string][]string)
	kept := make(map[string][]*Event)
	for i := range r.Events {
		e := &r.Events[i]
		k := kept[e.Unit]
		if n := len(k); n > 0 && e.Time.Sub(k[n-1].Time).Abs() < time.Second {
			continue
		}
		k = append(k, e)
		kept[e.Unit] = k
		if n := len(k); n >= 4 {
			text := e.Unit
			for j := n - 3; j < n; j++ {
				text += fmt.Sprintf(" %s %s %d", k[j].Kind, k[j].Step, k[j].Time.Sub(k[j-1].Time).Milliseconds())
			}
			all[e.Unit] = append(all[e.Unit], text)
		}
	}
	return all
}
