// Package screen shows a course on a terminal.
package screen

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// Options are how a course is shown.
type Options struct {
	// Plain: as lines of text, without control of the terminal. It is so where there is no terminal.
	Plain bool
	Stdin *os.File
	// Stdout gets the lines of text. The full screen needs the terminal itself: what a shell prints is rendered by an
	// emulator, and the texts of lessons are quoted.
	Stdout   io.Writer
	Terminal *os.File
}

// Front returns what shows a session.
func Front(o Options) func(context.Context, session.Room) error {
	front := runFull
	if o.Plain || !term.IsTerminal(int(o.Stdin.Fd())) || !term.IsTerminal(int(o.Terminal.Fd())) {
		front = runPlain
	}
	return func(ctx context.Context, s session.Room) error { return front(ctx, s, o) }
}

// plainHelp is printed at the start.
const plainHelp = `Commands: answer TEXT, hint, check, next, text, solution, reset, again, list,
start UNIT, quit. Open a shell in the lab in another terminal: nfqproxy learn shell
`

// runPlain prints what changes, and reads commands, until the student quits or the input ends.
func runPlain(ctx context.Context, s session.Room, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	fmt.Fprint(o.Stdout, plainHelp+"\n")
	lines := make(chan string)
	go func() { // ends with the process
		defer close(lines)
		in := bufio.NewScanner(o.Stdin)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	changes := make(chan *labapi.Lesson)
	go func() {
		var after uint64
		for ctx.Err() == nil {
			l, err := s.Lesson(ctx, after)
			if err != nil {
				return
			}
			after = l.Generation
			select {
			case changes <- l:
			case <-ctx.Done():
				return
			}
		}
	}()
	p := printer{Writer: o.Stdout}
	// What a command changes is printed before the next one: it may be the last.
	now := func() error {
		l, err := s.Lesson(ctx, 0)
		if err == nil {
			p.show(l)
		}
		return err
	}
	if err := now(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Finished():
			return nil
		case l := <-changes:
			p.show(l)
		case line, ok := <-lines:
			if !ok {
				return nil
			}
			command, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
			if command == "" {
				continue
			}
			text, err := s.Do(ctx, labapi.LessonCommand{Command: command, Argument: strings.TrimSpace(argument)})
			p.reply(command, text, err)
			if err := now(); err != nil {
				return err
			}
		}
	}
}

// printer prints changes of a lesson.
type printer struct {
	io.Writer
	generation uint64
	unit       string
	step       int
	notice     string
	replied    string // what reply has printed of a change to come
	held       int
	checks     map[string]bool // by their texts: met; nil: the step is printed
}

// reply prints what a command reports. What is a change of the lesson is printed by show.
func (p *printer) reply(command, text string, err error) {
	switch {
	case err != nil:
		text = err.Error()
	case command == "start" || command == "reset" || command == "again" || command == "next":
		p.checks = nil
		return
	}
	if text != "" {
		fmt.Fprintln(p, strings.TrimRight(text, "\n"))
	}
	p.replied = text
}

// show prints what has changed.
func (p *printer) show(l *labapi.Lesson) {
	if l.Generation < p.generation || l.Generation == p.generation && p.checks != nil {
		return
	}
	p.generation = l.Generation
	notice := learn.NoticeText(l.Notice)
	if notice != "" && notice != p.notice && notice != p.replied {
		fmt.Fprintln(p, notice)
	}
	p.notice, p.replied = notice, ""
	if l.Unit == "" {
		return
	}
	if l.Unit != p.unit || l.Step != p.step || p.checks == nil {
		p.unit, p.step, p.held, p.checks = l.Unit, l.Step, 0, make(map[string]bool)
		fmt.Fprintln(p, "\n"+strings.TrimRight(learn.LessonText(l), "\n")+"\n")
	}
	if len(l.Held) != p.held {
		for _, fact := range l.Held {
			fmt.Fprintln(p, "  "+fact)
		}
	}
	p.held = len(l.Held)
	for _, c := range l.Checks {
		if met, known := p.checks[c.Text]; known && met != c.Met {
			fmt.Fprintf(p, "%s: %s\n", map[bool]string{true: "done", false: "no longer done"}[c.Met], c.Text)
		}
		p.checks[c.Text] = c.Met
	}
}
