package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
)

// exitCode ends a command that has printed its answer, or that of a program that it ran. It has no message.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// answerNo ends a command that has printed the answer no.
const answerNo = exitCode(exitcode.No)

// failure is an error with the exit code of a shell, when a program cannot be executed.
type failure struct {
	error
	code exitCode
}

// exitWith returns the error that ends a command with a program's exit code.
func exitWith(code int, err error) error {
	switch {
	case err != nil && code > exitcode.Error:
		return failure{err, exitCode(code)}
	case err == nil && code != 0:
		return exitCode(code)
	}
	return err
}

// exitCodeOf returns the exit code of a command that ends with err, and whether there is a message to print.
func exitCodeOf(err error) (code int, message bool) {
	if c, ok := err.(exitCode); ok { //nolint:errorlint // a wrapped code has a message to print
		return int(c), false
	}
	if f, ok := errors.AsType[failure](err); ok {
		return int(f.code), true
	}
	// cobra's completion writes to the output itself, not to a listener.
	direct, _ := errors.AsType[*fs.PathError](err)
	unread := errors.Is(err, errUnread) || direct != nil && direct.Path == "/dev/stdout" && errors.Is(err, syscall.EPIPE)
	return exitcode.Of(err), err != nil && !unread
}
