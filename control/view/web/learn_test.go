package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

// openCourse shows the page of a fake with a course, with its token.
func openCourse(t *testing.T, at string) (*page, *fakeTeacher) {
	t.Helper()
	f := newFake(t, newWorld(t, 5), 2)
	f.teacher = newFakeTeacher()
	p := open(t, f, "#token="+token)
	if at != "" {
		p.GoTo(at)
	}
	return p, f.teacher
}

const (
	stepTitle  = "document.querySelector('.lesson > h2').textContent"
	notice     = "document.querySelector('.lesson-notice').textContent"
	screenText = "document.querySelector('.xterm-rows').textContent"
)

func wantStep(p *page, title string) {
	p.Helper()
	p.WaitFor("the step "+title, fmt.Sprintf("%s === %s", stepTitle, webtest.Quote(title)))
}

// TestLearn goes through a unit by the page's own controls, with the keyboard.
func TestLearn(t *testing.T) {
	p, _ := openCourse(t, "")
	p.WaitFor("the course is the first view", "location.hash === '#/learn' && document.title === 'Learn · nfqproxy' && document.querySelector('#nav a[data-view=learn][aria-current]').checkVisibility()")
	wantStep(p, "Step 1 of 3: The cluster")
	p.WaitFor("the unit", "document.getElementById('title').textContent === '2.1 Where a ClusterIP is' && document.querySelector('.lesson-head .hint').textContent === 'What a Service is · about 8 minutes'")
	p.WaitFor("its text", "document.querySelectorAll('.prose em').length === 3 && document.querySelectorAll('.prose li').length === 2 && document.querySelector('.prose code').textContent === 'my-nginx-service'")
	p.WaitFor("progress in words", "[...document.querySelectorAll('.lesson-steps li')].map(x => x.textContent).join('; ') === '1The cluster: current; 2Which device has the address: to do; 3But a request has an answer: to do'")
	p.WaitFor("how to open a shell", "document.querySelector('.lesson-shell header').textContent.includes('nfqproxy learn shell')")
	p.Click("#learn-next")
	wantStep(p, "Step 2 of 3: Which device has the address")
	p.WaitFor("the focus is at the new step", "document.activeElement === document.querySelector('.lesson > h2')")
	p.WaitFor("the question", "document.querySelector('.question').textContent === 'to doWhich device of a node has the address 10.96.118.136?' && document.querySelector('.question code') && !document.querySelector('#learn-next').checkVisibility()")
	p.Press("a")
	p.WaitFor("the answer has the focus", "document.activeElement.id === 'answer'")
	p.Press("eth0", kb.Enter)
	p.WaitFor("a wrong answer", notice+" === 'wrong: eth0 is another device.' && document.querySelector('.lesson-notice').dataset.tone === 'bad' && document.querySelector('.lesson-notice[role=status]')")
	p.WaitFor("the answer can be typed again", "document.activeElement.id === 'answer' && getSelection().toString() === 'eth0'")
	for i := range fakeHints {
		p.Click("#learn-hint")
		p.WaitFor("a hint", fmt.Sprintf("document.querySelectorAll('.hints li').length === %d", i+1))
	}
	p.WaitFor("no more hints", "document.getElementById('learn-hint').disabled && document.querySelector('.hints code').textContent === 'ip -br address'")
	p.Click("#learn-solution")
	p.WaitFor("the solution", "document.querySelector('.solution pre').textContent.endsWith('answer none') && !document.getElementById('learn-solution').checkVisibility()")
	p.Enter("#answer", "none")
	p.Press(kb.Enter)
	wantStep(p, "Step 3 of 3: But a request has an answer")
	p.WaitFor("what was decided", notice+".includes('right: none') && document.querySelector('.lesson-notice pre').textContent.includes('KUBE-SERVICES') && "+notice+".includes('done: Which device')")
	p.WaitFor("nothing of the step before", "!document.querySelector('.hints li') && !document.querySelector('.solution').checkVisibility() && document.getElementById('answer').value === ''")
	p.WaitFor("a held packet", "document.querySelector('.held').textContent.includes('draw: 0.41')")
	p.Click("#learn-check")
	p.WaitFor("what is not done", notice+" === 'Not done yet: 3 things to do.'")
	p.Enter("#answer", "10.244.2.2")
	p.Press(kb.Enter)
	p.WaitFor("it is answered, and not done", "!document.querySelector('.answer-form').checkVisibility() && document.querySelector('.question .pill').textContent === 'done' && "+stepTitle+".startsWith('Step 3')")
}

// TestLearnLive: the page shows what happens elsewhere, keeps what is being typed, and moves the focus only if it would be lost.
func TestLearnLive(t *testing.T) {
	p, teacher := openCourse(t, "")
	wantStep(p, "Step 1 of 3: The cluster")
	if _, err := teacher.Do(t.Context(), labapi.LessonCommand{Command: "next"}); err != nil {
		t.Fatal(err)
	}
	wantStep(p, "Step 2 of 3: Which device has the address")
	if _, err := teacher.Do(t.Context(), labapi.LessonCommand{Command: "answer", Argument: "none"}); err != nil {
		t.Fatal(err)
	}
	wantStep(p, "Step 3 of 3: But a request has an answer")
	p.Enter("#answer", "10.244")
	teacher.change(func(l *labapi.Lesson) { l.Checks[1].Detail = "no entry yet" })
	p.WaitFor("a detail", "document.querySelectorAll('.checks li')[1].textContent.includes('no entry yet')")
	teacher.meet(0)
	p.WaitFor("a check", "document.querySelector('.checks .pill').textContent === 'done' && document.querySelectorAll('.checks .pill')[1].textContent === 'to do'")
	p.WaitFor("it is announced", "document.getElementById('announce').textContent === 'done: a flow to default/my-nginx-service was answered'")
	p.WaitFor("what is typed stays", "document.getElementById('answer').value === '10.244' && document.activeElement.id === 'answer'")
	// By the shell: the focus stays there.
	p.WaitFor("a shell", screenText+".includes('2.1 shell:unit$')")
	p.Press(kb.F2)
	p.WaitFor("the shell has the focus", "document.querySelector('.shell-place').contains(document.activeElement)")
	if _, err := teacher.Do(t.Context(), labapi.LessonCommand{Command: "answer", Argument: "10.244.2.2"}); err != nil {
		t.Fatal(err)
	}
	p.Press("done 2", kb.Enter)
	wantStep(p, "The unit is finished")
	if !webtest.Value[bool](p.Page, "document.querySelector('.shell-place').contains(document.activeElement)") {
		t.Error("the shell has lost the focus")
	}
	p.WaitFor("the next unit", "document.getElementById('learn-next').textContent === 'Next unit: 2.2 Names of Services'")
	p.Press(kb.F2, "n")
	wantStep(p, "Step 1 of 3: The cluster")
	p.WaitFor("the other unit, and a new shell in it", "document.getElementById('title').textContent === '2.2 Names of Services' && "+screenText+".includes('2.2 shell:unit$') && !"+screenText+".includes('2.1')")
	p.Press("u")
	p.WaitFor("all units", "document.querySelectorAll('.lesson-units section').length === 3 && document.activeElement.dataset.unit === '2.2'")
	p.WaitFor("their states", "[...document.querySelectorAll('.lesson-units button')].map(x => x.textContent).join('; ') === '1.1Two hosts and a cable6 minfinished; 1.2A router between networks8 minfinished; 2.1Where a ClusterIP is8 minfinished; 2.2Names of Services7 minopen; 2.3The chains of kube-proxy12 min; 3.1A port on all nodes9 min'")
	p.Click("[data-unit='3.1']")
	p.WaitFor("a unit of the list", "document.getElementById('title').textContent === '3.1 A port on all nodes' && document.querySelector('.lesson-units').hidden")
	p.Click("#learn-next")
	wantStep(p, "Step 2 of 3: Which device has the address")
	p.Click(".more summary")
	p.Click("#learn-reset")
	wantStep(p, "Step 1 of 3: The cluster")
	// The other views go on with the other lab.
	p.Press("g", "f")
	p.WaitFor("flows", "document.querySelectorAll('#rows tr').length > 2")
	if _, err := teacher.Do(t.Context(), labapi.LessonCommand{Command: "start", Argument: "1.1"}); err != nil {
		t.Fatal(err)
	}
	p.WaitFor("flows of the other lab", "location.hash === '#/flows' && document.querySelectorAll('#rows tr').length > 2")
	p.Press("g", "c")
	p.WaitFor("the course again", "document.getElementById('title').textContent === '1.1 Two hosts and a cable'")
}

// TestLearnStart: while a unit starts nothing moves; if it cannot start, the list of units opens, until a unit begins.
func TestLearnStart(t *testing.T) {
	p, teacher := openCourse(t, "#/learn")
	wantStep(p, "Step 1 of 3: The cluster")
	none := func(notice string, good bool) {
		teacher.change(func(l *labapi.Lesson) {
			*l = labapi.Lesson{Generation: l.Generation, Units: l.Units, Steps: []labapi.LessonStep{}, Checks: []labapi.LessonCheck{}, Hints: []string{}, Notice: notice, Good: good}
		})
	}
	const closed = "document.getElementById('lesson-units').hidden && document.querySelector('[aria-controls=lesson-units]').getAttribute('aria-expanded') === 'false'"
	none("starting unit 2.2: Names of Services", true)
	wantStep(p, "The next unit starts")
	p.WaitFor("no list", closed+" && "+notice+".startsWith('starting unit 2.2')")
	none("unit 2.2: its setup failed", false)
	wantStep(p, "No unit is running")
	p.WaitFor("the list", "!("+closed+") && document.querySelector('.prose').textContent === 'Select a unit.' && document.activeElement.dataset.unit === '1.1'")
	if _, err := teacher.Do(t.Context(), labapi.LessonCommand{Command: "start", Argument: "2.1"}); err != nil {
		t.Fatal(err)
	}
	wantStep(p, "Step 1 of 3: The cluster")
	p.WaitFor("no list", closed)
}

// TestLearnToken: without the token the page shows the step, and requests the token for all else.
func TestLearnToken(t *testing.T) {
	f := newFake(t, newWorld(t, 5), 2)
	f.teacher = newFakeTeacher()
	p := open(t, f, "#/learn")
	wantStep(p, "Step 1 of 3: The cluster")
	p.WaitFor("the form", "document.querySelector('.lesson form #field-token').checkVisibility() && !document.querySelector('.shell-place')")
	p.ExpectRefusals(1)
	p.Enter("#field-token", "wrong")
	p.Press(kb.Enter)
	p.Run(chromedp.Evaluate("document.querySelector('.lesson-shell').remove()", nil)) // its attempts would be errors on the console
	p.ExpectRefusals(100)
	p.Click("#learn-next")
	p.WaitFor("the token is wrong", "document.querySelector('.lesson .problem')?.textContent.startsWith('wrong token') && document.activeElement.id === 'field-token'")
	p.Enter("#field-token", token)
	p.Press(kb.Enter)
	p.Click("#learn-next")
	wantStep(p, "Step 2 of 3: Which device has the address")
}

// TestNoCourse: without a course there is no tab, and the first view is the overview.
func TestNoCourse(t *testing.T) {
	p := open(t, newFake(t, newWorld(t, 5), 2), "#token="+token)
	p.WaitFor("the overview", "location.hash === '#/overview' && !document.querySelector('#nav a[data-view=learn]').checkVisibility()")
	p.ExpectRefusals(1)
	p.GoTo("#/learn")
	p.WaitFor("how to start one", "document.querySelector('.learn .problem')?.textContent === 'No course is running here. To start one: nfqproxy learn'")
	p.WaitFor("requests of the lesson", `performance.getEntriesByType("resource").filter((e) => e.name.includes("/v1/lesson")).length === 1`)
}

// TestPageShell: a shell in the page is a terminal, with colours, sizes and keys of its own.
func TestPageShell(t *testing.T) {
	p, teacher := openCourse(t, "#/learn")
	p.WaitFor("a prompt", screenText+".includes('2.1 shell:unit$')")
	p.Press(kb.F2, "hello", kb.Escape, kb.Enter)
	p.WaitFor("what was typed", screenText+`.includes('hello<Esc>') && `+screenText+`.includes('"hello": executable file not found')`)
	if !webtest.Value[bool](p.Page, "document.querySelector('.shell-place').contains(document.activeElement) && location.hash === '#/learn'") {
		t.Error("a key of the shell was taken by the page")
	}
	// Sheets of the document stand in for inline styles, which the page's policy forbids.
	for text, want := range map[string]string{"2.1": "rgb(255, 0, 0)", "shell": "rgb(143, 90, 0)"} {
		if color := webtest.Value[string](p.Page, fmt.Sprintf("getComputedStyle([...document.querySelectorAll('.xterm-rows span')].find(x => x.textContent === %q)).color", text)); color != want {
			t.Errorf("%s in the prompt has the colour %s, want %s", text, color, want)
		}
	}
	columns := func() labapi.TerminalSize {
		teacher.mu.Lock()
		defer teacher.mu.Unlock()
		return teacher.resized[len(teacher.resized)-1]
	}
	wide := columns()
	p.Run(emulation.SetDeviceMetricsOverride(1200, 700, 1, false))
	p.WaitFor("fewer columns", fmt.Sprintf("document.querySelector('.xterm-rows').children.length < %d", wide.Rows))
	const below, beside = "p.bottom - s.bottom", "p.right - s.right"
	for space, want := range map[string]float64{below: 5, beside: 14} { // px: the scrollbar covers no text
		if got := webtest.Value[float64](p.Page, "(() => { const [p, s] = ['.shell-place', '.xterm-screen'].map(x => document.querySelector(x).getBoundingClientRect()); return "+space+" })()"); got < want {
			t.Errorf("rows and columns leave %s = %v px, want %v", space, got, want)
		}
	}
	// More than the terminal can draw at once: the server waits.
	p.Press("flood", kb.Enter)
	p.WaitFor("the end of a long output", screenText+".includes('line 39999 of a long output') && "+screenText+".includes('shell:unit$')")
	if narrow := columns(); narrow.Columns >= wide.Columns || narrow.Columns < 20 || wide.Columns < 60 {
		t.Errorf("sizes: %v, then %v", wide, narrow)
	}
	p.Press("exit", kb.Enter)
	p.WaitFor("another shell", "!"+screenText+".includes('line 39999') && "+screenText+".includes('shell:unit$')")
	p.Press(kb.F2, "t")
	p.WaitFor("the colours of the page", "getComputedStyle(document.querySelector('.xterm-rows')).color === getComputedStyle(document.body).color")
	p.GoTo("#/overview")
	p.WaitFor("the overview", "!!document.querySelector('.overview')")
	if n := webtest.Value[int](p.Page, "document.adoptedStyleSheets.length"); n != 0 {
		t.Errorf("%d sheets of the terminal are left", n)
	}
}

// TestHostileLesson: of a step's HTML only texts and simple elements are shown.
func TestHostileLesson(t *testing.T) {
	p, teacher := openCourse(t, "#/learn")
	wantStep(p, "Step 1 of 3: The cluster")
	teacher.change(func(l *labapi.Lesson) {
		l.HTML = `<p onclick="alert(1)" class="x">text <strong>bold</strong> <img src=x onerror=alert(2) alt="a picture"> <b>thick</b></p><script>window.harmed = true</script>` +
			`<style>p{color:red}</style><iframe src="/"></iframe><form action="/x"><input value=y>in a form</form><a href="javascript:alert(3)">bad</a> <a href="https://example.com/x">good</a> <a href="#/flows?service=a">flows</a> <a href="//evil.example">none</a>`
		l.Question, l.Hints, l.Checks = "<b>1</b>`<i>`", []string{"<img src=x>"}, []labapi.LessonCheck{{Text: "<script>1</script>"}}
		l.Notice = "<img src=x>\n<b>"
	})
	p.WaitFor("the text", "document.querySelector('.prose').textContent === 'text bold a picture thickin a formbad good flows none'")
	if got := webtest.Value[string](p.Page, "[...document.querySelectorAll('.prose *')].map(x => x.localName + [...x.attributes].map(a => ' ' + a.name + '=' + a.value).join('')).join('; ')"); got != "p; strong; a href=https://example.com/x target=_blank rel=noopener noreferrer; a href=#/flows?service=a" {
		t.Errorf("the elements are %s", got)
	}
	for _, c := range p.TakeComplaints() { // of the document that is parsed
		if !strings.Contains(c, "Content Security Policy") || !strings.Contains(c, "/js/prose.js") {
			t.Error(c)
		}
	}
	p.WaitFor("texts as they are", "document.querySelector('.question').textContent.endsWith('<b>1</b><i>') && document.querySelector('.hints').textContent === '<img src=x>' && document.querySelector('.checks').textContent.endsWith('<script>1</script>') && "+notice+".startsWith('<img src=x>')")
}

// TestProjector: a class sees the step in large type, live, and no controls.
func TestProjector(t *testing.T) {
	p, teacher := openCourse(t, "#/learn")
	wantStep(p, "Step 1 of 3: The cluster")
	small := webtest.Value[float64](p.Page, "parseFloat(getComputedStyle(document.querySelector('.prose')).fontSize)")
	p.Press("p")
	p.WaitFor("the projector view", "location.hash === '#/learn?projector' && !!document.querySelector('.projector') && !document.querySelector('.top').checkVisibility()")
	wantStep(p, "Step 1 of 3: The cluster")
	if large := webtest.Value[float64](p.Page, "parseFloat(getComputedStyle(document.querySelector('.prose')).fontSize)"); large < 1.5*small {
		t.Errorf("the type has %v px, and %v px otherwise", large, small)
	}
	for _, c := range []labapi.LessonCommand{{Command: "next"}, {Command: "answer", Argument: "none"}, {Command: "hint"}} {
		if _, err := teacher.Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	wantStep(p, "Step 3 of 3: But a request has an answer")
	teacher.meet(0)
	p.WaitFor("a check", "document.querySelector('.checks .pill').textContent === 'done' && document.querySelectorAll('.hints li').length === 1")
	if n := webtest.Value[int](p.Page, "document.querySelectorAll('main input, main button, main .shell-place').length"); n != 0 {
		t.Errorf("%d controls", n)
	}
	p.Press(kb.Escape)
	p.WaitFor("the student's view", "location.hash === '#/learn' && document.querySelector('.top').checkVisibility() && !!document.getElementById('answer')")
}
