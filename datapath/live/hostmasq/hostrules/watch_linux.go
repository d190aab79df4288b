package hostrules

import (
	"context"
	"fmt"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

const (
	// pollInterval is how often iptables-legacy's rules are checked: the kernel sends no events of
	// their changes.
	pollInterval = 5 * time.Second
	// quiet is how long the rules must stay unchanged before a change is reported: programs add
	// their rules one by one.
	quiet = 100 * time.Millisecond
	// maxWait is the longest wait for that.
	maxWait = time.Second
)

// Watch calls changed whenever the rules that [Read] reads may have changed, in the calling
// thread's network namespace, until the context ends; then its error is nil. The first call comes
// once the watch is complete: later changes of what it reads cause another call. Several changes
// in short order are one call; a failed call is repeated some seconds later. changed is called in
// the calling goroutine, which may have locked its thread to the namespace.
//
// The kernel reports nftables' changes (those of nfqproxy's own table, which changes all the time,
// are ignored); legacy ones are noticed within some seconds. Changes of names without a change of
// a rule, of ipsets and of devices by their index, are not noticed. It needs CAP_NET_ADMIN. After
// an error changes are no longer reported.
func Watch(ctx context.Context, changed func() error) error {
	events, err := nft.NewWatch(concerns)
	if err != nil {
		return fmt.Errorf("watch the host's nat rules: %w", err)
	}
	defer events.Close() // nothing was written
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	w := watcher{events: events.Changed(), failed: events.Failed(), ticks: ticker.C, poll: xtables.NewPoll(natTable).Changed, after: time.After, changed: changed}
	if err := w.run(ctx); err != nil {
		return fmt.Errorf("watch the host's nat rules: %w", err)
	}
	return nil
}

// watcher decides when to call changed.
type watcher struct {
	events <-chan struct{} // nftables may have changed
	failed <-chan error    // no more events will arrive
	ticks  <-chan time.Time
	// poll reports whether the legacy rules differ from those of the previous call.
	poll    func() bool
	after   func(time.Duration) <-chan time.Time
	changed func() error
}

func (w *watcher) run(ctx context.Context) error {
	w.poll()
	failed := w.changed() != nil
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.failed:
			return err
		case <-w.events:
			if !nft.Settle(ctx, w.events, quiet, maxWait, w.after) {
				return nil
			}
			failed = w.changed() != nil
		case <-w.ticks:
			if w.poll() || failed {
				failed = w.changed() != nil
			}
		}
	}
}

// concerns reports whether an event is a change of another program's tables.
func concerns(e nft.Event) bool { return !isOwn(e.Family, e.Table()) }
