package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
)

// call runs a command line in this process, as a process of its own would run it in a directory and with some variables. A
// thousand processes would take minutes to start. The directory and the environment are the process's: only one call may
// run at a time, and no test beside it.
type call struct {
	dir            string
	environment    map[string]string // empty: unset
	stdout, stderr io.Writer
}

// run returns the exit code.
func (c call) run(args []string) (code int, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	if err := os.Chdir(c.dir); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Chdir(dir)) }()
	for name, value := range c.environment {
		defer restore(name)()
		if value == "" {
			err = os.Unsetenv(name)
		} else {
			err = os.Setenv(name, value)
		}
		if err != nil {
			return 0, err
		}
	}
	connector := connect
	if c.environment[asksMadeUp] != "" {
		connector = connectMadeUp
	}
	return execute(context.Background(), newRootCommand(connector), args, strings.NewReader(""), c.stdout, c.stderr), nil
}

// restore returns a function that gives a variable its value of now.
func restore(name string) func() {
	value, set := os.LookupEnv(name)
	return func() {
		if set {
			_ = os.Setenv(name, value)
		} else {
			_ = os.Unsetenv(name)
		}
	}
}
