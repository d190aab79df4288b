// Package e2etest runs the nfqproxy command for tests: in processes of its own, and as the daemons of
// a lab. The command is the test binary itself, so that it has the race detector where the test has it.
package e2etest
