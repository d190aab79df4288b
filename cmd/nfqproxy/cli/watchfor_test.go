package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestWatchFor: the first flow of the stream becomes a bundle, which show opens. The flow API is remote: what only
// the node has is missing, which the bundle notes.
func TestWatchFor(t *testing.T) {
	cluster := observetest.NewCluster()
	connect := func(server, _ string) (observe.Observer, error) {
		if server != "http://192.0.2.1:1" {
			return nil, errors.New("another server: " + server)
		}
		return cluster, nil
	}
	execute := func(args ...string) (code int, stdout, stderr string) {
		var out, messages bytes.Buffer
		code = execute(t.Context(), newRootCommand(connect), args, strings.NewReader(""), &out, &messages)
		return code, out.String(), messages.String()
	}
	file := filepath.Join(t.TempDir(), "flow.tgz")
	done := make(chan struct{})
	var code int
	var stdout, stderr string
	go func() {
		defer close(done)
		code, stdout, stderr = execute("watch-for", "--server", "http://192.0.2.1:1", "--write", file)
	}()
	if err := cluster.AwaitReader(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := cluster.Records()[0]
	cluster.Emit(observe.Item{Record: r})
	netnstest.Receive(t, done, "watch-for to end")
	if code != 0 || !strings.Contains(stderr, "waiting for a flow: refused,unanswered,reset,rejected,dropped,failed\n") || strings.Contains(stderr, "collecting") || !strings.Contains(stdout, "decided on "+r.Node+"\nwrote "+file) {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	queries := cluster.Queries()
	if q := queries[len(queries)-1]; !q.Follow || !q.ServicesOnly {
		t.Errorf("query %+v", q)
	}

	code, stdout, stderr = execute("show", file, "--utc")
	if code != 0 || !strings.Contains(stdout, "flow "+r.ID+", decided on node "+r.Node) || !strings.Contains(stdout, "service "+r.Service) || !strings.Contains(stdout, "missing: rules, connection entries and packets: the flow API is remote") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, _ := execute("show", file, "--file", bundle.TablesFile); code != 0 || !strings.Contains(stdout, `"tables"`) {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	if code, _, stderr := execute("show", file, "--file", "none"); code != 2 || !strings.Contains(stderr, "--file none: the bundle has [flow.json") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	dir := filepath.Join(t.TempDir(), "bundle")
	if code, _, stderr := execute("show", file, "--extract", dir); code != 0 {
		t.Error(stderr)
	}
	if b, err := os.ReadFile(filepath.Join(dir, bundle.FlowFile)); err != nil || !bytes.Contains(b, []byte(r.ID)) {
		t.Errorf("%s, %v", b, err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"show", filepath.Join(dir, bundle.FlowFile)}, 2, "not a bundle"},
		{[]string{"show"}, 2, "show takes one BUNDLE"},
		{[]string{"show", file, "--file", "a", "--extract", "b"}, 2, "cannot be used together"},
		{[]string{"show", file, "--extract", dir}, 2, "file exists"},
		{[]string{"watch-for", "--server", "http://192.0.2.1:1", "--write", file}, 2, " exists: remove it or give another name with --write"},
		{[]string{"watch-for", "--server", "http://192.0.2.1:1", "--write", filepath.Join(file, "in", "none")}, 2, "not a directory"},
		{[]string{"collect", "--redact", file, "--write", filepath.Join(t.TempDir(), "none", "x.tgz")}, 2, "none: no such file or directory"},
		{[]string{"watch-for", "--server", "http://192.0.2.1:1", "--capture", "-1s"}, 2, "cannot be negative"},
		{[]string{"watch-for", "--server", "http://192.0.2.1:1", "--timeout", "1ms"}, 1, "no such flow within 1ms"},
	} {
		if code, _, stderr := execute(tt.args...); code != tt.code || !strings.Contains(stderr, tt.want) {
			t.Errorf("%v: exit code %d\n%s, want %q", tt.args, code, stderr, tt.want)
		}
	}

	// Interrupted, it writes nothing, which the exit code shows.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if cluster.AwaitReader(ctx) == nil {
			cancel()
		}
	}()
	var out, messages bytes.Buffer
	other := filepath.Join(t.TempDir(), "other.tgz")
	code = executeRoot(ctx, connect, []string{"watch-for", "--server", "http://192.0.2.1:1", "--write", other}, &out, &messages)
	if _, err := os.Stat(other); code != 1 || messages.String() != "waiting for a flow: refused,unanswered,reset,rejected,dropped,failed\n" || !os.IsNotExist(err) {
		t.Errorf("interrupted: exit code %d, %v\n%s", code, err, messages.String())
	}
}

func executeRoot(ctx context.Context, connect connector, args []string, stdout, stderr *bytes.Buffer) int {
	return execute(ctx, newRootCommand(connect), args, strings.NewReader(""), stdout, stderr)
}
