package results

import (
	"cmp"
	"slices"
)

// Difference is a test whose state differs between a control and another run.
type Difference struct {
	Name           string
	Control, Other State // empty: the test was not run
	Reason         string
}

// Compare returns the tests that passed with the control and not with the other (lost), and those that
// passed with the other only (gained), by name.
func Compare(control, other List) (lost, gained []Difference) {
	index := func(l List) map[string]Result {
		m := make(map[string]Result)
		for _, r := range l {
			m[r.Name] = r
		}
		return m
	}
	a, b := index(control), index(other)
	for _, r := range control {
		if o := b[r.Name]; r.State == Passed && o.State != Passed {
			lost = append(lost, Difference{r.Name, r.State, o.State, o.Reason})
		}
	}
	for _, r := range other {
		if c := a[r.Name]; r.State == Passed && c.State != Passed {
			gained = append(gained, Difference{r.Name, c.State, r.State, c.Reason})
		}
	}
	order := func(x, y Difference) int { return cmp.Compare(x.Name, y.Name) }
	slices.SortFunc(lost, order)
	slices.SortFunc(gained, order)
	return lost, gained
}

// Outcome describes a state of the difference: with the reason of a skip.
func (d Difference) Outcome(s State) string {
	switch {
	case s == "":
		return "not run"
	case s == Skipped && d.Reason != "":
		return string(s) + ": " + d.Reason
	}
	return string(s)
}
