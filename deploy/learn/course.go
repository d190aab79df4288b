package learn

import (
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// Unit finds a unit by its ID or name.
func (c *Course) Unit(name string) (*Unit, error) {
	var names []string
	for _, chapter := range c.Chapters {
		for _, u := range chapter.Units {
			if u.ID == name || u.Name == name {
				return u, nil
			}
			names = append(names, u.ID, u.Name)
		}
	}
	return nil, fmt.Errorf("no unit %q%s; \"nfqproxy learn list\" lists the units", name, nearest.Hint(name, names))
}

// Units are all units in order.
func (c *Course) Units() (all []*Unit) {
	for _, chapter := range c.Chapters {
		all = append(all, chapter.Units...)
	}
	return all
}

// Task is the step's task in a few words: the question, or what its checks want.
func (s *Step) Task() string {
	var parts []string
	if s.Question != nil {
		parts = append(parts, s.Question.Text)
	}
	for _, c := range s.Checks {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, "\n")
}
