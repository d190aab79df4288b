package e2etest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Run runs the nfqproxy command to its end, in a network namespace or, for nil, in that of the test.
// It returns the exit code and the output.
func Run(t testing.TB, ns *netns.Namespace, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return RunCommand(t, ns, Command(args...))
}

// RunCommand is Run for a command that the test has prepared.
func RunCommand(t testing.TB, ns *netns.Namespace, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	start := cmd.Start
	if ns != nil {
		start = func() error { return ns.Start(cmd) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), out.String(), messages.String()
}

// Start starts the nfqproxy command. The output ends with the last process that holds it. The command is
// killed at the end of the test.
func Start(t testing.TB, stdin io.Reader, args ...string) (cmd *exec.Cmd, output *os.File) {
	t.Helper()
	cmd = Command(args...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = r.Close()
	})
	return cmd, r
}

// Daemon is a process that runs until the end of a test at the latest: nfqproxyd or kube-proxy.
type Daemon struct {
	t   testing.TB
	cmd *exec.Cmd

	mu  sync.Mutex
	log bytes.Buffer
}

// Objects serves objects to a nfqproxyd in a network namespace until the test ends, and returns its flags for that. The text is
// that of a manifest.
func Objects(t testing.TB, ns *netns.Namespace, text []byte) []string {
	t.Helper()
	objects, err := labfile.Load([]string{WriteFile(t, "objects.yaml", text)})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, server := filepath.Join(t.TempDir(), "kubeconfig"), new(apiserver.Server)
	l, err := ns.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err == nil {
		err = errors.Join(server.Set(&objects.Objects), server.Serve(l, kubeconfig))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return apiserver.DaemonFlags(kubeconfig)
}

// MachineUnchanged are the flags of a nfqproxyd with another API server that leaves the machine's settings unchanged.
func MachineUnchanged(t testing.TB) []string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.conf")
	if err := apiserver.WriteConfig(config); err != nil {
		t.Fatal(err)
	}
	return []string{"--config=" + config}
}

// StartDaemon starts a program in a network namespace. It is killed at the end of the test.
func StartDaemon(t testing.TB, ns *netns.Namespace, cmd *exec.Cmd) *Daemon {
	t.Helper()
	d := &Daemon{t: t, cmd: cmd}
	cmd.Stdout, cmd.Stderr = d, d
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if strings.Contains(d.Log(), "WARNING: DATA RACE") {
			t.Errorf("%s: the race detector ended it", cmd.Args)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", cmd.Args, d.Log())
		}
	})
	return d
}

// StartNfqproxy starts nfqproxyd in a network namespace, with a flow API of its own, and waits until
// it is ready.
func StartNfqproxy(t testing.TB, ns *netns.Namespace, args ...string) *Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "nfqproxy") // shorter than the test's: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return StartDefault(t, ns, append([]string{"--flow-api", "unix:" + filepath.Join(dir, "flows.sock")}, args...)...)
}

// StartDefault is StartNfqproxy with the default flow API, whose socket there is once on a machine.
func StartDefault(t testing.TB, ns *netns.Namespace, args ...string) *Daemon {
	t.Helper()
	cmd := DaemonCommand(append([]string{"--ready-fd", "3", "--queues", "1"}, args...)...)
	ready, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{theirs}
	d := StartDaemon(t, ns, cmd)
	_ = theirs.Close()
	if err := ready.SetReadDeadline(time.Now().Add(2 * Timeout)); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(ready); string(text) != "ready\n" {
		t.Fatalf("nfqproxy does not get ready: %v", err)
	}
	return d
}

// Write takes the output.
func (d *Daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

// PID is the process's id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Log returns the output so far.
func (d *Daemon) Log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// Complaints returns the warnings and errors in the output so far.
func (d *Daemon) Complaints() (lines []string) {
	for line := range strings.Lines(d.Log()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Stop ends the process with a signal and waits. An exit code other than 0 fails the test, but for
// SIGKILL.
func (d *Daemon) Stop(signal syscall.Signal) {
	d.t.Helper()
	_ = d.cmd.Process.Signal(signal)
	if err := d.cmd.Wait(); err != nil && signal != syscall.SIGKILL {
		d.t.Errorf("%s: %v", d.cmd.Args[0], err)
	}
}

// Export starts "nfqproxy export" for a node's daemon, in the network namespace of the node.
func (c *Cluster) Export(node string, environment []string, args ...string) *Daemon {
	c.T.Helper()
	socket, err := c.Socket(node)
	c.Must(err)
	cmd := Command(append([]string{"export", "--server", "unix:" + socket}, args...)...)
	cmd.Env = append(cmd.Env, environment...)
	return StartDaemon(c.T, c.Host(node), cmd)
}
