package learn

import (
	"bytes"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

var screenshots = flag.String("learn.screenshots", "", "make screenshots of the course in the web page and put them into this directory")

// TestPage goes through a chapter in the web page: it reads each task there, and types the solutions into the page's
// terminal and the answers into its form.
func TestPage(t *testing.T) {
	file, c := student(t)
	chapter := inFrontEnd(c)
	for _, u := range chapter {
		requireProgramsOf(t, u)
	}
	plain := startPlain(t, file)
	p := openPage(t, plain.page())
	for i, u := range chapter {
		p.opensUnit(u)
		for n, step := range u.Steps {
			p.readsTask(u, n)
			if i == 0 && n == 0 {
				p.shoot("start")
				p.takesHint(step)
			}
			p.solves(step, func() {
				if i == 0 && n == 0 {
					p.answersWrong(step)
				}
				if n == 0 {
					p.shoot(u.ID)
				}
			})
			p.WaitFor("a green step", fmt.Sprintf("document.querySelectorAll('.lesson-steps .passed').length === %d", n+1))
		}
		p.WaitFor("the end of the unit", lessonStep+" === 'The unit is finished' && "+lessonNotice+".includes("+webtest.Quote("unit "+u.ID+" is finished")+")")
		if i < len(chapter)-1 {
			p.Click("#learn-next")
		}
	}
	p.shoot("end")
	p.Click("[aria-controls=lesson-units]")
	p.WaitFor("the units that are finished", fmt.Sprintf("document.querySelector('.lesson-units section .hint').textContent === '%d of %d finished'", len(chapter), len(c.Chapters[0].Units)))
	p.Run(chromedp.Navigate("about:blank")) // what a page without its course reports is no complaint
	plain.quits(chapter[len(chapter)-1].ID)

	r, err := learn.OpenRecord(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range chapter {
		got := r.Progress(u.ID)
		extra := 0
		if i == 0 {
			extra = 1
		}
		if got.Finished.IsZero() || got.Steps != len(u.Steps) || got.Hints != extra || got.Wrong != extra || got.Solved != 0 {
			t.Errorf("the record of unit %s is %+v, want it finished with %d steps, hints and wrong answers: %d, no solution", u.ID, got, len(u.Steps), extra)
		}
	}
	if i := r.Verify(); i >= 0 {
		t.Errorf("event %d of the record does not follow", i)
	}
}

// plainCourse is a course that runs in plain mode.
type plainCourse struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	output bytes.Buffer // complete when drained is closed

	begun, drained chan struct{}
}

// startPlain starts the course, and waits for its first step.
func startPlain(t *testing.T, record string) *plainCourse {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd, output := e2etest.Start(t, r, "learn", "--plain", "--record", record)
	_ = r.Close()
	c := &plainCourse{t: t, cmd: cmd, in: w, begun: make(chan struct{}), drained: make(chan struct{})}
	t.Cleanup(func() {
		_ = w.Close()
		_ = cmd.Process.Kill() // before the file that the reader waits for is closed
		<-c.drained
		if t.Failed() {
			t.Logf("the course printed\n%s", &c.output)
		}
	})
	go func() {
		defer close(c.drained)
		begun := false
		for b := make([]byte, 4096); ; {
			n, err := output.Read(b)
			c.output.Write(b[:n])
			if !begun && (err != nil || bytes.Contains(c.output.Bytes(), []byte("(step 1 of"))) {
				begun = true
				close(c.begun)
			}
			if err != nil {
				return
			}
		}
	}()
	netnstest.Receive(t, c.begun, "the first step of the course")
	return c
}

var pageAddress = regexp.MustCompile(`(?m)^Web page: (http://127\.0\.0\.1:\d+/#token=\S+)$`)

// page is the address of the page, as the course's lab prints it.
func (c *plainCourse) page() string {
	c.t.Helper()
	code, stdout, stderr := e2etest.Run(c.t, nil, "lab", "status")
	m := pageAddress.FindStringSubmatch(stdout)
	if code != 0 || m == nil {
		c.t.Fatalf("lab status: exit code %d\n%s%s", code, stdout, stderr)
	}
	return m[1]
}

// quits ends the course by its own command. It has printed what happened in the page, to the end of the last unit.
func (c *plainCourse) quits(last string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "quit\n"); err != nil {
		c.t.Fatal(err)
	}
	netnstest.Receive(c.t, c.drained, "the end of the course")
	if err := c.cmd.Wait(); err != nil {
		c.t.Error(err)
	}
	if text := c.output.String(); !strings.Contains(text, "unit "+last+" is finished") || !strings.Contains(text, "\nwrong: ") || strings.Contains(text, "`") {
		c.t.Error("the output lacks the end of the unit or the wrong answer, or it has marks of code")
	}
}

// coursePage is the tab Learn of the page.
type coursePage struct {
	*webtest.Page
	url string
}

func openPage(t testing.TB, url string) *coursePage {
	t.Helper()
	return &coursePage{webtest.Open(t, url), url}
}

const (
	lessonStep   = "document.querySelector('.lesson > h2').textContent"
	lessonNotice = "document.querySelector('.lesson-notice').textContent"
	// terminal is what the page's terminal shows, without white space: long lines are in several rows.
	terminal      = "document.querySelector('.xterm-rows').textContent.replace(/\\s/g, '')"
	prompt        = ":unit#"
	shellHasFocus = "document.querySelector('.shell-place').contains(document.activeElement)"
)

// squeezed is a text without white space, in which the page and the terminal differ.
func squeezed(text string) string { return strings.Join(strings.Fields(text), "") }

// unmarked is a text without the marks of code.
func unmarked(text string) string { return strings.ReplaceAll(text, "`", "") }

// opensUnit waits for a unit, and for a shell of its own, which has nothing but a prompt.
func (p *coursePage) opensUnit(u *learn.Unit) {
	p.Helper()
	p.WaitFor("unit "+u.ID, "document.getElementById('title').textContent === "+webtest.Quote(u.ID+" "+u.Title))
	p.WaitFor("a new shell", "/^[^:]+"+prompt+"$/.test("+terminal+")")
}

var tag = regexp.MustCompile(`<[^>]*>`)

// readsTask waits for a step with its text and its task.
func (p *coursePage) readsTask(u *learn.Unit, n int) {
	p.Helper()
	step := u.Steps[n]
	p.WaitFor("the step "+step.Title, lessonStep+" === "+webtest.Quote(fmt.Sprintf("Step %d of %d: %s", n+1, len(u.Steps), step.Title)))
	text := html.UnescapeString(tag.ReplaceAllString(learn.HTML(step.Text), ""))
	p.WaitFor("the text of "+step.Title, "document.querySelector('.prose').textContent.replace(/\\s/g, '') === "+webtest.Quote(squeezed(text)))
	if step.Question != nil {
		p.WaitFor("the question", "document.querySelector('.question p').textContent === "+webtest.Quote(unmarked(strings.TrimSpace(step.Question.Text))))
	}
	for i, check := range step.Checks {
		p.WaitFor("a check", fmt.Sprintf("document.querySelectorAll('.checks li')[%d].querySelector('p').textContent === %s", i, webtest.Quote(unmarked(check.String()))))
	}
}

// shows waits for a text in an element; what is marked as code must be code there.
func (p *coursePage) shows(what, selector, text string) {
	p.Helper()
	p.WaitFor(what, fmt.Sprintf("document.querySelector(%s).textContent === %s && document.querySelectorAll(%s).length === %d",
		webtest.Quote(selector), webtest.Quote(unmarked(text)), webtest.Quote(selector+" code"), strings.Count(text, "`")/2))
}

// takesHint requests the first hint.
func (p *coursePage) takesHint(step *learn.Step) {
	p.Helper()
	p.Click("#learn-hint")
	p.shows("the hint", ".hints li", step.Hints[0])
}

// solves types a solution: its answer into the form, and everything else into the terminal. It calls before the answer.
func (p *coursePage) solves(step *learn.Step, answering func()) {
	p.Helper()
	if step.Read() {
		p.Click("#learn-next")
		return
	}
	for line := range strings.Lines(step.Solution) {
		if answer, is := strings.CutPrefix(strings.TrimSpace(line), "answer "); is {
			answering()
			p.answers(answer)
		} else {
			p.typesLine(line)
		}
	}
}

// answersWrong gives a wrong answer, and reads the reason.
func (p *coursePage) answersWrong(step *learn.Step) {
	p.Helper()
	for _, w := range step.Question.Wrong {
		if strings.Contains(w.Because, "`") {
			p.answers(w.Answer)
			p.shows("the reason", ".lesson-notice[data-tone=bad] p", "wrong: "+w.Because)
			return
		}
	}
	p.Fatalf("step %s has no wrong answer with code in its reason", step.Name)
}

func (p *coursePage) answers(text string) {
	p.Helper()
	p.Enter("#answer", text)
	p.Press(kb.Enter)
}

// typesLine types a line into the terminal, and waits for the prompt after it.
func (p *coursePage) typesLine(line string) {
	p.Helper()
	if !webtest.Value[bool](p.Page, shellHasFocus) {
		p.Press(kb.F2)
		p.WaitFor("the shell has the focus", shellHasFocus)
	}
	line = strings.TrimSpace(line)
	shown := squeezed(line)
	p.Press(line)
	p.WaitFor("the line "+line, terminal+".endsWith("+webtest.Quote(shown[max(0, len(shown)-5):])+")")
	p.Press(kb.Enter)
	p.WaitFor("the end of "+line, terminal+".endsWith("+webtest.Quote(prompt)+")")
}

// looks are those of the screenshots: of a laptop and of a phone.
var looks = []struct {
	name, theme   string
	width, height int64
	scale         float64
}{
	{"phone", "light", 390, 844, 2},
	{"phone-dark", "dark", 390, 844, 2},
	{"dark", "dark", 1440, 900, 1},
	{"light", "light", 1440, 900, 1}, // the last one stays
}

// shoot makes screenshots of the tab and, in another one, of the projector view, if they are wanted.
func (p *coursePage) shoot(name string) {
	if *screenshots == "" {
		return
	}
	p.Helper()
	p.look(name, "scrollTo(0, 0)")
	p.look(name+"-shell", "document.querySelector('.lesson-shell').scrollIntoView()")
	class := openPage(p.TB, p.url)
	class.GoTo("#/learn?projector")
	class.WaitFor("the projector view", "!!document.querySelector('.projector .lesson-steps li')")
	class.look(name+"-projector", "scrollTo(0, 0)")
	class.Run(chromedp.Navigate("about:blank"))
	p.Run(page.BringToFront()) // in the background nothing is drawn
}

// look makes screenshots at a place of the page.
func (p *coursePage) look(name, at string) {
	p.Helper()
	for _, l := range looks {
		p.Run(emulation.SetDeviceMetricsOverride(l.width, l.height, l.scale, l.width < 500),
			chromedp.Evaluate("document.documentElement.dataset.theme = "+webtest.Quote(l.theme)+"; "+at, nil))
		p.WaitFor("the end of transitions", "document.getAnimations().every(a => a.playState === 'finished')")
		p.Shoot(filepath.Join(*screenshots, name+"-"+l.name+".png"))
	}
}
