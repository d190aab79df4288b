package screen

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// buffer is output that a test reads while it is written.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.more)
	b.more = make(chan struct{})
	return b.text.Write(p)
}

// until waits for a text.
func (b *buffer) until(text string) {
	for {
		b.mu.Lock()
		found, more := strings.Contains(b.text.String(), text), b.more
		b.mu.Unlock()
		if found {
			return
		}
		<-more
	}
}

// plainSession is a session in plain mode.
type plainSession struct {
	*buffer
	in    *os.File
	ended chan error
}

func startPlain(t *testing.T, ctx context.Context, r *fakeRoom) *plainSession {
	t.Helper()
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close(); _ = in.Close() })
	p := &plainSession{&buffer{more: make(chan struct{})}, w, make(chan error, 1)}
	go func() { p.ended <- Front(Options{Plain: true, Stdin: in, Stdout: p})(ctx, r) }()
	return p
}

// output is what was printed after the commands, at the end of the input.
func (p *plainSession) output(t *testing.T) string {
	t.Helper()
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	text, rest, found := strings.Cut(p.text.String(), "nfqproxy learn shell\n\n")
	if !found {
		t.Fatalf("no help: %s", text)
	}
	return rest
}

// TestPlain: what commands print, in their order and once each; also before the end of the input.
func TestPlain(t *testing.T) {
	r := newRoom(twoSteps())
	r.do = func(c labapi.LessonCommand) (string, error) {
		switch c.Command {
		case "next":
			r.change(func(l *labapi.Lesson) { task(l); l.Notice = "done: Read" })
			return "the text of the step", nil
		case "answer":
			notice := map[bool]string{true: "right: 2", false: "wrong: no"}[c.Argument == "2"]
			r.change(func(l *labapi.Lesson) {
				l.Notice, l.Answered = strings.Replace(notice, "no", "`no`", 1), c.Argument == "2"
			})
			return notice, nil
		case "hint":
			r.change(func(l *labapi.Lesson) { l.Hints = append(l.Hints, "look there") })
			return "look there", nil
		case "check":
			r.change(func(l *labapi.Lesson) { l.Checks = []labapi.LessonCheck{{Text: "a check", Met: true}} })
			return "[done] a check\n", nil
		case "reset":
			r.change(func(l *labapi.Lesson) { *l = labapi.Lesson{Generation: l.Generation, Notice: "starting unit 1.1"} })
			r.change(func(l *labapi.Lesson) { g := l.Generation; *l = twoSteps(); l.Generation = g })
			return "the text of the step", nil
		case "start":
			err := errors.New("unit 9.9: its setup failed")
			r.change(func(l *labapi.Lesson) { l.Notice = err.Error() })
			return "", err
		}
		return "", errors.New("unknown command")
	}
	p := startPlain(t, t.Context(), r)
	const commands = "next\n\n  answer  1 \nanswer 1\nhint\ndance\ncheck\nanswer 2\nreset\nstart 9.9\nnext\nanswer 1\n"
	if _, err := io.WriteString(p.in, commands); err != nil {
		t.Fatal(err)
	}
	p.until("9.9")
	const read = "\n1.1 First (step 1 of 2)\n\nRead\n\nRead this.\n\nTo continue: next\n\n"
	const second = "\n1.1 First (step 2 of 2)\n\nTask\n\nDo this.\n\n[to do] How many?  (answer ...)\n[to do] a check\n\n"
	equal(t, p.output(t), read+"done: Read\n"+second+"wrong: no\nwrong: no\nlook there\nunknown command\n[done] a check\ndone: a check\nright: 2\n"+
		read+"unit 9.9: its setup failed\n"+"done: Read\n"+second+"wrong: no\n")
	equal(t, strings.Join(r.commands, ", "), "next, answer 1, answer 1, hint, dance, check, answer 2, reset, start 9.9, next, answer 1")
}

// TestPlainChanges: what happens without a command is printed, too.
func TestPlainChanges(t *testing.T) {
	r := newRoom(twoSteps())
	p := startPlain(t, t.Context(), r)
	p.until("To continue: next\n")
	r.change(task)
	p.until("[to do] a check")
	r.change(func(l *labapi.Lesson) { l.Held = []string{"held: TCP", "draw: 0.5"} })
	p.until("  draw: 0.5\n")
	r.change(func(l *labapi.Lesson) { l.Held = nil })
	r.change(func(l *labapi.Lesson) { l.Checks = []labapi.LessonCheck{{Text: "a check", Met: true}} })
	p.until("done: a check\n")
	r.change(func(l *labapi.Lesson) { l.Checks = []labapi.LessonCheck{{Text: "a check"}} })
	p.until("no longer done: a check\n")
	r.change(func(l *labapi.Lesson) { l.Step, l.Notice = 2, "done: Task\nunit 1.1 is finished" })
	p.until("All units are finished.")
	_, got, _ := strings.Cut(p.output(t), "[to do] a check\n\n")
	equal(t, got, "  held: TCP\n  draw: 0.5\ndone: a check\nno longer done: a check\ndone: Task\nunit 1.1 is finished\n\n1.1 First\n\nThe unit is finished. All units are finished.\n\n")
}

// Plain mode ends with the command quit, by whomever, and with its context.
func TestPlainEnds(t *testing.T) {
	r := newRoom(twoSteps())
	p := startPlain(t, t.Context(), r)
	if _, err := io.WriteString(p.in, "quit\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	r = newRoom(twoSteps())
	p = startPlain(t, t.Context(), r)
	close(r.finished)
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p = startPlain(t, ctx, newRoom(twoSteps()))
	cancel()
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
}

// Without a terminal the mode is plain, whatever is wanted.
func TestFrontWithoutTerminal(t *testing.T) {
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	_ = w.Close()
	var out strings.Builder
	if err := Front(Options{Stdin: in, Stdout: &out, Terminal: w})(t.Context(), newRoom(twoSteps())); err != nil || !strings.Contains(out.String(), "Read this.") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
