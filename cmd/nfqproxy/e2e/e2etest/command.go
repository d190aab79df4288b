package e2etest

import (
	"os"
	"os/exec"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// commandVariable is the environment variable that makes the nfqproxy command of a test binary.
const commandVariable = "NFQPROXY_TEST_BE_COMMAND"

// CommandEnv returns the environment variables that make the nfqproxy command of a test binary whose
// TestMain calls [Main]. Where the test is built with the race detector, so is the command, and a data
// race ends it: a report that is only logged fails nothing where the process is killed or fails
// anyway. The race detector's pause at the end of a process, one second by default, is off.
func CommandEnv() []string {
	return []string{commandVariable + "=1", "GORACE=halt_on_error=1 atexit_sleep_ms=0"}
}

// Main runs the tests of a package in namespaces of their own, as [netnstest.Main] does, or, in a
// process that [Command] started, the nfqproxy command. It does not return.
func Main(m netnstest.Tests, command func() int) {
	if os.Getenv(commandVariable) != "" {
		os.Exit(command())
	}
	netnstest.Main(m)
}

// Command returns the nfqproxy command with arguments.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), CommandEnv()...)
	return cmd
}
