package labs

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/netns/netnstest"
)

// interruptible starts the nfqproxy command; its output ends with the last process that holds it.
func interruptible(t *testing.T, stdin io.Reader, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := e2etest.Command(args...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = r.Close()
	})
	return cmd, r
}

// TestInterruptedDemo: however early the signal comes, the demo ends and no process is left. The
// pauses are the case itself: they are spread over the start.
func TestInterruptedDemo(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for i := range 40 {
		pause := time.Duration(i*i) * 300 * time.Microsecond // up to half a second, most of them short
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			cmd, output := interruptible(t, nil, "lab", "demo")
			time.Sleep(pause)
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			_ = output.SetReadDeadline(time.Now().Add(e2etest.Patience))
			said, err := io.ReadAll(output)
			if err != nil {
				t.Fatalf("the demo goes on: %v\n%s", err, said)
			}
			_ = cmd.Wait()
			if strings.Contains(string(said), "checks passed") {
				t.Log("the demo was over before the signal")
				if pause < 50*time.Millisecond {
					t.Error("the demo ran to its end")
				}
			} else if code := cmd.ProcessState.ExitCode(); !slices.Contains([]int{-1, 1, 130}, code) {
				t.Errorf("exit code %d\n%s", code, said)
			}
		})
	}
}

// TestInterruptedReader: a command that waits for its input ends with the first signal.
func TestInterruptedReader(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"explain", "--objects", "../../../../datapath/flow/testdata/cluster.yaml", "--packets", "-"},
		{"trace", "--rules", "-", "--protocol", "tcp", "--source", "10.0.0.1", "--destination", "10.0.0.2:80"},
		{"services", "--rules", "-"},
		{"diff", "-", "../../../../datapath/flow/testdata/cluster.yaml"},
		{"replay", "-", "--objects", "../../../../datapath/flow/testdata/cluster.yaml"},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd, _ := interruptible(t, r, args...)
		_ = r.Close()
		// It reads what there is, and waits for more.
		if _, err := io.WriteString(w, "\n"); err != nil {
			t.Fatal(err)
		}
		e2etest.Eventually(t, e2etest.Patience, args[0]+" to read its input", func() bool {
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
		case <-time.After(e2etest.Patience):
			t.Errorf("%s goes on", args[0])
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = w.Close()
	}
}
