package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// rights are the lines of each thread's status that confinement changes.
func rights(t *testing.T, pid int) (list []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no threads, error %v", pid, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		var words []string
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			switch name {
			case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
				words = append(words, name+" "+strings.TrimSpace(value))
			}
		}
		list = append(list, strings.Join(words, ", "))
	}
	return list
}

// newNode makes a namespace for one daemon.
func newNode(t *testing.T) *netns.Namespace {
	t.Helper()
	netnstest.Require(t)
	ns, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// TestConfinement: a running daemon has one capability, the filter of system calls, and no new
// privileges; with --confine=false it keeps what it had.
func TestConfinement(t *testing.T) {
	t.Parallel()
	const admin, none = "0000000000001000", "0000000000000000"
	confined := fmt.Sprintf("CapInh %s, CapPrm %s, CapEff %s, CapBnd %s, CapAmb %s, NoNewPrivs 1, Seccomp 2", none, admin, admin, admin, none)
	run := func(logged string, args ...string) (threads []string) {
		ns := newNode(t)
		d := e2etest.StartNfqproxy(t, ns, slices.Concat(e2etest.Objects(t, ns, e2etest.Lab), []string{"--hostname-override", "node-a"}, args)...)
		e2etest.Eventually(t, e2etest.Timeout, logged, func() bool { return strings.Contains(d.Log(), logged) })
		return rights(t, d.PID())
	}
	for _, r := range run("connection entries, sysctls under net); no new privileges; system calls: ") {
		if r != confined {
			t.Errorf("a thread has %s\nwant %s", r, confined)
		}
	}
	for _, r := range run("not in force: confinement: --confine=false", "--confine=false") {
		if r == confined || strings.Contains(r, "CapEff "+admin) { // where the test runs, a filter may be in force
			t.Errorf("with --confine=false a thread has %s", r)
		}
	}
}

// TestServiceManager: the daemon reports its start and its progress to the service manager, also by an
// abstract socket, which it could not reach when confined.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	ns := newNode(t)
	address := &net.UnixAddr{Name: "@nfqproxy-service-manager", Net: "unixgram"}
	var l *net.UnixConn
	if err := ns.Do(func() (err error) {
		l, err = net.ListenUnixgram("unixgram", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	next := func() string {
		t.Helper()
		b := make([]byte, 100)
		if err := l.SetReadDeadline(time.Now().Add(e2etest.Timeout)); err != nil {
			t.Fatal(err)
		}
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	cmd := e2etest.DaemonCommand(append(e2etest.Objects(t, ns, e2etest.Lab), "--queues", "1", "--hostname-override", "node-a")...)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+address.Name, "WATCHDOG_USEC=100000")
	e2etest.StartDaemon(t, ns, cmd)
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := next(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for got := next(); got != "STOPPING=1"; got = next() {
		if got != "WATCHDOG=1" {
			t.Errorf("at the end: %q", got)
		}
	}
}
