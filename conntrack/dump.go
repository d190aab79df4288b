package conntrack

import (
	"cmp"
	"errors"
	"syscall"
)

// Filter selects the entries of a dump.
type Filter struct {
	// Family is [IPv4] or [IPv6]; 0: both.
	Family uint8
	// Protocol is an IANA number; 0: all protocols. Without a Family, and before Linux 5.8, the
	// kernel returns all entries, which Dump filters.
	Protocol uint8
	// Mark is the bits that the connection mark must have; 0: any mark.
	Mark uint32
}

// ErrInterrupted reports that the table was resized while it was dumped: entries may be missing
// from the dump (NLM_F_DUMP_INTR). Those that were there are real.
var ErrInterrupted = errors.New("the connection tracking table was resized while it was read; read it again")

// Dump calls each for every entry that passes the filter, one after the other. The state is only
// valid during the call, in which the Table must not be used. Entries that are created or removed
// meanwhile may be missing, or be passed twice. Packets and other Tables do not wait for it.
// [ErrInterrupted]: the dump has gaps.
func (t *Table) Dump(f Filter, each func(*State)) error {
	t.seq++
	t.buf = appendDump(t.buf[:0], t.seq, f)
	var s State // one for all entries: it escapes
	var parseErr error
	err := error(syscall.ENODATA) // if the end is missing
	if e := t.transport.Exchange(t.buf, func(seq uint32, typ uint16, body []byte) {
		switch {
		case seq != t.seq:
		case typ == nlmsgError || typ == nlmsgDone:
			err = nil
			if errno := parseErrno(body); errno != 0 {
				err = errno
			}
		default:
			var e error
			if s, _, e = parseState(body); e != nil {
				parseErr = e
				return
			}
			if (f.Protocol == 0 || f.Protocol == s.Original.Protocol) && s.Mark&f.Mark == f.Mark {
				each(&s)
			}
		}
	}); e != nil {
		err = e
	}
	if err = errors.Join(err, parseErr); err != nil {
		return &OpError{Op: "dump", Err: err}
	}
	return nil
}

// Delete removes entries that a dump returned. An entry is removed only if it still has the
// original and the reply tuple it had then: one that was recreated with another translation stays,
// whatever its ID. So workers may create entries meanwhile. errs, which must be as long as states,
// has for each entry: nil if it was removed; an error that [IsNotFound] recognizes if it was gone
// or recreated; otherwise an *OpError.
func (t *Table) Delete(states []State, errs []error) {
	for len(states) > 0 {
		n := min(len(states), maxBatch)
		t.deleteBatch(states[:n], errs[:n])
		states, errs = states[n:], errs[n:]
	}
}

func (t *Table) deleteBatch(states []State, errs []error) {
	clear(errs[:len(states)])
	t.begin()
	for i := range states {
		s := &states[i]
		t.buf = appendDelete(t.buf, t.next(nil, &errs[i]), ctaTupleReply, s.Reply, s.Zone, s.ID)
	}
	err := t.exchange()
	for i := range states {
		if e := cmp.Or(err, errs[i]); e != nil {
			errs[i] = &OpError{"delete", states[i].Original, e}
		}
	}
}

// HasTranslated reports whether a connection with the mark is translated and still open: without
// its translation, its next packet would be lost.
func (t *Table) HasTranslated(mark uint32) (found bool, err error) {
	err = t.Dump(Filter{Mark: mark}, func(s *State) { found = found || s.needsTranslation() })
	if found { // one match is enough, even from a dump with gaps
		err = nil
	}
	return found, err
}

// needsTranslation reports whether more packets of the connection may arrive that need
// translation.
func (s *State) needsTranslation() bool {
	if s.Status&(StatusSourceNAT|StatusDestinationNAT) == 0 {
		return false
	}
	switch s.Original.Protocol {
	case protoTCP:
		return s.TCP != TCPTimeWait && s.TCP != TCPClose
	case protoSCTP:
		return s.SCTP != SCTPClosed
	}
	return true
}
