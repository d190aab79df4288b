package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

var _ labapi.ShellOpener = (*Session)(nil)

// OpenShell implements [labapi.ShellOpener]. The terminal is one of xterm's kind.
func (s *Session) OpenShell(host string, size labapi.TerminalSize) (labapi.Terminal, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	defer slave.Close()
	_ = slave.Fd() // makes it blocking, as shells want it
	t := &terminal{session: s, master: master}
	if err := t.Resize(size); err != nil {
		return nil, errors.Join(err, master.Close())
	}
	shell, err := s.startShell(host, slave, "TERM=xterm-256color", "COLORTERM=")
	if err != nil {
		return nil, errors.Join(err, master.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = shell.Wait() // students do not see its exit code
		// Background processes may hold the terminal for long. The shell's own output arrives soon.
		_ = master.SetReadDeadline(time.Now().Add(drainTimeout))
	}()
	t.close = sync.OnceValue(func() error {
		select {
		case <-ended: // its number may be another process's
		default:
			_ = unix.Kill(-shell.Process.Pid, unix.SIGHUP) // fails after its end
		}
		return master.Close()
	})
	return t, nil
}

// drainTimeout is how long the output of a shell that has ended may take to arrive.
const drainTimeout = 500 * time.Millisecond

// terminal is a terminal that Session.OpenShell opened.
type terminal struct {
	session *Session
	master  *os.File
	close   func() error
}

// Read implements [labapi.Terminal].
func (t *terminal) Read(b []byte) (int, error) {
	n, err := t.master.Read(b)
	t.session.Active()
	return n, err
}

// Write implements [labapi.Terminal].
func (t *terminal) Write(b []byte) (int, error) { return t.master.Write(b) }

// Resize implements [labapi.Terminal].
func (t *terminal) Resize(size labapi.TerminalSize) error {
	if err := pty.Setsize(t.master, &pty.Winsize{Rows: uint16(size.Rows), Cols: uint16(size.Columns)}); err != nil {
		return fmt.Errorf("cannot set the size of the terminal: %w", err)
	}
	return nil
}

// Close implements [labapi.Terminal].
func (t *terminal) Close() error { return t.close() }

// networkNamespaces are the network namespaces of the lab's hosts, by their inodes.
func (w *work) networkNamespaces() map[uint64]bool {
	all := make(map[uint64]bool)
	for _, name := range w.lab.Spec().Hosts() {
		var st unix.Stat_t
		if ns, err := w.lab.Namespace(name); err == nil && unix.Fstat(ns.FD(), &st) == nil {
			all[st.Ino] = true
		}
	}
	return all
}

// killTimeout is how long killed processes may take to end.
const killTimeout = 5 * time.Second

// killIn kills what scripts and shells have left running in the namespaces of a lab that has ended, and waits for its end.
func killIn(places map[uint64]bool) error {
	// A /proc of other namespaces has other processes by these numbers.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return err
	}
	for end := time.Now().Add(killTimeout); ; { // a process may have started another one before it ended
		left, err := processesIn(places)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes of the unit do not end: %d", left)
		}
		for _, pid := range left {
			if err := kill(pid, time.Until(end)); err != nil {
				return fmt.Errorf("killing process %d of the unit: %w", pid, err)
			}
		}
	}
}

// kill kills a process, and waits for its end: at most for a time.
func kill(pid int, wait time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(wait, 0).Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

// processesIn lists the processes in network namespaces. Those that have ended are in none.
func processesIn(places map[uint64]bool) (pids []int, _ error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		var st unix.Stat_t
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && pid != os.Getpid() && unix.Stat(filepath.Join(dir, "ns/net"), &st) == nil && places[st.Ino] {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
