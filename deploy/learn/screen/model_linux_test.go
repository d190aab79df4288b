package screen

import (
	"fmt"
	"io"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// newModel is a full screen with a lesson, of a size. Messages of other goroutines come to the channel.
func newModel(t *testing.T, r *fakeRoom, width, height int) (*model, chan tea.Msg) {
	t.Helper()
	messages := make(chan tea.Msg, 100)
	m := &model{ctx: t.Context(), room: r, width: 80, height: 24, send: func(msg tea.Msg) { messages <- msg }}
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.show(r)
	t.Cleanup(func() {
		if m.term != nil {
			m.term.close()
		}
	})
	return m, messages
}

// show has the model show the lesson of the room.
func (m *model) show(r *fakeRoom) {
	r.mu.Lock()
	l := r.lesson
	r.mu.Unlock()
	m.Update(lessonMsg{&l})
}

// screen is what is shown, without spaces at the ends of lines.
func (m *model) screen() string {
	var lines []string
	for _, line := range strings.Split(m.render(), "\n") {
		lines = append(lines, strings.TrimRight(ansi.Strip(line), " "))
	}
	return strings.Join(lines, "\n")
}

// write has the shell write a text, and the model show it.
func write(t *testing.T, m *model, s *fakeShell, messages chan tea.Msg, text string) {
	t.Helper()
	if _, err := io.WriteString(s.w, text); err != nil {
		t.Fatal(err)
	}
	m.Update(netnstest.Receive(t, messages, "a message of the shell"))
}

func key(name string) tea.KeyPressMsg {
	keys := map[string]tea.Key{
		"f2": {Code: tea.KeyF2}, "f3": {Code: tea.KeyF3}, "f4": {Code: tea.KeyF4}, "f5": {Code: tea.KeyF5}, "f6": {Code: tea.KeyF6}, "f10": {Code: tea.KeyF10},
		"pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown}, "enter": {Code: tea.KeyEnter}, "up": {Code: tea.KeyUp}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl},
	}
	if k, ok := keys[name]; ok {
		return tea.KeyPressMsg(k)
	}
	return tea.KeyPressMsg{Code: rune(name[0]), Text: name}
}

// press presses a key, and carries out what follows.
func (m *model) press(name string) {
	if _, cmd := m.Update(key(name)); cmd != nil {
		if msg := cmd(); msg != nil {
			m.Update(msg)
		}
	}
}

func TestScreen80x24(t *testing.T) {
	l := twoSteps()
	task(&l)
	r := newRoom(l)
	m, messages := newModel(t, r, 80, 24)
	write(t, m, r.shells[0], messages, "shell:unit# ls\r\ndata.txt\r\nshell:unit# ")
	want := `1.1 First (step 2 of 2)

Task

Do this.

[to do] How many?  (answer ...)
[to do] a check
-- shell -----------------------------------------------------------------------
shell:unit# ls
data.txt
shell:unit#` + strings.Repeat("\n", 11) + `
F2 text  F3 hint  F4 check  F5 next  F6 page  PgUp/PgDn scroll  F10 quit`
	equal(t, m.screen(), want)
	if c := m.View().Cursor; c == nil || c.X != 12 || c.Y != 11 {
		t.Errorf("the cursor is at %+v", c)
	}
	if s := r.shells[0].size; s != (labapi.TerminalSize{Columns: 80, Rows: 14}) {
		t.Errorf("the shell has %+v", s)
	}
}

func TestScreen160x40(t *testing.T) {
	r := newRoom(twoSteps())
	m, messages := newModel(t, r, 160, 40)
	write(t, m, r.shells[0], messages, "shell:unit# ")
	lines := strings.Split(m.screen(), "\n")
	if len(lines) != 40 || lines[0] != "1.1 First (step 1 of 2)"+strings.Repeat(" ", 56)+"| shell:unit#" || lines[1] != strings.Repeat(" ", 79)+"|" {
		t.Errorf("the screen is\n%s", strings.Join(lines, "\n"))
	}
	if s := r.shells[0].size; s != (labapi.TerminalSize{Columns: 79, Rows: 39}) {
		t.Errorf("the shell has %+v", s)
	}
	if c := m.View().Cursor; c == nil || c.X != 81+12 || c.Y != 0 {
		t.Errorf("the cursor is at %+v", c)
	}
}

// TestSizes: at any size the screen has its number of lines, and none is wider than it.
func TestSizes(t *testing.T) {
	l := twoSteps()
	task(&l)
	l.Text = strings.Repeat("A line of the text, as long as one may be, with a ä and a 世界 in it to the end.\n", 16)
	l.Hints, l.Solution, l.Notice = []string{strings.Repeat("word ", 40)}, "curl\n", "wrong: "+strings.Repeat("no", 100)
	l.Shell = strings.Repeat("host", 10)
	r := newRoom(l)
	m, _ := newModel(t, r, 80, 24)
	for width := 1; width <= 200; width += 7 {
		for height := 1; height <= 60; height += 3 {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			for _, whole := range []bool{false, true} {
				m.whole = whole
				lines := strings.Split(m.render(), "\n")
				if len(lines) != max(height, 6) {
					t.Errorf("%dx%d, whole %v: %d lines", width, height, whole, len(lines))
				}
				for _, line := range lines {
					if n := ansi.StringWidth(line); n > max(width, 20) {
						t.Fatalf("%dx%d, whole %v: a line of %d columns: %q", width, height, whole, n, line)
					}
				}
				m.View()
			}
		}
	}
}

// No text of a course controls the terminal.
func TestForeignText(t *testing.T) {
	const bad = "\x1b]0;title\a\x1b[2J\u009b1m\r\u202e"
	l := twoSteps()
	task(&l)
	l.Title, l.Text, l.Question, l.Notice, l.Shell, l.Solution = bad, bad+"\n", bad, bad, bad, bad
	l.Hints, l.Held, l.Checks = []string{bad}, []string{bad}, []labapi.LessonCheck{{Text: bad, Detail: bad}}
	r := newRoom(l)
	r.closed = true
	m, _ := newModel(t, r, 160, 60)
	for _, width := range []int{80, 160} {
		m.Update(tea.WindowSizeMsg{Width: width, Height: 60})
		if got := m.render(); strings.ContainsAny(got, "\x1b\a\r\u009b\u202e") {
			t.Errorf("width %d: %q", width, got)
		}
	}
}

func TestKeys(t *testing.T) {
	l := twoSteps()
	task(&l)
	l.Text = strings.Repeat("a line\n", 12) + "the last line\n"
	r := newRoom(l)
	r.do = func(c labapi.LessonCommand) (string, error) {
		if c.Command == "next" {
			return "", fmt.Errorf("this step has a task")
		}
		return "", nil
	}
	m, messages := newModel(t, r, 80, 24)
	sees := func(text string, want bool) {
		t.Helper()
		if strings.Contains(m.screen(), text) != want {
			t.Errorf("the screen has %q: %v, want %v\n%s", text, !want, want, m.screen())
		}
	}
	write(t, m, r.shells[0], messages, "shell:unit# ")
	sees("... (PgDn: more, with the task, F2: whole text)", true)
	sees("[to do] a check", false)
	m.press("pgdown")
	m.press("pgdown")
	sees("[to do] a check", true)
	sees("1.1 First", false)
	for range 5 {
		m.press("pgup")
	}
	sees("1.1 First", true)
	m.press("f2")
	sees("1.1 First", true)
	sees("[to do] a check", true)
	sees("shell:unit#", false)
	m.press("f2")
	sees("shell:unit#", true)
	m.press("f2")
	m.press("x") // back to the shell that it is typed into
	sees("shell:unit#", true)
	if got := <-r.shells[0].typed; got != "x" {
		t.Errorf("the shell gets %q", got)
	}
	m.press("f3")
	m.press("f4")
	sees("checked", true)
	m.press("f5")
	sees("this step has a task", true)
	m.press("f6")
	sees("web page: the address of the page", true)
	for name, want := range map[string]string{"enter": "\r", "up": "\x1b[A", "ctrl+c": "\x03", "ä": "ä"} {
		m.press(name)
		if got := <-r.shells[0].typed; got != want {
			t.Errorf("%s: the shell gets %q, want %q", name, got, want)
		}
	}
	m.Update(tea.PasteMsg{Content: "echo pasted"})
	if got := <-r.shells[0].typed; got != "echo pasted" {
		t.Errorf("the shell gets %q", got)
	}
	m.press("f10")
	if got := strings.Join(r.commands, ", "); got != "hint, check, next, quit" {
		t.Errorf("the commands are %s", got)
	}
}

// A shell that ends is followed by another one; where there is none, the next change of the lesson brings it.
func TestShellEnds(t *testing.T) {
	r := newRoom(twoSteps())
	m, messages := newModel(t, r, 80, 24)
	write(t, m, r.shells[0], messages, "first$ ")
	if err := r.shells[0].Close(); err != nil {
		t.Fatal(err)
	}
	for len(r.shells) == 1 {
		m.Update(netnstest.Receive(t, messages, "a message of the shell"))
	}
	write(t, m, r.shells[1], messages, "second$ ")
	if got := m.screen(); !strings.Contains(got, "second$") || strings.Contains(got, "first$") {
		t.Errorf("the screen is\n%s", got)
	}
	r.closed = true
	if err := r.shells[1].Close(); err != nil {
		t.Fatal(err)
	}
	for m.term != nil {
		m.Update(netnstest.Receive(t, messages, "a message of the shell"))
	}
	if got := m.screen(); !strings.Contains(got, "there is no shell here") {
		t.Errorf("the screen is\n%s", got)
	}
	m.press("x") // into nothing
	r.closed = false
	r.change(func(l *labapi.Lesson) { l.Notice = "changed" })
	m.show(r)
	if len(r.shells) != 3 || m.term == nil {
		t.Errorf("%d shells", len(r.shells))
	}
	m.press("ctrl+c")
	if got := netnstest.Receive(t, r.shells[2].typed, "what is typed"); got != "\x03" {
		t.Errorf("the shell gets %q", got)
	}
}

// Without a shell, Ctrl-C ends the course.
func TestCtrlCWithoutShell(t *testing.T) {
	r := newRoom(labapi.Lesson{Notice: "starting unit 1.1: First"})
	m, _ := newModel(t, r, 80, 24)
	if got := m.screen(); !strings.Contains(got, "starting unit 1.1: First") || strings.Contains(got, "finished") {
		t.Errorf("the screen is\n%s", got)
	}
	m.press("ctrl+c")
	netnstest.Receive(t, r.finished, "the end of the course")
}

// A shell that reads nothing does not stop the screen.
func TestShellThatDoesNotRead(t *testing.T) {
	r := newRoom(twoSteps())
	m, messages := newModel(t, r, 80, 24)
	r.shells[0].block = make(chan struct{})
	for range 5000 {
		m.press("x")
	}
	write(t, m, r.shells[0], messages, "still here")
	if got := m.screen(); !strings.Contains(got, "still here") {
		t.Errorf("the screen is\n%s", got)
	}
	close(r.shells[0].block)
}

// Colours have no meaning of their own, and NO_COLOR turns them off.
func TestColors(t *testing.T) {
	l := twoSteps()
	task(&l)
	l.Notice = "wrong: no"
	l.Checks[0].Met = true
	r := newRoom(l)
	m, _ := newModel(t, r, 80, 24)
	without := m.screen()
	if got := m.render(); strings.Contains(got, "\x1b[") {
		t.Errorf("without colours: %q", got)
	}
	m.color = true
	for _, text := range []string{"\x1b[1m1.1 First", "\x1b[33m[to do] How many?", "\x1b[32m[done] a check", "\x1b[31mwrong: no", "\x1b[7mF2 text"} {
		if !strings.Contains(m.render(), text) {
			t.Errorf("with colours the screen lacks %q", text)
		}
	}
	equal(t, m.screen(), without)
}

// A new step begins at its top; a notice is in view.
func TestScrollOfChanges(t *testing.T) {
	l := twoSteps()
	task(&l)
	l.Text = strings.Repeat("a line\n", 16)
	r := newRoom(l)
	m, _ := newModel(t, r, 80, 24)
	r.change(func(l *labapi.Lesson) { l.Notice, l.Hints = "wrong: `not so`", []string{"`look`"} })
	m.show(r)
	if got := m.screen(); !strings.Contains(got, "Hint 1: look\n\nwrong: not so\n-- shell -- wrong: not so ---") {
		t.Errorf("the screen is\n%s", got)
	}
	r.change(func(l *labapi.Lesson) { l.Step, l.Notice = 0, "" })
	m.show(r)
	if got := m.screen(); !strings.HasPrefix(got, "1.1 First") {
		t.Errorf("the screen is\n%s", got)
	}
}
