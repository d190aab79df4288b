// Package exitcode has the exit codes of nfqproxy. nfqproxyd ends with Error only.
//
// It is a ground package.
package exitcode

import "errors"

// Exit codes, as diff(1), grep(1) and "kubectl diff" have them. docs/reference/commands.md lists what
// a negative answer is in each command.
const (
	No    = 1 // the command has answered, and the answer is no
	Error = 2 // the command line or the input is invalid, or the command failed
)

type no struct{ error }

// Negative makes an error a negative answer: that checks failed, for example.
func Negative(err error) error {
	if err == nil {
		return nil
	}
	return no{err}
}

// Of returns the exit code of a program that ends with err.
func Of(err error) int {
	if err == nil {
		return 0
	}
	if _, negative := errors.AsType[no](err); negative {
		return No
	}
	return Error
}
