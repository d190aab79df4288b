package nft

import (
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

// NewWatch watches the calling thread's network namespace. concerns selects the relevant messages;
// it is called in another goroutine. It needs CAP_NET_ADMIN.
func NewWatch(concerns func(netlink.Message) bool) (*Watch, error) {
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

func (w *Watch) run(concerns func(netlink.Message) bool) {
	defer close(w.done)
	for {
		messages, err := w.conn.Receive()
		switch {
		case w.closed.Load():
			return
		case errors.Is(err, unix.ENOBUFS):
			w.notify()
		case err != nil:
			w.failed <- fmt.Errorf("watch nftables: %w", err)
			return
		}
		for _, m := range messages {
			if concerns(m) {
				w.notify()
			}
		}
	}
}

func (w *Watch) notify() {
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
