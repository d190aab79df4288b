package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
)

// insideSocket is where the session is found from the hosts of its lab.
const insideSocket = root + "/session.sock"

// outsideSocket is where it is found from the network namespace that it was started in: an abstract socket, which disappears
// with the process.
func outsideSocket() string { return fmt.Sprintf("@nfqproxy-learn-%d", os.Getuid()) }

// answer is the response to a command.
type answer struct {
	Text  string `json:"text"`
	Error string `json:"error,omitempty"`
}

// commandTimeout is how long a client waits: some commands start a lab.
const commandTimeout = 2 * time.Minute

// Send sends a command to the session that this user runs, and returns what it reports.
func Send(c labapi.LessonCommand) (string, error) { return send(c, commandTimeout) }

// errEnded is the error of a session that ends before it answers.
var errEnded = errors.New("the course has ended")

func send(c labapi.LessonCommand, timeout time.Duration) (string, error) {
	conn, err := dialSession()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	var a answer
	err = json.NewEncoder(conn).Encode(c)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", fmt.Errorf("the course does not answer: %w", err)
	case err != nil:
		return "", errEnded
	case a.Error != "":
		return "", errors.New(a.Error)
	}
	return a.Text, nil
}

func dialSession() (*net.UnixConn, error) {
	for _, name := range []string{insideSocket, outsideSocket()} {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: name})
		if err != nil {
			continue
		}
		// Any user can bind the name outside first.
		if uid, err := limit.PeerUID(conn); err != nil || int(uid) != os.Getuid() {
			return nil, errors.Join(errForeign, err, conn.Close())
		}
		return conn, nil
	}
	return nil, errNotRunning
}

var (
	errForeign    = errors.New("the course belongs to another user")
	errNotRunning = errors.New("no course is running: start it with \"nfqproxy learn\"")
)

// presence is the command that a session answers at once, whatever else it does.
const (
	presenceCommand = "presence"
	presenceTimeout = 10 * time.Second
)

// reserve reserves the place outside. It waits for the end of a killed session, but not of a running one.
func reserve() (*os.File, error) {
	for {
		// With the last process of a dying session its connections end, and the name is free.
		_, err := send(labapi.LessonCommand{Command: presenceCommand}, presenceTimeout)
		switch {
		case errors.Is(err, errForeign):
			return nil, err
		case !errors.Is(err, errNotRunning) && !errors.Is(err, errEnded):
			return nil, errors.New("a course is running already: \"nfqproxy learn quit\" ends it")
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: outsideSocket()})
		if err == nil {
			defer l.Close() // the file is a duplicate
			return l.File()
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, err
		}
	}
}

// Serve carries out the commands of clients, inside and, with a reserved place, outside, until the context ends.
func (s *Session) Serve(ctx context.Context, outside *os.File) error {
	if err := errors.Join(os.MkdirAll(root, 0o755), os.RemoveAll(insideSocket)); err != nil {
		return err
	}
	inside, err := net.Listen("unix", insideSocket)
	if err != nil {
		return err
	}
	listeners := []net.Listener{inside}
	if outside != nil {
		l, err := net.FileListener(outside)
		if err != nil {
			return errors.Join(err, inside.Close())
		}
		listeners = append(listeners, l)
	}
	var all sync.WaitGroup
	for _, l := range listeners {
		defer context.AfterFunc(ctx, func() { _ = l.Close() })()
		all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return // it is closed
				}
				all.Go(func() { s.serve(ctx, conn.(*net.UnixConn)) })
			}
		})
	}
	all.Wait()
	return nil
}

func (s *Session) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	// A command that is not complete must not outlive the session; one that is gets its answer.
	defer context.AfterFunc(ctx, func() { _ = conn.CloseRead() })()
	if uid, err := limit.PeerUID(conn); err != nil || int(uid) != os.Getuid() {
		return
	}
	var c labapi.LessonCommand
	if err := json.NewDecoder(conn).Decode(&c); err != nil {
		return
	}
	var a answer
	if c.Command != presenceCommand {
		var err error
		if a.Text, err = s.Do(ctx, c); err != nil {
			a.Error = err.Error()
		}
	}
	_ = json.NewEncoder(conn).Encode(a)
}
