package conntrack

import (
	"errors"
	"syscall"
)

// Filter selects the entries of a dump.
type Filter struct {
	// IPv6: the entries of IPv6; otherwise those of IPv4.
	IPv6 bool
	// Protocol is an IANA number; 0: all protocols. Kernels before 5.8 ignore this filter and
	// return all entries; Dump filters in both cases.
	Protocol uint8
}

func (f Filter) family() byte {
	if f.IPv6 {
		return afInet6
	}
	return afInet
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
	if e := t.exchange(receiverFunc(func(seq uint32, typ uint16, body []byte) {
		switch {
		case seq != t.seq:
		case typ == nlmsgError || typ == nlmsgDone:
			err = nil
			if errno := parseErrno(body); errno != 0 {
				err = errno
			}
		default:
			var e error
			if s, e = parseState(body); e != nil {
				parseErr = e
				return
			}
			if f.Protocol == 0 || f.Protocol == s.Original.Protocol {
				each(&s)
			}
		}
	})); e != nil {
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
	first := t.seq + 1
	t.buf = t.buf[:0]
	for i := range states {
		t.seq++
		t.buf = appendDeleteByReply(t.buf, t.seq, &states[i])
		errs[i] = nil
	}
	err := t.exchange(receiverFunc(func(seq uint32, typ uint16, body []byte) {
		if i := seq - first; typ == nlmsgError && i < uint32(len(states)) {
			if errno := parseErrno(body); errno != 0 {
				errs[i] = &OpError{"delete", states[i].Original, errno}
			}
		}
	}))
	if err != nil {
		for i := range errs {
			errs[i] = &OpError{"delete", states[i].Original, err}
		}
	}
}
