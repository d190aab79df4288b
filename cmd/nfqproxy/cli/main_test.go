package cli

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

func TestMain(m *testing.M) {
	completionTimeout = e2etest.Timeout
	e2etest.Main(m, func() int {
		if os.Getenv(asksMadeUp) != "" {
			return runProcess(connectMadeUp)
		}
		return Main()
	})
}

// run executes one command line in this process and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return execute(ctx, newRootCommand(connect), args, stdin, stdout, stderr)
}
