package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// Run runs a course in namespaces of its own, and returns the exit code.
func Run(o Options) (int, error) {
	return netns.Isolation{
		Foreground: true,
		Prepare: func() ([]*os.File, error) {
			own, err := reserve()
			if err != nil {
				return nil, err
			}
			files, err := lab.Reserve(labName, o.Page)
			if err != nil {
				return nil, errors.Join(err, own.Close())
			}
			return append(files, own), nil
		},
		Main: func(files []*os.File) int { return report(o, inside(o, files)) },
	}.Run()
}

// labName is the name of all labs of a session, outside.
const labName = "learn"

// report prints an error, and returns the exit code.
func report(o Options, err error) int {
	if err != nil {
		fmt.Fprintln(o.Stderr, "nfqproxy:", err)
	}
	return exitcode.Of(err)
}

func inside(o Options, files []*os.File) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	s := New(o.Course, o.Record, files[:2])
	var served errgroup.Group
	serving, cancel := context.WithCancel(ctx)
	served.Go(func() error { return s.Serve(serving, files[2]) })
	defer func() {
		cancel() // first: a command that is under way may start a lab
		err = errors.Join(err, served.Wait(), s.Close())
	}()
	if _, err := s.Do(ctx, labapi.LessonCommand{Command: "start", Argument: o.Unit}); ctx.Err() != nil {
		return nil // Ctrl-C
	} else if err != nil {
		return err
	}
	return o.Front(ctx, s)
}

// RunProof proves a unit in namespaces of its own, and returns the exit code.
func RunProof(o Options, u *learn.Unit) (int, error) {
	return netns.Isolation{Main: func([]*os.File) int {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		return report(o, exitcode.Negative(Prove(ctx, u)))
	}}.Run()
}

// Enter opens a shell in the lab of the session that this user runs, on this process's terminal; an empty host is that of
// the unit's shell. It returns the exit code.
func Enter(host string) (int, error) {
	if host == "" {
		var err error
		if host, err = Send(labapi.LessonCommand{Command: "shell"}); err != nil {
			return 1, err
		}
	}
	script := "cd " + unitDir + " && PATH=" + binDir + ":$PATH && exec bash --rcfile " + startFile
	return lab.Exec("", host, []string{"bash", "-c", script})
}
