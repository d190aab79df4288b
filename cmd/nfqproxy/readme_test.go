package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// shown are the commands that the README shows with what they print: "$ ./bin/nfqproxy ..."
// as the first line of a block, perhaps on several lines.
var shown = regexp.MustCompile("(?m)^```\n\\$ (\\./bin/nfqproxy (?:.*\\\\\n)*.*)\n((?:.*\n)*?)```$")

// TestREADME: the commands print what the README says, up to a line "...".
func TestREADME(t *testing.T) {
	netns.RequireTool(t, "bash")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "nfqproxy")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	commands := shown.FindAllStringSubmatch(mustRead(t, "../../README.md"), -1)
	if len(commands) < 7 {
		t.Errorf("only %d commands with their output are found", len(commands))
	}
	for _, c := range commands {
		cmd := exec.Command("bash", "-c", strings.ReplaceAll(c[1], "./bin/nfqproxy", program))
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), beCommand+"=1", "GORACE=halt_on_error=1 atexit_sleep_ms=0")
		out, err := cmd.Output() // diff ends with 1 where there are differences
		want, _, cut := strings.Cut(c[2], "\n...\n")
		if got := string(out); got != want && !(cut && strings.HasPrefix(got, want)) {
			t.Errorf("%s\nprints (%v)\n%s\nand in the README\n%s", c[1], err, got, want)
		}
	}
}
