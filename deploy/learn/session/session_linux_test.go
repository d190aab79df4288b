package session_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// ask is a step with a question.
const ask = `- name: ask
  question:
    text: How many?
    answer: {is: ["2"]}
    wrong: [{answer: "1", because: "there are \x60two\x60"}]
`

// TestUnit: a student's way through a unit, and what he is shown on it.
func TestUnit(t *testing.T) {
	c := courseOf(t, unit{steps: "- name: read\n" + ask + task("answer 2") + `- name: request
  checks:
  - flow: {service: default/web, from: shell, state: answered}
  - {run: {script: test -e done.txt}, text: there is a file}
` + task("curl -s http://10.96.0.80/; touch done.txt")}, unit{steps: "- name: read\n"})
	dir := t.TempDir()
	s := open(t, c, filepath.Join(dir, "learn.json"))
	s.record.Seed = 1 // that of the course
	if l := s.lesson(); l.Unit != "" || len(l.Units) != 2 || l.Units[0].State != "new" || l.Generation == 0 {
		t.Errorf("before the start: %+v", l)
	}
	if got := s.refused("next", ""); got != `no unit is running: "start NUMBER" starts one` {
		t.Error(got)
	}
	if got := s.refused("start", "1.3"); !strings.HasPrefix(got, `no unit "1.3"`) {
		t.Error(got)
	}
	if got := s.do("list", ""); !strings.Contains(got, "1.2  Unit 2") {
		t.Error(got)
	}
	if got, want := s.do("start", "1.1"), "1.1 Unit 1 (step 1 of 3)\n\nStep 1\n\nText 1.\n\nTo continue: next\n"; got != want {
		t.Errorf("start: %q, want %q", got, want)
	}
	l := s.lesson()
	if want := []labapi.LessonStep{{Title: "Step 1", Read: true}, {Title: "Step 2"}, {Title: "Step 3"}}; !slices.Equal(l.Steps, want) || l.Shell != "shell" || l.Minutes != 3 ||
		l.HTML != "<p>Text 1.</p>\n" || l.Units[0].State != "begun" || l.Notice != "" || l.Next != "1.1" {
		t.Errorf("the lesson is %+v", l)
	}
	for command, want := range map[string]string{
		"hint": `this step has no task: "next" ends it`, "solution": `this step has no task: "next" ends it`, "answer": "this step has no question",
		"dance": `unknown command "dance": want answer, check, hint, next, text, solution, reset, again, list, start or quit; programs run in a shell of the lab: "nfqproxy learn shell" opens one`,
	} {
		if got := s.refused(command, ""); got != want {
			t.Errorf("%s: %s, want %s", command, got, want)
		}
	}
	if got := s.do("shell", ""); got != "shell" {
		t.Errorf("the shell is on %s", got)
	}

	if got := s.do("next", ""); !strings.HasPrefix(got, "1.1 Unit 1 (step 2 of 3)") {
		t.Errorf("next: %s", got)
	}
	if l := s.lesson(); l.Step != 1 || !l.Steps[0].Passed || l.Steps[1].Passed || l.Question != "How many?" || l.Answered || l.HintsLeft != 3 || l.Notice != "done: Step 1" || !l.Good {
		t.Errorf("the second step: %+v", l)
	}
	if got := s.refused("next", ""); !strings.HasPrefix(got, "this step has a task") {
		t.Error(got)
	}
	if got := s.refused("answer", " "); got != "an answer is required, as in: answer 10.0.0.1" {
		t.Error(got)
	}
	if got := s.do("check", ""); got != "[to do] How many?  (answer ...)\n" {
		t.Errorf("check: %q", got)
	}
	for given, want := range map[string]string{"1": "wrong: there are two", "7": "wrong: That is not right."} {
		got := s.do("answer", given)
		if l := s.lesson(); got != want || strings.ReplaceAll(l.Notice, "`", "") != want || strings.Contains(l.Notice, "`") != (given == "1") || l.Good || l.Step != 1 {
			t.Errorf("answer %s: %q, %+v", given, got, l)
		}
	}
	for i, want := range []string{"first", "second", "third"} {
		if got := s.do("hint", ""); got != want {
			t.Errorf("hint %d: %s", i, got)
		}
		if l := s.lesson(); len(l.Hints) != i+1 || l.HintsLeft != 2-i || strings.Trim(l.Hints[i], "`") != want || strings.HasPrefix(l.Hints[i], "`") != (i == 0) {
			t.Errorf("hint %d: %+v", i, l)
		}
	}
	if got := s.refused("hint", ""); !strings.HasPrefix(got, "there are no more hints") {
		t.Error(got)
	}
	if got := s.do("solution", ""); got != "answer 2\n" || s.lesson().Solution != got {
		t.Errorf("solution: %q", got)
	}
	if got := s.do("answer", " 2 "); got != "right:  2 \ndone: Step 2" || s.lesson().Step != 2 {
		t.Errorf("the right answer: %q", got)
	}

	// The step ends by itself, with all its checks at once.
	if l := s.lesson(); len(l.Hints) != 0 || l.Solution != "" || len(l.Checks) != 2 || l.Checks[1].Text != "there is a file" || l.Question != "" || !l.Answered {
		t.Errorf("the third step: %+v", l)
	}
	s.run("curl -s http://10.96.0.80/")
	s.awaits("the first check", func(l *labapi.Lesson) bool { return l.Checks[0].Met })
	if l := s.lesson(); l.Step != 2 || l.Checks[1].Met {
		t.Errorf("one of two checks: %+v", l)
	}
	s.run("touch done.txt")
	l = s.step(3)
	if !l.Finished() || l.Notice != "done: Step 3\nunit 1.1 is finished" || l.Next != "1.2" || l.Units[0].State != "finished" {
		t.Errorf("after the unit: %+v", l)
	}
	if got := s.refused("check", ""); got != `the unit is finished: "next" starts the next one` {
		t.Error(got)
	}
	if want := "began passed:read answered:ask answered:ask hinted:ask hinted:ask hinted:ask solved:ask answered:ask passed:ask passed:request finished"; s.kinds() != want || s.record.Verify() != -1 {
		t.Errorf("the record is\n%s, want\n%s", s.kinds(), want)
	}
	if got, want := s.record.Events[0].Files, c.Units()[0].Digest(); got != want {
		t.Errorf("the unit began with the files %q, want %q", got, want)
	}
	if all, err := learn.ReadGrades(dir, c, 0, time.Now()); err != nil || all[0].Fault != "" || all[0].Tasks != 2 || all[0].Alone != 1 {
		t.Errorf("the grades of work in a lab are %+v, %v", all, err)
	}

	if got := s.do("next", ""); !strings.HasPrefix(got, "1.2 Unit 2 (step 1 of 1)") {
		t.Errorf("the next unit: %s", got)
	}
	if got := s.do("next", ""); got != "1.2 Unit 2\n\nThe unit is finished. All units are finished.\n" {
		t.Errorf("the end of the course: %q", got)
	}
	if got := s.do("next", ""); got != "All units are finished." {
		t.Error(got)
	}
	select {
	case <-s.Finished():
		t.Error("the session has ended")
	default:
	}
	s.do("quit", "")
	s.do("quit", "")
	<-s.Finished()
}

// A step with a question and checks needs both, in either order.
func TestQuestionAndChecks(t *testing.T) {
	steps := ask + "  checks:\n  - run: {script: test -e done.txt}\n" + task("answer 2; touch done.txt")
	s := start(t, courseOf(t, unit{steps: steps}), "1.1")
	if got := s.do("answer", "2"); got != "right: 2" || s.lesson().Step != 0 || !s.lesson().Answered {
		t.Errorf("the answer first: %q", got)
	}
	if got := s.refused("answer", "1"); got != `the question is answered: "check" shows what is missing` || !s.lesson().Answered {
		t.Error(got)
	}
	s.run("touch done.txt")
	s.step(1)

	s.do("reset", "")
	if l := s.lesson(); l.Step != 0 || l.Answered || l.Checks[0].Met {
		t.Errorf("after a reset: %+v", l)
	}
	s.run("touch done.txt")
	s.awaits("the check", func(l *labapi.Lesson) bool { return l.Checks[0].Met })
	s.run("rm done.txt")
	s.awaits("the check that is not met any more", func(l *labapi.Lesson) bool { return !l.Checks[0].Met })
	if got := s.do("answer", "2"); got != "right: 2" || s.lesson().Step != 0 {
		t.Errorf("the answer with a check that was met: %q", got)
	}
	s.run("touch done.txt")
	s.step(1)
}

// Checks that send requests are evaluated at a command, and soon after the student did something.
func TestRequestsOfChecks(t *testing.T) {
	steps := "- name: mend\n  checks:\n  - request: {from: shell, to: 'http://10.96.0.81/', by: web-a}\n" + task("true")
	s := start(t, courseOf(t, unit{steps: steps}), "1.1")
	if got := s.do("check", ""); !strings.Contains(got, "[to do] a request from shell to http://10.96.0.81/ is answered by web-a\n      it failed: ") {
		t.Errorf("check: %s", got)
	}
	s.run("sed -i 's/app: none/app: web/' lab.yaml && grep -q 'selector: {app: web}' lab.yaml")
	s.Active()
	s.awaits("an answer", func(l *labapi.Lesson) bool {
		return l.Step == 1 || strings.Contains(l.Checks[0].Detail, "it was answered by")
	})
	s.run("sed -i 's/name: web-b, node: node-a, labels: {app: web}/name: web-b, node: node-a, labels: {app: b}/' lab.yaml")
	s.awaits("the end of the step", func(l *labapi.Lesson) bool { s.Active(); return l.Step == 1 })
}

// A check sends no request before the checks ahead of it are met.
func TestRequestsInOrder(t *testing.T) {
	steps := "- name: mend\n  checks:\n  - run: {on: shell, script: test -e go.txt}\n  - request: {from: shell, to: 'http://10.96.0.81/', by: web-a}\n" + task("true")
	s := start(t, courseOf(t, unit{steps: steps}), "1.1")
	const failed = "it failed: "
	if got := s.do("check", ""); !strings.Contains(got, "is answered by web-a\n") || strings.Contains(got, failed) {
		t.Errorf("check: %s", got)
	}
	s.run("touch go.txt")
	if got := s.do("check", ""); !strings.Contains(got, failed) {
		t.Errorf("check, with the file: %s", got)
	}
	s.run("rm go.txt")
	if got := s.do("check", ""); strings.Contains(got, failed) {
		t.Errorf("check, without the file: %s", got)
	}
}

// holding is a step that holds a packet, for a prediction.
const holding = `- name: predict
  hold: {flow: {service: default/web, source: shell}, show: [draw, service]}
  question:
    text: Which pod answers?
    answer: {held: true, field: pod}
    wrong: [{answer: default/web-a, because: not web-a}, {answer: default/web-b, because: not web-b}]
`

func TestHold(t *testing.T) {
	s := start(t, courseOf(t, unit{steps: "- name: read\n" + holding + task("curl -s http://10.96.0.80/ > answer.txt &\nanswer ${right}")}), "1.1")
	s.do("next", "")
	send := func() (right, wrong string) {
		t.Helper()
		s.run("(curl -s http://10.96.0.80/ > answer.txt; touch answered.txt) & disown")
		l := s.awaits("a held packet", func(l *labapi.Lesson) bool { return len(l.Held) > 0 })
		if len(l.Held) != 3 || !strings.HasPrefix(l.Held[0], "held: TCP 10.244.0.9:") || !strings.HasSuffix(l.Held[0], "-> 10.96.0.80:80") ||
			!strings.HasPrefix(l.Held[1], "draw: 0.") || l.Held[2] != "service: default/web:http" {
			t.Errorf("the facts are %q", l.Held)
		}
		solution := s.do("solution", "")
		right = strings.TrimSpace(solution[strings.LastIndex(solution, "answer "):])[len("answer "):]
		return right, map[string]string{"default/web-a": "default/web-b", "default/web-b": "default/web-a"}[right]
	}
	_, wrong := send()
	if wrong == "" {
		t.Fatal("the solution has no pod")
	}
	got := s.do("answer", wrong)
	if want := "wrong: not " + strings.TrimPrefix(wrong, "default/") + "\n"; !strings.HasPrefix(got, want) || !strings.Contains(got, "10.96.0.80:80") || !strings.HasSuffix(got, "\nSend another request, and predict again.") {
		t.Errorf("a wrong prediction: %s", got)
	}
	// The packet goes on, and the next one is held.
	s.run("until test -e answered.txt; do sleep 0.05; done; rm answered.txt; grep -q '\"pod\"' answer.txt")
	s.awaits("no held packet", func(l *labapi.Lesson) bool { return len(l.Held) == 0 && l.Step == 1 })
	right, _ := send()
	if got := s.do("answer", strings.ToUpper(right)); !strings.HasPrefix(got, "right: "+strings.ToUpper(right)+"\n") || !strings.Contains(got, "draw 0.") || !strings.HasSuffix(got, "done: Step 2\nunit 1.1 is finished") {
		t.Errorf("a right prediction: %s", got)
	}
	s.run("until test -e answered.txt; do sleep 0.05; done; grep -q " + right + " answer.txt")
	// No packet is held after the step.
	s.run("curl -s --max-time 5 http://10.96.0.80/")
	if l := s.step(2); len(l.Held) != 0 {
		t.Errorf("held: %q", l.Held)
	}
}

// A wrong answer after an answered hold does not begin another hold, and quit releases the packet.
func TestHeldPacketIsReleased(t *testing.T) {
	s := start(t, courseOf(t, unit{steps: holding + task("answer ${right}")}), "1.1")
	s.run("(curl -s http://10.96.0.80/ > answer.txt; touch answered.txt) & disown")
	s.awaits("a held packet", func(l *labapi.Lesson) bool { return len(l.Held) > 0 })
	s.do("reset", "") // with a packet that waits
	if l := s.lesson(); len(l.Held) != 0 || l.Step != 0 {
		t.Errorf("after a reset: %+v", l)
	}
	if _, err := os.Stat("/run/nfqproxy-learn/unit/answer.txt"); !os.IsNotExist(err) {
		t.Errorf("the directory is not new: %v", err)
	}
}

// A record of a unit under way brings another session to the same step: the solutions of the steps before are run.
func TestResume(t *testing.T) {
	const steps = `- name: read
- name: make
  checks:
  - run: {script: test -e one.txt}
  - flow: {service: default/web, from: shell}
` + "  hints: [a, b, c]\n  solution: |\n    touch one.txt\n    curl -s http://10.96.0.80/ > ${file}\n    answer never; next; reset; quit; hint; units\n" + ask + `  hints: [a, b, c]
  solution: touch no.txt
- name: last
  checks:
  - run: {script: test -e two.txt}
` + "  hints: [a, b, c]\n  solution: touch two.txt\n"
	fields := "variables: [{name: file, oneOf: [a.txt, b.txt, c.txt, d.txt, e.txt, f.txt]}]\n"
	c := courseOf(t, unit{fields, steps})
	record := filepath.Join(t.TempDir(), "learn.json")
	t.Run("first", func(t *testing.T) {
		s := open(t, c, record)
		s.do("start", "1.1")
		s.do("again", "") // the values are not those of the course
		s.do("next", "")
		s.run("touch one.txt; curl -s http://10.96.0.80/")
		s.step(2)
	})
	seed := reopen(t, record).Progress("1.1").Seed
	t.Run("second", func(t *testing.T) {
		s := open(t, c, record)
		s.do("start", "1.1")
		l := s.lesson()
		if l.Step != 2 || l.Notice != "resumed: earlier steps done for you: 2" || !l.Steps[1].Passed {
			t.Errorf("the lesson is %+v", l)
		}
		s.run("test -e one.txt && test ! -e no.txt && grep -q pod *.txt")
		s.do("answer", "2")
		if want := "began began passed:read passed:make answered:ask passed:ask"; s.kinds() != want || s.record.Progress("1.1").Seed != seed {
			t.Errorf("the record is %s, want %s", s.kinds(), want)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		s := open(t, c, record)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // while the lab starts
			_, _ = s.Lesson(ctx, 1)
			cancel()
		}()
		if _, err := s.Do(ctx, labapi.LessonCommand{Command: "start", Argument: "1.1"}); err == nil {
			t.Error("the unit has begun")
		}
		if want := "began began passed:read passed:make answered:ask passed:ask"; s.kinds() != want {
			t.Errorf("the record is %s, want %s", s.kinds(), want)
		}
	})
	// The same steps in another course, with a solution that does nothing: the unit begins anew, in a lab that is new.
	t.Run("impossible", func(t *testing.T) {
		broken := strings.Replace(steps, "touch one.txt\n", "touch trace.txt\n", 1)
		s := open(t, courseOf(t, unit{fields, broken}), record)
		s.do("start", "1.1")
		if l := s.lesson(); l.Step != 0 || l.Notice != "" {
			t.Errorf("the lesson is %+v", l)
		}
		s.run("test ! -e trace.txt")
		if want := "began began passed:read passed:make answered:ask passed:ask began"; s.kinds() != want {
			t.Errorf("the record is %s, want %s", s.kinds(), want)
		}
	})
	t.Run("reset", func(t *testing.T) {
		s := open(t, c, record)
		s.do("start", "1.1")
		s.do("next", "")
		s.do("reset", "")
		if l := s.lesson(); l.Step != 0 || s.record.Progress("1.1").Seed != seed {
			t.Errorf("the lesson is %+v", l)
		}
	})
}

func reopen(t *testing.T, path string) *learn.Record {
	t.Helper()
	r, err := learn.OpenRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// In a class each student has one version of a unit.
func TestAgain(t *testing.T) {
	c := courseOf(t, unit{"variables: [{name: n, from: 1, to: 1000000}]\n", "- name: a\n  checks: [{run: {script: 'test ${n} = 0'}}]\n" + task("true")})
	s := start(t, c, "1.1")
	text := s.lesson().Checks[0].Text
	s.do("again", "")
	if l := s.lesson(); l.Checks[0].Text == text {
		t.Errorf("the same values again: %s", text)
	}
	text = s.lesson().Checks[0].Text
	s.do("start", "1.1") // continues with those that he had last
	if l := s.lesson(); l.Checks[0].Text != text {
		t.Errorf("other values: %s, want %s", l.Checks[0].Text, text)
	}
	s.record.Student = "Ada"
	if got := s.refused("again", ""); !strings.HasPrefix(got, "in a class each student has one version of a unit") {
		t.Error(got)
	}
}

// A unit that cannot begin says why, and leaves nothing behind.
func TestUnitCannotBegin(t *testing.T) {
	c := courseOf(t, unit{"setup: |\n  sleep 98761 &\n  echo what it wrote\n  false\n  echo never\n", "- name: read\n"},
		unit{"requires: [bash, no-such-program, nor-this]\n", "- name: read\n"}, unit{"", "- name: read\n"})
	s := start(t, c, "1.3")
	want := "unit 1.2 requires programs that this machine lacks: no-such-program, nor-this (install them, or take another unit: nfqproxy learn list)"
	if got := s.refused("start", "1.2"); got != want {
		t.Errorf("missing programs: %s, want %s", got, want)
	}
	if l := s.lesson(); l.Unit != "1.3" || l.Notice != want || l.Good {
		t.Errorf("the unit before has ended: %+v", l)
	}
	if got, want := s.refused("start", "1.1"), "unit 1.1: its setup failed with exit code 1\nwhat it wrote"; got != want {
		t.Errorf("a setup that fails: %q, want %q", got, want)
	}
	if l := s.lesson(); l.Unit != "" || len(l.Steps) != 0 || !strings.HasPrefix(l.Notice, "unit 1.1: its setup failed") {
		t.Errorf("the lesson is %+v", l)
	}
	if got := s.refused("answer", "1"); !strings.HasPrefix(got, "no unit is running") {
		t.Error(got)
	}
	if s.kinds() != "began" {
		t.Errorf("the record is %s", s.kinds())
	}
	none(t, "98761")
	s.do("start", "1.3")
}

// What runs in the background ends with the unit: the script of the unit, and the jobs of the shell.
func TestBackground(t *testing.T) {
	c := courseOf(t, unit{"background: |\n  while curl -s http://10.96.0.80/ > /dev/null; do sleep 0.1; done & sleep 98762\n", "- name: a\n  checks: [{flow: {service: default/web, count: 3}}]\n" + task("true") + "- name: read\n"})
	s := start(t, c, "1.1")
	s.step(1)
	shell := s.shell()
	shell.line("sleep 98763 &")
	shell.line("(sleep 98764 | cat) &")
	shell.line("nohup sleep 98765 > /dev/null 2>&1 & disown")
	for _, argument := range []string{"98762", "98763", "98764", "98765"} {
		e2etest.Eventually(t, e2etest.Timeout, "a job in the background", func() bool { return some(t, argument) == 1 })
	}
	s.do("reset", "")
	e2etest.Eventually(t, e2etest.Timeout, "the end of the jobs", func() bool { return some(t, "98763")+some(t, "98764")+some(t, "98765") == 0 })
	e2etest.Eventually(t, e2etest.Timeout, "the background of the unit begun anew", func() bool { return some(t, "98762") == 1 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	none(t, "98762")
}

// some counts the processes with an argument, those that have ended and wait for their parent left out.
func some(t testing.TB, argument string) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range dirs {
		if text, err := os.ReadFile(file); err == nil && slices.Contains(strings.Split(string(text), "\x00"), argument) {
			n++
		}
	}
	return n
}

func none(t testing.TB, argument string) {
	t.Helper()
	e2etest.Eventually(t, e2etest.Timeout, "the end of all processes", func() bool { return some(t, argument) == 0 })
}
