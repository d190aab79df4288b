package conntrack

// What the tests in package conntrack_test need to know.
const (
	MaxBatch      = maxBatch
	MaxEvents     = maxEvents
	CreateTimeout = createTimeout
	Youngest      = youngest
	Evictions     = evictions
	PerSource     = perSource
)

var (
	ErrShort          = errShort
	NewUnansweredWith = newUnanswered
)
