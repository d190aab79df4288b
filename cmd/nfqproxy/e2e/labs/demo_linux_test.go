package labs

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// The demo of each built-in lab, with real daemons, ends well.
func TestLabDemo(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for _, name := range labs.Names() {
		if !netnstest.Selected(name, "kind", "dual-stack", "nodeport-30007") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := e2etest.Run(t, nil, "lab", "demo", name)
			if code != 0 || stderr != "" || strings.Contains(stdout, "✗") || !strings.Contains(stdout, "checks passed") {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
			const slide = 115 // columns
			for line := range strings.Lines(stdout) {
				if n := utf8.RuneCountInString(line) - 1; n > slide && name != "dual-stack" {
					t.Errorf("%d columns: %s", n, line)
				}
			}
		})
	}
}

// On a narrow terminal no line of the demo is too long for it. The signs of the walks are
// explained, and the end says how to go on.
func TestLabDemoOnATerminal(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	cmd := e2etest.Command("lab", "demo")
	cmd.Env = append(cmd.Env, "TERM=xterm", "NO_COLOR=")
	const columns = 80
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: columns})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var said bytes.Buffer
	_, _ = said.ReadFrom(terminal) // until EIO: no process has the other end
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
	out := said.String()
	for line := range strings.Lines(out) {
		if n := ansi.StringWidth(strings.TrimRight(line, "\r\n")); n > columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	for _, want := range []string{"\x1b[1m1  A pod connects to a Service\x1b[0m", "\x1b[32m✓\x1b[0m", "  ->  the rule matches", "  .   the rule does not match", "  *   the rule marks", `"masq: -"`, "Next:", " lab up kind ", " lab list ", " explain --help "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Without masquerading hairpins the demo shows that a pod that reaches itself gets no
// reply, and that all other scenes pass.
func TestLabDemoWithoutHairpinMasquerade(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	code, stdout, stderr := e2etest.Run(t, nil, "lab", "demo", "kube-dns-hairpin", "--masquerade-hairpin=false")
	if code != 0 || stderr != "" || strings.Contains(stdout, "✗") || !strings.Contains(stdout, "checks passed") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{"reaches itself, without masquerading", "none within 1s", "✓ the pod itself was selected, and its source stayed unchanged"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}
