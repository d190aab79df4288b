package labs

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestInterruptedDemo: however early the signal comes, the demo ends and no process is left. The
// pauses are the case itself: they are spread over the start.
func TestInterruptedDemo(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for i := 0; i < 40; i += netnstest.Cases(1, 4) {
		pause := time.Duration(i*i) * 300 * time.Microsecond // up to half a second, most of them short
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			cmd, output := e2etest.Start(t, nil, "lab", "demo")
			time.Sleep(pause)
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			_ = output.SetReadDeadline(time.Now().Add(e2etest.Timeout))
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
				return
			}
			code := cmd.ProcessState.ExitCode()
			message := slices.ContainsFunc([]string{"nfqproxy: interrupted\n", "nfqproxy: interrupted before lab kind was up\n"}, func(end string) bool { return strings.HasSuffix(string(said), end) })
			if code != -1 && code != 130 && (code != 2 || !message) {
				t.Errorf("exit code %d\n%s", code, said)
			}
		})
	}
}
