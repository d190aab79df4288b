package screen

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// fakeRoom is a session without a lab.
type fakeRoom struct {
	do func(labapi.LessonCommand) (string, error)

	mu       sync.Mutex
	lesson   labapi.Lesson
	changed  chan struct{}
	finished chan struct{}
	commands []string
	shells   []*fakeShell
	closed   bool // there is no shell
}

func newRoom(l labapi.Lesson) *fakeRoom {
	r := &fakeRoom{lesson: l, changed: make(chan struct{}), finished: make(chan struct{})}
	r.lesson.Generation = 1
	return r
}

// change changes the lesson.
func (r *fakeRoom) change(f func(*labapi.Lesson)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.lesson)
	r.lesson.Generation++
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *fakeRoom) Lesson(ctx context.Context, after uint64) (*labapi.Lesson, error) {
	for {
		r.mu.Lock()
		l, changed := r.lesson, r.changed
		r.mu.Unlock()
		if l.Generation > after {
			return &l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &l, nil
		}
	}
}

func (r *fakeRoom) Do(_ context.Context, c labapi.LessonCommand) (string, error) {
	r.mu.Lock()
	r.commands = append(r.commands, strings.TrimSpace(c.Command+" "+c.Argument))
	r.mu.Unlock()
	if c.Command == "quit" {
		close(r.finished)
		return "", nil
	}
	return r.do(c)
}

func (r *fakeRoom) Finished() <-chan struct{} { return r.finished }
func (r *fakeRoom) Page() string              { return "the address of the page" }
func (r *fakeRoom) Active()                   {}

func (r *fakeRoom) OpenShell(_ string, size labapi.TerminalSize) (labapi.Terminal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("there is no shell here")
	}
	s := &fakeShell{typed: make(chan string, 4096), size: size}
	s.r, s.w = io.Pipe()
	r.shells = append(r.shells, s)
	return s, nil
}

// fakeShell is a terminal in memory: what a test writes to w is its output.
type fakeShell struct {
	r     *io.PipeReader
	w     *io.PipeWriter
	typed chan string
	block chan struct{} // not nil: it reads nothing until this is closed

	mu   sync.Mutex
	size labapi.TerminalSize
}

func (s *fakeShell) Read(b []byte) (int, error) { return s.r.Read(b) }

func (s *fakeShell) Write(b []byte) (int, error) {
	s.mu.Lock()
	block := s.block
	s.mu.Unlock()
	if block != nil {
		<-block
	}
	s.typed <- string(b)
	return len(b), nil
}

func (s *fakeShell) Resize(size labapi.TerminalSize) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = size
	return nil
}

func (s *fakeShell) Close() error { return s.w.Close() }

// twoSteps is a lesson with a step to read and a task.
func twoSteps() labapi.Lesson {
	return labapi.Lesson{
		Unit: "1.1", Title: "First", Shell: "shell", Text: "Read this.\n",
		Steps: []labapi.LessonStep{{Title: "Read", Read: true}, {Title: "Task"}},
	}
}

// task is the second step of it.
func task(l *labapi.Lesson) {
	l.Step, l.Text, l.Question = 1, "Do this.\n", "How many?"
	l.Checks = []labapi.LessonCheck{{Text: "a check"}}
}

func equal(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("it is\n%s\nwant\n%s", got, want)
	}
}
