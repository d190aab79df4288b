package screen

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	viewterminal "github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/visible"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// model is the full screen: the lesson, the shell, and a line with the keys.
type model struct {
	ctx  context.Context // of requests; bubbletea has no better place for it
	room session.Room
	// send gives the program a message from another goroutine.
	send func(tea.Msg)

	width, height int
	lesson        *labapi.Lesson
	unit          string // of the terminal
	term          *terminal
	redraw        atomic.Bool // a message about output is on its way
	scroll        int         // lines of the lesson above the screen
	whole         bool        // the lesson has the screen for itself
	message       string      // of a key's command
	color         bool
}

type (
	lessonMsg  struct{ *labapi.Lesson }
	outputMsg  struct{}
	endedMsg   struct{ *terminal }
	commandMsg struct{ text string }
)

// runFull shows a session full screen until the student quits.
func runFull(ctx context.Context, room session.Room, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := &model{ctx: ctx, room: room, width: 80, height: 24, color: os.Getenv("NO_COLOR") == ""}
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.Stdin), tea.WithOutput(o.Terminal), tea.WithoutSignalHandler())
	m.send = p.Send
	go func() {
		select {
		case <-room.Finished():
			p.Quit()
		case <-ctx.Done():
		}
	}()
	_, err := p.Run()
	if m.term != nil {
		m.term.close()
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Init implements [tea.Model].
func (m *model) Init() tea.Cmd { return m.wait(0) }

// wait waits for the next change of the lesson.
func (m *model) wait(after uint64) tea.Cmd {
	return func() tea.Msg {
		l, err := m.room.Lesson(m.ctx, after)
		if err != nil || m.ctx.Err() != nil {
			return nil
		}
		return lessonMsg{l}
	}
}

// Update implements [tea.Model].
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 20), max(msg.Height, 6)
		m.layOut()
	case lessonMsg:
		switch before := m.lesson; {
		case before == nil || before.Step != msg.Step || before.Unit != msg.Unit:
			m.scroll, m.message = 0, ""
		case len(before.Hints) != len(msg.Hints) || before.Notice != msg.Notice || before.Solution != msg.Solution || len(before.Held) != len(msg.Held):
			m.scroll = bottom // where the new lines are
		}
		m.lesson = msg.Lesson
		m.openShell()
		m.layOut()
		return m, m.wait(msg.Generation)
	case outputMsg:
		m.redraw.Store(false)
	case endedMsg:
		if msg.terminal == m.term {
			m.term.close()
			m.term = nil
			m.openShell()
		}
	case commandMsg:
		m.message, m.scroll = msg.text, bottom
	case tea.PasteMsg:
		if m.term != nil {
			m.term.Paste(msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.key(msg)
	}
	return m, nil
}

// openShell starts a shell, where there is none and a unit is under way.
func (m *model) openShell() {
	if m.term != nil || m.lesson == nil || m.lesson.Unit == "" {
		return
	}
	_, _, width, height := m.shellPlace()
	changed := func() {
		if !m.redraw.Swap(true) {
			m.send(outputMsg{})
		}
	}
	t, err := openTerminal(m.room, width, height, changed, func(t *terminal) { m.send(endedMsg{t}) })
	if err != nil { // between two units; the next change of the lesson comes soon
		m.message = err.Error()
		return
	}
	m.term, m.unit = t, m.lesson.Unit
}

func (m *model) layOut() {
	if m.term != nil && !m.whole {
		_, _, width, height := m.shellPlace()
		m.term.resize(width, height)
	}
}

// keys are the keys that the shell does not get.
var keys = []struct{ key, does string }{
	{"F2", "text"}, {"F3", "hint"}, {"F4", "check"}, {"F5", "next"}, {"F6", "page"}, {"PgUp/PgDn", "scroll"}, {"F10", "quit"},
}

func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "f2":
		m.whole, m.scroll = !m.whole, 0
		m.layOut()
	case "f3":
		return m.do("hint")
	case "f4":
		return m.do("check")
	case "f5":
		return m.do("next")
	case "f6":
		m.message, m.scroll = "web page: "+m.room.Page(), bottom
	case "f10":
		return m.do("quit")
	case "pgup":
		m.scroll = max(0, m.scroll-5)
	case "pgdown":
		m.scroll += 5
	default:
		if m.whole { // nobody types into a shell that is not shown
			m.whole, m.scroll = false, 0
			m.layOut()
		}
		switch {
		case m.term == nil:
			if k.String() == "ctrl+c" {
				return m.do("quit")
			}
		case k.Text != "":
			m.term.SendText(k.Text)
		default:
			m.term.SendKey(vt.KeyPressEvent{Text: k.Text, Mod: k.Mod, Code: k.Code})
		}
	}
	return nil
}

// bottom scrolls to the end of the lesson.
const bottom = 1 << 20

// do carries a command of a key out.
func (m *model) do(command string) tea.Cmd {
	m.message = ""
	return func() tea.Msg {
		_, err := m.room.Do(m.ctx, labapi.LessonCommand{Command: command})
		switch {
		case err != nil:
			return commandMsg{err.Error()}
		case command == "check":
			return commandMsg{"checked"}
		}
		return nil
	}
}

// wide is the least width for the lesson beside the shell; below it, the lesson is above.
const wide = 140

// textWidth is the width of the lesson beside the shell.
const textWidth = 78

// shellPlace is where the shell is.
func (m *model) shellPlace() (x, y, width, height int) {
	if m.width >= wide {
		return textWidth + 3, 0, m.width - textWidth - 3, m.height - 1
	}
	rows := len(m.text(m.width))
	above := min(rows, max(m.height/2, m.height-2-12))
	return 0, above + 1, m.width, max(m.height-above-2, 1)
}

// text is the lesson, in lines of a width.
func (m *model) text(width int) []string {
	l := m.lesson
	if l == nil {
		return []string{""}
	}
	var b strings.Builder
	if l.Unit != "" {
		b.WriteString(learn.LessonText(l))
	}
	for i, h := range l.Hints {
		b.WriteString("\nHint " + string(rune('1'+i)) + ": " + learn.HintText(h) + "\n")
	}
	if l.Solution != "" {
		b.WriteString("\nSolution:\n" + learn.Indented(l.Solution))
	}
	if l.Notice != "" {
		b.WriteString("\n" + learn.NoticeText(l.Notice) + "\n")
	}
	if m.message != "" {
		b.WriteString("\n" + m.message + "\n")
	}
	lines := strings.Split(strings.TrimRight(ansi.Wrap(visible.Quote(b.String()), width, ""), "\n"), "\n")
	for i, line := range lines {
		lines[i] = m.paint(i, line)
	}
	return lines
}

// toDo begins the line of a task that is not done.
const toDo = "[to do]"

// paint colours a line of the lesson by how it begins; no meaning is in the colour alone.
func (m *model) paint(number int, line string) string {
	color := ""
	switch {
	case !m.color:
	case number == 0 || number == 2:
		color = "1"
	case strings.HasPrefix(line, "[done]"), strings.HasPrefix(line, "done: "), strings.HasPrefix(line, "right: "):
		color = "32"
	case strings.HasPrefix(line, learn.WrongNotice):
		color = "31"
	case strings.HasPrefix(line, toDo):
		color = "33"
	}
	if color == "" {
		return line
	}
	return "\x1b[" + color + "m" + line + "\x1b[0m"
}

// View implements [tea.Model].
func (m *model) View() tea.View {
	v := tea.NewView(m.render())
	v.AltScreen, v.WindowTitle = true, "nfqproxy learn"
	if m.term != nil && !m.whole {
		x, y, _, _ := m.shellPlace()
		at := m.term.CursorPosition()
		v.Cursor = tea.NewCursor(x+at.X, y+at.Y)
	}
	return v
}

// render is the screen.
func (m *model) render() string {
	var lines []string
	switch x, y, _, height := m.shellPlace(); {
	case m.whole:
		lines = m.shown(m.width, m.height-1)
	case m.width >= wide:
		left, right := m.shown(textWidth, height), m.shellLines(height)
		for i := range height {
			lines = append(lines, pad(left[i], x-2)+"| "+right[i])
		}
	default:
		lines = append(m.shown(m.width, y-1), m.rule(m.width))
		lines = append(lines, m.shellLines(height)...)
	}
	return strings.Join(append(lines, m.bar()), "\n")
}

// rule separates the lesson from the shell below it.
func (m *model) rule(width int) string {
	title := "-- shell "
	if m.lesson != nil && m.lesson.Shell != "" {
		title = "-- " + viewterminal.Replace(m.lesson.Shell) + " "
		if notice, _, _ := strings.Cut(learn.NoticeText(m.lesson.Notice), "\n"); notice != "" { // the lesson may have it below the screen
			title += "-- " + ansi.Truncate(viewterminal.Replace(notice), max(0, width-ansi.StringWidth(title)-6), "...") + " "
		}
	}
	title = ansi.Truncate(title, width, "")
	return title + strings.Repeat("-", max(0, width-ansi.StringWidth(title)))
}

// isTask reports whether a line of the lesson, perhaps with colors, is a task to do.
func isTask(line string) bool { return strings.HasPrefix(ansi.Strip(line), toDo) }

// shown are the lines of the lesson that are on the screen.
func (m *model) shown(width, height int) []string {
	all := m.text(width)
	m.scroll = min(m.scroll, max(0, len(all)-height))
	lines := append([]string(nil), all[m.scroll:min(len(all), m.scroll+height)]...)
	if m.scroll+height < len(all) && height > 1 {
		more := "more"
		if slices.ContainsFunc(all[m.scroll+height-1:], isTask) {
			more = "more, with the task"
		}
		lines[height-1] = ansi.Truncate("... (PgDn: "+more+", F2: whole text)", width, "")
	}
	for len(lines) < height {
		lines = append(lines, "")
	}
	return lines
}

func (m *model) shellLines(height int) []string {
	var lines []string
	if m.term != nil {
		lines = strings.Split(m.term.Render(), "\n")
	}
	for len(lines) < height {
		lines = append(lines, "")
	}
	return lines[:height]
}

// bar is the line with the keys.
func (m *model) bar() string {
	var parts []string
	for _, k := range keys {
		parts = append(parts, k.key+" "+k.does)
	}
	text := ansi.Truncate(strings.Join(parts, "  "), m.width, "")
	if m.color {
		return "\x1b[7m" + pad(text, m.width) + "\x1b[0m"
	}
	return text
}

func pad(line string, width int) string {
	return line + strings.Repeat(" ", max(0, width-ansi.StringWidth(line)))
}
