package docs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// makeWith runs make with a variable set, as GO=PROGRAM, and gives what it wrote and its exit code.
func makeWith(t *testing.T, variable string, target string) (stdout, stderr string, code int) {
	t.Helper()
	netnstest.RequireTool(t, "make")
	cmd := exec.Command("make", "--no-print-directory", "-C", repository, target, variable)
	// As from a shell, and not from a make that runs the tests.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "LC_ALL=C")
	var out, messages strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), messages.String(), cmd.ProcessState.ExitCode()
}

// goProgram writes a program in Go's place, of shell commands.
func goProgram(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "go")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMakeWithoutGo(t *testing.T) {
	old := goProgram(t, "echo go version go1.19.8 linux/amd64")
	for program, want := range map[string]string{
		"no-such-go": `make requires Go, but the program "no-such-go" is not found: install Go 1.`,
		old:          `make requires Go 1.26, but "` + old + `" is older: install Go 1.`,
	} {
		for _, target := range []string{"demo", "build", "test", "lint"} {
			stdout, stderr, code := makeWith(t, "GO="+program, target)
			message, rest, _ := strings.Cut(stderr, "\n")
			if code != 2 || stdout != "" || !strings.HasPrefix(message, want) || !strings.HasPrefix(rest, "make: ***") || strings.Count(rest, "\n") != 1 {
				t.Errorf("make %s GO=%s: exit code %d, %q, %q; want %q", target, program, code, stdout, stderr, want)
			}
		}
	}
}

func TestMakeSiteWithoutNpm(t *testing.T) {
	const want = `make site requires Node.js 20 or newer and npm, but "no-such-npm" or "node" is not found: install them`
	if stdout, stderr, code := makeWith(t, "NPM=no-such-npm", "site"); code != 2 || stdout != "" || !strings.HasPrefix(stderr, want) {
		t.Errorf("exit code %d, %q, %q; want %q", code, stdout, stderr, want)
	}
}

// make test lists what was skipped, also where tests fail, and its exit code stays.
func TestMakeTestListsSkips(t *testing.T) {
	for script, code := range map[string]int{"exit 1": 2, "exit 0": 0} {
		program := goProgram(t, `case $1 in
test) printf "nft is not installed\\tdatapath TestA\\nnft is not installed\\tdatapath TestB\\nnft is not installed\\tlab TestC\\n" >>"$NFQPROXY_SKIPPED"; echo ran; `+script+`;;
version) echo go version go1.26.8 linux/amd64;;
esac`)
		stdout, stderr, got := makeWith(t, "GO="+program, "test")
		const want = "ran\nSkipped, because this machine lacks something:\nnft is not installed: 3 tests, in datapath, lab\n"
		if got != code || stdout != want {
			t.Errorf("%s: exit code %d, want %d; %q, %q", script, got, code, stdout, stderr)
		}
	}
}

// TestLaterTests: each test that "make test" leaves to "make test-all" exists once, so that it leaves out no other test of that name.
func TestLaterTests(t *testing.T) {
	_, list, found := strings.Cut(e2etest.ReadFile(t, filepath.Join(repository, "Makefile")), "\nLATER := \\\n")
	list, _, ended := strings.Cut(list, "\nspace := ")
	later := strings.Fields(strings.ReplaceAll(list, "\\", ""))
	if !found || !ended || len(later) < 10 {
		t.Fatalf("the Makefile's list of tests: %q", later)
	}
	packages := make(map[string][]string)
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text := e2etest.ReadFile(t, path)
		for _, name := range later {
			if strings.Contains(text, "\nfunc "+name+"(") {
				packages[name] = append(packages[name], filepath.Dir(path))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range later {
		if len(packages[name]) != 1 {
			t.Errorf("%s is a test of %q, want one package", name, packages[name])
		}
	}
}
