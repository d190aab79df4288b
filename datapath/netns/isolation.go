package netns

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Isolation runs a part of a program in namespaces of its own.
type Isolation struct {
	// Prepare, if not nil, is called outside, before anything is started. The
	// files it returns, listening sockets of the outer network for example, are
	// passed to Main. They stay open outside until Main has ended.
	Prepare func() ([]*os.File, error)
	// Foreground: Main reads from the terminal of this process, if standard input is one, and gets its signals: its process
	// group is in the foreground.
	Foreground bool
	// Main is called inside, in a process with the arguments and the environment of
	// the outer one. It returns the exit code.
	Main func(files []*os.File) int
}

// Error is the error of a program that could not be isolated.
type Error struct {
	Err    error  // the kernel's error
	Doing  string // the step that failed
	Remedy string // what to do; a sentence or more
}

// Error has the step that failed, the kernel's error and the remedy.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %v", e.Doing, e.Err)
	if e.Remedy != "" {
		s += "\n" + e.Remedy
	}
	return s
}

// Unwrap returns the kernel's error.
func (e *Error) Unwrap() error { return e.Err }

// stageVariable is the environment variable with a process's stage. It is removed from the
// environment at once, so that descendants do not read it.
const stageVariable = "NFQPROXY_NETNS_STAGE"

// The stages, each started by the one before: the outer process; the init process of the new
// PID namespace, which sets up the namespaces and then only reaps children and forwards
// signals; and the program proper.
type stageName string

const (
	outerStage   stageName = ""
	initStage    stageName = "init"
	programStage stageName = "program"
)

// stage is the content of stageVariable.
type stage struct {
	name stageName
	// outerNet identifies the network namespace of the outer process. A program in
	// that namespace is not isolated, whatever its environment.
	outerNet uint64
	files    int // number of files passed, from descriptor firstFile on
}

func (s stage) String() string {
	return fmt.Sprintf("%s,%d,%d", s.name, s.outerNet, s.files)
}

// parseStage parses the text of String.
func parseStage(text string) (stage, error) {
	if text == "" {
		return stage{}, nil
	}
	bad := fmt.Errorf("environment variable %s=%q is for internal use: unset it", stageVariable, text)
	parts := strings.Split(text, ",")
	if len(parts) != 3 {
		return stage{}, bad
	}
	name := stageName(parts[0])
	if name != initStage && name != programStage {
		return stage{}, bad
	}
	net, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return stage{}, bad
	}
	files, err := strconv.Atoi(parts[2])
	if err != nil || files < 0 || files > 64 {
		return stage{}, bad
	}
	return stage{name, net, files}, nil
}
