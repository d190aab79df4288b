package reconcile

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Connections is the connection tracking table; see [conntrack.Table].
type Connections interface {
	Dump(conntrack.Filter, func(*conntrack.State)) error
	Delete([]conntrack.State, []error)
}

// Seen are the sets of UDP flows that need no decision; see [ruleset.Seen].
//
// [ruleset.Seen]: https://pkg.go.dev/github.com/nfqproxy/nfqproxy/datapath/ruleset#Seen
type Seen interface {
	Forget([]conntrack.Tuple) error
}

// Config is the configuration of a Reconciler. Connections and Seen must be set, and are for the
// Reconciler only.
type Config struct {
	Connections Connections
	Seen        Seen
	// Mark is the connection mark of our entries; 0: conntrack.DefaultMark.
	Mark uint32
	// Interval is the longest time between two passes of Loop; 0: 30 s, as kube-proxy's
	// syncPeriod.
	Interval time.Duration
	// Gap is the shortest time between two passes of Loop, and the time until the second pass
	// after a change; 0: 1 s, as kube-proxy's minSyncPeriod. It must be longer than a worker takes
	// for a batch of packets.
	Gap time.Duration
	// Observe, if set, is called for each family's part of each pass, by the goroutine that runs
	// it: for kube-proxy's conntrack_reconciler metrics, whose label is the family. err is nil or
	// the error of this part of [Reconciler.Run].
	Observe func(f decision.Family, r Result, err error)
}

// Result is the result of one pass.
type Result struct {
	// Examined is how many UDP flows there were.
	Examined int
	// Deleted is how many of them were removed, by reason.
	Deleted map[Reason]int
	// Failed is how many could not be removed.
	Failed int
	// Took is how long it took.
	Took time.Duration
}

// Total is how many flows were removed.
func (r *Result) Total() int {
	n := 0
	for _, d := range r.Deleted {
		n += d
	}
	return n
}

func (r *Result) add(part *Result) {
	r.Examined += part.Examined
	r.Failed += part.Failed
	r.Took += part.Took
	for why, n := range part.Deleted {
		r.Deleted[why] += n
	}
}
