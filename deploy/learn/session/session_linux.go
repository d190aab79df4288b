package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/programs"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// Session is a student's way through a course, in the namespaces of this process. It is an [labapi.Teacher].
type Session struct {
	course   *learn.Course
	record   *learn.Record
	reserved []*os.File // for lab.Open; empty: the labs serve no commands
	token    string     // of the flow API of all labs

	doing sync.Mutex // one command at a time

	mu       sync.Mutex // guards what follows
	work     *work      // nil: no unit is running
	lesson   labapi.Lesson
	changed  chan struct{} // closed with the next change
	finished chan struct{} // closed by the command quit
	quit     sync.Once
}

// New returns a session without a unit. The files are those of lab.Reserve.
func New(course *learn.Course, record *learn.Record, reserved []*os.File) *Session {
	s := &Session{course: course, record: record, reserved: reserved, token: rand.Text(), changed: make(chan struct{}), finished: make(chan struct{})}
	s.lesson = labapi.Lesson{Generation: 1, Student: record.Student, Steps: []labapi.LessonStep{}, Checks: []labapi.LessonCheck{}, Hints: []string{}}
	s.lesson.Units = s.units()
	return s
}

// Page implements [Room].
func (s *Session) Page() string {
	w := s.running()
	if w == nil || len(s.reserved) == 0 {
		return ""
	}
	return w.lab.FlowAPI.Page()
}

// running is the unit under way; nil: there is none.
func (s *Session) running() *work {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.work
}

// Finished is closed when the student quits.
func (s *Session) Finished() <-chan struct{} { return s.finished }

// Close ends the unit.
func (s *Session) Close() error {
	s.doing.Lock()
	defer s.doing.Unlock()
	return s.end()
}

// end ends the unit under way.
func (s *Session) end() error {
	s.mu.Lock()
	w := s.work
	s.work = nil
	s.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.close()
}

// work is a unit in its lab.
type work struct {
	unit *learn.Unit
	lab  *lab.Lab
	dir  string // of the student's shell

	ctx    context.Context // ends with the unit
	stop   context.CancelFunc
	served errgroup.Group
	wake   chan struct{} // to evaluate the checks now
	active chan struct{} // the student did something

	// The step under way; guarded by Session.mu.
	step   int
	since  time.Time
	right  bool // the question is answered
	checks []labapi.LessonCheck
	hints  int
	solved string // the solution, where it was shown
	held   *held

	evaluating sync.Mutex // one evaluation at a time
	requested  time.Time  // when checks sent requests last; guarded by evaluating
}

func (w *work) current() *learn.Step {
	if w.step == len(w.unit.Steps) {
		return nil
	}
	return w.unit.Steps[w.step]
}

// close ends the lab, and everything in it.
func (w *work) close() error {
	w.stop()
	err := w.served.Wait()
	if w.lab == nil {
		return err
	}
	places := w.networkNamespaces()
	return errors.Join(err, w.lab.Close(), killIn(places))
}

// missingPrograms are the programs of a unit that this machine lacks. A lab looks for kube-proxy at more places than PATH.
func missingPrograms(u *learn.Unit) []string {
	return slices.DeleteFunc(programs.Missing(u.Requires...), func(name string) bool {
		if name != labfile.KubeProxy {
			return false
		}
		_, err := lab.FindKubeProxy()
		return err == nil
	})
}

// start begins a unit anew, or where the student left it.
func (s *Session) start(ctx context.Context, u *learn.Unit, resume bool) error {
	if missing := missingPrograms(u); len(missing) > 0 {
		return fmt.Errorf("unit %s requires programs that this machine lacks: %s (%s, or take another unit: nfqproxy learn list)", u.ID, strings.Join(missing, ", "), cmp.Or(programs.Install(missing...), "install them"))
	}
	if err := s.end(); err != nil {
		return err
	}
	s.notice("starting unit "+u.ID+": "+u.Title, true)
	w, err := s.startLab(ctx, u)
	if err != nil {
		return err
	}
	passed := 0
	if p := s.record.Progress(u.ID); resume && p.Steps > 0 && p.Steps < len(u.Steps) && p.Seed == u.SeedText() {
		passed = p.Steps
		if err := w.replay(ctx, passed); err != nil {
			err = errors.Join(ctx.Err(), w.close())
			if err == nil { // what has been done is no start
				w, err = s.startLab(ctx, u)
			}
			if err != nil {
				return err
			}
			passed = 0
		}
	}
	if passed == 0 {
		if err := s.record.Add(learn.Event{Time: time.Now(), Kind: learn.Began, Unit: u.ID, Detail: u.SeedText(), Files: u.Digest()}); err != nil {
			return errors.Join(err, w.close())
		}
	}
	s.mu.Lock()
	s.work, w.step = w, passed
	s.lesson.Notice = ""
	if passed > 0 {
		s.lesson.Notice = fmt.Sprintf("resumed: earlier steps done for you: %d", passed)
	}
	s.enter(w)
	s.mu.Unlock()
	w.served.Go(func() error { s.watch(w); return nil })
	return nil
}

// startLab starts a unit's lab and runs its setup.
func (s *Session) startLab(ctx context.Context, u *learn.Unit) (*work, error) {
	w := &work{unit: u, wake: make(chan struct{}, 1), active: make(chan struct{}, 1)}
	w.ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.runSetup(ctx, w); err != nil {
		return nil, errors.Join(fmt.Errorf("unit %s: %w", u.ID, err), w.close())
	}
	return w, nil
}

func (s *Session) runSetup(ctx context.Context, w *work) error {
	file, err := w.unit.LabFile()
	if err != nil {
		return err
	}
	if w.dir, err = layOut(w.unit, file); err != nil {
		return err
	}
	if w.lab, err = lab.Up(ctx, file, lab.Options{Token: s.token, Teacher: s}); err != nil {
		return err
	}
	serve, err := w.lab.Open(s.reserved)
	if err != nil {
		return err
	}
	w.served.Go(func() error {
		return serve(w.ctx, func() { go func() { _, _ = s.Do(w.ctx, labapi.LessonCommand{Command: "quit"}) }() })
	})
	if strings.TrimSpace(w.unit.Setup) != "" {
		setup, cancel := context.WithTimeout(ctx, setupTimeout)
		defer cancel()
		if _, err := w.must(setup, learn.Script{Text: "set -e\n" + w.unit.Setup}); err != nil {
			return fmt.Errorf("its setup %w", err)
		}
	}
	if strings.TrimSpace(w.unit.Background) != "" {
		w.served.Go(func() error { _, _, _ = w.run(w.ctx, learn.Script{Text: w.unit.Background}); return nil })
	}
	return nil
}

// setupTimeout is how long the setup of a unit may take.
const setupTimeout = time.Minute

// enter begins the step under way. The caller holds mu.
func (s *Session) enter(w *work) {
	w.since, w.right, w.hints, w.solved, w.checks = time.Now(), false, 0, "", nil
	if w.held != nil {
		w.held.stop()
		w.held = nil
	}
	if step := w.current(); step != nil {
		w.right = step.Question == nil
		for _, c := range step.Checks {
			w.checks = append(w.checks, labapi.LessonCheck{Text: c.String()})
		}
		if step.Hold != nil {
			w.held = s.hold(w, step)
		}
	}
	s.publish()
}

// publish makes what has changed visible. The caller holds mu.
func (s *Session) publish() {
	l := &s.lesson
	l.Generation++
	l.Units = s.units()
	if next := s.record.Next(s.course); next != nil {
		l.Next = next.ID
	} else {
		l.Next = ""
	}
	l.Unit, l.Title, l.Minutes, l.Shell, l.Answered = "", "", 0, "", false
	l.Steps, l.Step, l.Text, l.HTML, l.Question, l.Checks, l.Held, l.Hints, l.HintsLeft, l.Solution = []labapi.LessonStep{}, 0, "", "", "", []labapi.LessonCheck{}, nil, []string{}, 0, ""
	if w := s.work; w != nil {
		l.Unit, l.Title, l.Minutes, l.Shell, l.Step, l.Answered = w.unit.ID, w.unit.Title, w.unit.Minutes, w.unit.Shell, w.step, w.right
		for i, step := range w.unit.Steps {
			l.Steps = append(l.Steps, labapi.LessonStep{Title: step.Title, Passed: i < w.step, Read: step.Read()})
		}
		if step := w.current(); step != nil {
			l.Text, l.HTML = step.Text, learn.HTML(step.Text)
			if step.Question != nil {
				l.Question = step.Question.Text
			}
			l.Checks = append(l.Checks, w.checks...)
			l.Hints, l.HintsLeft = append(l.Hints, step.Hints[:w.hints]...), len(step.Hints)-w.hints
			l.Solution = w.solved
			if w.held != nil {
				l.Held = w.held.facts
			}
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// notice shows a message.
func (s *Session) notice(text string, good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lesson.Notice, s.lesson.Good = text, good
	s.publish()
}

// units are those of the student, with their states.
func (s *Session) units() []labapi.LessonUnit { return learn.List(s.course, s.record) }

// Lesson implements [labapi.Teacher].
func (s *Session) Lesson(ctx context.Context, after uint64) (*labapi.Lesson, error) {
	for {
		s.mu.Lock()
		l, changed := s.lesson, s.changed
		s.mu.Unlock()
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

// invalid is the error of a command that cannot be carried out.
func invalid(format string, args ...any) error {
	return &observe.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Run runs a course in namespaces of its own, and returns the exit code.
func Run(o Options) (int, error) {
	return netns.Isolation{
		Foreground: true,
		Prepare: func() ([]*os.File, error) {
			own, err := reserve()
			if err != nil {
				return nil, err
			}
			files, err := lab.Reserve(labName, o.Page)
			if err != nil {
				return nil, errors.Join(err, own.Close())
			}
			return append(files, own), nil
		},
		Main: func(files []*os.File) int { return report(o, inside(o, files)) },
	}.Run()
}

// labName is the name of all labs of a session, outside.
const labName = "learn"

// report prints an error, and returns the exit code.
func report(o Options, err error) int {
	if err != nil {
		fmt.Fprintln(o.Stderr, "nfqproxy:", err)
	}
	return exitcode.Of(err)
}

func inside(o Options, files []*os.File) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	s := New(o.Course, o.Record, files[:2])
	var served errgroup.Group
	serving, cancel := context.WithCancel(ctx)
	served.Go(func() error { return s.Serve(serving, files[2]) })
	defer func() {
		cancel() // first: a command that is under way may start a lab
		err = errors.Join(err, served.Wait(), s.Close())
	}()
	if _, err := s.Do(ctx, labapi.LessonCommand{Command: "start", Argument: o.Unit}); ctx.Err() != nil {
		return nil // Ctrl-C
	} else if err != nil {
		return err
	}
	return o.Front(ctx, s)
}

// RunProof proves a unit in namespaces of its own, and returns the exit code.
func RunProof(o Options, u *learn.Unit) (int, error) {
	return netns.Isolation{Main: func([]*os.File) int {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		return report(o, exitcode.Negative(Prove(ctx, u)))
	}}.Run()
}

// Enter opens a shell in the lab of the session that this user runs, on this process's terminal; an empty host is that of
// the unit's shell. It returns the exit code.
func Enter(host string) (int, error) {
	if host == "" {
		var err error
		if host, err = Send(labapi.LessonCommand{Command: "shell"}); err != nil {
			return 1, err
		}
	}
	script := "cd " + unitDir + " && PATH=" + binDir + ":$PATH && exec bash --rcfile " + startFile
	return lab.Exec("", host, []string{"bash", "-c", script})
}
