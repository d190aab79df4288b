package conntrack

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// Outcome is what became of an entry that was to be established.
type Outcome uint8

// The outcomes.
const (
	// Failed: there is no entry of ours; Result.Err says why.
	Failed Outcome = iota
	// Created: the entry is new.
	Created
	// Kept: a live connection has the tuple already and keeps its translation. The
	// packet is a retransmission, a datagram decided a moment ago, or a stray.
	Kept
	// Replaced: the tuple's old connection was over, or never translated; its
	// entry made room for the new one.
	Replaced
)

// String gives the outcome as the flow record writes it.
func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Created:
		return "created"
	case Kept:
		return "kept"
	case Replaced:
		return "replaced"
	}
	return "unknown"
}

// Result tells what became of one entry.
type Result struct {
	Outcome  Outcome
	Existing State // the connection that has the tuple; valid iff Outcome is Kept
	Err      error // an *OpError; valid iff Outcome is Failed
}

// OpError is a refusal of the kernel. It unwraps to the errno.
type OpError struct {
	Op    string // create, get, delete or dump
	Tuple Tuple  // not that of a dump
	Err   error
}

// Error names the operation, the tuple and, where one is known, the remedy.
func (e *OpError) Error() string {
	s := fmt.Sprintf("conntrack: %s %s: %v", e.Op, e.Tuple, e.Err)
	if e.Op == "dump" {
		s = fmt.Sprintf("conntrack: dump: %v", e.Err)
	}
	if IsFull(e.Err) {
		s += " (is the table full? compare net.netfilter.nf_conntrack_count with nf_conntrack_max)"
	}
	return s
}

// Unwrap gives the errno.
func (e *OpError) Unwrap() error { return e.Err }

// IsNotFound says whether the error means that there is no such entry.
func IsNotFound(err error) bool { return errors.Is(err, syscall.ENOENT) }

// IsExists says whether the error means that the tuple has an entry.
func IsExists(err error) bool { return errors.Is(err, syscall.EEXIST) }

// IsFull says whether the error means that the table takes no more entries
// (nf_conntrack_core.c, __nf_conntrack_alloc answers ENOMEM).
func IsFull(err error) bool { return errors.Is(err, syscall.ENOMEM) }

// transport carries requests to the kernel's connection tracking, or to a [Fake].
// Netlink is synchronous: when exchange returns, all requests have been
// processed in order.
type transport interface {
	// exchange sends the concatenated messages in req and calls reply for each
	// message that came back; body is only valid during the call. It fails with
	// [ErrInterrupted] if what came back has gaps.
	exchange(req []byte, reply func(seq uint32, typ uint16, body []byte)) error
	Close() error
}

// Table writes to the connection tracking table of one network namespace. It is
// not safe for concurrent use: each worker has its own.
type Table struct {
	transport transport
	seq       uint32
	buf       []byte
	errnos    []syscall.Errno // of the last create, by position
	locks     *Locks
}

// Locks keeps the Tables of one namespace from settling the same tuple at the same
// time: a packet and its retransmission may come by two queues. The zero value is
// ready for use, by all of them.
type Locks [64]sync.Mutex

// of gives the lock of a tuple. Ports differ most from flow to flow.
func (l *Locks) of(t Tuple) *sync.Mutex {
	return &l[(uint32(t.Source.Port())*31+uint32(t.Destination.Port()))%uint32(len(l))]
}

// maxBatch bounds how many creations go out in one datagram, so that even if all
// of them are refused, the answers fit into the socket's default receive buffer.
const maxBatch = 64

// Establish creates the entries and says in results, which must be as long,
// what became of each. Where a tuple is taken, the old connection decides:
// see [Outcome]. It never changes the translation of a live connection.
func (t *Table) Establish(entries []Entry, results []Result) {
	for len(entries) > 0 {
		n := min(len(entries), maxBatch)
		t.establish(entries[:n], results[:n])
		entries, results = entries[n:], results[n:]
	}
}

func (t *Table) establish(entries []Entry, results []Result) {
	if err := t.create(entries); err != nil {
		for i := range entries {
			results[i] = Result{Err: &OpError{"create", entries[i].Tuple, err}}
		}
		return
	}
	for i, errno := range t.errnos {
		switch errno {
		case 0:
			results[i] = Result{Outcome: Created}
		case syscall.EEXIST:
			// resolve creates one by one and overwrites t.errnos, so it has to come
			// after all of them were looked at.
			results[i] = Result{Outcome: Kept}
		default:
			results[i] = Result{Err: &OpError{"create", entries[i].Tuple, errno}}
		}
	}
	for i := range results {
		if results[i].Outcome == Kept {
			results[i] = t.resolve(&entries[i])
		}
	}
}

// resolve handles the creation of an entry whose tuple is taken.
func (t *Table) resolve(e *Entry) Result {
	lock := t.locks.of(e.Tuple)
	lock.Lock()
	defer lock.Unlock()
	outcome := Created // if the old entry ends in the meantime
	existing, err := t.Lookup(e.Tuple, e.Zone)
	switch {
	case IsNotFound(err):
	case err != nil:
		return Result{Err: err}
	case !supersedes(e, &existing):
		return Result{Outcome: Kept, Existing: existing}
	default:
		outcome = Replaced
		if err := t.delete(&existing, e.Zone); err != nil && !IsNotFound(err) {
			return Result{Err: err}
		}
	}
	one := [1]Entry{*e}
	if err := t.create(one[:]); err != nil {
		return Result{Err: &OpError{"create", e.Tuple, err}}
	}
	switch errno := t.errnos[0]; errno {
	case 0:
		return Result{Outcome: outcome}
	case syscall.EEXIST:
		// Either another worker was faster, or it is the reply tuple that is taken: then
		// there is no entry of this one, and no port left to make another of.
		if existing, err := t.Lookup(e.Tuple, e.Zone); err == nil {
			return Result{Outcome: Kept, Existing: existing}
		}
		return Result{Err: &OpError{"create", e.Tuple, fmt.Errorf("%w: no source port is free for the way to %s", errno, e.Destination)}}
	default:
		return Result{Err: &OpError{"create", e.Tuple, errno}}
	}
}

// supersedes says whether a new connection may take the place of an existing one
// that has the same tuple. The first packet of the new one says SYN, INIT, or is a
// datagram.
func supersedes(e *Entry, existing *State) bool {
	if existing.Original != e.Tuple {
		return false // the packet belongs to the reply direction of that connection
	}
	// An endpoint may have the service's own address and port: host network, node port.
	untranslated := existing.Status&StatusDestinationNAT == 0 && e.Destination.IsValid() && e.Destination != e.Tuple.Destination
	switch e.Tuple.Protocol {
	case protoTCP:
		switch existing.TCP {
		case TCPTimeWait, TCPClose, TCPLastAck:
			// The client uses its port again. Left alone, the kernel would drop this
			// entry and track the new connection untranslated (tcp_conntracks[],
			// sTW and sCL with a SYN).
			return true
		case TCPSynSent:
			return untranslated // began while nobody decided, and nobody answered
		}
		return false
	case protoSCTP:
		return existing.SCTP == SCTPClosed || untranslated
	}
	// A datagram to a service address is only ever untranslated because nobody
	// decided it; for UDP there is no connection to keep up.
	return untranslated
}

// create sends the creations and leaves their results in t.errnos.
func (t *Table) create(entries []Entry) error {
	first := t.seq + 1
	t.buf, t.errnos = t.buf[:0], t.errnos[:0]
	for i := range entries {
		t.seq++
		t.buf = appendCreate(t.buf, t.seq, &entries[i])
		t.errnos = append(t.errnos, 0)
	}
	return t.transport.exchange(t.buf, func(seq uint32, typ uint16, body []byte) {
		if i := seq - first; typ == nlmsgError && i < uint32(len(t.errnos)) {
			t.errnos[i] = parseErrno(body)
		}
	})
}

// Lookup finds the connection that has the tuple in either direction. If there is
// none, [IsNotFound] recognizes the error.
func (t *Table) Lookup(tuple Tuple, zone uint16) (State, error) {
	t.seq++
	t.buf = appendGet(t.buf[:0], t.seq, tuple, zone)
	var s State
	err := error(syscall.ENODATA) // if there is no answer at all
	if e := t.transport.exchange(t.buf, func(seq uint32, typ uint16, body []byte) {
		switch {
		case seq != t.seq:
		case typ == nlmsgError:
			if errno := parseErrno(body); errno != 0 {
				err = errno
			}
		default:
			s, err = parseState(body)
		}
	}); e != nil {
		err = e
	}
	if err != nil {
		return State{}, &OpError{"get", tuple, err}
	}
	return s, nil
}

// delete removes the entry, unless another one has taken its place.
func (t *Table) delete(s *State, zone uint16) error {
	t.seq++
	t.buf = appendDelete(t.buf[:0], t.seq, s.Original, zone, s.ID)
	var errno syscall.Errno
	err := t.transport.exchange(t.buf, func(seq uint32, typ uint16, body []byte) {
		if seq == t.seq && typ == nlmsgError {
			errno = parseErrno(body)
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return &OpError{"delete", s.Original, err}
	}
	return nil
}

// Close closes the socket.
func (t *Table) Close() error { return t.transport.Close() }
