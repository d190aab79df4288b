// Package results reads, writes and compares the results of Kubernetes' own tests.
package results

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// State is how a test ended.
type State string

// The states. A test is skipped if it found that it cannot run on this cluster.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped"
)

var states = []State{Passed, Failed, Skipped}

// Result is that of one test.
type Result struct {
	Name    string
	State   State
	Seconds int
	Reason  string // of a skip
}

// List are the results of a run, by state and name; each name once.
type List []Result

// File is the name of a file of results.
const File = "results.tsv"

func (l List) sort() List {
	slices.SortFunc(l, func(a, b Result) int {
		return cmp.Or(cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)), cmp.Compare(a.Name, b.Name))
	})
	return l
}

// Count is the number of results with a state.
func (l List) Count(s State) (n int) {
	for _, r := range l {
		if r.State == s {
			n++
		}
	}
	return n
}

// Summary has the number of tests in each state.
func (l List) Summary() string {
	var parts []string
	for _, s := range states {
		parts = append(parts, fmt.Sprintf("%d %s", l.Count(s), s))
	}
	return strings.Join(parts, ", ")
}

// report is ginkgo's report in JUnit's format.
type report struct {
	Cases []struct {
		Name    string  `xml:"name,attr"`
		Status  string  `xml:"status,attr"`
		Seconds float64 `xml:"time,attr"`
		Skipped *struct {
			Message string `xml:"message,attr"`
		} `xml:"skipped"`
	} `xml:"testsuite>testcase"`
}

// labels are what ginkgo adds to the name of a test in its report. The name has them, too.
var labels = regexp.MustCompile(` \[sig-[^]]*\]$`)

// ReadJUnit reads a report of ginkgo. Tests that were not chosen are left out.
func ReadJUnit(path string) (List, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r report
	if err := xml.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var list List
	for _, c := range r.Cases {
		// Others are what runs before and after all tests.
		name, ok := strings.CutPrefix(c.Name, "[It] ")
		if !ok {
			continue
		}
		result := Result{Name: labels.ReplaceAllString(name, ""), State: Failed, Seconds: int(math.Round(c.Seconds))}
		switch c.Status {
		case "passed":
			result.State = Passed
		case "skipped":
			// ginkgo reports the tests that were not chosen, too, with no other message.
			if c.Skipped == nil || c.Skipped.Message == "" || c.Skipped.Message == "skipped" {
				continue
			}
			result.State = Skipped
			result.Reason = strings.Join(strings.Fields(strings.TrimPrefix(c.Skipped.Message, "skipped - ")), " ")
		}
		list = append(list, result)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no test that was chosen", path)
	}
	return list.sort(), nil
}

// Run is a run of the tests.
type Run struct {
	About []string // what was tested, and with what
	List
}

// Write writes the run to a file: lines with "#" about it, and a line for each test with state,
// name, seconds and reason, and tabs between.
func (r Run) Write(path string) error {
	var text strings.Builder
	for _, a := range r.About {
		fmt.Fprintf(&text, "# %s\n", a)
	}
	for _, t := range r.List.sort() {
		fmt.Fprintf(&text, "%s\t%s\t%d\t%s\n", t.State, t.Name, t.Seconds, t.Reason)
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// Read reads a file that Write wrote.
func Read(path string) (run Run, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Run{}, err
	}
	seen := make(map[string]bool)
	line := 0
	for text := range strings.Lines(string(text)) {
		line++
		text = strings.TrimSuffix(text, "\n")
		if about, ok := strings.CutPrefix(text, "# "); ok {
			run.About = append(run.About, about)
			continue
		}
		r, err := parse(text)
		if err == nil && seen[r.Name] {
			err = fmt.Errorf("a second result of %q", r.Name)
		}
		if err != nil {
			return Run{}, fmt.Errorf("%s:%d: %w", path, line, err)
		}
		seen[r.Name] = true
		run.List = append(run.List, r)
	}
	if len(run.List) == 0 {
		return Run{}, fmt.Errorf("%s has no result", path)
	}
	run.List.sort()
	return run, nil
}

// parse parses the line of a test.
func parse(line string) (Result, error) {
	f := strings.Split(line, "\t")
	if len(f) != 4 {
		return Result{}, fmt.Errorf("%q: want 4 fields, with tabs between", line)
	}
	r := Result{State: State(f[0]), Name: f[1], Reason: f[3]}
	if !slices.Contains(states, r.State) {
		return Result{}, fmt.Errorf("state %q: want one of %v", r.State, states)
	}
	var err error
	if r.Seconds, err = strconv.Atoi(f[2]); err != nil {
		return Result{}, fmt.Errorf("seconds: %w", err)
	}
	return r, nil
}

// Merge is the result of several runs with one proxy. The last run of a test counts; a skip only
// if no run ran it.
func Merge(runs ...Run) (all Run) {
	last := make(map[string]Result)
	for _, run := range runs {
		for _, a := range run.About {
			if !slices.Contains(all.About, a) {
				all.About = append(all.About, a)
			}
		}
		for _, r := range run.List {
			if before, ok := last[r.Name]; !ok || r.State != Skipped || before.State == Skipped {
				last[r.Name] = r
			}
		}
	}
	all.List = slices.Collect(maps.Values(last))
	all.List.sort()
	return all
}

// Subjects are the groups of tests about what a service proxy does, and about what does not work
// without one. They are the beginnings of names.
var Subjects = []string{
	"Services",
	"Service endpoints latency",
	"Service CIDRs",
	"Networking Granular Checks",
	"Networking should check kube-proxy urls",
	"LoadBalancers",
	"Conntrack",
	"Connectivity Pod Lifecycle",
	"KubeProxy",
	"Traffic Distribution",
	"Topology Hints",
	"HostPort",
	"NoSNAT",
	"Proxy version",
	"EndpointSlice",
	"Endpoints",
	"API Server",
	"[Feature:IPv6DualStack]",
	"DNS should provide DNS for services",
}

// Group is the special interest group whose tests are run.
const Group = "[sig-network] "

// Subject is the longest subject with which the name of a test begins; empty if there is none.
func Subject(test string) (subject string) {
	name, ok := strings.CutPrefix(test, Group)
	if !ok {
		return ""
	}
	for _, s := range Subjects {
		if strings.HasPrefix(name, s) && len(s) > len(subject) {
			subject = s
		}
	}
	return subject
}

// of are the results about a subject.
func (l List) of(subject string) List {
	return slices.DeleteFunc(slices.Clone(l), func(r Result) bool { return Subject(r.Name) != subject })
}

// conformance are the results of Kubernetes' conformance tests.
func (l List) conformance() List {
	return slices.DeleteFunc(slices.Clone(l), func(r Result) bool { return !strings.Contains(r.Name, "[Conformance]") })
}

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
