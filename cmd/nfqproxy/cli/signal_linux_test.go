package cli

import (
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// TestInterruptedReader: a command that waits for its input ends with the first signal.
func TestInterruptedReader(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"explain", "--objects", clusterFile, "--packets", "-"},
		{"trace", "--rules", "-", "--protocol", "tcp", "--source", "10.0.0.1", "--destination", "10.0.0.2:80"},
		{"services", "--rules", "-"},
		{"diff", "-", clusterFile},
		{"replay", "-", "--objects", clusterFile},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd, _ := e2etest.Start(t, r, args...)
		_ = r.Close()
		// It reads what there is, and waits for more.
		if _, err := io.WriteString(w, "\n"); err != nil {
			t.Fatal(err)
		}
		e2etest.Eventually(t, e2etest.Timeout, args[0]+" to read its input", func() bool {
			unread, err := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
			return err == nil && unread == 0
		})
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
				t.Errorf("%s ended with %v", args[0], err)
			}
		case <-time.After(e2etest.Timeout):
			t.Errorf("%s goes on", args[0])
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = w.Close()
	}
}
