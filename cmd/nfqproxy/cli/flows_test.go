package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// asksMadeUp is the environment variable that makes the nfqproxy command of this test binary
// ask a made-up cluster, whatever the server.
const asksMadeUp = "NFQPROXY_TEST_ASKS_MADE_UP"

// connectMadeUp is that cluster; the first flow that is held there is its second one.
func connectMadeUp(server, token string) (observe.Observer, error) {
	if token == "print-this-token" {
		fmt.Fprintf(os.Stderr, "asked %s with token %s\n", server, token)
	}
	c := observetest.NewCluster()
	go func() {
		c.Holder().(*observetest.Fake).CatchNext(context.Background(), *c.Records()[1])
	}()
	return c, nil
}

// TestFollow: each event is a line as it happens; what is missing is said; an interrupt ends
// it without an error.
func TestFollow(t *testing.T) {
	c := observetest.NewCluster()
	ctx, interrupt := context.WithCancel(t.Context())
	stdin, stdout, stderr := strings.NewReader(""), newPipe(), new(bytes.Buffer)
	code := make(chan int)
	go func() {
		root := newRootCommand(func(string, string) (observe.Observer, error) { return c, nil })
		defer stdout.Close()
		code <- execute(ctx, root, []string{"flows", "-f", "--service", "default/web", "--utc"}, stdin, stdout, stderr)
	}()
	if err := c.AwaitReader(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := *c.Records()[0]
	r.Event = flow.Closed
	c.Emit(observe.Item{Record: &r})
	lines := bufio.NewScanner(stdout)
	var got []string
	for len(got) < 2 && lines.Scan() {
		got = append(got, lines.Text())
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "TIME") || !strings.Contains(got[1], "  closed  ") {
		t.Fatalf("got %q", got)
	}
	c.Emit(observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: 3, Why: observe.MissedSlow}})
	r.Event = flow.Gone
	c.Emit(observe.Item{Record: &r})
	if !lines.Scan() || !strings.Contains(lines.Text(), "  gone  ") {
		t.Errorf("got %q, want gone", lines.Text())
	}
	interrupt()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
	if want := "node-a: 3 records are missing here: this client was too slow\n"; stderr.String() != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	want := observe.FlowQuery{Follow: true, Service: "default/web"}
	if got := c.Queries(); len(got) != 1 || got[0] != want {
		t.Errorf("asked %+v, want %+v", got, want)
	}
	if c.Readers() != 0 {
		t.Error("the stream was not left")
	}
}

// TestFollowSaysWhatIsLeftOut: at once, without its number, and with it at the end.
func TestFollowSaysWhatIsLeftOut(t *testing.T) {
	c := observetest.NewCluster()
	ctx, interrupt := context.WithCancel(t.Context())
	stdout, stderr := newPipe(), new(bytes.Buffer)
	code := make(chan int)
	go func() {
		root := newRootCommand(func(string, string) (observe.Observer, error) { return c, nil })
		defer stdout.Close()
		code <- execute(ctx, root, []string{"flows", "-f"}, strings.NewReader(""), stdout, stderr)
	}()
	if err := c.AwaitReader(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{3, 4} {
		c.Emit(observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: n, Why: observe.MissedLeftOut}})
	}
	r := *c.Records()[0]
	r.Event = flow.Closed
	c.Emit(observe.Item{Record: &r})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), "  closed  ") {
	}
	if !strings.Contains(lines.Text(), "  closed  ") {
		t.Errorf("the event is not printed: %q", lines.Text())
	}
	interrupt()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
	want := "Flows for no service are omitted (--all shows them).\n7 flows for no service are omitted (--all shows them).\n"
	if stderr.String() != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	if got := c.Queries(); len(got) != 1 || !got[0].ServicesOnly {
		t.Errorf("asked %+v, want services only", got)
	}
}

// newPipe is a pipe whose writer does not wait for the reader.
func newPipe() *pipe {
	p := &pipe{}
	p.changed.L = &p.mu
	return p
}

type pipe struct {
	mu      sync.Mutex
	changed sync.Cond
	b       bytes.Buffer
	closed  bool
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed.Broadcast()
	return p.b.Write(b)
}

func (p *pipe) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changed.Broadcast()
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.b.Len() == 0 && !p.closed {
		p.changed.Wait()
	}
	if p.b.Len() == 0 {
		return 0, io.EOF
	}
	return p.b.Read(b)
}

// TestNobodyReads: that the reader of the output went away ends the command quietly; that the
// output is full does not.
func TestNobodyReads(t *testing.T) {
	for _, args := range [][]string{{"flows"}, {"flows", "-o", "json"}, {"flows", "-o", "name"}, {"flows", "f00001-node-a"}, {"experiment", "list"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var stderr bytes.Buffer
		root := newRootCommand(func(string, string) (observe.Observer, error) { return observetest.NewCluster(), nil })
		if code := execute(t.Context(), root, args, strings.NewReader(""), w, &stderr); (code != 0) != (args[0] != "flows") || stderr.Len() > 0 {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
		w.Close()
		root = newRootCommand(func(string, string) (observe.Observer, error) { return observetest.NewCluster(), nil })
		if code := execute(t.Context(), root, args, strings.NewReader(""), w, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%q to a closed file: exit code %d, %q", args, code, &stderr)
		}
	}
}

// TestFiltersArePassedOn: each flag gets where it belongs.
func TestFiltersArePassedOn(t *testing.T) {
	c := observetest.NewCluster()
	root := newRootCommand(func(string, string) (observe.Observer, error) { return c, nil })
	args := strings.Fields("flows --service nobody-home --namespace default --pod shell --node node-a --source 10.0.0.1 --destination 10.0.0.2 --endpoint 10.0.0.3 " +
		"--port 80 --protocol tcp --verdict dnat --reason balanced --state closed --since 5m --limit 7 --walk words")
	var stderr bytes.Buffer
	if code := execute(t.Context(), root, args, strings.NewReader(""), io.Discard, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	want := observe.FlowQuery{
		Service: "nobody-home", Namespace: "default", Pod: "shell", Node: "node-a", Source: "10.0.0.1", Destination: "10.0.0.2", Endpoint: "10.0.0.3",
		Port: "80", Protocol: "tcp", Verdict: "dnat", Reason: "balanced", State: "closed", Since: "5m", Limit: "7", Steps: true,
	}
	if code := execute(t.Context(), root, append(args, "-A"), strings.NewReader(""), io.Discard, io.Discard); code != 0 {
		t.Errorf("-A: exit code %d", code)
	}
	everywhere := want
	everywhere.Namespace = ""
	if got := c.Queries(); !slices.Equal(got, []observe.FlowQuery{want, everywhere}) {
		t.Errorf("asked %+v, want %+v and %+v", got, want, everywhere)
	}
	if got, want := stderr.String(), "No flows found.\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
}
