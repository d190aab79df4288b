package conntrack

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"
)

// fakePort is the netlink port of all who use a fake.
const fakePort = 4711

// Watch watches the fake as the other Watch does the kernel's table; but so many events
// may wait as the buffer says. The fake tells of what [Fake.Change], [Fake.End] and Tables
// do, and of times only what is in the state; see [Event] for what the kernel tells.
func (f *Fake) Watch(buffer int) *Watcher {
	e := &fakeEvents{fake: f, room: buffer, listens: true}
	e.some.L = &f.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, e)
	return &Watcher{source: e}
}

// fakeEvents are the events of a fake for one Watcher, under the fake's lock.
type fakeEvents struct {
	fake    *Fake
	some    sync.Cond
	room    int
	waiting [][]byte
	given   [][]byte // by the last receive
	listens bool
	// congested: some did not fit, and until all that wait are received nothing does, as in
	// netlink_overrun (af_netlink.c). failed: that is to be told.
	congested, failed bool
	closed            bool
}

func (e *fakeEvents) receive(wait bool) (n int, err error) {
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
	n = min(len(e.waiting), maxEvents)
	e.given, e.waiting = e.waiting[:n], e.waiting[n:]
	e.congested = e.congested && len(e.waiting) > 0
	return n, nil
}

func (e *fakeEvents) datagram(i int) []byte { return e.given[i] }

func (e *fakeEvents) listen(on bool) error {
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	e.listens = on
	return nil
}

func (e *fakeEvents) Close() error {
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	e.closed = true
	e.some.Broadcast()
	return nil
}

// tellUpdate tells what changed, if any of it is an event.
func (f *Fake) sendUpdate(before, s *State) {
	b := beginEvent(msgCTNew, 0, s)
	b = appendUint32(b, ctaTimeout, s.Timeout)
	switch {
	case before.TCP != s.TCP || before.SCTP != s.SCTP:
		b = appendProtoinfo(b, s)
	case before.Status == s.Status && before.Mark == s.Mark:
		return
	}
	f.send(b)
}

// tellExtension tells all of the state, as the kernel does for what is asked for.
func (f *Fake) sendRefresh(s *State) {
	b := beginEvent(msgCTNew, fakePort, s)
	f.send(appendProtoinfo(appendUint32(b, ctaTimeout, s.Timeout), s))
}

func (f *Fake) sendEnd(s *State, port uint32) {
	b := beginEvent(msgCTDelete, port, s)
	b = appendUint32(b, ctaTimeout, s.Timeout)
	f.send(appendCounts(appendProtoinfo(b, s), s))
}

func beginEvent(typ uint16, port uint32, s *State) []byte {
	b, _ := beginMessage(nil, typ, 0, 0, s.Original)
	binary.NativeEndian.PutUint32(b[12:], port)
	return appendIdentity(b, s)
}

// tell gives an event to all who watch.
func (f *Fake) send(b []byte) {
	b = endMessage(b, 0)
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
