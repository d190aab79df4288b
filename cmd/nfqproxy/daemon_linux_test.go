package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// daemon is nfqproxy run, or kube-proxy.
type daemon struct {
	n   *siteNode
	cmd *exec.Cmd

	mu  sync.Mutex
	log bytes.Buffer
}

// Write takes the log.
func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *daemon) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// complaints are the warnings and errors in the log.
func (d *daemon) complaints() (lines []string) {
	for line := range strings.Lines(d.text()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (n *siteNode) start(cmd *exec.Cmd) *daemon {
	n.Helper()
	d := &daemon{n: n, cmd: cmd}
	cmd.Stdout, cmd.Stderr = d, d
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.ns.Start(cmd); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if strings.Contains(d.text(), "WARNING: DATA RACE") {
			n.Errorf("%s: the race detector ended it", cmd.Args)
		}
		if n.Failed() {
			n.Logf("%s:\n%s", cmd.Args, d.text())
		}
	})
	return d
}

// nfqproxy starts "nfqproxy run" and waits until it serves.
func (n *siteNode) nfqproxy(args ...string) *daemon {
	n.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"run", "--ready-fd", "3", "--queues", "1"}, args...)...)
	cmd.Env = append(os.Environ(), commandEnv...)
	ready, theirs, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{theirs}
	d := n.start(cmd)
	_ = theirs.Close()
	if err := ready.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		n.Fatal(err)
	}
	if text, err := io.ReadAll(ready); string(text) != "ready\n" {
		n.Fatalf("nfqproxy does not get ready: %v", err)
	}
	return d
}

// stop ends a daemon with a signal, after which it is to have left in order, but for
// SIGKILL.
func (d *daemon) stop(signal syscall.Signal) {
	d.n.Helper()
	_ = d.cmd.Process.Signal(signal)
	if err := d.cmd.Wait(); err != nil && signal != syscall.SIGKILL {
		d.n.Errorf("%s: %v", d.cmd.Args[0], err)
	}
}
