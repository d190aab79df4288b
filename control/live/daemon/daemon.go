// Package daemon is nfqproxyd: it serves the Services of one node. It reads the command line, connects the other
// live packages and runs them until a signal.
//
// Data flows one way: objects and addresses -> servicetable.Controller -> tables -> datapath ([publish] has the
// order); results -> health, metrics and the record of flows.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/usage"
	"github.com/nfqproxy/nfqproxy/control/visible"
)

const program = "nfqproxyd"

// Main executes the command line of this process and returns its exit code: 0, or 2 after an error message on
// stderr. SIGINT and SIGTERM end it; the second one ends it at once.
func Main(version string) int {
	// A closed reader of the flow log or of the messages must not end the proxy.
	signal.Ignore(syscall.SIGPIPE)
	// Names of objects and messages of servers are in the output: they must not control a terminal.
	stdout, stderr := visible.NewWriter(os.Stdout, nil), visible.NewWriter(os.Stderr, nil)
	defer func() { _, _ = stdout.Flush(), stderr.Flush() }()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx, version, os.Args[1:], stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, program+":", err)
		return 2
	}
	return 0
}

func run(ctx context.Context, version string, args []string, stdout, stderr io.Writer) error {
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	flags.Usage = func() {}
	var f Flags
	f.Add(flags)
	help := flags.BoolP("help", "h", false, "print this help")
	wantsVersion := flags.Bool("version", false, "print the version")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp) || err == nil && *help:
		_, err := fmt.Fprintf(stdout, "%s\n\nUsage:\n  %s [--kubeconfig FILE]\n\nFlags:\n%s", Help, program, usage.Flags(flags))
		return err
	case err != nil:
		return usage.Explain(program, flags, err)
	case *wantsVersion:
		_, err := fmt.Fprintln(stdout, program, version)
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("%s takes no argument %q (see %[1]s --help)", program, flags.Arg(0))
	}
	return f.Run(ctx, version, stdout, stderr)
}

// supervisor is the service manager that started the process, systemd for example; see sd_notify(3).
// A nil supervisor takes no messages.
type supervisor struct {
	conn     net.Conn
	watchdog time.Duration // within which it wants a sign of life; 0: it wants none
}

// findSupervisor connects to the service manager, if the environment names one.
func findSupervisor() (*supervisor, error) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return nil, nil
	}
	// Connected at once: a confined process cannot reach an abstract socket.
	conn, err := net.Dial("unixgram", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the service manager: %w (unset NOTIFY_SOCKET to start without it)", err)
	}
	s := &supervisor{conn: conn}
	if pid := os.Getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if us, err := strconv.ParseUint(os.Getenv("WATCHDOG_USEC"), 10, 32); err == nil {
			s.watchdog = time.Duration(us) * time.Microsecond
		}
	}
	return s, nil
}

// run reports that the process serves, and then that it makes progress: as long as it is not stuck, and
// until the context ends.
func (s *supervisor) run(ctx context.Context, stuck func() bool, log *slog.Logger) {
	if s == nil {
		return
	}
	notify := func(state string) {
		if _, err := s.conn.Write([]byte(state)); err != nil {
			log.Warn("cannot notify the service manager", "state", state, "error", err)
		}
	}
	notify("READY=1")
	var tick <-chan time.Time
	if s.watchdog > 0 {
		// One message in four is enough, so a worker may be slow for a moment.
		tick = time.Tick(s.watchdog / 4)
	}
	for {
		select {
		case <-ctx.Done():
			notify("STOPPING=1")
			_ = s.conn.Close() // nothing is lost
			return
		case <-tick:
			if !stuck() {
				notify("WATCHDOG=1")
			}
		}
	}
}
