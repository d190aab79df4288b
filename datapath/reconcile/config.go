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

// Config says what a Reconciler works with. Connections and Seen have to be set, and
// are the Reconciler's alone.
type Config struct {
	Connections Connections
	Seen        Seen
	// Mark is the connection mark of our entries; 0: conntrack.DefaultMark.
	Mark uint32
	// Interval is the longest time between two passes of Loop; 0: 30 s, as kube-proxy's
	// syncPeriod.
	Interval time.Duration
	// Gap is the shortest time between two passes of Loop, and that after which a pass
	// that follows a change is repeated; 0: 1 s, as kube-proxy's minSyncPeriod. It has to be
	// longer than a worker takes for a batch of packets.
	Gap time.Duration
	// Observe, if set, is told of each family's part of each pass, by the goroutine
	// that runs it: for kube-proxy's conntrack_reconciler metrics, whose label is the
	// family. err is nil or what [Reconciler.Run] says of this part.
	Observe func(f decision.Family, r Result, err error)
}

// Result tells what one pass did.
type Result struct {
	// Examined is how many UDP flows there were.
	Examined int
	// Deleted is how many of them were removed, by reason.
	Deleted map[Reason]int
	// Failed is how many were to be removed and could not be.
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
