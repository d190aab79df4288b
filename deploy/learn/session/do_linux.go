package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// Do implements [labapi.Teacher].
func (s *Session) Do(ctx context.Context, c labapi.LessonCommand) (string, error) {
	switch c.Command { // at once, also while a unit starts
	case "list":
		return learn.ListText(s.units()), nil
	case "quit":
		s.quit.Do(func() { close(s.finished) })
		return "", nil
	}
	s.doing.Lock()
	defer s.doing.Unlock()
	w := s.running()
	if w != nil {
		notify(w.active)
	}
	if c.Command == "start" {
		u, err := s.course.Unit(c.Argument)
		if err != nil {
			return "", invalid("%v", err)
		}
		if u, err = s.withLastValues(u); err != nil {
			return "", err
		}
		return s.begin(ctx, u, true)
	}
	if w == nil {
		return "", invalid("no unit is running: \"start NUMBER\" starts one")
	}
	s.mu.Lock()
	step := w.current()
	s.mu.Unlock()
	switch c.Command {
	case "shell":
		return w.unit.Shell, nil
	case "next":
		return s.next(ctx, w, step)
	case "text":
		return s.text(ctx)
	case "reset":
		return s.begin(ctx, w.unit, false)
	case "again":
		if s.record.Student != "" {
			return "", invalid("in a class each student has one version of a unit; \"reset\" starts it over")
		}
		u, err := w.unit.Draw(w.unit.Seed + 1)
		if err != nil {
			return "", err
		}
		return s.begin(ctx, u, false)
	}
	if step == nil {
		return "", invalid("the unit is finished: \"next\" starts the next one")
	}
	switch c.Command {
	case "answer":
		return s.answer(ctx, w, step, c.Argument)
	case "check":
		return s.check(ctx, w, step)
	case "hint":
		return s.hint(w, step)
	case "solution":
		return s.solution(ctx, w, step)
	}
	return "", invalid("unknown command %q: want answer, check, hint, next, text, solution, reset, again, list, start or quit; programs run in a shell of the lab: \"nfqproxy learn shell\" opens one", c.Command)
}

// withLastValues is a unit with the values that the student had last.
func (s *Session) withLastValues(u *learn.Unit) (*learn.Unit, error) {
	seed, err := strconv.ParseUint(s.record.Progress(u.ID).Seed, 10, 64)
	if err != nil || seed == u.Seed {
		return u, nil // never begun, or so
	}
	return u.Draw(seed)
}

// begin starts a unit, and returns its first text.
func (s *Session) begin(ctx context.Context, u *learn.Unit, resume bool) (string, error) {
	if err := s.start(ctx, u, resume); err != nil {
		s.notice(err.Error(), false)
		return "", invalid("%v", err)
	}
	return s.text(ctx)
}

// text is the step under way as plain text.
func (s *Session) text(ctx context.Context) (string, error) {
	l, err := s.Lesson(ctx, 0)
	if err != nil {
		return "", err
	}
	return learn.LessonText(l), nil
}

// next ends a step without a task, or begins the next unit after the last step.
func (s *Session) next(ctx context.Context, w *work, step *learn.Step) (string, error) {
	if step == nil {
		next := s.record.Next(s.course)
		if next == nil {
			return "All units are finished.", nil
		}
		next, err := s.withLastValues(next)
		if err != nil {
			return "", err
		}
		return s.begin(ctx, next, true)
	}
	if !step.Read() {
		return "", invalid("this step has a task, and ends when it is done; \"hint\" helps")
	}
	s.mu.Lock()
	if w.current() == step {
		s.pass(w, step)
	}
	s.mu.Unlock()
	return s.text(ctx)
}

// answer judges an answer.
func (s *Session) answer(ctx context.Context, w *work, step *learn.Step, given string) (string, error) {
	q := step.Question
	s.mu.Lock()
	answered, held := w.right, w.held
	s.mu.Unlock()
	switch {
	case q == nil:
		return "", invalid("this step has no question")
	case answered:
		return "", invalid("the question is answered: \"check\" shows what is missing")
	case strings.TrimSpace(given) == "":
		return "", invalid("an answer is required, as in: answer 10.0.0.1")
	}
	text, err := w.expected(ctx, q, held)
	if err != nil {
		return "", err
	}
	right := q.Answer.Judge(given, text)
	event := learn.Event{Time: time.Now(), Kind: learn.Answered, Unit: w.unit.ID, Step: step.Name, Detail: given, Right: right}
	if err := s.record.Add(event); err != nil {
		return "", err
	}
	reveal := ""
	if held != nil {
		reveal = "\n" + held.reveal(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.work != w || w.current() != step {
		return "", nil // another command was faster
	}
	if !right {
		reason := cmp.Or(q.WrongReason(given), "That is not right.")
		s.lesson.Notice, s.lesson.Good = learn.WrongNotice+reason+reveal, false
		if held != nil {
			held.stop()
			w.held = s.hold(w, step)
			s.lesson.Notice += "\nSend another request, and predict again."
		}
		s.publish()
		return learn.NoticeText(s.lesson.Notice), nil
	}
	w.right = true
	if len(step.Checks) == 0 {
		s.pass(w, step)
		s.lesson.Notice = "right: " + given + reveal + "\n" + s.lesson.Notice
	} else {
		s.lesson.Notice, s.lesson.Good = "right: "+given+reveal, true
	}
	s.publish()
	notify(w.wake)
	return learn.NoticeText(s.lesson.Notice), nil
}

// expected is the right answer, where it depends on more than the question; held: the packet that its step holds, if it does.
func (w *work) expected(ctx context.Context, q *learn.Question, held *held) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	switch a := &q.Answer; {
	case a.Run != nil:
		output, err := w.must(ctx, *a.Run)
		if err != nil {
			return "", fmt.Errorf("the script with the right answer %w", err)
		}
		return output, nil
	case a.Command != "":
		output, err := w.must(ctx, learn.Script{Text: "nfqproxy " + a.Command + " -o json"})
		if err != nil {
			return "", fmt.Errorf("the command with the right answer %w", err)
		}
		return fieldOf([]byte(output), a.Field)
	case a.Held:
		return held.field(ctx, a.Field)
	}
	return "", nil
}

// check evaluates all checks now, and reports which are not met.
func (s *Session) check(ctx context.Context, w *work, step *learn.Step) (string, error) {
	s.evaluate(ctx, w, true, new(bool))
	l, err := s.Lesson(ctx, 0)
	if err != nil {
		return "", err
	}
	if s.passed(w, step) {
		return l.Notice, nil
	}
	return learn.TaskText(l), nil
}

// passed reports whether a step is not under way any more.
func (s *Session) passed(w *work, step *learn.Step) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.current() != step
}

// hint shows another hint.
func (s *Session) hint(w *work, step *learn.Step) (string, error) {
	if step.Read() {
		return "", invalid("this step has no task: \"next\" ends it")
	}
	if w.hints == len(step.Hints) {
		return "", invalid("there are no more hints; \"solution\" shows the solution")
	}
	if err := s.record.Add(learn.Event{Time: time.Now(), Kind: learn.Hinted, Unit: w.unit.ID, Step: step.Name, Detail: fmt.Sprint(w.hints + 1)}); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.current() != step {
		return "", errors.New("the step has just ended")
	}
	w.hints++
	s.publish()
	return learn.HintText(step.Hints[w.hints-1]), nil
}

// solution shows the solution.
func (s *Session) solution(ctx context.Context, w *work, step *learn.Step) (string, error) {
	if step.Read() {
		return "", invalid("this step has no task: \"next\" ends it")
	}
	if err := s.record.Add(learn.Event{Time: time.Now(), Kind: learn.Solved, Unit: w.unit.ID, Step: step.Name}); err != nil {
		return "", err
	}
	held, text := s.holding(w), ""
	for line := range strings.Lines(step.Solution) {
		if with, err := w.withRight(ctx, step, line, held); err == nil {
			line = with
		}
		text += line
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.solved = text
	s.publish()
	return text, nil
}
