package usage

import "errors"

// Exit codes of nfqproxy and nfqproxyd, as diff(1), grep(1) and "kubectl diff" have them. docs/reference/commands.md lists what
// a negative answer is in each command.
const (
	ExitNo    = 1 // the command has answered, and the answer is no
	ExitError = 2 // the command line or the input is invalid, or the command failed
)

type no struct{ error }

// No makes an error a negative answer: that checks failed, for example.
func No(err error) error {
	if err == nil {
		return nil
	}
	return no{err}
}

// ExitCode returns the exit code of a program that ends with err.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, negative := errors.AsType[no](err); negative {
		return ExitNo
	}
	return ExitError
}
