package session

import (
	"errors"
	"fmt"
	"os"
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
