package learn

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// unit checks all fields that do not depend on other files.
func (p *parser) unit(u *Unit) {
	p.Want("title", u.Title != "", "missing")
	p.Want("minutes", u.Minutes >= 1 && u.Minutes <= 60, "want 1 to 60")
	p.Want("lab", u.Lab != "", "missing: the name of a file of the unit, or of a built-in lab")
	p.Want("shell", u.Shell != "", "missing: the host where the student's shell starts")
	p.Want("steps", len(u.Steps) > 0, "missing")
	names := make(map[string]bool)
	for i, s := range u.Steps {
		at := fmt.Sprintf("steps[%d]", i)
		if s == nil {
			p.Fail(at, "is empty")
			continue
		}
		p.Want(at+".name", s.Name != "" && !names[s.Name], "want a name that no other step has")
		names[s.Name] = true
		p.step(at, s, len(u.Variables)+len(u.Variants) > 0)
	}
	for i, v := range u.Variants {
		for name := range v.Solutions {
			p.Want(fmt.Sprintf("variants[%d].solutions", i), names[name], "no step %q", name)
		}
	}
}

// step checks a step of a unit; differs: not all students have the same values in it.
func (p *parser) step(at string, s *Step, differs bool) {
	task := s.Question != nil || len(s.Checks) > 0
	p.Want(at+".hints", !task && len(s.Hints) == 0 || task && len(s.Hints) == 3, "want three hints for a task, and none for a text to read")
	p.Want(at+".solution", task == (strings.TrimSpace(s.Solution) != ""), "want a solution for a task, and none for a text to read")
	if s.Hold != nil {
		_, _, err := observe.HoldQuery{Flow: s.Hold.Flow}.Parse()
		p.Want(at+".hold.flow", err == nil, "%v", err)
		p.Want(at+".question", s.Question != nil, "missing: a held packet waits for its answer")
	}
	if q := s.Question; q != nil {
		p.Want(at+".question.text", q.Text != "", "missing")
		p.answer(at+".question.answer", &q.Answer, s.Hold != nil)
		var wrong []WrongAnswer
		for i, w := range q.Wrong {
			at := fmt.Sprintf("%s.question.wrong[%d]", at, i)
			p.Want(at+".answer", w.Answer != "", "missing")
			p.Want(at+".because", w.Because != "", "missing")
			if right, known := q.Answer.fixed(w.Answer); !known || !right {
				wrong = append(wrong, w)
			} else {
				p.Want(at+".answer", differs, "%q is a right answer", w.Answer)
			}
		}
		p.Want(at+".question.wrong", len(wrong) > 0 || len(q.Wrong) > 0 && !differs, "missing: want answers that students give, with the reason why they are wrong")
		q.Wrong = wrong // one that is right for other students only
	}
	for i, c := range s.Checks {
		at := fmt.Sprintf("%s.checks[%d]", at, i)
		if c == nil {
			p.Fail(at, "is empty")
			continue
		}
		p.check(at, c)
	}
}

func (p *parser) answer(at string, a *Answer, held bool) {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{{"is", len(a.Is) > 0}, {"matches", a.Matches != ""}, {"number", a.Number != nil}, {"run", a.Run != nil}, {"command", a.Command != ""}, {"held", a.Held}} {
		if f.set {
			set = append(set, f.name)
		}
	}
	if len(set) != 1 {
		p.Fail(at, "want one of is, matches, number, run, command and held, not %d", len(set))
	}
	p.regexp(at+".matches", whole(a.Matches))
	p.Want(at+".field", (a.Field != "") == (a.Command != "" || a.Held), "want it with command or held, and only with these")
	p.Want(at+".held", !a.Held || held, "the step has no hold")
	if command := strings.Fields(a.Command); len(command) > 0 {
		p.Want(at+".command", slices.Contains([]string{"explain", "trace"}, command[0]), "want explain or trace, with flags")
	}
	if a.Run != nil {
		p.Want(at+".run.script", a.Run.Text != "", "missing")
	}
	if a.Number != nil {
		p.Want(at+".number", a.Number.Within >= 0 && !math.IsNaN(a.Number.Value), "want a number, and within of 0 or more")
	}
}

func (p *parser) check(at string, c *Check) {
	v := reflect.ValueOf(c).Elem()
	var set []string
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			set = append(set, v.Type().Field(i).Name)
		}
	}
	if len(set) != 1 {
		p.Fail(at, "want one of flow, request, entry, rule, route, object and run, not %d", len(set))
	}
	need := func(field, value string) { p.Want(at+"."+field, value != "", "missing") }
	switch {
	case c.Flow != nil:
		_, err := c.Flow.Query().Parse(time.Time{})
		p.Want(at+".flow", err == nil, "%v", err)
		p.code(at+".flow.entry", c.Flow.Entry, vocabulary.Words().Entries)
		p.code(at+".flow.masqueradeReason", c.Flow.MasqueradeReason, vocabulary.Words().Masquerades)
		p.Want(at+".flow.count", c.Flow.Count >= 0, "want 1 or more")
	case c.Request != nil:
		need("request.from", c.Request.From)
		need("request.to", c.Request.To)
		p.Want(at+".request.count", c.Request.Count >= 0 && c.Request.Count <= 100, "want 1 to 100")
		p.Want(at+".request.timeout", c.Request.Timeout >= 0 && c.Request.Timeout <= maxTimeout, "want up to %v", maxTimeout)
		p.Want(at+".request.error", c.Request.Error == "" || len(c.Request.By) == 0 && c.Request.Client == "", "a request with an error has no answer: leave out by and client")
	case c.Entry != nil:
		need("entry.on", c.Entry.On)
		for _, f := range []struct{ name, value string }{{"from", c.Entry.From}, {"to", c.Entry.To}, {"replyFrom", c.Entry.ReplyFrom}, {"replyTo", c.Entry.ReplyTo}} {
			_, _, err := ParseAddress(f.value)
			p.Want(at+".entry."+f.name, err == nil, "%v", err)
		}
		if c.Entry.Protocol != "" {
			_, err := decision.ParseProtocol(c.Entry.Protocol)
			p.Want(at+".entry.protocol", err == nil || c.Entry.Protocol == "icmp", "want tcp, udp, sctp or icmp")
		}
		if state := strings.ToUpper(c.Entry.State); state != "" {
			p.Want(at+".entry.state", slices.Contains(tcpStates, state), "%q: want a state of TCP: %s", c.Entry.State, strings.Join(tcpStates, ", "))
		}
	case c.Rule != nil:
		need("rule.on", c.Rule.On)
		need("rule.matches", c.Rule.Matches)
		p.regexp(at+".rule.matches", c.Rule.Matches)
	case c.Route != nil:
		need("route.on", c.Route.On)
		_, err := netip.ParseAddr(c.Route.To)
		p.Want(at+".route.to", err == nil, "want an address")
		p.Want(at+".route", c.Route.Via != "" || c.Route.Dev != "", "want via or dev")
	case c.Object != nil:
		need("object.name", c.Object.Name)
		p.Want(at+".object.kind", slices.Contains(objectKinds, strings.ToLower(c.Object.Kind)), "%q: want Service, EndpointSlice, Pod or Node", c.Object.Kind)
		for _, path := range slices.Sorted(maps.Keys(c.Object.Has)) {
			p.regexp(at+".object.has", whole(c.Object.Has[path]))
		}
	case c.Run != nil:
		need("run.script", c.Run.Text)
		p.regexp(at+".run.output", c.Run.Output)
	}
}

// code checks that a text is a code of flow records; empty: the check has none. A misspelt code in a check that must not hold would
// always be met.
func (p *parser) code(field, code string, known vocabulary.List) {
	var codes []string
	for _, w := range known {
		codes = append(codes, w.Code)
	}
	p.Want(field, code == "" || slices.Contains(codes, code), "%q: want %s", code, strings.Join(codes, ", "))
}

// tcpStates are the kernel's names of the states in which an entry of TCP may be.
var tcpStates = func() (names []string) {
	for s := conntrack.TCPNone; s <= conntrack.TCPSynSent2; s++ {
		names = append(names, s.String())
	}
	return names
}()

// objectKinds are the kinds of objects that a lab has, in lower case.
var objectKinds = []string{"service", "endpointslice", "pod", "node"}

// whole returns a regular expression that must match a whole text.
func whole(re string) string { return "^(?:" + re + ")$" }

func (p *parser) regexp(field, text string) {
	_, err := regexp.Compile(text)
	p.Want(field, err == nil, "%v", err)
}

// A step's text is a screen of 80x24 with room for its task.
const (
	maxColumns = 76
	maxLines   = 16
)

// texts gives each step its part of the unit's text.
func (p *parser) texts(u *Unit) {
	text := newParser(path.Join(u.dir, textFile))
	defer func() { p.Mistakes = append(p.Mistakes, text.Mistakes...) }()
	if u.files[textFile] == nil {
		text.Fail("", "missing: the text of the steps")
		return
	}
	fail := func(line int, format string, args ...any) {
		text.Mistakes = append(text.Mistakes, &Mistake{File: text.Name, Line: line, Err: fmt.Errorf(format, args...)})
	}
	step, number, code := -1, 0, false
	begins := make([]int, len(u.Steps)) // of the texts: the first line that is not blank; 0: there is none
	for line := range strings.Lines(strings.TrimPrefix(string(u.files[textFile]), "\ufeff")) {
		number++
		line = strings.TrimRight(line, " \t\r\n")
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		title, heading := strings.CutPrefix(line, "# ")
		switch {
		case heading && !code:
			if step++; step >= len(u.Steps) {
				fail(number, "a heading without a step: %s has %d steps", unitFile, len(u.Steps))
				return
			}
			u.Steps[step].Title = title
		case step < 0 && line != "":
			fail(number, "want a heading first, as \"# Title\": the title of the first step")
			return
		case step >= 0:
			u.Steps[step].Text += line + "\n"
			if len([]rune(line)) > maxColumns {
				fail(number, "has %d columns: want %d at most", len([]rune(line)), maxColumns)
			}
			if begins[step] == 0 && line != "" {
				begins[step] = number
			}
		}
	}
	if code {
		fail(number, "a block of code does not end: want a line with three backticks")
	}
	if step+1 < len(u.Steps) {
		text.Fail("", "no heading for step %s: want one \"# Title\" for each of the %d steps", u.Steps[step+1].Name, len(u.Steps))
	}
	for i, s := range u.Steps {
		s.Text = strings.Trim(s.Text, "\n") + "\n"
		if n := strings.Count(s.Text, "\n"); n > maxLines {
			fail(begins[i]+maxLines, "the text of step %s has %d lines: want %d at most", s.Name, n, maxLines)
		}
	}
}

// lab checks that the lab is valid and has the hosts that the unit names.
func (p *parser) lab(u *Unit) {
	if u.Lab == "" {
		return // see unit
	}
	file, err := u.LabFile()
	if err == nil {
		err = u.checkObjects(file.Spec)
	}
	if err != nil {
		if mistakes, ok := errors.AsType[manifest.Errors](err); ok {
			for _, m := range mistakes {
				p.Mistakes = append(p.Mistakes, u.mistakeOf(m))
			}
			return
		}
		p.Fail("lab", "%v", err)
		return
	}
	p.Want("lab", u.Lab == "lab.yaml" || u.files["lab.yaml"] == nil, "%s: the unit has a file lab.yaml, too, which is the name of the lab in the student's directory", u.Lab)
	host := func(field, name string) {
		if name != "" {
			_, err := file.Spec.Resolve(name)
			p.Want(field, err == nil, "%v", err)
		}
	}
	host("shell", u.Shell)
	for i, s := range u.Steps {
		at := fmt.Sprintf("steps[%d]", i)
		if s.Question != nil && s.Question.Answer.Run != nil {
			host(at+".question.answer.run.on", s.Question.Answer.Run.On)
		}
		for j, c := range s.Checks {
			at := fmt.Sprintf("%s.checks[%d]", at, j)
			switch {
			case c.Flow != nil:
				if !strings.ContainsAny(c.Flow.From, ".:") { // no address
					host(at+".flow.from", c.Flow.From)
				}
				host(at+".flow.node", c.Flow.Node)
			case c.Request != nil:
				host(at+".request.from", c.Request.From)
			case c.Entry != nil:
				host(at+".entry.on", c.Entry.On)
			case c.Rule != nil:
				host(at+".rule.on", c.Rule.On)
			case c.Route != nil:
				host(at+".route.on", c.Route.On)
			case c.Run != nil:
				host(at+".run.on", c.Run.On)
			}
		}
	}
}

// checkObjects reads the Kubernetes objects of the lab, if they are in files of the unit.
func (u *Unit) checkObjects(spec *lab.Spec) error {
	var all manifest.Errors
	for _, name := range append([]string{u.Lab}, spec.Objects...) {
		data, ok := u.files[name]
		if !ok {
			continue // of a built-in lab
		}
		if _, err := labfile.LoadText(path.Join(u.dir, name), string(data)); err != nil {
			mistakes, ok := errors.AsType[manifest.Errors](err)
			if !ok {
				return err
			}
			all = append(all, mistakes...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// mistakeOf is a mistake in the lab or its objects.
func (u *Unit) mistakeOf(e *manifest.Error) *Mistake {
	field := e.Field
	if e.Object != "" {
		field = strings.TrimSuffix(e.Object+": "+e.Field, ": ")
	}
	return &Mistake{File: e.File, Line: e.Line, Field: field, Err: e.Err}
}

// LabFile is the unit's lab, with the drawn values. It has no path yet.
func (u *Unit) LabFile() (*lab.File, error) {
	data := u.files[u.Lab]
	if data == nil {
		if !slices.Contains(labs.Names(), u.Lab) {
			return nil, fmt.Errorf("no file of the unit and no built-in lab %q; built-in labs: %s", u.Lab, strings.Join(labs.Names(), ", "))
		}
		var err error
		if data, err = labs.File(u.Lab); err != nil {
			return nil, err
		}
	}
	spec, err := labfile.Parse(path.Join(u.dir, u.Lab), data)
	if err != nil {
		return nil, err
	}
	return &lab.File{Data: data, Spec: spec}, nil
}
