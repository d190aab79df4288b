package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/node"
)

// load reads the settings of a running cluster.
func (o *options) load() error {
	if _, err := node.Find(o.path(controlSocket)); err != nil {
		return fmt.Errorf("no cluster is running in %s: %w", o.Dir, err)
	}
	text, err := os.ReadFile(o.path(settingsFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &o.settings)
}

// down ends a running cluster and waits for its end.
func (o *options) down() error {
	pid, err := node.Find(o.path(controlSocket))
	if err != nil {
		return o.cleanUp() // of one that was killed
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return os.NewSyscallError("kill", err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		// The outer process removes it last.
		if _, err := os.Stat(o.path(controlSocket)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not end", pid)
}

// attach runs a program in the namespaces of a process of the cluster, in this one's place.
func (o *options) attach(socket string, args []string) error {
	if len(args) == 0 {
		return errors.New("a program is missing")
	}
	if err := o.load(); err != nil {
		return err
	}
	dir := ""
	if socket == o.path(controlSocket) {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return err
		}
	}
	cmd, err := node.Command(socket, dir, args[0], args[1:]...)
	if err != nil {
		return err
	}
	return unix.Exec(cmd.Path, cmd.Args, os.Environ())
}

func (o *options) attachKubectl(args []string) error {
	path, err := cluster.Binary(cluster.Kubectl)
	if err != nil {
		return err
	}
	return o.attach(o.path(controlSocket), append([]string{path, "--kubeconfig=" + o.kubeconfig()}, args...))
}

// insideVariable is set for a process that was started inside the cluster.
const insideVariable = "NFQPROXY_E2E_INSIDE"

// inside runs this command once more in the network of the nodes, and does there what it has to.
func (o *options) inside(do func(context.Context) error) error {
	if os.Getenv(insideVariable) == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if err := os.Setenv(insideVariable, "1"); err != nil {
			return err
		}
		return o.attach(o.path(controlSocket), append([]string{self}, os.Args[1:]...))
	}
	if err := o.load(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return do(ctx)
}
