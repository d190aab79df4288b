package e2etest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// Pane is a terminal of tmux that the nfqproxy command runs in.
type Pane struct {
	t      testing.TB
	ns     *netns.Namespace
	socket string
	env    []string
}

// NewPane starts the command in a terminal of this size, in a network namespace or, for nil, in that of the test.
// env are further environment variables. The end of the test ends it.
func NewPane(t testing.TB, ns *netns.Namespace, env []string, width, height string, args ...string) *Pane {
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
	p := &Pane{t, ns, filepath.Join(dir, "s"), env}
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", p.socket, "kill-server").Run()
		_ = os.RemoveAll(dir)
	})
	// The shell prints the exit code, and waits until it is seen.
	p.Tmux("-f", os.DevNull, "new-session", "-d", "-x", width, "-y", height, "'"+self+"' '"+strings.Join(args, "' '")+`'; echo "exit code $?"; read x`)
	return p
}

// Tmux runs a command of tmux, and returns its output.
func (p *Pane) Tmux(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", p.socket}, args...)...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color", "TMUX=", "TZ=UTC", "NO_COLOR=1"), append(CommandEnv(), p.env...)...)
	code, stdout, stderr := RunCommand(p.t, p.ns, cmd)
	if code != 0 {
		p.t.Fatalf("tmux %q: exit code %d: %s%s", args, code, stdout, stderr)
	}
	return stdout
}

// Press types keys, as tmux names them.
func (p *Pane) Press(keys ...string) {
	p.t.Helper()
	p.Tmux(append([]string{"send-keys"}, keys...)...)
}

// Screen returns what the terminal shows.
func (p *Pane) Screen() string {
	p.t.Helper()
	return p.Tmux("capture-pane", "-p")
}

// Sees waits until the terminal shows all texts, and returns what it shows.
func (p *Pane) Sees(all ...string) (screen string) {
	p.t.Helper()
	p.Awaits(strings.Join(all, ", "), func(now string) bool {
		screen = now
		for _, text := range all {
			if !strings.Contains(now, text) {
				return false
			}
		}
		return true
	})
	return screen
}

// Awaits waits until what the terminal shows is as wanted.
func (p *Pane) Awaits(what string, is func(screen string) bool) {
	p.t.Helper()
	var screen string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("the terminal shows\n%s", screen)
		}
	}()
	Eventually(p.t, Timeout, what, func() bool {
		screen = p.Screen()
		return is(screen)
	})
}
