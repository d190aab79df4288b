package process

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Isolated runs a benchmark in namespaces of its own, with a context that SIGINT and SIGTERM end,
// and exits. name begins the line of an error.
func Isolated(name string, run func(context.Context) error) {
	code, err := netns.Isolation{Main: func([]*os.File) int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return report(name, run(ctx))
	}}.Run()
	if err != nil {
		code = report(name, err)
	}
	os.Exit(code)
}

// Exit ends a side of the traffic; see [StartSelf].
func Exit(name string, err error) { os.Exit(report(name, err)) }

// report prints an error, and returns the exit code.
func report(name string, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	return 1
}
