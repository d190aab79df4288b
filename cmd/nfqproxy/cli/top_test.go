package cli

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// newPane starts the command, which asks a made-up cluster, in a terminal of this size.
func newPane(t *testing.T, width, height string, args ...string) *e2etest.Pane {
	t.Helper()
	return e2etest.NewPane(t, nil, []string{asksMadeUp + "=1"}, width, height, args...)
}

// TestTopInTerminal: from the services to a flow's story and back, in a real terminal.
func TestTopInTerminal(t *testing.T) {
	p := newPane(t, "100", "30", "top")
	p.Sees("  default/nobody-home", "> default/web:http", "1240     32  █████▒▒▒▒▒ ")
	p.Press("g")
	p.Sees("> default/nobody-home")
	p.Press("G")
	p.Sees("> default/web:http")
	p.Press("Enter")
	p.Sees("services > default/web:http", "1240 random selections since 12:00:00, consistent with equal probabilities", "> default/web-1")
	p.Press("f")
	p.Sees("services > default/web:http > flows", "No flows yet.")
	p.Press("Escape")
	p.Sees("> default/web-1")
	p.Press("?")
	p.Sees("any key goes back")
	p.Press("x", "Left")
	p.Sees("> default/web:http")
	p.Tmux("resize-window", "-x", "60", "-y", "15")
	p.Sees("> default/web:http", "UNANSWERED")
	p.Press("/", "sticky", "Enter")
	screen := p.Sees("> default/sticky", `only with "sticky"`)
	if strings.Contains(screen, "web:http") {
		t.Errorf("not filtered:\n%s", screen)
	}
	p.Press("q")
	p.Sees("exit code 0")
}

// TestStepInTerminal: a step takes the place of the one before, and what is typed in between.
func TestStepInTerminal(t *testing.T) {
	p := newPane(t, "80", "40", "step", "--service", "default/web")
	p.Sees("0 of 6 steps taken", "=> KUBE-SERVICES", "> ")
	p.Press("n", "Enter")
	screen := p.Sees("1 of 6 steps taken", "=> KUBE-SVC-CDGGSHYLG3RE2FKL")
	if strings.Contains(screen, "0 of 6") || strings.Count(screen, "KUBE-SERVICES") != 1 {
		t.Errorf("not in the place of the step before:\n%s", screen)
	}
	p.Press("c 1", "Enter")
	p.Sees("c 1  10.244.1.2:8080  <- chosen")
	p.Press("g", "Enter")
	p.Sees("The flow was released to the chosen endpoint.", "State: established 340µs after the decision", "exit code 0")
}
