// Package webtest leads the web page in a real browser, for tests.
package webtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// browser is one for all tests; each gets a tab of its own.
var browser struct {
	once  sync.Once
	ctx   context.Context
	err   error
	close func()
	// output is what the browser wrote. If it ended by itself, that is the reason.
	output output
}

// output keeps the end of what is written to it.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(b []byte) (int, error) {
	const most = 4096
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	o.text = o.text[max(0, len(o.text)-most):]
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// Close ends the browser. It is to be called when no test needs it any more.
func Close() {
	if browser.close != nil {
		browser.close()
	}
}

// Tests are those of a package that opens pages.
type Tests struct{ M *testing.M }

// Run runs the tests, and ends the browser.
func (t Tests) Run() int {
	defer Close()
	return t.M.Run()
}

// chromium finds a browser of the kind that chromedp can lead. Those without a user interface come first: they need a third of the time.
func chromium(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		netnstest.Missing(t, "chromium")
	}
	for _, name := range []string{"chromium-headless-shell", "headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	netnstest.Missing(t, "chromium-headless-shell is not installed")
	return ""
}

func startBrowser(path string) {
	// The browser leaves directories behind where it makes temporary files.
	dir, err := os.MkdirTemp("", "browser-")
	if err != nil {
		browser.err = err
		return
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("renderer-process-limit", "1"), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("hide-scrollbars", true), chromedp.WindowSize(1440, 900),
		chromedp.Env("TMPDIR="+dir), chromedp.CombinedOutput(&browser.output))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	// Failures are errors of commands; other messages are about events unknown to chromedp.
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}))
	browser.ctx, browser.close = ctx, func() {
		// Killing the program is not enough: Debian's is a script that starts the browser.
		leaving, done := context.WithTimeout(ctx, testTimeout/5)
		_ = chromedp.Cancel(leaving)
		done()
		cancel()
		stop()
		_ = os.RemoveAll(dir)
	}
	browser.err = chromedp.Run(ctx)
}

// testTimeout is how long a test may take, and longer than any does on a busy machine; a
// condition may take a fifth of it.
const testTimeout = 5 * time.Minute

// Page is a page in a tab. It belongs to one goroutine.
type Page struct {
	testing.TB
	ctx context.Context
	mu  sync.Mutex
	// complaints are what the browser wrote to the console, and exceptions.
	complaints []string
	// refusals are answers with an error that the test means to get.
	refusals int
}

// Open shows a page in a tab of its own, until the end of the test. Nothing may be written to
// the browser's console until then. Without a browser the test is skipped.
func Open(t testing.TB, url string) *Page {
	t.Helper()
	return open(t, url)
}

// OpenUntrusted is Open for a server with a self-signed certificate.
func OpenUntrusted(t testing.TB, url string) *Page {
	t.Helper()
	return open(t, url, security.SetIgnoreCertificateErrors(true))
}

// open does something in the tab before it shows the page.
func open(t testing.TB, url string, before ...chromedp.Action) *Page {
	t.Helper()
	path := chromium(t)
	browser.once.Do(func() {
		started := make(chan struct{})
		go func() {
			// The kernel ends the browser with the thread that started it (PR_SET_PDEATHSIG, by
			// chromedp), and a thread that made a network namespace ends. So this one is kept.
			goruntime.LockOSThread()
			startBrowser(path)
			close(started)
			select {}
		}()
		<-started
	})
	if browser.err != nil {
		t.Fatalf("%s does not start: %v", path, browser.err)
	}
	tab, cancel := chromedp.NewContext(browser.ctx, chromedp.WithTargetID(window(t)))
	ctx, timeout := context.WithTimeout(tab, testTimeout)
	p := &Page{TB: t, ctx: ctx}
	chromedp.ListenTarget(tab, p.hear)
	// The context of the first Run is the one with which chromedp stops taking the tab's
	// messages; if the tab still is there then, those hold up all other tabs'. It also
	// switches on the events of every stream of a tab, which no test needs.
	if err := chromedp.Run(tab, network.Disable()); err != nil {
		timeout()
		cancel()
		t.Fatalf("no tab for %s: %v", url, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			p.Shoot(filepath.Join(t.TempDir(), "failed.png"))
		}
		// A tab that goes while it has many messages to send holds up all others, for good; one that
		// shows nothing has sent all of them.
		timeout()
		leaving, stop := context.WithTimeout(tab, testTimeout/5)
		if err := chromedp.Run(leaving, chromedp.Navigate("about:blank")); err != nil {
			t.Errorf("the page cannot be left: %v; the browser's output:\n%s", err, &browser.output)
		}
		stop()
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.complaints) > 0 {
			t.Errorf("the browser complains:\n%s", strings.Join(p.complaints, "\n"))
		}
	})
	p.Run(append(before, chromedp.Navigate(url))...)
	return p
}

// window opens an empty tab in a window of its own: a tab that another one covers draws nothing.
func window(t testing.TB) target.ID {
	t.Helper()
	ctx := cdp.WithExecutor(browser.ctx, chromedp.FromContext(browser.ctx).Browser)
	id, err := target.CreateTarget("about:blank").WithNewWindow(true).Do(ctx)
	if err != nil {
		t.Fatalf("no window: %v", err)
	}
	return id
}

// slowTerminal is in what xterm.js writes to the console on a busy machine.
const slowTerminal = "task queue exceeded allotted deadline"

// hear notes what should not be.
func (p *Page) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.complaints = append(p.complaints, e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if strings.Contains(string(e.Args[0].Value), slowTerminal) {
			return
		}
		p.complaints = append(p.complaints, fmt.Sprintf("console.%s: %s", e.Type, e.Args[0].Value))
	case *log.EventEntryAdded:
		if e.Entry.Source == log.SourceNetwork && p.refusals > 0 {
			p.refusals--
			return
		}
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning || e.Entry.Source == log.SourceSecurity {
			p.complaints = append(p.complaints, fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	}
}

// TakeComplaints returns what was written to the console, for which the test does not fail then.
func (p *Page) TakeComplaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.complaints
	p.complaints = nil
	return all
}

// ExpectRefusals allows the next so many answers to be errors, which browsers write to the
// console.
func (p *Page) ExpectRefusals(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusals += n
}

// Run does something in the page, and fails the test if that cannot be done.
func (p *Page) Run(actions ...chromedp.Action) {
	p.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// otherContext is in the error of the browser if a page was loaded that it has not announced yet.
const otherContext = "Cannot find context with specified id"

// WaitFor waits until the JavaScript expression is true.
func (p *Page) WaitFor(what, expression string) {
	p.Helper()
	// What is not there yet is not true yet.
	poll := fmt.Sprintf("(() => { try { return %s } catch { return false } })()", expression)
	var err error
	for range 3 {
		err = chromedp.Run(p.ctx, chromedp.Poll(poll, nil, chromedp.WithPollingTimeout(testTimeout/5), chromedp.WithPollingInterval(50*time.Millisecond)))
		if err == nil || !strings.Contains(err.Error(), otherContext) {
			break
		}
	}
	if err != nil {
		var text string
		_ = chromedp.Run(p.ctx, chromedp.Evaluate("location.hash + '\\n' + document.body.innerText", &text))
		p.Fatalf("%s: %v\n  not true: %s\nthe page:\n%.3000s", what, err, expression, text)
	}
}

// Value returns what an expression has.
func Value[T any](p *Page, expression string) (v T) {
	p.Helper()
	p.Run(chromedp.Evaluate(expression, &v))
	return v
}

// Await returns what the promise of an expression has.
func Await[T any](p *Page, expression string) (v T) {
	p.Helper()
	p.Run(chromedp.Evaluate(expression, &v, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	return v
}

// GoTo shows another view.
func (p *Page) GoTo(hash string) {
	p.Helper()
	p.Run(chromedp.Evaluate("location.hash = "+Quote(hash), nil))
}

// Press presses keys, one after the other: "g", "s" or kb.Enter.
func (p *Page) Press(keys ...string) {
	p.Helper()
	for _, k := range keys {
		for _, r := range k {
			p.key(r)
		}
	}
}

// key presses one key as a keyboard does: the character comes with the key, and does not come
// if the page takes the key for a shortcut. (chromedp's own KeyEvent sends it in any case.)
func (p *Page) key(r rune) {
	p.Helper()
	events := kb.Encode(r)
	for _, e := range events {
		if e.Type == input.KeyChar {
			events[0].Type, events[0].Text, events[0].UnmodifiedText = input.KeyDown, e.Text, e.UnmodifiedText
		}
	}
	p.Run(events[0], events[len(events)-1])
}

// Enter types into a field, in the place of what is there.
func (p *Page) Enter(selector, text string) {
	p.Helper()
	p.Run(chromedp.Evaluate(fmt.Sprintf("document.querySelector(%s).focus(); document.querySelector(%[1]s).select?.()", Quote(selector)), nil),
		chromedp.KeyEvent(kb.Backspace), chromedp.KeyEvent(text))
}

// Click clicks on what a selector finds, as soon as it is there.
func (p *Page) Click(selector string) {
	p.Helper()
	p.WaitFor(selector+" is there", fmt.Sprintf("!!document.querySelector(%s)", Quote(selector)))
	p.Run(chromedp.Click(selector, chromedp.ByQuery))
}

// Shoot makes a picture of what is to be seen.
func (p *Page) Shoot(path string) {
	p.Helper()
	var png []byte
	if err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot(&png)); err != nil {
		p.Logf("no screenshot: %v", err)
		return
	}
	if err := os.WriteFile(path, png, 0o644); err != nil {
		p.Error(err)
	}
}

// Quote makes a JavaScript string.
func Quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings can always be written
	}
	return string(b)
}
