package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
)

// Exec runs a command inside a host of a running lab, with this process's standard files,
// directory and environment, and returns its exit code. An empty labName selects the only
// running lab.
func Exec(labName, host string, command []string) (int, error) {
	conn, err := dial(labName)
	if err != nil {
		return 1, err
	}
	defer conn.Close()
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	r := &execRequest{Host: host, Command: command, Dir: dir, Env: os.Environ()}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if inBackground(os.Stdin) {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return 1, err
		}
		defer null.Close()
		files[0] = null
		return execPlain(conn, r, files)
	}
	// In a pipeline the next program writes to the terminal, and needs its modes unchanged.
	if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
		return execPlain(conn, r, files)
	}
	r.Terminal = true
	return execTerminal(conn, r, files)
}

// inBackground reports whether this process is a background job of its terminal: it would be stopped if it changed the terminal's
// modes, and what is typed is for another process.
func inBackground(terminal *os.File) bool {
	foreground, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground != unix.Getpgrp()
}

// ExecQuietly is Exec without input, and with all output to a file.
func ExecQuietly(labName, host string, command []string, output *os.File) (int, error) {
	conn, err := dial(labName)
	if err != nil {
		return 1, err
	}
	defer conn.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 1, err
	}
	defer null.Close()
	return execPlain(conn, &execRequest{Host: host, Command: command, Dir: "/", Env: os.Environ()}, []*os.File{null, output, output})
}

// execPlain passes the files unchanged.
func execPlain(conn *net.UnixConn, r *execRequest, files []*os.File) (int, error) {
	signals := catchSignals(unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	if err := writeMessage(conn, request{Exec: r}, files...); err != nil {
		return 1, err
	}
	defer forwardSignals(conn, signals)()
	return exitOf(conn)
}

// execTerminal puts a pseudoterminal between the command and ours: the command gets job
// control, the window size, and Ctrl-C.
func execTerminal(conn *net.UnixConn, r *execRequest, files []*os.File) (code int, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return 1, fmt.Errorf("opening a terminal: %w", err)
	}
	defer master.Close()
	defer slave.Close()
	// Go opens terminals as non-blocking, which applies to all holders of the open file: a
	// shell's read would fail at once. Fd makes it blocking.
	_ = slave.Fd()
	for i, f := range files {
		if term.IsTerminal(int(f.Fd())) {
			files[i] = slave
		}
	}
	resize := make(chan os.Signal, 1)
	signal.Notify(resize, unix.SIGWINCH)
	defer signal.Stop(resize)
	_ = pty.InheritSize(os.Stdin, master)
	go func() {
		for range resize {
			_ = pty.InheritSize(os.Stdin, master)
		}
	}()
	signals := catchSignals(unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	if err := writeMessage(conn, request{Exec: r}, files...); err != nil {
		return 1, err
	}
	defer forwardSignals(conn, signals)()
	_ = slave.Close() // only the command has it now: the output ends with the command

	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, term.Restore(int(os.Stdin.Fd()), before)) }()
	go func() { _, _ = io.Copy(master, os.Stdin) }() // ends with the process
	output := make(chan struct{})
	go func() {
		defer close(output)
		_, _ = io.Copy(os.Stdout, master) // until EIO: no process has the slave any more
	}()
	code, err = exitOf(conn)
	// Background processes of the command may hold the terminal for long. The command's own
	// output arrives soon.
	select {
	case <-output:
	case <-time.After(drainTerminal):
	}
	return code, err
}

// drainTerminal is how long output may take to arrive after the end of a command that left
// background processes.
const drainTerminal = 500 * time.Millisecond

// catchSignals keeps signals from ending this process. It is called before the request: once
// the command runs, the signals belong to it.
func catchSignals(signals ...os.Signal) <-chan os.Signal {
	c := make(chan os.Signal, 8)
	signal.Notify(c, signals...)
	return c
}

// forwardSignals passes caught signals on to the command.
func forwardSignals(conn *net.UnixConn, c <-chan os.Signal) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-c:
				if n, ok := s.(unix.Signal); ok {
					_ = writeMessage(conn, signalMessage{int(n)})
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// exitOf waits for the end of the command. An error may come with an exit code, too.
func exitOf(conn *net.UnixConn) (int, error) {
	r, err := receive(conn)
	switch {
	case r != nil && r.Exit != nil:
		return *r.Exit, err
	case err != nil:
		return 1, err
	}
	return 1, errors.New("no exit code in the lab's response")
}

// receive reads a response; a response with an error is returned with that error.
func receive(conn *net.UnixConn) (*response, error) {
	var r response
	files, err := readMessage(conn, &r)
	closeFiles(files)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil, errors.New("the lab has stopped")
	case err != nil:
		return nil, err
	case r.Error != "":
		return &r, errors.New(r.Error)
	}
	return &r, nil
}

// query sends a request to a running lab, and returns the address of its socket, too.
func query(labName string, q request) (*response, *net.UnixAddr, error) {
	conn, err := dial(labName)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	if err := writeMessage(conn, q); err != nil {
		return nil, nil, err
	}
	r, err := receive(conn)
	return r, conn.RemoteAddr().(*net.UnixAddr), err
}

// StatusOf returns the status of a running lab.
func StatusOf(labName string) (*Status, error) {
	r, _, err := query(labName, request{Status: true})
	if err != nil {
		return nil, err
	}
	if r.Status == nil {
		return nil, errors.New("no status in the lab's response")
	}
	return r.Status, nil
}

// ObjectsOf returns the Kubernetes objects of a running lab, with its lab file.
func ObjectsOf(labName string) (*manifest.Objects, error) {
	r, _, err := query(labName, request{Objects: true})
	if err != nil {
		return nil, err
	}
	if r.Objects == nil || r.Lab == nil {
		return nil, errors.New("no objects in the lab's response")
	}
	r.Objects.Lab = r.Lab
	return r.Objects, nil
}

// FirewallOf returns the firewall rules of a node of a running lab, as [Lab.Firewall].
func FirewallOf(labName, node string, to []netip.Addr) (*noderules.Rules, error) {
	r, _, err := query(labName, request{Firewall: &firewallRequest{node, to}})
	if err != nil {
		return nil, err
	}
	if r.Firewall == nil {
		return nil, errors.New("no rules in the lab's response")
	}
	return r.Firewall, nil
}

// ChangeOf changes a running lab, as [Lab.Change].
func ChangeOf(labName string, c Change) ([]string, error) {
	r, _, err := query(labName, request{Change: &c})
	if err != nil {
		return nil, err
	}
	return r.Changes, nil
}

// AddFaultOf puts a fault of a running lab in force, and returns it as it is listed.
func AddFaultOf(labName string, f Fault) (Fault, error) {
	r, _, err := query(labName, request{Fault: &faultRequest{Add: &f}})
	if err != nil || len(r.Faults) != 1 {
		return f, cmp.Or(err, errors.New("no fault in the lab's response"))
	}
	return r.Faults[0], nil
}

// FaultsOf returns the faults of a running lab.
func FaultsOf(labName string) ([]Fault, error) {
	r, _, err := query(labName, request{Fault: new(faultRequest)})
	if err != nil {
		return nil, err
	}
	return r.Faults, nil
}

// RemoveFaultOf ends a fault of a running lab, or all (0). It returns those that it ended.
func RemoveFaultOf(labName string, id int) ([]Fault, error) {
	r, _, err := query(labName, request{Fault: &faultRequest{Remove: &id}})
	if err != nil {
		return nil, err
	}
	return r.Faults, nil
}

// Down stops a running lab and waits for its end.
func Down(labName string) error {
	_, name, err := query(labName, request{Down: true})
	if err != nil {
		return err
	}
	// The lab's outermost process holds the socket until its end. A connection that is not
	// accepted ends with the socket.
	for {
		wait, err := net.DialUnix("unix", nil, name)
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		if err != nil {
			return err
		}
		_, _ = wait.Read(make([]byte, 1))
		_ = wait.Close()
	}
}
