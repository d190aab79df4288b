// The nfqproxy command: a Kubernetes service proxy whose every decision can be seen.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version = "unknown"

func main() { os.Exit(runProcess(connect)) }

// runProcess executes the command line of this process; see [run].
func runProcess(connect connector) int {
	// A reader of the flow log or of the messages that goes away must not take the
	// proxy with it.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return execute(ctx, newRootCommand(connect), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// run executes one command line and gives the exit code: 0, 1 after an error
// message on stderr, or that of a command it was to run.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(ctx, newRootCommand(connect), args, stdin, stdout, stderr)
}

func execute(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(stderr, "nfqproxy:", err)
	return 1
}

// newRootCommand makes the command. Those that ask a flow API get there by connect.
func newRootCommand(connect connector) *cobra.Command {
	root := &cobra.Command{
		Use:   "nfqproxy",
		Short: "A Kubernetes service proxy whose every decision can be seen",
		Long: `nfqproxy takes kube-proxy's part on a node: one netfilter queue rule hands every new
flow to it, it chooses the endpoint as kube-proxy's chains would, and writes the
translation into the kernel's connection table, where the flow stays from then on.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newRunCommand(), newCleanupCommand(), newLabCommand(),
		newFlowsCommand(connect), newTopCommand(connect), newStepCommand(connect),
		newExplainCommand(), newRenderCommand(),
		newTraceCommand(), newServicesCommand(), newDiffCommand(), newReplayCommand(),
	)
	return root
}
