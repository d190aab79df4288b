package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// T is the part of testing.TB that this package uses. (Importing testing would
// give every program its flags.)
type T interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// tests is the state of a test binary; set by Main before any test runs.
var tests = struct {
	isolated    bool
	unavailable error
}{unavailable: errors.New("TestMain has to call netns.Main")}

// Main runs the tests of a package in namespaces of their own and exits. Call it
// from TestMain:
//
//	func TestMain(m *testing.M) { netns.Main(m) }
//
// Where that is impossible the tests run as they are; those that begin with
// [Require] are then skipped, or fail where the environment says CI=true.
func Main(m interface{ Run() int }) {
	if isFuzzWorker(os.Args) {
		// Its coordinator speaks to it over file descriptors, which do not survive
		// being started again; fuzzing needs no kernel.
		tests.unavailable = errors.New("this is a fuzz worker")
		os.Exit(m.Run())
	}
	code, err := Isolation{Main: func([]*os.File) int {
		tests.isolated = true
		return m.Run()
	}}.Run()
	if err != nil {
		tests.unavailable = err
		code = m.Run()
	}
	os.Exit(code)
}

func isFuzzWorker(args []string) bool {
	for _, a := range args {
		if strings.TrimLeft(a, "-") == "test.fuzzworker" {
			return true
		}
	}
	return false
}

// Require ends a test that needs namespaces of its own and does not have them: a
// skip with the reason, or a failure where the environment says CI=true.
func Require(t T) {
	t.Helper()
	if !tests.isolated {
		Missing(t, fmt.Sprintf("no isolation: %v", tests.unavailable))
	}
}

// RequireTool ends a test that needs a program which is not installed; see
// [Require].
func RequireTool(t T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		Missing(t, err.Error())
	}
}

// Missing ends a test for which something else is missing; see [Require].
func Missing(t T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s (CI=true: not skipped)", why)
		return
	}
	if list := os.Getenv("NFQPROXY_SKIPPED"); list != "" {
		// One line each, of all packages, for whoever runs the tests to print at the end.
		if f, err := os.OpenFile(list, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			_, _ = fmt.Fprintf(f, "%s: %s\n", filepath.Base(os.Args[0]), why)
			_ = f.Close()
		}
	}
	t.Skipf("%s", why)
}
