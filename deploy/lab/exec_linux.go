package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Exec runs a command inside a host of a running lab, with this process's standard
// files, directory and environment, and gives its exit code. labName may be empty
// where only one lab is running.
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
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return execPlain(conn, r, files)
	}
	r.Terminal = true
	return execTerminal(conn, r, files)
}

// execPlain hands the files over as they are.
func execPlain(conn *net.UnixConn, r *execRequest, files []*os.File) (int, error) {
	signals := catchSignals(unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	if err := writeMessage(conn, request{Exec: r}, files...); err != nil {
		return 1, err
	}
	defer forwardSignals(conn, signals)()
	return exitOf(conn)
}

// execTerminal puts a terminal of the command's own between it and ours: with it
// come job control, window size, and Ctrl-C for the command and not for us.
func execTerminal(conn *net.UnixConn, r *execRequest, files []*os.File) (code int, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return 1, fmt.Errorf("opening a terminal: %w", err)
	}
	defer master.Close()
	defer slave.Close()
	// Go opens terminals as non-blocking, and whoever shares the open file shares
	// that; a shell's read would fail at once. Fd undoes it.
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
	_ = slave.Close() // the command has it now: with its end comes the end of the output

	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, term.Restore(int(os.Stdin.Fd()), before)) }()
	go func() { _, _ = io.Copy(master, os.Stdin) }() // ends with the process
	output := make(chan struct{})
	go func() {
		defer close(output)
		_, _ = io.Copy(os.Stdout, master) // until EIO: nobody has the slave any more
	}()
	code, err = exitOf(conn)
	// What the command left running may hold the terminal for long. What the command
	// itself wrote is on its way.
	select {
	case <-output:
	case <-time.After(drainTerminal):
	}
	return code, err
}

// drainTerminal is how long output may take to come through after the end of a
// command that left something running.
const drainTerminal = 500 * time.Millisecond

// catchSignals keeps signals from ending this process. It comes before the command
// is asked for: once the command runs, they are the command's.
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
	return 1, errors.New("the lab gave no exit code")
}

// receive reads a response; one that has an error is an error, too.
func receive(conn *net.UnixConn) (*response, error) {
	var r response
	files, err := readMessage(conn, &r)
	closeFiles(files)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil, errors.New("the lab went down")
	case err != nil:
		return nil, err
	case r.Error != "":
		return &r, errors.New(r.Error)
	}
	return &r, nil
}

// StatusOf asks a running lab for its status.
func StatusOf(labName string) (*Status, error) {
	conn, err := dial(labName)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := writeMessage(conn, request{Status: true}); err != nil {
		return nil, err
	}
	r, err := receive(conn)
	if err != nil {
		return nil, err
	}
	if r.Status == nil {
		return nil, errors.New("the lab gave no status")
	}
	return r.Status, nil
}

// Down ends a running lab and waits until it is gone.
func Down(labName string) error {
	conn, err := dial(labName)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := writeMessage(conn, request{Down: true}); err != nil {
		return err
	}
	if _, err := receive(conn); err != nil {
		return err
	}
	// Its outermost process holds the socket to the last. A connection that nobody
	// accepts ends with the socket.
	name := conn.RemoteAddr().(*net.UnixAddr)
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
