package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Watcher receives the events of one network namespace's connection tracking table.
// Receive is for one goroutine; Pause and Close may be called by any, also while it
// waits.
type Watcher struct {
	source events
	count  int    // datagrams that were received at once
	next   int    // of those, the one to be read
	rest   []byte // of the one before
	// overrun: events were lost, which was not reported yet. drained: the last read did not fill
	// all buffers.
	overrun, drained bool
}

// events is the source of a Watcher's events: the kernel or a [Fake].
type events interface {
	// receive returns the number of waiting datagrams, at most maxEvents. With wait it waits until
	// there are some, but may return 0. ENOBUFS: some were lost.
	receive(wait bool) (n int, err error)
	// datagram returns one of those; it is valid until the next receive.
	datagram(i int) []byte
	// listen joins or leaves the events' groups.
	listen(on bool) error
	Close() error
}

// Receive waits until there are events and returns them, up to the length of the slice and at most
// 256 at once. Events of other protocols than TCP, UDP and SCTP are left out.
//
// After [Watcher.Close] the error is [os.ErrClosed]. After any other error reading can continue;
// the first n events are valid with the error. [ErrOverrun] is returned after all events before
// the loss: the missed changes have happened by then, and show in a dump that begins afterwards.
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

// fill reads datagrams. After an overrun the kernel adds nothing to the queue until it is empty,
// and reports no further loss (NETLINK_S_CONGESTED, see netlink_overrun in af_netlink.c): so the
// queue is emptied first.
func (w *Watcher) fill() (err error) {
	w.next = 0
	w.count, err = w.source.receive(!w.overrun)
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

// read reads the messages of the datagrams, as many as fit.
func (w *Watcher) read(events []Event) (n int, err error) {
	for n < len(events) {
		if len(w.rest) < nlmsgHdrLen {
			w.rest = nil
			if w.next == w.count {
				return n, nil
			}
			w.rest = w.source.datagram(w.next)
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

// Pause(true) stops the kernel's events until Pause(false). Without listeners the kernel does not
// build the messages at all (ctnetlink_conntrack_event, nfnetlink_has_listeners), which is most of
// the cost of watching. Events that already wait are still received. Entries that are created
// during a pause may have no events later, either: see [Event].
func (w *Watcher) Pause(on bool) error {
	if err := w.source.listen(!on); err != nil {
		return fmt.Errorf("conntrack: pause events: %w", err)
	}
	return nil
}

// Close ends the watch. A Receive that waits returns.
func (w *Watcher) Close() error { return w.source.Close() }
