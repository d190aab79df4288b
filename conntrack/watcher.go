package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Watcher receives the events of one network namespace's connection tracking table. Receive is for one goroutine; any
// goroutine may call Pause and Close, even while Receive waits.
type Watcher struct {
	source EventSource
	count  int    // datagrams that were received at once
	next   int    // of those, the one to be read
	rest   []byte // of the one before
	// overrun: events were lost, which has not been reported yet. drained: the last read found
	// less than the buffer holds.
	overrun, drained bool
}

// EventSource is where a Watcher's events come from: the kernel, or package conntracktest.
type EventSource interface {
	// Receive returns the number of available netlink datagrams, at most 256; if it is less, there are no more. With
	// wait it waits for some, but may return 0. ENOBUFS: some were lost.
	Receive(wait bool) (n int, err error)
	// Datagram returns one of them; it is valid until the next Receive.
	Datagram(i int) []byte
	// Listen switches events on and off.
	Listen(on bool) error
	// Close ends a waiting Receive, and all later ones, with [os.ErrClosed].
	Close() error
}

// NewWatcher returns a Watcher that reads from the source. For the kernel's events see [Watch].
func NewWatcher(source EventSource) *Watcher { return &Watcher{source: source} }

// Receive waits for events and returns those available, up to the length of the slice and at most 256 at once. It
// leaves out events of protocols other than TCP, UDP and SCTP.
//
// After [Watcher.Close] the error is [os.ErrClosed]. After any other error, the first n events are valid and reading
// can continue. [ErrOverrun] comes after all events from before the loss: everything missed has happened by then, and a
// dump that begins afterwards shows it.
func (w *Watcher) Receive(events []Event) (n int, err error) {
	for n == 0 && len(events) > 0 {
		if w.next == w.count && len(w.rest) == 0 {
			if w.overrun && w.drained {
				w.overrun = false
				return 0, ErrOverrun
			}
			if err := w.fill(); err != nil {
				return 0, err
			}
		}
		if n, err = w.read(events); err != nil {
			return n, err
		}
	}
	return n, nil
}

// fill reads datagrams. After an overrun the kernel adds nothing to the queue until it is
// empty, and does not report a loss again (NETLINK_S_CONGESTED, see
// netlink_overrun in af_netlink.c): so it is emptied first.
func (w *Watcher) fill() (err error) {
	w.next = 0
	w.count, err = w.source.Receive(!w.overrun)
	w.drained = w.count < maxEvents
	switch {
	case errors.Is(err, syscall.ENOBUFS):
		w.overrun, w.drained = true, false
		return nil
	case err != nil && !errors.Is(err, os.ErrClosed):
		return fmt.Errorf("conntrack: receive events: %w", err)
	}
	return err
}

// read reads the messages of the datagrams, as many as there is room for.
func (w *Watcher) read(events []Event) (n int, err error) {
	for n < len(events) {
		if len(w.rest) < nlmsgHdrLen {
			w.rest = nil
			if w.next == w.count {
				return n, nil
			}
			w.rest = w.source.Datagram(w.next)
			w.next++
			continue
		}
		l := int(binary.NativeEndian.Uint32(w.rest))
		if l < nlmsgHdrLen || l > len(w.rest) {
			w.rest = nil
			return n, errShort
		}
		b := w.rest[:l]
		w.rest = w.rest[min((l+3)&^3, len(w.rest)):]
		ok, err := parseEvent(b, &events[n])
		if err != nil {
			return n, err
		}
		if ok {
			n++
		}
	}
	return n, nil
}

// Pause stops the kernel's messages (on), or starts them again. Without a listener the kernel does not make them at all
// (ctnetlink_conntrack_event, nfnetlink_has_listeners), which is most of what watching costs. Waiting events are still
// received. Entries created during a pause may have no events later, either: see [Event].
func (w *Watcher) Pause(on bool) error {
	if err := w.source.Listen(!on); err != nil {
		return fmt.Errorf("conntrack: pause events: %w", err)
	}
	return nil
}

// Close ends the watch. A waiting Receive returns.
func (w *Watcher) Close() error { return w.source.Close() }
