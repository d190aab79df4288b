package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/control/live/daemon"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
)

// newRunCommand makes the command that becomes the daemon, or runs it: its flags are the daemon's, so that mistakes,
// completion and help are as for other commands.
func newRunCommand() *cobra.Command {
	var objects []string
	cmd := &cobra.Command{
		Use:   "run [--kubeconfig FILE | --objects PATH...]",
		Short: "Run the service proxy of this node",
		Long: daemon.Help + `

This command executes nfqproxyd, the daemon, which takes the same flags except --objects.
With --objects, it watches the files and serves their objects to an nfqproxyd that it
starts: changes apply at once, and while a file has mistakes, the last good state stays in
force. The rules of this daemon are removed when it ends, and the machine's settings are
not changed: --keep-rules-on-exit, --own-tables and --config override that.`,
		Example: `  nfqproxy run --kubeconfig /etc/nfqproxy/kubeconfig --cluster-cidr 10.244.0.0/16
  nfqproxy run --config /var/lib/kube-proxy/config.conf --takeover
  nfqproxy run --objects ./manifests --cluster-cidr 10.244.0.0/16 --flow-log -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := executable.FindDaemon()
			if err != nil {
				return err
			}
			if len(objects) > 0 {
				return runWithFiles(cmd, path, objects)
			}
			// The flags as they were given: cobra has parsed them only to find mistakes.
			err = syscall.Exec(path, append([]string{executable.Daemon}, os.Args[2:]...), os.Environ())
			return fmt.Errorf("execute %s: %w", path, err)
		},
	}
	cmd.Flags().StringArrayVar(&objects, "objects", nil, "file or directory with Services, EndpointSlices and Nodes (YAML or JSON), instead of an API server; may be repeated")
	cmd.Flags().SortFlags = false
	new(daemon.Flags).Add(cmd.Flags())
	return cmd
}

// runWithFiles runs the daemon with the objects of files, until it ends.
func runWithFiles(cmd *cobra.Command, path string, objects []string) error {
	flags := cmd.Flags()
	for _, excluded := range []struct{ name, why string }{
		{"kubeconfig", "objects come from files or from an API server"},
		{"master", "objects come from files or from an API server"},
		{"flow-api-service-account", "an API server checks its tokens"},
		{"state-dir", "it is for the objects of an API server"},
		{"write-config-to", "a configuration file cannot name object files"},
	} {
		if flags.Changed(excluded.name) {
			return fmt.Errorf("--objects cannot be used with --%s: %s", excluded.name, excluded.why)
		}
	}
	own, err := withoutObjects(os.Args[2:])
	if err != nil {
		return err
	}
	readyFD, err := flags.GetInt("ready-fd")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nfqproxy-")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	p := &parent{
		log: slog.New(logHandler(cmd.ErrOrStderr(), flags.Lookup("logging-format").Value.String())),
		// Later flags have precedence.
		command: &exec.Cmd{Path: path, Args: slices.Concat([]string{executable.Daemon}, apiserver.DaemonFlags(kubeconfig), own), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr},
		readyFD: readyFD,
	}
	code := 0
	if err = p.server.ServeHere(kubeconfig); err == nil {
		code, err = p.run(objects)
	}
	return exitWith(code, errors.Join(err, p.server.Close(), os.RemoveAll(dir)))
}

func logHandler(w io.Writer, format string) slog.Handler {
	if format == "json" {
		return slog.NewJSONHandler(w, nil)
	}
	return slog.NewTextHandler(w, nil)
}

// withoutObjects are the flags of a command line without --objects, which the daemon does not have.
func withoutObjects(line []string) (all []string, err error) {
	flags := pflag.NewFlagSet(executable.Daemon, pflag.ContinueOnError)
	flags.StringArray("objects", nil, "")
	new(daemon.Flags).Add(flags)
	err = flags.ParseAll(line, func(f *pflag.Flag, value string) error {
		if f.Name != "objects" {
			all = append(all, "--"+f.Name+"="+value)
		}
		return nil
	})
	return all, err
}

// parent serves objects to a daemon that it runs.
type parent struct {
	server  apiserver.Server
	command *exec.Cmd
	log     *slog.Logger
	readyFD int // below 0: none
}

// run runs the daemon when the first objects are there, and passes on the signals that are to end it. It returns its exit code.
func (p *parent) run(objects []string) (code int, err error) {
	// The daemon's parent is the thread that starts it: see start.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(context.Background())
	begun, followed, ended := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() { followed <- p.server.Follow(ctx, p.log, objects, func() { close(begun) }) }()
	defer func() {
		cancel()
		if followed != nil {
			<-followed
		}
	}()
	for {
		select {
		case <-begun:
			begun = nil
			if err := p.start(); err != nil {
				return 1, err
			}
			go func() {
				_ = p.command.Wait() // its state says how it ended
				close(ended)
			}()
		case s := <-signals:
			if p.command.Process == nil {
				return 128 + int(s.(syscall.Signal)), nil
			}
			_ = p.command.Process.Signal(s) // it may have ended
		case err = <-followed:
			followed = nil
			if p.command.Process == nil {
				return 1, err
			}
			_ = p.command.Process.Signal(syscall.SIGTERM)
		case <-ended:
			return p.exit(), err
		}
	}
}

// start starts the daemon in a process group of its own: a terminal's Ctrl-C is for the tool, which passes it on, and a second
// signal would end the daemon at once. If the tool is killed, the daemon gets a SIGTERM.
func (p *parent) start() error {
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.command.Start(); err != nil {
		return fmt.Errorf("execute %s: %w", p.command.Path, err)
	}
	if p.readyFD > 2 {
		// The daemon has inherited it. Who reads it waits until all have closed it.
		return unix.Close(p.readyFD)
	}
	return nil
}

// exit returns the daemon's exit code as a shell would.
func (p *parent) exit() int {
	if status, ok := p.command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.command.ProcessState.ExitCode()
}
