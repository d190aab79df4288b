package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// recordedFlows returns the IDs of the flows in a history, and the messages.
func recordedFlows(t *testing.T, dir string, args ...string) (ids, messages string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append([]string{"flows", "--history", dir, "-o", "name", "--limit", "0"}, args...), strings.NewReader(""), &out, &errs)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	return strings.ReplaceAll(strings.TrimSpace(out.String()), "\n", " "), errs.String()
}

// TestRecord: a recorder that is killed loses what it had not written, and no file. The next one goes on, and asks for all flows that the
// daemon knows. With SIGTERM it ends with 0.
func TestRecord(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "history")
	const token = "0123456789abcdef0123456789abcdef"
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	server := flowapitest.New(t, func(fake *observetest.Fake, log io.Writer) http.Handler {
		fake.StatsAnswer = observe.Stats{Node: "node-a"}
		return flowapi.New(flowapi.Config{Observer: fake, Token: token, Log: slog.New(slog.NewTextHandler(log, nil))})
	})
	fake := server.Fake
	waiting, cancel := context.WithTimeout(t.Context(), e2etest.Timeout)
	defer cancel()
	at := time.Now().Add(-time.Minute).Round(time.Microsecond)
	send := func(id string, event flow.Event) {
		t.Helper()
		r := *observetest.NewCluster().Records()[0]
		life := *r.Life
		r.Life, r.ID, r.Time, r.Event = &life, id, &at, event
		life.State, life.Over = event, false
		if event == flow.Gone {
			life.State, life.Over = flow.Closed, true
		}
		fake.Publish(observe.Item{Record: &r})
	}
	start := func() (stop func(os.Signal) error) {
		t.Helper()
		cmd, output := e2etest.Start(t, nil, "record", "--dir", dir, "--server", server.URL, "--token-file", tokenFile, "--write-every", "1s")
		go func() { _, _ = io.Copy(t.Output(), output) }()
		if !fake.AwaitReaders(waiting, 1) {
			t.Fatal("it does not follow the flows")
		}
		return func(s os.Signal) error {
			t.Helper()
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if !fake.AwaitReaders(waiting, 0) {
				t.Fatal("the stream goes on")
			}
			return err
		}
	}
	written := func(want string) {
		t.Helper()
		e2etest.Eventually(t, e2etest.Timeout, want+" to be written", func() bool {
			if found, _ := filepath.Glob(filepath.Join(dir, "*.parquet")); len(found) == 0 {
				return false
			}
			ids, _ := recordedFlows(t, dir)
			return ids == want
		})
	}

	kill := start()
	send("r-1", flow.Decided)
	send("r-2", flow.Decided)
	written("r-1 r-2")
	for i := range 500 {
		send(fmt.Sprint("r-", 1000+i), flow.Decided)
	}
	send("r-1", flow.Established)
	_ = kill(syscall.SIGKILL)
	ids, messages := recordedFlows(t, dir)
	if !strings.HasPrefix(ids, "r-1 r-") || strings.Contains(messages, "warning") {
		t.Errorf("after the kill: %.100s, messages %q", ids, messages)
	}

	// What a writer leaves when it is killed is no file, and is removed.
	left := filepath.Join(dir, at.UTC().Format("2006-01-02T15Z")+"_node-a_000099.parquet.unfinished")
	if err := os.WriteFile(left, []byte("PAR1"), 0o600); err != nil {
		t.Fatal(err)
	}
	known := *observetest.NewCluster().Records()[0]
	known.ID, known.Time = "r-3", &at
	fake.List = []observe.Item{{Record: &known}}
	stop := start()
	send("r-1", flow.Gone)
	send("r-2", flow.Unanswered)
	send("r-9999", flow.Decided)
	e2etest.Eventually(t, e2etest.Timeout, "the last flow to be written", func() bool {
		ids, _ := recordedFlows(t, dir)
		return strings.Contains(ids, "r-9999")
	})
	if err := stop(syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	ids, _ = recordedFlows(t, dir, "--state", "closed")
	if ids != "r-1 r-3" {
		t.Errorf("closed: %s", ids)
	}
	if ids, _ = recordedFlows(t, dir, "--state", "unanswered"); ids != "r-2" {
		t.Errorf("unanswered: %s", ids)
	}
	if ids, _ = recordedFlows(t, dir, "--since", "1h"); !strings.Contains(ids, "r-9999") {
		t.Errorf("all: %.200s", ids)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s: %v", left, err)
	}

	// A damaged file is named, and the others are read.
	bad := filepath.Join(dir, "2026-01-02T03Z_node-a.parquet")
	if err := os.WriteFile(bad, []byte("PAR1 no"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ids, messages = recordedFlows(t, dir, "--state", "unanswered"); ids != "r-2" || !strings.Contains(messages, "warning: "+bad) {
		t.Errorf("with a damaged file: %s, messages %q", ids, messages)
	}
}

// TestTimeOfDay: a time of day is the latest one.
func TestTimeOfDay(t *testing.T) {
	now := time.Date(2026, 1, 2, 14, 3, 30, 0, time.FixedZone("", 3600))
	for text, want := range map[string]string{
		"14:03": "2026-01-02T14:03:00+01:00", "14:04": "2026-01-01T14:04:00+01:00", "00:00:05": "2026-01-02T00:00:05+01:00",
		"90m": "2026-01-02T12:33:30+01:00", "2025-12-31T23:00:00Z": "2025-12-31T23:00:00Z",
	} {
		if at, err := timeOfDay(text, now); err != nil || at.Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v, want %s", text, at, err, want)
		}
	}
	if _, err := timeOfDay("25:00", now); err == nil {
		t.Error("25:00 is a time")
	}
}
