package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// during makes flows by each way in, one after the other, until f has returned. It returns how many
// answered.
func during(c *e2etest.Cluster, f func()) (answered int) {
	c.T.Helper()
	ctx, cancel := context.WithCancel(c.T.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range served {
		s := &served[i]
		wg.Go(func() {
			for ctx.Err() == nil {
				err := answers(c, s.from, s.network, s.to, s.pod, false)
				mu.Lock()
				if answered++; err != nil {
					c.T.Errorf("%s from %s to %s: %v", s.network, s.from, s.to, err)
				}
				mu.Unlock()
			}
		})
	}
	f()
	cancel()
	wg.Wait()
	return answered
}

// TestReplaceDaemon: another daemon takes over from the running one, again and again: no flow fails,
// a download goes on, and each daemon decides.
func TestReplaceDaemon(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--own-tables"})
	for range 3 {
		open := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30080")
		n := during(c, func() { c.Must(c.ReplaceDaemon(t.Context(), "node-a")) })
		if n < len(served) {
			t.Errorf("only %d flows", n)
		}
		c.Ask(open)
		before := c.Count(func(r *flow.Record) bool { return r.Node == "node-a" && r.Verdict == "dnat" })
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
		c.WaitRecords(before+1, "a decision of the new daemon", func(r *flow.Record) bool { return r.Node == "node-a" && r.Verdict == "dnat" })
	}
}

// TestRestartDaemon: a daemon that keeps its rules stops and starts again, or its successor waits for
// its end: no flow fails.
func TestRestartDaemon(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"fail", "wait"} {
		t.Run(way, func(t *testing.T) {
			c := e2etest.NewClusterWith(t, []string{"--keep-rules-on-exit", "--own-tables", "--when-served=" + way})
			for range 3 {
				during(c, func() {
					c.Must(c.StopDaemon(t.Context(), "node-a"))
					c.Must(c.StartDaemon(t.Context(), "node-a"))
				})
			}
		})
	}
}

// TestWaitForOther: a daemon that waits for another serves as soon as that ends.
func TestWaitForOther(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--keep-rules-on-exit", "--own-tables"})
	var log strings.Builder
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	cmd := e2etest.Command("run", "--objects", c.Objects, "--hostname-override", "node-a", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56",
		"--when-served=wait", "--keep-rules-on-exit", "--own-tables", "--ready-fd=3")
	cmd.Stderr, cmd.ExtraFiles = &log, []*os.File{readyEnd}
	c.Must(c.Host("node-a").Start(cmd), readyEnd.Close())
	during(c, func() {
		c.Must(c.StopDaemon(t.Context(), "node-a"))
		buf := make([]byte, 16)
		if n, err := ready.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
			t.Errorf("the daemon that waited: %q, %v\n%s", buf[:n], err, log.String())
		}
	})
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil || t.Failed() || strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("the daemon that waited: %v\n%s", err, log.String())
	}
}

// TestFailedSuccessor: a process that begins to take over and fails, or has not changed the rules,
// leaves the daemon in force.
func TestFailedSuccessor(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--own-tables"})
	for i, last := range []string{"", "done\n", "nonsense\n"} {
		c.Must(c.Host("node-a").Do(func() error {
			conn, err := net.Dial("unixpacket", "@nfqproxy-handover")
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "hand over\n"); err != nil {
				return err
			}
			buf := make([]byte, 64)
			if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
				return fmt.Errorf("%q: %w", buf[:n], err)
			}
			if last != "" {
				_, err = io.WriteString(conn, last)
			}
			return err
		}))
		c.LoggedTimes("the nfqproxy that takes over has failed; continuing", i+1)
		serves(c, 1)
	}
	// The daemon can be replaced all the same.
	c.Must(c.ReplaceDaemon(t.Context(), "node-a"))
	serves(c, 1)
}
