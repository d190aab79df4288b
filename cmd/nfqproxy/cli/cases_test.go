package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// TestCases runs testdata/cases: what people bring, rebuilt from public reports, and what a right
// answer has to say. README.md there describes a case.
func TestCases(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("the commands of the cases need bash")
	}
	path := nfqproxyPath(t)
	files, err := filepath.Glob("testdata/cases/*/cmd")
	if err != nil {
		t.Fatal(err)
	}
	if least := 180; len(files) < least {
		t.Errorf("%d cases, want at least %d", len(files), least)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c, err := readFieldCase(dir)
			if err != nil {
				t.Fatal(err)
			}
			output, code := c.run(t, path)
			if failures := c.failures(output, code); len(failures) > 0 {
				t.Errorf("%s\n%s\nexit code %d:\n%s", c.command, strings.Join(failures, "\n"), code, output)
			}
		})
	}
}

// nfqproxyPath returns a PATH on which nfqproxy is this test binary. It is the command only with
// the environment of [e2etest.CommandEnv].
func nfqproxyPath(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "nfqproxy")); err != nil {
		t.Fatal(err)
	}
	return bin + string(filepath.ListSeparator) + os.Getenv("PATH")
}

// fieldCase is one folder of testdata/cases.
type fieldCase struct {
	dir     string
	command string // for bash
	wanted  []string
	// unwanted texts and wanted ones are compared without regard to case.
	unwanted []string
	codes    []int
}

func readFieldCase(dir string) (*fieldCase, error) {
	command, err := os.ReadFile(filepath.Join(dir, "cmd"))
	if err != nil {
		return nil, err
	}
	expect, err := os.ReadFile(filepath.Join(dir, "expect"))
	if err != nil {
		return nil, err
	}
	why, err := os.ReadFile(filepath.Join(dir, "why.md"))
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(why)) == 0 {
		return nil, fmt.Errorf("%s: why.md is empty", dir)
	}
	c := &fieldCase{dir: dir, command: strings.TrimSpace(string(command))}
	for line := range strings.Lines(string(expect)) {
		if err := c.addExpectation(strings.TrimRight(line, "\n")); err != nil {
			return nil, fmt.Errorf("%s/expect: %w", dir, err)
		}
	}
	if len(c.codes) == 0 {
		return nil, fmt.Errorf("%s/expect: no exit code", dir)
	}
	return c, nil
}

func (c *fieldCase) addExpectation(line string) error {
	sign, text, _ := strings.Cut(line, " ")
	if text == "" {
		return fmt.Errorf("%q: want + TEXT, - TEXT or code N [or N]", line)
	}
	switch sign {
	case "+":
		c.wanted = append(c.wanted, text)
	case "-":
		c.unwanted = append(c.unwanted, text)
	case "code":
		for number := range strings.SplitSeq(text, " or ") {
			code, err := strconv.Atoi(number)
			if err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			c.codes = append(c.codes, code)
		}
	default:
		return fmt.Errorf("%q: want + TEXT, - TEXT or code N [or N]", line)
	}
	return nil
}

// run returns what the command prints, on both outputs, and its exit code.
func (c *fieldCase) run(t *testing.T, path string) (output string, code int) {
	t.Helper()
	// A kubeconfig or a lab of whoever runs the test must not answer.
	home := t.TempDir()
	if args := strings.Fields(c.command); args[0] == "nfqproxy" && !strings.ContainsAny(c.command, "|&;<>()$`\\\"'*?[]#~{}\n") {
		var both bytes.Buffer
		code, err := call{c.dir, map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home, "KUBECONFIG": ""}, &both, &both}.run(args[1:])
		if err != nil {
			t.Fatal(err)
		}
		return both.String(), code
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", c.command)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "PATH="+path, "HOME="+home, "XDG_RUNTIME_DIR="+home, "KUBECONFIG=")
	cmd.Env = append(cmd.Env, e2etest.CommandEnv()...)
	b, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// failures returns the expectations that the output and the exit code do not meet.
func (c *fieldCase) failures(output string, code int) []string {
	var failures []string
	lower := strings.ToLower(output)
	for _, text := range c.wanted {
		if !strings.Contains(lower, strings.ToLower(text)) {
			failures = append(failures, "missing: "+text)
		}
	}
	for _, text := range c.unwanted {
		if strings.Contains(lower, strings.ToLower(text)) {
			failures = append(failures, "unwanted: "+text)
		}
	}
	if !slices.Contains(c.codes, code) {
		failures = append(failures, fmt.Sprintf("exit code %d, want one of %v", code, c.codes))
	}
	return failures
}
