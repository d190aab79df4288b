package netnstest

import (
	"testing"
	"time"
)

// receiveTimeout ends a test that hangs. Nothing that happens takes that long.
const receiveTimeout = 3 * time.Minute

// Receive returns what comes from a channel, or the zero value when it is closed. A test that waits in vain ends, and says for
// what.
func Receive[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(receiveTimeout):
		t.Fatalf("waited %s in vain for %s", receiveTimeout, what)
	}
	return v
}
