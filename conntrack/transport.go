package conntrack

import "syscall"

// Transport carries requests to a connection tracking table: the kernel's, or that of
// package conntracktest.
type Transport interface {
	// Exchange sends the netlink messages in req and calls answer for each message that
	// came back, with its sequence number and type; the body, which begins with struct
	// nfgenmsg or the errno, is only valid during the call. Netlink is synchronous: when
	// Exchange returns, all requests have been processed in order. [ErrInterrupted]: the
	// answers are a dump with gaps.
	Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error
	Close() error
}

// request is where the answer to a message goes: the entry to state, and an error to err. The kernel does not answer a
// creation or a deletion that succeeds.
type request struct {
	state *State // nil: no entry is expected
	err   *error
}

// lookup is the answer to a lookup.
type lookup struct {
	state State
	err   error
}

// begin begins an exchange.
func (t *Table) begin() { t.first, t.buf, t.requests = t.seq+1, t.buf[:0], t.requests[:0] }

// next returns the sequence number of the next message, whose answer goes to state and err. They must stay where they
// are until the exchange is over.
func (t *Table) next(state *State, err *error) uint32 {
	t.seq++
	t.requests = append(t.requests, request{state, err})
	return t.seq
}

// lookUp adds the lookup of the connection that has the tuple in either direction.
func (t *Table) lookUp(l *lookup, tuple Tuple, zone uint16) {
	l.err = syscall.ENODATA // if there is no answer at all
	t.buf = appendGet(t.buf, t.next(&l.state, &l.err), tuple, zone)
}

// exchange sends the messages in t.buf and stores the answers.
func (t *Table) exchange() error { return t.transport.Exchange(t.buf, t.answer) }

func (t *Table) receive(seq uint32, typ uint16, body []byte) {
	i := seq - t.first
	if i >= uint32(len(t.requests)) {
		return
	}
	switch r := &t.requests[i]; {
	case typ != nlmsgError && r.state != nil:
		*r.state, *r.err = parseState(body)
	case typ == nlmsgError:
		if errno := parseErrno(body); errno != 0 {
			*r.err = errno
		}
	case typ == msgCTGetStats:
		t.receiveStats(body)
	}
}
