package conntrack

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"
)

// fakePort is the netlink port of all tables of a fake.
const fakePort = 4711

// Watch watches the fake as the other Watch does the kernel's table; Buffer counts events instead
// of bytes. The fake sends events for [Fake.Change], [Fake.End] and Tables, with the times in the
// state only; see [Event] for the kernel's.
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
	// congested: an event did not fit, and none is added until all waiting ones are received, as
	// in netlink_overrun (af_netlink.c). failed: the loss was not reported yet.
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

// sendUpdate sends an event if the change is one.
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

// sendRefresh sends the whole state, as the kernel does for changes by request.
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

// send passes an event to all watchers.
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
