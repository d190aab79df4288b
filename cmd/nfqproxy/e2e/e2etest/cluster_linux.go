package e2etest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// Lab is the lab file of [NewCluster]: nodes node-a and node-b, both address families, and a Service
// for each case.
//
//go:embed lab.yaml
var Lab []byte

// Cluster is a lab with real daemons. Its methods end the test at the first error.
type Cluster struct {
	*lab.Lab
	T       *testing.T // the test that runs; see Use
	Objects string     // the lab file

	mu      sync.Mutex
	arrived *sync.Cond
	records []*flow.Record
	keep    int // see KeepRecords
	dropped int // records that are no longer kept
	logs    []string
}

// NewCluster starts the lab of [Lab]. It ends with the test.
func NewCluster(t *testing.T, options ...func(*lab.Spec)) *Cluster {
	t.Helper()
	return NewClusterWith(t, nil, options...)
}

// NewClusterWith starts the lab of [Lab], with further arguments for the daemons.
func NewClusterWith(t *testing.T, arguments []string, options ...func(*lab.Spec)) *Cluster {
	t.Helper()
	return NewClusterOf(t, Lab, arguments, options...)
}

// NewClusterOf starts the lab of a lab file, with further arguments for the daemons.
func NewClusterOf(t *testing.T, labFile []byte, arguments []string, options ...func(*lab.Spec)) *Cluster {
	t.Helper()
	path := WriteFile(t, "lab.yaml", labFile)
	file, err := lab.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		o(file.Spec)
	}
	c := Up(t, file, lab.Options{Arguments: append([]string{"-v"}, arguments...)})
	c.Objects = path
	return c
}

// InEachScope runs a test with each value of --scope, in parallel with other tests.
func InEachScope(t *testing.T, test func(*testing.T, *Cluster)) {
	t.Parallel()
	for _, scope := range []string{"all", "services"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			test(t, NewClusterWith(t, []string{"--scope", scope}))
		})
	}
}

// Up starts a lab with this test binary as daemons. It ends with the test.
func Up(t *testing.T, file *lab.File, options lab.Options) *Cluster {
	t.Helper()
	netnstest.Require(t)
	options.Env = append(options.Env, CommandEnv()...)
	// The flow log has all records, up to the end of a daemon: streams of the flow API are limited in rate.
	log := []string{"--flow-log=-", "--flow-log-steps"}
	// On a busy machine a daemon may not run for a second. A test's own argument comes later.
	options.Arguments = slices.Concat(log, []string{"--queue-timeout=1m"}, options.Arguments)
	options.ObserverArguments = append(log, options.ObserverArguments...)
	running, err := lab.Up(t.Context(), file, options)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Lab: running, T: t}
	c.arrived = sync.NewCond(&c.mu)
	events := c.Subscribe(1 << 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.C {
			c.note(e)
		}
	}()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("taking the lab down: %v", err)
		}
		<-done
		if n := events.Lost(); n > 0 {
			t.Errorf("the test lost %d events", n)
		}
		if t.Failed() {
			t.Logf("daemons:\n%s", strings.Join(lastLogs(c.Logs()), "\n"))
		}
	})
	return c
}

// lastLogs keeps of a failed test's log what leaves the failure itself in sight, where only the end of
// the output is kept: with -v everything, otherwise no debug lines but the last ones.
func lastLogs(logs []string) []string {
	const last = 20
	if testing.Verbose() || len(logs) <= last {
		return logs
	}
	old, recent := logs[:len(logs)-last], logs[len(logs)-last:]
	kept := slices.DeleteFunc(slices.Clone(old), func(line string) bool { return strings.Contains(line, "level=DEBUG") })
	return append(kept, recent...)
}

func (c *Cluster) note(e lab.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case strings.HasPrefix(e.Log, "{") && !strings.HasSuffix(e.Log, "}"): // the daemon was killed while it wrote the line
		c.logs = append(c.logs, e.Node+": cut off: "+e.Log)
	case strings.HasPrefix(e.Log, "{"):
		record := new(flow.Record)
		if err := json.Unmarshal([]byte(e.Log), record); err != nil {
			c.T.Errorf("not a flow record: %q: %v", e.Log, err)
		}
		c.records = append(c.records, record)
		if c.keep > 0 && len(c.records) > 2*c.keep {
			c.records = slices.Delete(c.records, 0, c.keep)
			c.dropped += c.keep
		}
	case e.Died != nil:
		c.T.Errorf("unexpected end: %v", e.Died)
	case e.Files != nil:
		c.logs = append(c.logs, "files: "+e.Files.String())
	case e.Changes != nil:
		c.logs = append(c.logs, "changes: "+strings.Join(e.Changes, "; "))
	default:
		c.logs = append(c.logs, e.Node+": "+e.Log)
	}
	c.arrived.Broadcast()
}

// ServeFlows serves the flow API and the page of the lab, at its FlowAPI, until the test ends.
func (c *Cluster) ServeFlows() {
	c.T.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.T.Fatal(err)
	}
	serve, err := c.OpenFlows(listener)
	if err != nil {
		c.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx) }()
	c.T.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.T.Errorf("serving the flow API: %v", err)
		}
	})
}

// Use has the cluster's methods end a subtest from now on.
func (c *Cluster) Use(t *testing.T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.T = t
}

// KeepRecords limits the records that the cluster keeps, to the latest n at least.
func (c *Cluster) KeepRecords(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep = n
}

// Records returns the records so far, in the order of their arrival.
func (c *Cluster) Records() []*flow.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.records)
}

// Logs returns the log lines so far, each after the name of its node.
func (c *Cluster) Logs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.logs)
}

// wait calls done, under the lock, until it returns true: at once and after each event.
func (c *Cluster) wait(what string, done func() bool) {
	c.T.Helper()
	if c.waitFor(Timeout, done) {
		return
	}
	records := c.Records()
	for _, r := range records[max(0, len(records)-20):] {
		c.T.Logf("record: %s %s %s > %s %s", r.Node, r.Protocol, r.Source, r.Destination, r.Verdict)
	}
	c.T.Fatalf("waited %s for %s", Timeout, what)
}

// waitFor is wait that returns false after some time.
func (c *Cluster) waitFor(timeout time.Duration, done func() bool) bool {
	late := false
	timer := time.AfterFunc(timeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.arrived.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		if late {
			return false
		}
		c.arrived.Wait()
	}
	return true
}

// WaitRecord waits for a record that matches, and returns the latest one.
func (c *Cluster) WaitRecord(what string, match func(*flow.Record) bool) *flow.Record {
	c.T.Helper()
	find, found := c.finder(match)
	c.wait(what, find)
	return *found
}

// LookForRecord is WaitRecord that returns nil after some time.
func (c *Cluster) LookForRecord(timeout time.Duration, match func(*flow.Record) bool) *flow.Record {
	find, found := c.finder(match)
	c.waitFor(timeout, find)
	return *found
}

// finder returns a function that looks for the latest record that matches, and reports whether there is
// one.
func (c *Cluster) finder(match func(*flow.Record) bool) (find func() bool, found **flow.Record) {
	found = new(*flow.Record)
	checked := 0 // including dropped ones: a test under load has tens of thousands
	return func() bool {
		for _, r := range c.records[max(0, checked-c.dropped):] {
			if match(r) {
				*found = r
			}
		}
		checked = c.dropped + len(c.records)
		return *found != nil
	}, found
}

// WaitRecords waits until n records match.
func (c *Cluster) WaitRecords(n int, what string, match func(*flow.Record) bool) {
	c.T.Helper()
	checked, have := 0, 0 // of a million records, each is looked at once
	c.wait(what, func() bool {
		for _, r := range c.records[max(0, checked-c.dropped):] {
			if match(r) {
				have++
			}
		}
		checked = c.dropped + len(c.records)
		return have >= n
	})
}

// Record waits for a record of the flow between two addresses with the verdict, and returns the
// latest one. It may be of any node: one may decide what another only forwards.
func (c *Cluster) Record(verdict, protocol string, source, destination net.Addr) *flow.Record {
	c.T.Helper()
	return c.WaitRecord(fmt.Sprintf("a record of %s %s > %s: %s", protocol, source, destination, verdict), func(r *flow.Record) bool {
		return r.Verdict == verdict && r.Protocol == protocol && r.Source == source.String() && r.Destination == destination.String()
	})
}

// Sync waits until a new flow has its record: then all flows made before it from the
// same host have theirs. The flow goes to a service: such flows have a record in each scope.
func (c *Cluster) Sync(host string) {
	c.T.Helper()
	conn := c.Dial(host, "udp", AnyPort, "10.96.0.40:53")
	defer conn.Close()
	if _, err := conn.Write([]byte("sync")); err != nil {
		c.T.Fatal(err)
	}
	c.Record("reject", "UDP", conn.LocalAddr(), conn.RemoteAddr())
}

// Count counts the matching records so far.
func (c *Cluster) Count(match func(*flow.Record) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count(match)
}

func (c *Cluster) count(match func(*flow.Record) bool) int {
	n := 0
	for _, r := range c.records {
		if match(r) {
			n++
		}
	}
	return n
}

// Logged waits for a log line that contains the text.
func (c *Cluster) Logged(text string) {
	c.T.Helper()
	c.LoggedTimes(text, 1)
}

// LoggedTimes waits for n such lines.
func (c *Cluster) LoggedTimes(text string, n int) {
	c.T.Helper()
	c.wait(fmt.Sprintf("%d log lines with %q", n, text), func() bool {
		return strings.Count(strings.Join(c.logs, "\n"), text) >= n
	})
}

// Edit changes the lab file and waits until the daemons of both nodes have applied it.
func (c *Cluster) Edit(change func(string) string) {
	c.T.Helper()
	text := ReadFile(c.T, c.Objects)
	changed := change(text)
	if changed == text {
		c.T.Fatal("the edit changes nothing")
	}
	tables := func() map[string]int {
		n := make(map[string]int)
		for _, l := range c.logs {
			if node, text, _ := strings.Cut(l, ":"); strings.Contains(text, "new service table") {
				n[node]++
			}
		}
		return n
	}
	c.mu.Lock()
	before := tables()
	c.mu.Unlock()
	// Written beside and renamed, as editors do.
	temporary := c.Objects + ".new"
	c.Must(os.WriteFile(temporary, []byte(changed), 0o644), os.Rename(temporary, c.Objects))
	c.wait("both daemons to apply the change", func() bool {
		now := tables()
		return now["node-a"] > before["node-a"] && now["node-b"] > before["node-b"]
	})
	// An API server sends a change object by object, and a daemon may make a table of some.
	Eventually(c.T, Timeout, "both daemons to apply all of the change", func() bool { return len(c.Settle(c.T.Context())) == 0 })
}

// Must ends the test at the first error.
func (c *Cluster) Must(errs ...error) {
	c.T.Helper()
	if err := errors.Join(errs...); err != nil {
		c.T.Fatal(err)
	}
}

// ReadFile returns the content of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// WriteFile writes a file in a temporary directory of the test and returns its path.
func WriteFile(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
