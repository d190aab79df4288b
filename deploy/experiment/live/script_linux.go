package live

import (
	"slices"
	"strconv"
	"strings"
)

// logBuffer is how many log lines of the daemons wait to be read; a daemon logs each failure once.
const logBuffer = 1024

// scriptErrors are the failures of balancing scripts that the daemons have logged, each different one once, sorted. It
// is called once.
func (k *cluster) scriptErrors() (all []string) {
	if k.failures == nil {
		return nil
	}
	k.failures.Close()
	for e := range k.failures.C {
		if message, ok := scriptError(e.Log); ok {
			all = append(all, message)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// scriptError is the message in a line of a daemon's log; false: it is about something else.
func scriptError(line string) (string, bool) {
	_, rest, ok := strings.Cut(line, "balancing script failed")
	if !ok {
		return "", false
	}
	_, message, ok := strings.Cut(rest, " error=")
	if plain, err := strconv.Unquote(message); err == nil {
		message = plain
	}
	return message, ok
}
