package daemon

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// TestRulesRemovedByOthers: after "nft flush ruleset" the daemon notices and is back.
func TestRulesRemovedByOthers(t *testing.T) { e2etest.InEachScope(t, testRulesRemovedByOthers) }

func testRulesRemovedByOthers(t *testing.T, c *e2etest.Cluster) {
	for i := range 2 {
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
		c.Must(c.Host("node-a").Do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.FlushRuleset()
			return conn.Flush()
		}))
		c.LoggedTimes("installed the kernel rules again", i+1)
	}
	c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
	c.Must(c.Host("node-a").Do(func() error {
		tables, err := e2etest.Tables()
		if len(tables) != 2 || tables[0] != ruleset.TableName || tables[1] != ruleset.TableName { // one of each family
			t.Errorf("nftables tables %v", tables)
		}
		return err
	}))
}

// TestKeepRulesOnExit: stopped with --keep-rules-on-exit, established connections are
// translated on, and the kernel's copy of the service table decides new ones.
func TestKeepRulesOnExit(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--keep-rules-on-exit"})
	open := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30090")
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	if a := c.Ask(open); a.Pod != "default/solo" {
		t.Errorf("the open connection was answered by %+v", a)
	}
	if a := c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.244.1.2:8080")); a.Pod != "default/web-2" {
		t.Errorf("pod to pod was answered by %+v", a)
	}
	if a := c.Ask(c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30090")); a.Pod != "default/solo" {
		t.Errorf("without a daemon a new connection was answered by %+v", a)
	}
	c.Must(c.StartDaemon(t.Context(), "node-a"))
	if a := c.Ask(c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30090")); a.Pod != "default/solo" {
		t.Errorf("after the next start a new connection was answered by %+v", a)
	}
}

// TestFlowLogReaderGoesAway: the proxy outlives whoever reads its flow log.
func TestFlowLogReaderGoesAway(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var messages bytes.Buffer
	cmd := e2etest.Command("run", "--objects", c.Objects, "--flow-log", "-", "--ready-fd", "3")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = writer, &messages, []*os.File{readyEnd}
	c.Must(c.Host("node-a").Start(cmd))
	_ = errors.Join(writer.Close(), readyEnd.Close())
	if b, err := io.ReadAll(ready); err != nil || string(b) != "ready\n" {
		t.Fatalf("%q, %v: %s", b, err, messages.String())
	}
	_ = reader.Close()
	for range 20 {
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 2 || strings.Count(messages.String(), "cannot write the flow log") != 1 {
		t.Errorf("exit code %d, messages %s", code, messages.String())
	}
}
