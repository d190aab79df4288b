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
	// files it gives, listening sockets of the outer network for example, reach
	// Main. They stay open outside until Main has ended.
	Prepare func() ([]*os.File, error)
	// Main is called inside, in a process started with the arguments and the
	// environment of the outer one. What it returns is the exit code.
	Main func(files []*os.File) int
}

// Error is the one error of a program that could not be isolated.
type Error struct {
	Err    error  // what the kernel said
	Doing  string // what was tried
	Remedy string // what to do about it; a sentence or more
}

// Error says what was tried, what the kernel said and what to do.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %v", e.Doing, e.Err)
	if e.Remedy != "" {
		s += "\n" + e.Remedy
	}
	return s
}

// Unwrap gives what the kernel said.
func (e *Error) Unwrap() error { return e.Err }

// stageVariable tells a process which part it plays. It is taken out of the
// environment at once, so that no process further down believes it was meant.
const stageVariable = "NFQPROXY_NETNS_STAGE"

// The parts a process plays, one starting the next: the outer process; the init
// process of the new PID namespace, which sets up and then only reaps and forwards
// signals; and the program proper.
type stageName string

const (
	outerStage   stageName = ""
	initStage    stageName = "init"
	programStage stageName = "program"
)

// stage is what stageVariable holds.
type stage struct {
	name stageName
	// outerNet identifies the network namespace of the outer process. A program
	// that finds itself there is not isolated, whatever its environment says.
	outerNet uint64
	files    int // number of files passed, from descriptor firstFile on
}

func (s stage) String() string {
	return fmt.Sprintf("%s,%d,%d", s.name, s.outerNet, s.files)
}

// parseStage reads what String writes.
func parseStage(text string) (stage, error) {
	if text == "" {
		return stage{}, nil
	}
	bad := fmt.Errorf("environment variable %s=%q is not for users: unset it", stageVariable, text)
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
