package conntrack

import (
	"encoding/binary"
	"errors"
	"time"
)

// EventKind is what happened to an entry.
type EventKind uint8

// The kinds.
const (
	// Updated: its state or its status changed.
	Updated EventKind = iota + 1
	// Destroyed: the entry is gone.
	Destroyed
)

// String gives the kind in the words of conntrack(8).
func (k EventKind) String() string {
	switch k {
	case Updated:
		return "UPDATE"
	case Destroyed:
		return "DESTROY"
	}
	return "unknown"
}

// Event is something that happened to an entry, however the entry was made. Nothing is
// told of an entry that was made while net.netfilter.nf_conntrack_events was 0, or was 2,
// the default since Linux 5.19, while nobody watched in any network namespace
// (nf_ct_ecache_ext_add in nf_conntrack_ecache.c).
type Event struct {
	Kind EventKind
	// At is when it happened, by the wall clock. Of Updated the kernel tells it since Linux
	// 6.14, of Destroyed it is State.Stop; both only of entries whose State.Start is known.
	// Zero: not told.
	At time.Time
	// PortID is the netlink port through which somebody asked for it, usually that one's
	// process id; 0: packets or time have done it.
	PortID uint32
	// State is the entry as the event tells of it (ctnetlink_conntrack_event in
	// nf_conntrack_netlink.c). Always there are the tuples, the ID, the status, the zone
	// and the mark. Besides:
	//
	// Updated has the Timeout, and TCP or SCTP if that state changed with it; else it is
	// none (0). It has no counters and no times.
	//
	// Destroyed has the counters and the times, and since Linux 5.10 the last state of TCP
	// or SCTP and the Timeout. If any of that is left, the entry was removed before its
	// time: by a request (see PortID), or by the kernel, as when the table is full or a TCP
	// connection was refused: whose SYN was answered with nothing but a RST ends in state
	// CLOSE at once. What timed out the kernel removes when it comes across it, which may be
	// a minute and more later; Stop is when it timed out.
	State State
}

// ErrOverrun says that events were lost.
var ErrOverrun = errors.New("connection tracking events were lost, for they came faster than they were read: read them more often or give them a larger buffer")

// maxEvents is how many events one Receive gives at most.
const maxEvents = 256

// maxEventLen is more than an event's message has: 308 bytes tell the end of a TCP connection
// over IPv6; labels and a security context may come on top.
const maxEventLen = 1024

// parseEvent reads one message of the kernel. It says no if that is no event, or one of a
// protocol that has no ports.
func parseEvent(b []byte, e *Event) (bool, error) {
	switch typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]); {
	case typ == msgCTDelete:
		e.Kind = Destroyed
	case typ == msgCTNew && flags&flagCreate == 0:
		e.Kind = Updated
	default:
		return false, nil
	}
	e.PortID = binary.NativeEndian.Uint32(b[12:])
	var err error
	if e.State, e.At, err = parseStateAt(b[nlmsgHdrLen:]); err != nil {
		return false, err
	}
	if e.Kind == Destroyed {
		e.At = e.State.Stop // what timed out may have waited long for its event
	}
	switch e.State.Original.Protocol {
	case protoTCP, protoUDP, protoSCTP:
		return true, nil
	}
	return false, nil
}
