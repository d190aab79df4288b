package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"syscall"
)

// Outcome is the outcome of establishing an entry.
type Outcome uint8

// The outcomes.
const (
	// Failed: no entry was created; Result.Err is the reason.
	Failed Outcome = iota
	// Created: the entry is new.
	Created
	// Kept: a live connection has the tuple already and keeps its translation. The
	// packet is a retransmission, a datagram decided a moment ago, or a stray.
	Kept
	// Replaced: the tuple's old connection had ended, or was never translated; the new entry replaced it.
	Replaced
)

var outcomeNames = [...]string{"failed", "created", "kept", "replaced"}

// String returns the outcome as in flow records.
func (o Outcome) String() string { return nameOf(outcomeNames[:], uint8(o)) }

// Result is the result for one entry.
type Result struct {
	Outcome  Outcome
	Existing State // the connection that has the tuple; valid iff Outcome is Kept
	Err      error // an *OpError; valid iff Outcome is Failed
}

// OpError is an error from the kernel. It unwraps to the errno.
type OpError struct {
	Op    string // create, get, delete or dump
	Tuple Tuple  // not that of a dump
	Err   error
}

// Error names the operation, the tuple and, if one is known, the remedy.
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

// Unwrap returns the errno.
func (e *OpError) Unwrap() error { return e.Err }

// IsNotFound reports whether the error means that there is no such entry.
func IsNotFound(err error) bool { return errors.Is(err, syscall.ENOENT) }

// IsFull reports whether the error means that the table is full (ENOMEM from __nf_conntrack_alloc in
// nf_conntrack_core.c).
func IsFull(err error) bool { return errors.Is(err, syscall.ENOMEM) }

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

// Table writes to the connection tracking table of one network namespace. It is
// not safe for concurrent use: each worker has its own.
type Table struct {
	transport Transport
	answer    func(seq uint32, typ uint16, body []byte) // receive, bound once: a method value is allocated
	seq       uint32                                    // of the last message
	first     uint32                                    // of the first message of the exchange
	buf       []byte                                    // the messages of the exchange
	requests  []request                                 // where their answers go
	errs      []error                                   // of creations, by position
	locks     *Locks
	taken     []int      // the entries of a batch whose tuple is taken, by position
	conflicts []conflict // one for each of them
	// mostlyTaken: most tuples of the last batch were taken, and so will be those of the
	// next one. lookups are what has the tuples then, by position.
	mostlyTaken bool
	lookups     []lookup
	// For making room; nil: a full table refuses entries. See [Table.MakeRoom].
	unanswered     *Unanswered
	window         *window
	entries, limit uint32 // how many entries the table has and may have, as the kernel reported last
}

// NewTable returns a Table that uses the transport. All Tables of a namespace share the locks. For the kernel's table
// see [Open].
func NewTable(transport Transport, locks *Locks) *Table {
	t := &Table{transport: transport, locks: locks}
	t.answer = t.receive
	return t
}

// Locks keeps the Tables of one namespace from settling the same tuple at the same time: a packet and its
// retransmission may come through two queues. The zero value is ready to use; all Tables share it.
type Locks [64]sync.Mutex

// bit returns the index of a tuple's lock. Ports vary most from flow to flow.
func (l *Locks) bit(t Tuple) uint64 {
	return 1 << ((uint32(t.Source.Port())*31 + uint32(t.Destination.Port())) % uint32(len(l)))
}

// lock acquires a set of locks, always in the same order, and unlock releases them.
func (l *Locks) lock(set uint64) {
	for ; set != 0; set &= set - 1 {
		l[bits.TrailingZeros64(set)].Lock()
	}
}

func (l *Locks) unlock(set uint64) {
	for ; set != 0; set &= set - 1 {
		l[bits.TrailingZeros64(set)].Unlock()
	}
}

// maxBatch bounds how many creations go out in one datagram, so that even if all
// of them are refused, the answers fit into the socket's default receive buffer.
const maxBatch = 64

// Establish creates the entries and returns in results, which must have the same length, the outcome of each. If a
// tuple is taken, the outcome depends on the old connection: see [Outcome]. It never changes the translation of a live
// connection.
func (t *Table) Establish(entries []Entry, results []Result) {
	for len(entries) > 0 {
		n := min(len(entries), maxBatch)
		t.establish(entries[:n], results[:n])
		if t.unanswered != nil {
			t.makeRoomFor(entries[:n], results[:n])
		}
		entries, results = entries[n:], results[n:]
	}
}

func (t *Table) establish(entries []Entry, results []Result) {
	t.taken = t.taken[:0]
	if t.mostlyTaken {
		t.createOrLookUp(entries, results)
	} else if err := t.create(entries); err != nil {
		failAll(entries, results, err)
	} else {
		t.sort(entries, results)
	}
	t.settle(entries, results)
}

func failAll(entries []Entry, results []Result, err error) {
	for i := range entries {
		results[i] = Result{Err: &OpError{"create", entries[i].Tuple, err}}
	}
}

// sort records the entries in t.errs as created or failed, or adds them to t.taken.
func (t *Table) sort(entries []Entry, results []Result) {
	for i, err := range t.errs {
		switch {
		case err == nil:
			results[i] = Result{Outcome: Created}
		case errors.Is(err, syscall.EEXIST):
			t.taken = append(t.taken, i)
		default:
			results[i] = Result{Err: &OpError{"create", entries[i].Tuple, err}}
		}
	}
	t.mostlyTaken = 2*len(t.taken) > len(entries)
}

// zeros returns n zero values in the list's memory, if that is large enough.
func zeros[T any](list []T, n int) []T {
	list = slices.Grow(list[:0], n)[:n]
	clear(list)
	return list
}

// create sends the creations and leaves their results in t.errs.
func (t *Table) create(entries []Entry) error {
	t.begin()
	t.errs = zeros(t.errs, len(entries))
	for i := range entries {
		t.buf = appendCreate(t.buf, t.next(nil, &t.errs[i]), &entries[i])
	}
	return t.exchange()
}

// Lookup finds the connection that has the tuple in either direction. If there is
// none, [IsNotFound] recognizes the error.
func (t *Table) Lookup(tuple Tuple, zone uint16) (State, error) {
	t.lookups = append(t.lookups[:0], lookup{})
	t.begin()
	t.lookUp(&t.lookups[0], tuple, zone)
	err := cmp.Or(t.exchange(), t.lookups[0].err)
	if err != nil {
		return State{}, &OpError{"get", tuple, err}
	}
	return t.lookups[0].state, nil
}

// Reread looks up the connections of states, which must not be empty, by their original tuples and zones, all in one
// exchange with the kernel. It calls found with the position and the new state of each that is still there, in order;
// the state is valid during the call.
func (t *Table) Reread(states []*State, found func(int, *State)) error {
	t.lookups = zeros(t.lookups, len(states))
	t.begin()
	for i, s := range states {
		t.lookUp(&t.lookups[i], s.Original, s.Zone)
	}
	if err := t.exchange(); err != nil {
		return &OpError{"get", states[0].Original, err}
	}
	for i := range t.lookups {
		if t.lookups[i].err == nil {
			found(i, &t.lookups[i].state)
		}
	}
	return nil
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
		*r.state, _, *r.err = parseState(body)
	case typ == nlmsgError:
		if errno := parseErrno(body); errno != 0 {
			*r.err = errno
		}
	case typ == msgCTGetStats:
		_ = pair(body[min(nfgenmsgLen, len(body)):], &t.entries, &t.limit)
	}
}

// Close closes the socket.
func (t *Table) Close() error { return t.transport.Close() }
