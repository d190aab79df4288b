package conntracktest

import (
	"os"
	"sync"
	"syscall"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// ownPort is the netlink port of all who use a fake.
const ownPort = 4711

// received is how many events one Receive gives at most.
const received = 256

// Watch watches the fake as [conntrack.Watch] does the kernel's table; but buffer is the number of
// events that may wait. The fake sends events of what [Fake.Change], [Fake.End] and Tables
// do, and of times only what is in the state; see [conntrack.Event] for what the kernel reports.
func (f *Fake) Watch(buffer int) *conntrack.Watcher {
	e := &events{fake: f, room: buffer, listens: true}
	e.some.L = &f.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, e)
	return conntrack.NewWatcher(e)
}

// events are those of a fake for one Watcher, under the fake's lock.
type events struct {
	fake    *Fake
	some    sync.Cond
	room    int
	waiting [][]byte
	given   [][]byte // by the last receive
	listens bool
	// congested: some did not fit, and until all that wait are received nothing does, as in
	// netlink_overrun (af_netlink.c). failed: that is to be reported.
	congested, failed bool
	closed            bool
}

func (e *events) Receive(wait bool) (n int, err error) {
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	for wait && !e.failed && !e.closed && len(e.waiting) == 0 {
		e.some.Wait()
	}
	switch {
	case e.closed:
		return 0, os.ErrClosed
	case e.failed:
		e.failed = false
		return 0, syscall.ENOBUFS
	}
	n = min(len(e.waiting), received)
	e.given, e.waiting = e.waiting[:n], e.waiting[n:]
	e.congested = e.congested && len(e.waiting) > 0
	return n, nil
}

func (e *events) Datagram(i int) []byte { return e.given[i] }

func (e *events) Listen(on bool) error {
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	e.listens = on
	return nil
}

func (e *events) Close() error {
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	e.closed = true
	e.some.Broadcast()
	return nil
}

// sendUpdate reports what changed, if any of it is an event.
func (f *Fake) sendUpdate(before, s *conntrack.State) {
	switch {
	case before.TCP != s.TCP || before.SCTP != s.SCTP:
		f.send(message(msgCTNew, 0, s, lifetime(s), protocolState(s)))
	case before.Status != s.Status || before.Mark != s.Mark:
		f.send(message(msgCTNew, 0, s, lifetime(s)))
	}
}

// sendRefresh reports all of the state, as the kernel does for a change that a program requested.
func (f *Fake) sendRefresh(s *conntrack.State) {
	f.send(message(msgCTNew, ownPort, s, lifetime(s), protocolState(s)))
}

func (f *Fake) sendEnd(s *conntrack.State, port uint32) {
	f.send(message(msgCTDelete, port, s, lifetime(s), protocolState(s), counts(s)))
}

// send gives an event to all who watch.
func (f *Fake) send(b []byte) {
	for _, e := range f.watchers {
		switch {
		case e.closed || !e.listens:
			continue
		case e.congested:
		case len(e.waiting) >= e.room:
			e.congested, e.failed = true, true
		default:
			e.waiting = append(e.waiting, b)
		}
		e.some.Signal()
	}
}
