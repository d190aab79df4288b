package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/ruleset"
)

// TestRulesRemovedByOthers: after "nft flush ruleset" the daemon notices and is back.
func TestRulesRemovedByOthers(t *testing.T) { inEachScope(t, testRulesRemovedByOthers) }

func testRulesRemovedByOthers(t *testing.T, c *cluster) {
	for i := range 2 {
		c.ask(c.dial("shell", "tcp", anyPort, "10.96.0.20:80"))
		if err := c.host("node-a").Do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.FlushRuleset()
			return conn.Flush()
		}); err != nil {
			t.Fatal(err)
		}
		c.loggedTimes("installed the kernel rules again", i+1)
	}
	c.ask(c.dial("shell", "tcp", anyPort, "10.96.0.20:80"))
	if err := c.host("node-a").Do(func() error {
		tables, err := listTables()
		if len(tables) != 1 || tables[0] != ruleset.TableName {
			t.Errorf("nftables tables %v", tables)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestKeepRulesOnExit: stopped with --keep-rules-on-exit, established connections are
// translated on, and new ones wait for the next start.
func TestKeepRulesOnExit(t *testing.T) {
	c := newClusterWith(t, []string{"--keep-rules-on-exit"})
	open := c.dial("outside", "tcp", anyPort, "172.21.0.2:30090")
	if err := c.StopDaemon(t.Context(), "node-a"); err != nil {
		t.Fatal(err)
	}
	if a := c.ask(open); a.Pod != "default/solo" {
		t.Errorf("the open connection was answered by %+v", a)
	}
	if a := c.ask(c.dial("shell", "tcp", anyPort, "10.244.1.2:8080")); a.Pod != "default/web-2" {
		t.Errorf("pod to pod was answered by %+v", a)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := c.tryDial("outside", "tcp", anyPort, "172.21.0.2:30090")
		waiting <- err
	}()
	if err := c.StartDaemon(t.Context(), "node-a"); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("the connection that waited: %v", err)
	}
}

// TestFlowLogReaderGoesAway: the proxy outlives whoever reads its flow log.
func TestFlowLogReaderGoesAway(t *testing.T) {
	c := newCluster(t)
	if err := c.StopDaemon(t.Context(), "node-a"); err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var messages bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "run", "--objects", c.objects, "--flow-log", "-", "--ready-fd", "3")
	cmd.Env = append(os.Environ(), commandEnv...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = writer, &messages, []*os.File{readyEnd}
	if err := c.host("node-a").Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = errors.Join(writer.Close(), readyEnd.Close())
	if b, err := io.ReadAll(ready); err != nil || string(b) != "ready\n" {
		t.Fatalf("%q, %v: %s", b, err, messages.String())
	}
	_ = reader.Close()
	for range 20 {
		c.ask(c.dial("shell", "tcp", anyPort, "10.96.0.20:80"))
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || strings.Count(messages.String(), "cannot write the flow log") != 1 {
		t.Errorf("exit code %d, messages %s", code, messages.String())
	}
}
