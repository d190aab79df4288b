package conntrack

import (
	"encoding/binary"
	"errors"
	"time"
)

// EventKind is the kind of change to an entry.
type EventKind uint8

// The kinds.
const (
	// Updated: its state or its status changed.
	Updated EventKind = iota + 1
	// Destroyed: the entry is gone.
	Destroyed
	// Began: the entry was created. Only a Watcher that asks for these events gets them; see [WatchConfig].
	Began
)

var kindNames = [...]string{"unknown", "UPDATE", "DESTROY", "NEW"}

// String returns the kind in the words of conntrack(8).
func (k EventKind) String() string { return nameOf(kindNames[:], uint8(k)) }

// Event is a change of an entry, whichever program caused it. There are no events of an entry that was created while
// net.netfilter.nf_conntrack_events was 0, or was 2, the default since Linux 5.19, without a listener in any network
// namespace (nf_ct_ecache_ext_add in nf_conntrack_ecache.c).
type Event struct {
	Kind EventKind
	// At is when it happened, by the wall clock. For Began and Updated the kernel reports it since Linux
	// 6.14, for Destroyed it is State.Stop; both only for entries whose State.Start is known.
	// Zero: unknown.
	At time.Time
	// PortID is the netlink port of the socket that requested the change, usually its process id;
	// 0: a packet or a timeout caused it.
	PortID uint32
	// State is the entry as the event reports it (ctnetlink_conntrack_event in
	// nf_conntrack_netlink.c). The tuples, the ID, the status, the zone and the mark are always
	// valid. Besides:
	//
	// Began is sent when the first packet leaves the host or reaches one of its sockets, so the entry has its
	// translation. It has the Timeout, and the state of TCP or SCTP. A packet that is dropped or rejected before has no
	// entry.
	//
	// Updated has the Timeout, and TCP or SCTP if that state changed with it; otherwise the state
	// is none (0). It has no counters and no times.
	//
	// Destroyed has the counters and the times, and since Linux 5.10 the last state of TCP or SCTP
	// and the Timeout. If some Timeout is left, the entry was removed early: by a request (see
	// PortID), or by the kernel, as when the table is full or a TCP connection was refused: an
	// entry whose SYN got only a RST ends in state CLOSE at once. The kernel removes entries that
	// timed out when its garbage collection finds them, a minute or more later; Stop is the time
	// of the timeout.
	State State
}

// ErrOverrun reports that events were lost.
var ErrOverrun = errors.New("connection tracking events were lost: they arrived faster than they were read; read more often or use a larger buffer")

// maxEvents is how many events one Receive returns at most.
const maxEvents = 256

// maxEventLen is more than an event's message has: the end of a TCP connection over IPv6 takes 308
// bytes, plus labels and a security context.
const maxEventLen = 1024

// parseEvent reads one message of the kernel. ok is false if it is no event, or one of a protocol
// without ports.
func parseEvent(b []byte, e *Event) (bool, error) {
	switch typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]); {
	case typ == msgCTDelete:
		e.Kind = Destroyed
	case typ == msgCTNew && flags&flagCreate == 0:
		e.Kind = Updated
	case typ == msgCTNew:
		e.Kind = Began
	default:
		return false, nil
	}
	e.PortID = binary.NativeEndian.Uint32(b[12:])
	var err error
	if e.State, e.At, err = parseState(b[nlmsgHdrLen:]); err != nil {
		return false, err
	}
	if e.Kind == Destroyed {
		e.At = e.State.Stop // the event may come long after the timeout
	}
	switch e.State.Original.Protocol {
	case protoTCP, protoUDP, protoSCTP:
		return true, nil
	}
	return false, nil
}
