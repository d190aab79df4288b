package remote

import "time"

// SetRetry is how long a node's broken stream is left at first.
func (f *Relay) SetRetry(d time.Duration) { f.retry = d }

// RememberedHolds is how many holds that are done are remembered.
const RememberedHolds = rememberedHolds
