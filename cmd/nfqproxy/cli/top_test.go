package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/netns/netnstest"
)

// pane is a terminal of tmux that the nfqproxy command runs in, and asks a made-up cluster.
type pane struct {
	t      *testing.T
	socket string
}

// newPane starts the command in a terminal of this size.
func newPane(t *testing.T, width, height, args string) *pane {
	t.Helper()
	netnstest.RequireTool(t, "tmux")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "tmux") // t.TempDir may be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	p := &pane{t, filepath.Join(dir, "s")}
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", p.socket, "kill-server").Run()
		_ = os.RemoveAll(dir)
	})
	// The shell tells the exit code, and waits until it is seen.
	p.tmux("-f", os.DevNull, "new-session", "-d", "-x", width, "-y", height, "'"+self+"' "+args+`; echo "exit code $?"; read x`)
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", p.socket}, args...)...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color", "TMUX=", "TZ=UTC", "NO_COLOR=1", asksMadeUp+"=1"), e2etest.CommandEnv()...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// press types keys, as tmux names them.
func (p *pane) press(keys ...string) { p.tmux(append([]string{"send-keys"}, keys...)...) }

// sees waits until all of it can be seen, and gives the screen.
func (p *pane) sees(all ...string) string {
	p.t.Helper()
	var screen string
	for end := time.Now().Add(e2etest.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		screen = p.tmux("capture-pane", "-p")
		missing := false
		for _, text := range all {
			missing = missing || !strings.Contains(screen, text)
		}
		if !missing {
			return screen
		}
	}
	p.t.Fatalf("want %q on the screen, have\n%s", all, screen)
	return ""
}

// TestTopInTerminal: from the services to a flow's story and back, in a real terminal.
func TestTopInTerminal(t *testing.T) {
	p := newPane(t, "100", "30", "top")
	p.sees("> default/nobody-home", "  default/web:http", "1240     32  █████▒▒▒▒▒ ")
	p.press("G")
	p.sees("> default/web:http")
	p.press("Enter")
	p.sees("services > default/web:http", "1240 random selections since 12:00:00, consistent with equal probabilities", "> default/web-1")
	p.press("f")
	p.sees("services > default/web:http > flows", "No flows yet.")
	p.press("Escape")
	p.sees("> default/web-1")
	p.press("?")
	p.sees("any key goes back")
	p.press("x", "Left")
	p.sees("> default/web:http")
	p.tmux("resize-window", "-x", "60", "-y", "15")
	p.sees("> default/web:http", "UNANSWERED")
	p.press("/", "sticky", "Enter")
	screen := p.sees("> default/sticky", `only with "sticky"`)
	if strings.Contains(screen, "web:http") {
		t.Errorf("not filtered:\n%s", screen)
	}
	p.press("q")
	p.sees("exit code 0")
}

// TestStepInTerminal: a step takes the place of the one before, and what is typed in between.
func TestStepInTerminal(t *testing.T) {
	p := newPane(t, "80", "40", "step --service default/web")
	p.sees("0 of 6 steps taken", "=> KUBE-SERVICES", "> ")
	p.press("n", "Enter")
	screen := p.sees("1 of 6 steps taken", "=> KUBE-SVC-CDGGSHYLG3RE2FKL")
	if strings.Contains(screen, "0 of 6") || strings.Count(screen, "KUBE-SERVICES") != 1 {
		t.Errorf("not in the place of the step before:\n%s", screen)
	}
	p.press("c 1", "Enter")
	p.sees("c 1  10.244.1.2:8080  <- chosen")
	p.press("g", "Enter")
	p.sees("The flow was released to the chosen endpoint.", "State: established 340µs after the decision", "exit code 0")
}
