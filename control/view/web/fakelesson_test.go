package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// fakeStep is a step of the fake's units.
type fakeStep struct {
	title, html, question, right string
	checks, held                 []string
}

// fakeTeacher teaches a course whose checks are met by lines that are typed into its shells: "done" and their number.
type fakeTeacher struct {
	units []labapi.LessonUnit
	steps []fakeStep // of all units

	mu      sync.Mutex
	lesson  labapi.Lesson
	changed chan struct{}
	shells  map[*fakeTerminal]bool
	resized []labapi.TerminalSize
}

// fakeHints are the hints of all steps with a task.
var fakeHints = []string{"`ip -br address` lists devices.", "Run it on the node, too.", "`answer none`"}

func newFakeTeacher() *fakeTeacher {
	t := &fakeTeacher{
		units: []labapi.LessonUnit{
			{ID: "1.1", Chapter: "A packet without Kubernetes", Title: "Two hosts and a cable", Minutes: 6, State: "finished"},
			{ID: "1.2", Chapter: "A packet without Kubernetes", Title: "A router between networks", Minutes: 8, State: "finished"},
			{ID: "2.1", Chapter: "What a Service is", Title: "Where a ClusterIP is", Minutes: 8, State: "begun"},
			{ID: "2.2", Chapter: "What a Service is", Title: "Names of Services", Minutes: 7, State: "new"},
			{ID: "2.3", Chapter: "What a Service is", Title: "The chains of kube-proxy", Minutes: 12, State: "new"},
			{ID: "3.1", Chapter: "In from outside", Title: "A port on all nodes", Minutes: 9, State: "new"},
		},
		steps: []fakeStep{
			{title: "The cluster", html: "<p>In Kubernetes, programs run in <em>pods</em>, and pods come and go. A <em>Service</em> is one address and port for a group of pods. The pods behind it are its <em>endpoints</em>.</p>\n" +
				"<p>This cluster has the nodes kind-worker and kind-worker2. Its Service <code>my-nginx-service</code> has the ClusterIP 10.96.118.136 and port 80.</p>\n<ul>\n<li>Your shell is a pod on kind-worker.</li>\n<li>The endpoints are on both nodes.</li>\n</ul>\n"},
			{title: "Which device has the address", html: "<p>Predict: which device of a node has the ClusterIP? Then look:</p>\n<pre><code>on kind-worker ip -br address\non kind-worker2 ip -br address\nanswer DEVICE\n</code></pre>\n",
				question: "Which device of a node has the address `10.96.118.136`?", right: "none"},
			{title: "But a request has an answer", html: "<p>Send a request to the ClusterIP:</p>\n<pre><code>curl -s http://10.96.118.136/\n</code></pre>\n<p>The server prints its pod and node, and the client's address as it saw it.</p>\n",
				question: "Which endpoint does the packet go to?", right: "10.244.2.2", held: []string{"held: TCP 10.244.1.9:40312 -> 10.96.118.136:80", "draw: 0.41"},
				checks: []string{"a flow to default/my-nginx-service was answered", "the host kind-worker has an entry of a connection from 10.244.1.9 to 10.96.118.136:80"}},
		},
		changed: make(chan struct{}), shells: make(map[*fakeTerminal]bool),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter("2.1", 0)
	return t
}

// enter begins a step. The caller holds mu.
func (t *fakeTeacher) enter(unit string, step int) {
	i := slices.IndexFunc(t.units, func(u labapi.LessonUnit) bool { return u.ID == unit })
	if t.units[i].State == "new" {
		t.units[i].State = "begun"
	}
	if step == len(t.steps) {
		t.units[i].State = "finished"
	}
	l := labapi.Lesson{
		Generation: t.lesson.Generation, Units: slices.Clone(t.units), Unit: unit, Title: t.units[i].Title, Minutes: t.units[i].Minutes, Step: step,
		Shell: "shell", Checks: []labapi.LessonCheck{}, Hints: []string{}, Notice: t.lesson.Notice, Good: t.lesson.Good,
	}
	if i := slices.IndexFunc(t.units, func(u labapi.LessonUnit) bool { return u.State != "finished" }); i >= 0 {
		l.Next = t.units[i].ID
	}
	for j, s := range t.steps {
		l.Steps = append(l.Steps, labapi.LessonStep{Title: s.title, Passed: j < step, Read: s.question == ""})
	}
	if step < len(t.steps) {
		s := t.steps[step]
		l.HTML, l.Question, l.Held, l.Answered = s.html, s.question, s.held, s.question == ""
		for _, c := range s.checks {
			l.Checks = append(l.Checks, labapi.LessonCheck{Text: c})
		}
		if s.question != "" {
			l.HintsLeft = len(fakeHints)
		}
	}
	t.publish(l)
}

// publish shows another state. The caller holds mu.
func (t *fakeTeacher) publish(l labapi.Lesson) {
	l.Generation++
	t.lesson = l
	close(t.changed)
	t.changed = make(chan struct{})
}

// change changes the state.
func (t *fakeTeacher) change(do func(*labapi.Lesson)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lesson
	l.Checks = slices.Clone(l.Checks)
	do(&l)
	t.publish(l)
}

// pass ends the step if all is done. The caller holds mu.
func (t *fakeTeacher) pass() {
	l := &t.lesson
	if !l.Answered || slices.ContainsFunc(l.Checks, func(c labapi.LessonCheck) bool { return !c.Met }) {
		return
	}
	done := "done: " + l.Steps[l.Step].Title
	if strings.HasPrefix(l.Notice, "right: ") {
		done = l.Notice + "\n" + done
	}
	l.Notice, l.Good = done, true
	t.enter(l.Unit, l.Step+1)
}

func (t *fakeTeacher) Lesson(ctx context.Context, after uint64) (*labapi.Lesson, error) {
	for {
		t.mu.Lock()
		l, changed := t.lesson, t.changed
		t.mu.Unlock()
		if after == 0 || l.Generation > after {
			return &l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &l, nil
		}
	}
}

func (t *fakeTeacher) Do(_ context.Context, c labapi.LessonCommand) (string, error) {
	refuse := func(format string, a ...any) (string, error) {
		return "", &observe.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, a...)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lesson
	switch c.Command {
	case "answer":
		if c.Argument != t.steps[l.Step].right {
			l.Notice, l.Good = "wrong: `"+c.Argument+"` is another device.", false
			t.publish(l)
			break
		}
		l.Answered, l.Notice, l.Good = true, "right: "+c.Argument+"\n12:00:01 TCP default/shell -> my-nginx-service\n  KUBE-SERVICES  the destination is the ClusterIP", true
		t.publish(l)
		t.pass()
	case "hint":
		if l.HintsLeft == 0 {
			return refuse("there are no more hints")
		}
		l.Hints, l.HintsLeft = fakeHints[:len(l.Hints)+1], l.HintsLeft-1
		t.publish(l)
	case "solution":
		l.Solution = "curl -s http://10.96.118.136/\nanswer none\n"
		t.publish(l)
	case "check":
	case "next":
		if l.Step == len(l.Steps) {
			t.begin(l.Next)
			return "", nil
		}
		t.pass()
	case "start":
		t.begin(c.Argument)
		return "", nil
	case "reset", "again":
		t.begin(l.Unit)
		return "", nil
	default:
		return refuse("unknown command %q", c.Command)
	}
	return t.lesson.Notice, nil
}

// begin begins a unit, and ends the shells. The caller holds mu.
func (t *fakeTeacher) begin(unit string) {
	for s := range t.shells {
		_ = s.Close()
	}
	t.lesson.Notice = ""
	t.enter(unit, 0)
}

// meet meets a check of the step under way.
func (t *fakeTeacher) meet(i int) {
	t.change(func(l *labapi.Lesson) { l.Checks[i].Met = true })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// fakeTerminal is a shell that repeats what is typed, with a prompt, and knows the command done.
type fakeTerminal struct {
	io.Reader
	io.Writer
	teacher *fakeTeacher
	ends    []io.Closer
}

func (t *fakeTeacher) OpenShell(_ string, size labapi.TerminalSize) (labapi.Terminal, error) {
	typedReader, typed := io.Pipe()
	printed, printer := io.Pipe()
	s := &fakeTerminal{printed, typed, t, []io.Closer{typedReader, typed, printed, printer}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shells[s] = true
	t.resized = append(t.resized, size)
	unit := t.lesson.Unit
	go s.run(unit, typedReader, printer)
	return s, nil
}

func (s *fakeTerminal) run(unit string, typed io.Reader, w io.Writer) {
	defer s.Close()
	prompt := "\x1b[38;5;196m" + unit + "\x1b[0m \x1b[33mshell\x1b[0m:unit$ "
	if _, err := io.WriteString(w, prompt); err != nil {
		return
	}
	line := ""
	for r := bufio.NewReader(typed); ; {
		c, err := r.ReadByte()
		if err != nil {
			return
		}
		switch c {
		case 0x1b:
			_, err = io.WriteString(w, "<Esc>")
		case '\r':
			if err = s.command(w, line); err == nil {
				_, err = io.WriteString(w, prompt)
			}
			line = ""
		default:
			line += string(c)
			_, err = w.Write([]byte{c})
		}
		if err != nil {
			return
		}
	}
}

// command carries a line out.
func (s *fakeTerminal) command(w io.Writer, line string) error {
	if _, err := io.WriteString(w, "\r\n"); err != nil {
		return err
	}
	switch line {
	case "exit":
		return io.EOF
	case "done 1":
		s.teacher.meet(0)
	case "done 2":
		s.teacher.meet(1)
	case "flood":
		for i := range 40_000 { // 1 MiB, twice what the server sends without an acknowledgement
			if _, err := fmt.Fprintf(w, "line %d of a long output\r\n", i); err != nil {
				return err
			}
		}
	case "":
	default:
		_, err := fmt.Fprintf(w, "%v\r\n", &exec.Error{Name: line, Err: exec.ErrNotFound})
		return err
	}
	return nil
}

func (s *fakeTerminal) Resize(size labapi.TerminalSize) error {
	s.teacher.mu.Lock()
	defer s.teacher.mu.Unlock()
	s.teacher.resized = append(s.teacher.resized, size)
	return nil
}

func (s *fakeTerminal) Close() error {
	for _, c := range s.ends {
		_ = c.Close()
	}
	return nil
}
