package engine

import (
	"io"
	"log/slog"

	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
)

// reversePath updates the rules to the interfaces on which the kernel validates sources. A nil
// reversePath does nothing.
type reversePath struct {
	follow  func(hostnet.ReversePath) error // updates the rules
	watch   io.Closer
	log     *slog.Logger
	changes chan hostnet.ReversePath // has the latest
	failed  chan error
	now     hostnet.ReversePath // the settings in the rules; belongs to the caller of apply
}

func newReversePath(follow func(hostnet.ReversePath) error, log *slog.Logger) *reversePath {
	return &reversePath{follow: follow, log: log, changes: make(chan hostnet.ReversePath, 1), failed: make(chan error, 1)}
}

// changed stores the effective settings. It does not block; one goroutine calls it at a time.
func (r *reversePath) changed(p hostnet.ReversePath) {
	select {
	case <-r.changes: // it was not received yet
	default:
	}
	r.changes <- p
}

func (r *reversePath) fail(err error) { r.failed <- err }

// changing and failing are channels for a select.
func (r *reversePath) changing() <-chan hostnet.ReversePath {
	if r == nil {
		return nil
	}
	return r.changes
}

func (r *reversePath) failing() <-chan error {
	if r == nil {
		return nil
	}
	return r.failed
}

// apply updates the rules after a change.
func (r *reversePath) apply(p hostnet.ReversePath) error {
	if p.Selective && !r.now.Selective {
		r.log.Info("routing rules have selectors (ip -4 rule): packets that rp_filter will drop are queued, and leave connection entries for a short time")
	}
	r.now = p
	return r.follow(p)
}

func (r *reversePath) close() error {
	if r == nil {
		return nil
	}
	return r.watch.Close()
}
