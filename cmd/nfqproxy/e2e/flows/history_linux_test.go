package flows

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestHistory: a recorder follows the daemons of a lab. Later flows, why and the page answer from its files, also for a time before
// there were any.
func TestHistory(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	c.ServeFlows()
	dir := filepath.Join(t.TempDir(), "history")
	server := []string{"--server", c.FlowAPI.URL, "--token-file", e2etest.WriteFile(t, "token", []byte(c.FlowAPI.Token))}
	recorder, output := e2etest.Start(t, nil, append([]string{"record", "--dir", dir, "--write-every", "1s"}, server...)...)
	go func() { _, _ = bufio.NewReader(output).WriteTo(t.Output()) }()
	ids := func(args ...string) string {
		_, stdout, _ := e2etest.Run(t, nil, append([]string{"flows", "--history", dir, "-o", "name"}, args...)...)
		return strings.TrimSpace(stdout)
	}

	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")
	c.Ask(conn)
	r := c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
	_ = conn.Close()
	e2etest.Eventually(t, e2etest.Timeout, "the flow in the history", func() bool {
		return ids("--since", "3h", "--service", "solo", "--state", "closed") == r.ID
	})
	if err := recorder.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := recorder.Wait(); err != nil {
		t.Errorf("the recorder: %v", err)
	}
	later := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80") // which nobody records
	_ = later.Close()

	if got := ids("--since", "3h", "--service", "solo"); got != r.ID {
		t.Errorf("flows of three hours: %q, want %s", got, r.ID)
	}
	hourAgo := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	if got := ids("--until", hourAgo); got != "" {
		t.Errorf("flows until %s: %q", hourAgo, got)
	}
	why := func(at, want string) {
		t.Helper()
		code, stdout, stderr := e2etest.Run(t, nil, "why", "shell", "solo:80/TCP", "--objects", c.Objects, "--history", dir, "--at", at)
		if code != 0 || !strings.Contains(stdout, want) || !strings.Contains(stderr, "the flows are those until ") {
			t.Errorf("why --at %s: exit code %d, want %q\n%s%s", at, code, want, stdout, stderr)
		}
	}
	why(r.Time.Add(time.Second).Format(time.RFC3339Nano), "pod default/solo  answered 1 of the last 1 flow")
	why(hourAgo, "works, as far as the objects show")
	if code, stdout, stderr := e2etest.Run(t, nil, "why", "shell", "solo:80/TCP", "--objects", c.Objects, "--history", dir); code != 0 || !strings.Contains(stdout, "answered 1 of the last 1 flow") {
		t.Errorf("why of now: exit code %d\n%s%s", code, stdout, stderr)
	}

	web, output := e2etest.Start(t, nil, append([]string{"web", "--no-open", "--page", "127.0.0.1:0", "--history", dir}, server...)...)
	line, err := bufio.NewReader(output).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), "http://")
	if err != nil || !ok {
		t.Fatalf("web prints %q: %v", line, err)
	}
	_ = web
	t.Run("page", func(t *testing.T) { historyOnPage(t, webtest.Open(t, "http://"+url), r, later.LocalAddr()) })
}

// historyOnPage: the page shows the flows of a time in the list, and the present again. unrecorded is a flow's source.
func historyOnPage(t *testing.T, p *webtest.Page, r *flow.Record, unrecorded net.Addr) {
	choose := func(selector, value string) {
		p.Helper()
		p.Run(chromedp.Evaluate("(x => { x.value = "+webtest.Quote(value)+"; x.dispatchEvent(new Event('change')); })(document.querySelector("+webtest.Quote(selector)+"))", nil))
	}
	const notice = "document.getElementById('notice')"
	only := "document.querySelectorAll('#rows tr').length === 1 && document.querySelector('#rows tr').dataset.id === " + webtest.Quote(r.ID)
	p.GoTo("#/flows?service=default/solo")
	p.WaitFor("both flows, live", "document.querySelectorAll('#rows tr').length === 2 && document.getElementById('rows').textContent.includes("+webtest.Quote(unrecorded.String()[strings.LastIndexByte(unrecorded.String(), ':'):])+")")
	p.WaitFor("a choice of times", "document.getElementById('time').checkVisibility() && document.getElementById('time').value === ''")

	choose("#time", "1h")
	p.WaitFor("the recorded flow", only)
	p.WaitFor("what is missing", notice+".textContent.includes('Nothing was recorded from ') && "+notice+".textContent.includes('The flows of the last minute may not be written yet')")
	if hash := webtest.Value[string](p, "location.hash"); hash != "#/flows?service=default%2Fsolo&since=1h" {
		t.Errorf("the address is %s", hash)
	}
	if !webtest.Value[bool](p, "document.getElementById('pause').hidden && [...document.querySelectorAll('.figure')].every(x => x.hidden) && !document.querySelector('.timerange .between').checkVisibility()") {
		t.Error("the past has rates, or inputs of times")
	}
	p.Click("#rows .time a")
	p.WaitFor("the flow by itself", "document.querySelector('.detail h1').textContent.includes('default/solo')")
	p.Click(".back-link")
	p.WaitFor("the recorded flow again", only+" && document.getElementById('time').value === '1h'")

	choose("#time", "between")
	p.WaitFor("the hour until now, in inputs", only+" && document.querySelectorAll('.timerange .between input').length === 2 && document.querySelector('.timerange .between').checkVisibility()")
	p.ExpectRefusals(2) // of the list, and of the request for its reason
	choose(".between input:last-of-type", "2001-02-03T04:05")
	p.WaitFor("times that exclude each other", "document.querySelector('.filterbar .problem').textContent.includes('want a time after since')")
	choose(".between input:first-of-type", "2001-02-03T03:05")
	p.WaitFor("nothing", "document.querySelector('.flows .empty').checkVisibility() && document.querySelector('.flows .empty').textContent === 'No recorded flow in this time range matches.'")

	choose("#time", "")
	p.WaitFor("the present", "document.querySelectorAll('#rows tr').length === 2 && document.getElementById('pause').checkVisibility()")
}
