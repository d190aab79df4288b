package nft

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch receives the events of nftables in one network namespace.
type Watch struct {
	conn    *netlink.Conn
	changed chan struct{} // holds one
	failed  chan error
	closed  atomic.Bool
	done    chan struct{} // closed when no more events are received
}

// Event is a change of an object.
type Event struct {
	Family uint8  // NFPROTO_...
	Kind   int    // NFT_MSG_NEW..., NFT_MSG_DEL...
	Port   uint32 // the netlink port of the connection that made the change (nf_tables_api.c, nft_ctx)
	Attributes
}

// Table is the name of the object's table: the first attribute of objects of any kind.
func (e Event) Table() string { return e.Text(unix.NFTA_TABLE_NAME) }

// NewWatch watches the calling thread's network namespace. concerns selects the relevant events;
// it is called in another goroutine. It needs CAP_NET_ADMIN.
func NewWatch(concerns func(Event) bool) (*Watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), conn.Close())
	}
	w := &Watch{conn: conn, changed: make(chan struct{}, 1), failed: make(chan error, 1), done: make(chan struct{})}
	go w.run(concerns)
	return w, nil
}

// Changed has one value after any number of relevant events, and after the kernel dropped events
// for lack of buffer space (ENOBUFS), which may have been relevant.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Failed has an error when no more events will arrive.
func (w *Watch) Failed() <-chan error { return w.failed }

// SetReadBuffer sets the size of the socket's receive buffer, in bytes.
func (w *Watch) SetReadBuffer(size int) error { return w.conn.SetReadBuffer(size) }

func (w *Watch) run(concerns func(Event) bool) {
	defer close(w.done)
	for {
		messages, err := w.conn.Receive()
		switch {
		case w.closed.Load():
			return
		case errors.Is(err, unix.ENOBUFS):
			w.Notify()
		case err != nil:
			w.failed <- fmt.Errorf("watch nftables: %w", err)
			return
		}
		for _, m := range messages {
			if Concerns(m, concerns) {
				w.Notify()
			}
		}
	}
}

// Concerns reports whether a message is an event that concerns selects, or malformed.
func Concerns(m netlink.Message, concerns func(Event) bool) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type == messageType(unix.NFT_MSG_NEWGEN) {
		return false // every transaction ends with its generation
	}
	family, a, err := body(m)
	return err != nil || concerns(Event{family, int(m.Header.Type & 0xff), m.Header.PID, a})
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

// Notify makes Changed have a value.
func (w *Watch) Notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Close ends the watch.
func (w *Watch) Close() error {
	w.closed.Store(true)
	// Wakes Receive; closing the socket meanwhile would be a race for the file descriptor.
	if err := w.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return errors.Join(err, w.conn.Close())
	}
	<-w.done
	return w.conn.Close()
}
