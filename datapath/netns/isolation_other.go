//go:build !linux

package netns

import (
	"errors"
	"runtime"
)

// Run needs Linux.
func (i Isolation) Run() (code int, err error) {
	return 1, &Error{Doing: "making network namespaces", Err: errors.ErrUnsupported, Remedy: "They require Linux; this is " + runtime.GOOS + "."}
}
