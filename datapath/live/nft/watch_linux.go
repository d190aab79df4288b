package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Event is a change of an object or, of kind NFT_MSG_NEWGEN, the end of a transaction.
type Event struct {
	Family uint8  // NFPROTO_...
	Kind   int    // NFT_MSG_NEW..., NFT_MSG_DEL...
	Port   uint32 // the netlink port of the connection that made the change (nf_tables_api.c, nft_ctx)
	Attributes
}

// Table is the name of the object's table: the first attribute of objects of any kind.
func (e Event) Table() string { return e.Text(unix.NFTA_TABLE_NAME) }

// EventOf reads a message about nftables.
func EventOf(m netlink.Message) (Event, error) {
	family, a, err := body(m)
	return Event{family, int(m.Header.Type & 0xff), m.Header.PID, a}, err
}

// Listener receives the events of nftables in one network namespace.
type Listener struct{ conn *netlink.Conn }

// Listen begins to receive the events of the calling thread's network namespace, of which the socket's receive buffer
// holds so many bytes; 0: as by default. It needs CAP_NET_ADMIN.
func Listen(buffer int) (*Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	if buffer > 0 {
		err = conn.SetReadBuffer(buffer)
	}
	if err = errors.Join(err, conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), conn.Close())
	}
	return &Listener{conn}, nil
}

// Run calls each for each event until the context ends, and missed if the kernel dropped some for lack of buffer space.
func (l *Listener) Run(ctx context.Context, each func(Event), missed func()) error {
	// The deadline wakes Receive; closing the socket meanwhile would be a race for the file descriptor.
	defer context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) })()
	for {
		messages, err := l.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			missed()
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		}
		for _, m := range messages {
			if e, err := EventOf(m); err == nil {
				each(e)
			} else {
				missed()
			}
		}
	}
}

// Close closes the socket. Run must have ended.
func (l *Listener) Close() error { return l.conn.Close() }

// Watch notices relevant events of nftables in one network namespace.
type Watch struct {
	events  *Listener
	changed chan struct{} // holds one
	failed  chan error
	stop    context.CancelFunc
	done    chan struct{} // closed when no more events are received
}

// NewWatch watches the calling thread's network namespace. concerns selects the relevant events;
// it is called in another goroutine. It needs CAP_NET_ADMIN.
func NewWatch(concerns func(Event) bool) (*Watch, error) {
	events, err := Listen(0)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &Watch{events: events, changed: make(chan struct{}, 1), failed: make(chan error, 1), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		err := events.Run(ctx, func(e Event) {
			if e.Kind != unix.NFT_MSG_NEWGEN && concerns(e) {
				w.Notify()
			}
		}, w.Notify)
		if err != nil {
			w.failed <- err
		}
	}()
	return w, nil
}

// Changed has one value after any number of relevant events, and after the kernel dropped events
// for lack of buffer space (ENOBUFS), which may have been relevant.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Failed has an error when no more events will arrive.
func (w *Watch) Failed() <-chan error { return w.failed }

// SetReadBuffer sets the size of the socket's receive buffer, in bytes.
func (w *Watch) SetReadBuffer(size int) error { return w.events.conn.SetReadBuffer(size) }

// Notify makes Changed have a value.
func (w *Watch) Notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.stop()
	<-w.done
	return w.events.Close()
}

// Settle waits until no event has come for the time quiet, at most for maxWait: programs add
// their rules one by one. after is [time.After]. The result is false if the context has ended.
func Settle(ctx context.Context, events <-chan struct{}, quiet, maxWait time.Duration, after func(time.Duration) <-chan time.Time) bool {
	last := after(maxWait)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-last:
			return true
		case <-after(quiet):
			return true
		case <-events:
		}
	}
}
