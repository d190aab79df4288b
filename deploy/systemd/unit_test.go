// Package systemd tests the unit of this directory.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/control/live/confine"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

const unit = "nfqproxy.service"

// values are the values of a setting, in their order.
func values(t *testing.T, setting string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, setting+"="); ok {
			list = append(list, strings.TrimSpace(v))
		}
	}
	return list
}

// analyze runs systemd-analyze, which needs no running systemd.
func analyze(t *testing.T, args ...string) string {
	t.Helper()
	netnstest.RequireTool(t, "systemd-analyze")
	out, err := exec.Command("systemd-analyze", append([]string{"--no-pager"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestExposure: the exposure is at most 2.0, as docs/explanation/confinement.md has it.
func TestExposure(t *testing.T) {
	analyze(t, "security", "--offline=true", "--threshold=20", unit)
}

// TestSettings: systemd knows each setting of the unit, and the daemon its flags.
func TestSettings(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), unit)
	if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(text), "/usr/bin/nfqproxyd", self)), 0o644); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(analyze(t, "verify", "--man=no", copied)) {
		if strings.Contains(line, unit) {
			t.Error(line)
		}
	}
	run, _, err := cli.NewCommand().Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	command := strings.Join(append(values(t, "ExecStart"), values(t, "Environment")...), " ")
	flags := 0
	for word := range strings.FieldsSeq(command) {
		if _, flag, ok := strings.Cut(word, "--"); ok {
			flags++
			if name, _, _ := strings.Cut(flag, "="); run.Flags().Lookup(name) == nil {
				t.Errorf("nfqproxy run has no flag --%s", name)
			}
		}
	}
	if flags != 2 {
		t.Errorf("%d flags in %q", flags, command)
	}
}

// TestSystemCalls: the unit permits what the daemon calls, and calls to confine itself.
func TestSystemCalls(t *testing.T) {
	sets := make(map[string][]string)
	var current string
	for line := range strings.Lines(analyze(t, "syscall-filter")) {
		name := strings.TrimSpace(line)
		switch {
		case name == "" || strings.HasPrefix(name, "#"):
		case strings.HasPrefix(line, "@"):
			current = name
		case current != "":
			sets[current] = append(sets[current], name)
		}
	}
	if len(sets["@system-service"]) == 0 {
		t.Fatal("systemd-analyze lists no sets")
	}
	var expand func(name string) []string
	expand = func(name string) (calls []string) {
		if !strings.HasPrefix(name, "@") {
			return []string{name}
		}
		for _, n := range sets[name] {
			calls = append(calls, expand(n)...)
		}
		return calls
	}
	allowed := make(map[string]bool)
	for _, v := range values(t, "SystemCallFilter") {
		list, denied := strings.CutPrefix(v, "~")
		for word := range strings.FieldsSeq(list) {
			for _, call := range expand(word) {
				allowed[call] = !denied
			}
		}
	}
	own := []string{"capget", "prctl", "seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "execve", "faccessat2"}
	for _, call := range slices.Concat(confine.Measured, own) {
		if !allowed[call] {
			t.Errorf("the unit forbids %s", call)
		}
	}
}
