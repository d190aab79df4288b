package observe

import (
	"fmt"
	"time"
)

// SilentError is the error of requests to a node that does not answer: its daemon is stopped or hangs, or packets are
// lost on the path. A daemon that has ended refuses connections, which is another error.
type SilentError struct {
	Since time.Time // of the first request without an answer
	// Answered is when the node answered last; zero: it has not answered this program.
	Answered time.Time
}

// Error says for how long requests have had no answer. The last answer may be older, if there were no requests in
// between.
func (e *SilentError) Error() string {
	const advice = "the daemon hangs or is stopped, or its packets are lost on the way"
	last := ""
	if !e.Answered.IsZero() {
		last = fmt.Sprintf(" (the last one at %s)", e.Answered.Format(time.TimeOnly))
	}
	return fmt.Sprintf("no answer for %s%s: %s", time.Since(e.Since).Round(time.Second), last, advice)
}
