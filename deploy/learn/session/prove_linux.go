package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// Prove proves a unit, in the namespaces of this process: no step ends before its solution is typed; wrong answers are judged
// wrong, with their reasons; the solution of each step, typed into a shell on a terminal, ends it.
func Prove(ctx context.Context, u *learn.Unit) error {
	return proof{unit: u, line: 30 * time.Second, end: 20 * time.Second}.run(ctx)
}

// proof is a proof of a unit.
type proof struct {
	unit *learn.Unit
	line time.Duration // that a line of a solution may take
	end  time.Duration // that a step may take to end after its solution
}

func (p proof) run(ctx context.Context) (err error) {
	course := &learn.Course{Chapters: []*learn.Chapter{{Number: 1, Title: "Proof", Units: []*learn.Unit{p.unit}}}}
	s := New(course, &learn.Record{Version: learn.RecordVersion}, nil)
	serving, stop := context.WithCancel(ctx)
	var served errgroup.Group
	served.Go(func() error { return s.Serve(serving, nil) })
	defer func() {
		closed := s.Close()
		stop()
		err = errors.Join(err, served.Wait(), closed)
	}()
	if err := s.start(ctx, p.unit, false); err != nil {
		return err
	}
	t, err := openTyping(s, p.line)
	if err != nil {
		return err
	}
	defer t.close()
	for _, step := range p.unit.Steps {
		if err := s.prove(ctx, step, t, p.end); err != nil {
			return fmt.Errorf("step %s: %w\nthe terminal ends:\n%s", step.Name, err, t.tail())
		}
	}
	return nil
}

// prove proves a step, which may take some time to end after its solution.
func (s *Session) prove(ctx context.Context, step *learn.Step, t *typing, end time.Duration) error {
	w := s.work
	if step.Read() {
		_, err := s.Do(ctx, labapi.LessonCommand{Command: "next"})
		return err
	}
	if _, err := s.Do(ctx, labapi.LessonCommand{Command: "check"}); err != nil {
		return err
	}
	if s.passed(w, step) {
		return errors.New("it ends before its solution is typed")
	}
	if q := step.Question; q != nil {
		for _, wrong := range q.Wrong {
			if err := s.proveWrong(ctx, step, wrong, t); err != nil {
				return err
			}
		}
	}
	for line := range strings.Lines(strings.TrimSpace(step.Solution) + "\n") {
		line, err := w.withRight(ctx, step, line, s.holding(w))
		if err != nil {
			return err
		}
		if err := t.line(ctx, line); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(end)
	for !s.passed(w, step) {
		if time.Now().After(deadline) {
			l, err := s.Lesson(ctx, 0)
			if err != nil {
				return err
			}
			return fmt.Errorf("its solution does not end it:\n%s%s", learn.TaskText(l), l.Notice)
		}
		if _, err := s.Do(ctx, labapi.LessonCommand{Command: "check"}); err != nil && !s.passed(w, step) {
			return err
		}
		time.Sleep(pollInterval) // a poll
	}
	return nil
}

// proveWrong gives a wrong answer. If the step holds a packet, one is sent first: by the lines of the solution before its
// answer.
func (s *Session) proveWrong(ctx context.Context, step *learn.Step, wrong learn.WrongAnswer, t *typing) error {
	if step.Hold != nil {
		for line := range strings.Lines(strings.TrimSpace(step.Solution) + "\n") {
			if strings.HasPrefix(line, "answer") {
				break
			}
			if err := t.line(ctx, line); err != nil {
				return err
			}
		}
		held := s.holding(s.work)
		right, err := s.work.expected(ctx, step.Question, held)
		if err != nil || step.Question.Answer.Judge(wrong.Answer, right) {
			// Right for this packet: the draw decides. The packet is released.
			held.reveal(ctx)
			s.mu.Lock()
			held.stop()
			s.work.held = s.hold(s.work, step)
			s.mu.Unlock()
			return err
		}
	}
	notice, err := s.Do(ctx, labapi.LessonCommand{Command: "answer", Argument: wrong.Answer})
	switch {
	case err != nil:
		return fmt.Errorf("the wrong answer %q: %w", wrong.Answer, err)
	case s.passed(s.work, step) || !strings.HasPrefix(notice, learn.WrongNotice):
		return fmt.Errorf("the wrong answer %q is judged right", wrong.Answer)
	case !strings.Contains(notice, learn.NoticeText(learn.WrongNotice+wrong.Because)):
		return fmt.Errorf("the wrong answer %q gets no reason: %s", wrong.Answer, notice)
	}
	return nil
}

// holding is what the step under way holds; nil: nothing.
func (s *Session) holding(w *work) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.held
}

// rightAnswer stands for the right answer in a solution.
const rightAnswer = "${right}"

// withRight is a line of a solution with the right answer in it.
func (w *work) withRight(ctx context.Context, step *learn.Step, line string, held *held) (string, error) {
	if !strings.Contains(line, rightAnswer) || step.Question == nil {
		return line, nil
	}
	right, err := w.expected(ctx, step.Question, held)
	if err != nil {
		return "", err
	}
	if right == "" {
		right = step.Question.Answer.Text()
	}
	return strings.ReplaceAll(line, rightAnswer, shellWord(right)), nil
}

// plainWord matches what means nothing to a shell.
var plainWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\pL\pN ._:/%@+,=-]*$`) })

// shellWord is a text as a shell takes it, in one line.
func shellWord(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if plainWord().MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// typing is a terminal with a shell, and what types into it.
type typing struct {
	shell   labapi.Terminal
	timeout time.Duration // of a line

	mu     sync.Mutex
	output []byte
	more   chan struct{} // closed with more output
}

// promptMark is what bashrc has in the prompt.
const promptMark = "\x1b]133;A\a"

func openTyping(s *Session, timeout time.Duration) (*typing, error) {
	shell, err := s.OpenShell("", labapi.TerminalSize{Columns: 80, Rows: 24})
	if err != nil {
		return nil, err
	}
	t := &typing{shell: shell, timeout: timeout, more: make(chan struct{})}
	go func() { // ends with the terminal
		b := make([]byte, 4096)
		for {
			n, err := shell.Read(b)
			t.mu.Lock()
			t.output = append(t.output, b[:n]...)
			close(t.more)
			t.more = make(chan struct{})
			t.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return t, t.prompt(context.Background(), 1)
}

// line types a line, and waits for the prompt after it.
func (t *typing) line(ctx context.Context, line string) error {
	prompts := t.prompts()
	if _, err := t.shell.Write([]byte(strings.TrimRight(line, "\n") + "\n")); err != nil {
		return err
	}
	if err := t.prompt(ctx, prompts+1); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
	}
	return nil
}

func (t *typing) prompts() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Count(t.output, []byte(promptMark))
}

// prompt waits until the shell has prompted some times.
func (t *typing) prompt(ctx context.Context, times int) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	for {
		t.mu.Lock()
		n, more := bytes.Count(t.output, []byte(promptMark)), t.more
		t.mu.Unlock()
		if n >= times {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("the command does not end: %w", ctx.Err())
		}
	}
}

// tail is the end of the output.
func (t *typing) tail() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.ReplaceAll(strings.ReplaceAll(string(t.output), promptMark, ""), "\r", ""), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-25):], "\n  ")
}

func (t *typing) close() { _ = t.shell.Close() }
