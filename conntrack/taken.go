package conntrack

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// conflict is one entry whose tuple is taken.
type conflict struct {
	entry  *Entry
	result *Result
	lookup
	later   bool    // look it up again after the other conflicts of the batch
	outcome Outcome // if it can be created now; Failed: it must not be created
	// The results of requests about it.
	deleted, created, extended error
}

// endingTimeout is the least remaining life of a kept entry, in seconds. If the entry ended
// between the lookup and the packet's arrival at conntrack, the packet would pass untranslated.
const endingTimeout = 2

// settle handles the creations whose tuples are taken: those at t.taken. As with creations, each
// step takes one system call for all of them. With short connections from few clients most tuples
// are taken, by connections that are over.
func (t *Table) settle(entries []Entry, results []Result) {
	for len(t.taken) > 0 {
		t.conflicts = t.conflicts[:0]
		var locks uint64
		for _, i := range t.taken {
			t.addConflict(&entries[i], &results[i])
			locks |= t.locks.bit(entries[i].Tuple)
		}
		t.locks.lock(locks)
		t.lookUpConflicts()
		t.replace()
		t.locks.unlock(locks)
	}
}

// addConflict adds an entry whose tuple is taken to the conflicts.
func (t *Table) addConflict(entry *Entry, result *Result) *conflict {
	c := conflict{entry: entry, result: result}
	// The second of two packets of one flow finds the entry of the first.
	c.later = slices.ContainsFunc(t.conflicts, func(d conflict) bool { return d.entry.Tuple == entry.Tuple && d.entry.Zone == entry.Zone })
	t.conflicts = append(t.conflicts, c)
	return &t.conflicts[len(t.conflicts)-1]
}

// createOrLookUp is the first round of settle where most tuples are expected to be taken: with each
// creation it requests the connection that has the tuple. That saves a round trip for taken
// tuples, and costs a lookup for the others. It leaves in t.taken the entries for a second round.
func (t *Table) createOrLookUp(entries []Entry, results []Result) {
	var locks uint64
	for i := range entries {
		locks |= t.locks.bit(entries[i].Tuple)
	}
	t.locks.lock(locks)
	defer t.locks.unlock(locks)

	t.errs = zeros(t.errs, len(entries))
	t.lookups = zeros(t.lookups, len(entries))
	t.begin()
	for i := range entries {
		t.lookUp(&t.lookups[i], entries[i].Tuple, entries[i].Zone)
		t.buf = appendCreate(t.buf, t.next(nil, &t.errs[i]), &entries[i])
	}
	if err := t.exchange(); err != nil {
		failAll(entries, results, err)
		return
	}
	t.sort(entries, results)
	t.conflicts = t.conflicts[:0]
	for _, i := range t.taken {
		c := t.addConflict(&entries[i], &results[i])
		c.lookup = t.lookups[i]
	}
	t.replace()
}

// lookUpConflicts finds the connections that have the tuples.
func (t *Table) lookUpConflicts() {
	t.begin()
	for k := range t.conflicts {
		c := &t.conflicts[k]
		t.lookUp(&c.lookup, c.entry.Tuple, c.entry.Zone)
	}
	if err := t.exchange(); err != nil {
		for k := range t.conflicts {
			t.conflicts[k].err = err
		}
	}
}

// replace creates the entries whose tuples are free by now or may be taken from the connections
// that have them, and sets the results of the conflicts. It leaves in t.taken those to look up later.
func (t *Table) replace() {
	t.begin()
	for k := range t.conflicts {
		c := &t.conflicts[k]
		switch {
		case c.later:
			continue
		case IsNotFound(c.err):
			c.outcome = Created // the old connection has ended in the meantime
		case c.err != nil:
			*c.result = Result{Err: &OpError{"get", c.entry.Tuple, c.err}}
			continue
		case !supersedes(c.entry, &c.state):
			*c.result = Result{Outcome: Kept, Existing: c.state}
			if c.state.Timeout < endingTimeout && c.state.Original == c.entry.Tuple {
				t.buf = appendExtend(t.buf, t.next(nil, &c.extended), c.entry.Tuple, c.entry.Zone)
			}
			continue
		default:
			c.outcome = Replaced
			t.buf = appendDelete(t.buf, t.next(nil, &c.deleted), ctaTupleOrig, c.state.Original, c.entry.Zone, c.state.ID)
		}
		t.buf = appendCreate(t.buf, t.next(nil, &c.created), c.entry)
	}
	var err error
	if len(t.requests) > 0 {
		err = t.exchange()
	}
	later := t.taken[:0]
	for k, i := range t.taken {
		c := &t.conflicts[k]
		if c.outcome != Failed {
			*c.result = t.outcome(c, err)
		}
		if c.later || IsNotFound(c.extended) { // it ended just now: the tuple is free
			later = append(later, i)
		}
	}
	t.taken = later
}

// outcome sets the result of a conflict whose entry was to be created.
func (t *Table) outcome(c *conflict, err error) Result {
	tuple := c.entry.Tuple
	switch {
	case err != nil:
		return Result{Err: &OpError{"create", tuple, err}}
	case c.deleted != nil && !IsNotFound(c.deleted):
		return Result{Err: &OpError{"delete", tuple, c.deleted}}
	case c.created == nil:
		return Result{Outcome: c.outcome}
	case !errors.Is(c.created, syscall.EEXIST):
		return Result{Err: &OpError{"create", tuple, c.created}}
	}
	// Either another worker was faster, or the reply tuple is taken: then this entry does not
	// exist, and no port is free for another reply tuple.
	if existing, err := t.Lookup(tuple, c.entry.Zone); err == nil {
		return Result{Outcome: Kept, Existing: existing}
	}
	if t.reclaim(c.entry) {
		return Result{Outcome: c.outcome}
	}
	return Result{Err: &OpError{"create", tuple, fmt.Errorf("%w: no free source port for connections to %s", c.created, c.entry.Destination)}}
}

// supersedes reports whether a new connection may take the place of an existing one that has the
// same tuple. The first packet of the new connection is a SYN, an INIT or a datagram.
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
			// The client uses its port again. Otherwise the kernel would drop this entry and track
			// the new connection untranslated (tcp_conntracks[], sTW and sCL with a SYN).
			return true
		case TCPSynSent:
			// It began while no daemon decided, and got no reply.
			return untranslated || e.OverUnanswered && existing.Status&StatusSeenReply == 0
		}
		return false
	case protoSCTP:
		// It is also closed between an INIT and the INIT ACK (sctp_conntracks[], sCL).
		over := existing.SCTP == SCTPClosed && existing.Status&StatusSeenReply != 0
		return over || untranslated
	}
	// A datagram to a service address is untranslated only if no daemon decided it; UDP has no
	// connection to preserve.
	return untranslated
}
