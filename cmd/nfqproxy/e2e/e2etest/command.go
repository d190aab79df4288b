package e2etest

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/control/live/daemon"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// commandVariable is the environment variable that makes the nfqproxy command of a test binary.
const commandVariable = "NFQPROXY_TEST_BE_COMMAND"

// CommandEnv returns the environment variables that make the nfqproxy command of a test binary whose
// TestMain calls [Main], and nfqproxyd if that is the name it is executed by. Where the test is built with the race detector, so is the command, and a data
// race ends it: a report that is only logged fails nothing where the process is killed or fails
// anyway. The race detector's pause at the end of a process, one second by default, is off.
func CommandEnv() []string {
	return []string{commandVariable + "=1", executable.Variable + "=" + self(), "GORACE=halt_on_error=1 atexit_sleep_ms=0"}
}

// Main runs the tests of a package in namespaces of their own, as [netnstest.Main] does, or, in a
// process that [Command] or [DaemonCommand] started, the program. It does not return.
func Main(m netnstest.Tests, command func() int) {
	if os.Getenv(commandVariable) != "" {
		if filepath.Base(os.Args[0]) == executable.Daemon {
			os.Exit(daemon.Main("test"))
		}
		os.Exit(command())
	}
	_ = os.Setenv(executable.Variable, self()) // for labs of the tests' own; the name is valid
	netnstest.Main(m)
}

// self is the path of the test binary.
func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err) // no /proc: nothing could be tested
	}
	return path
}

// Command returns the nfqproxy command with arguments.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), CommandEnv()...)
	return cmd
}

// DaemonCommand returns nfqproxyd with arguments.
func DaemonCommand(args ...string) *exec.Cmd {
	cmd := Command(args...)
	cmd.Args[0] = executable.Daemon
	return cmd
}
