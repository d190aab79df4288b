package experiment

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// Sweep is a parameter that takes several values. Of several parameters, all combinations are run: each is a point.
type Sweep struct {
	// Field is the field of the file that the values are for, such as workload.arrivals.load or cluster.services[0].endpoints.
	Field string `json:"field"`
	// Name is that of the parameter; empty: the last part of Field.
	Name   string       `json:"name"`
	Values []SweepValue `json:"values"`
	// With are further fields that change along: each has a value for each of Values.
	With map[string][]SweepValue `json:"with"`
}

// SweepValue is a value of a parameter, as the file has it.
type SweepValue struct {
	text  string
	value any
}

// Point is a combination of the parameters' values.
type Point struct {
	// Name has parameters and values, as "load=0.9,endpoints=100". It is empty if the experiment has no parameters.
	Name   string
	Config *traffic.Config // read only
	// MSER: the warm-up is found by MSER-5.
	MSER bool
}

// MaxPoints is the largest number of points.
const MaxPoints = 1000

var (
	sweptFields = []string{"cluster", "workload", "events", "duration", "warmup", "window"}
	sweptName   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	sweptValue  = regexp.MustCompile(`^[A-Za-z0-9.()+-]+$`)
)

// sweepValue reads a value; false: it is an object or a list.
func sweepValue(_ string, value any) (any, bool, error) {
	text, ok := yamlfile.TextOf(value)
	if ok && !sweptValue.MatchString(text) {
		return nil, true, fmt.Errorf("want letters, digits and . ( ) + -, not %q", text)
	}
	return SweepValue{text, value}, ok, nil
}

// checkSweep checks the parameters, and fills in their names.
func (p *reader) checkSweep(all []Sweep) {
	points := 1
	names := make(map[string]bool)
	for i := range all {
		s, at := &all[i], fmt.Sprintf("sweep[%d]", i)
		p.sweepable(at+".field", s.Field)
		for _, field := range slices.Sorted(maps.Keys(s.With)) {
			p.sweepable(at+".with", field)
			p.Want(at+".with", len(s.With[field]) == len(s.Values), "want as many values of %s as there are values: %d, not %d", field, len(s.Values), len(s.With[field]))
		}
		if s.Name == "" {
			s.Name = s.Field[strings.LastIndex(s.Field, ".")+1:]
		}
		p.Want(at+".name", sweptName.MatchString(s.Name) && !names[s.Name] && !slices.Contains(keyColumns, s.Name), "want a name of letters and digits that no other parameter or result column has, not %q", s.Name)
		names[s.Name] = true
		p.Want(at+".values", len(s.Values) > 0, "missing: want one or more")
		seen := make(map[string]bool)
		for _, v := range s.Values {
			p.Want(at+".values", !seen[v.text], "%s is given twice", v.text)
			seen[v.text] = true
		}
		points = min(points*max(len(s.Values), 1), MaxPoints+1)
	}
	p.Want("sweep", points <= MaxPoints, "want at most %d combinations of values", MaxPoints)
}

// sweepable checks a field that is swept.
func (p *reader) sweepable(at, field string) {
	root, _, _ := strings.Cut(field, ".")
	root, _, _ = strings.Cut(root, "[")
	p.Want(at, slices.Contains(sweptFields, root), "want a field of %s, such as workload.arrivals.load, not %q", strings.Join(sweptFields, ", "), field)
}

// parameters are the names of the swept parameters.
func (s *Spec) parameters() (names []string) {
	for i := range s.Sweep {
		names = append(names, s.Sweep[i].Name)
	}
	return names
}

// points are the names of the points in order, the last parameter changes fastest. There is at least one.
func (s *Spec) points() []string {
	all := []string{""}
	for i := range s.Sweep {
		var longer []string
		for _, before := range all {
			for _, v := range s.Sweep[i].Values {
				longer = append(longer, strings.TrimPrefix(before+","+s.Sweep[i].Name+"="+v.text, ","))
			}
		}
		all = longer
	}
	return all
}

// valuesOf are the values of a point in the order of the parameters.
func valuesOf(point string) (values []string) {
	for part := range strings.SplitSeq(point, ",") {
		if _, v, ok := strings.Cut(part, "="); ok {
			values = append(values, v)
		}
	}
	return values
}

// label names an algorithm at a point.
func label(algorithm, point string) string {
	if point == "" {
		return algorithm
	}
	return algorithm + " at " + point
}

// at reads the file with the values of a point. Mistakes name the point.
func (p *reader) at(data []byte, s *Spec, point string) *Spec {
	into := new(Spec)
	fields, _ := p.Read(data).(map[string]any)
	fields = maps.Clone(fields)
	for _, header := range []string{"apiVersion", "kind"} {
		delete(fields, header)
	}
	for i, text := range valuesOf(point) {
		sweep := &s.Sweep[i]
		change := func(field string, v SweepValue) {
			if path := steps(field); len(path) == 0 || !set(fields, path, v.value) {
				p.Fail(fmt.Sprintf("sweep[%d]", i), "the file has no field %s", field)
			}
		}
		n := slices.IndexFunc(sweep.Values, func(v SweepValue) bool { return v.text == text })
		change(sweep.Field, sweep.Values[n])
		for field, values := range sweep.With {
			change(field, values[n])
		}
	}
	p.Into(fields, into)
	return into
}

// steps takes a path apart: "a.b[0]" is a, b and 0.
func steps(field string) []string {
	return strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// set sets a value in a tree; false: there is nothing that could have it.
func set(in any, path []string, value any) bool {
	last := len(path) == 1
	switch in := in.(type) {
	case map[string]any:
		if last {
			in[path[0]] = value
			return true
		}
		return set(in[path[0]], path[1:], value)
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(in) {
			return false
		}
		if last {
			in[i] = value
			return true
		}
		return set(in[i], path[1:], value)
	}
	return false
}
