package conntrack

import "net/netip"

// written is one entry that was written. It has no pointers: the garbage collector does not
// look at the many of them.
type written struct {
	source, destination         [16]byte
	sourcePort, destinationPort uint16
	zone                        uint16
	protocol                    uint8
	at                          int64 // nanoseconds since 1970
}

func writtenOf(t Tuple, zone uint16, at int64) written {
	return written{
		source: t.Source.Addr().As16(), sourcePort: t.Source.Port(),
		destination: t.Destination.Addr().As16(), destinationPort: t.Destination.Port(),
		protocol: t.Protocol, zone: zone, at: at,
	}
}

// tuple is the entry's tuple.
func (w *written) tuple() Tuple {
	return Tuple{
		Source:      netip.AddrPortFrom(netip.AddrFrom16(w.source).Unmap(), w.sourcePort),
		Destination: netip.AddrPortFrom(netip.AddrFrom16(w.destination).Unmap(), w.destinationPort),
		Protocol:    w.protocol,
	}
}

// source is the client that an entry counts for: an IPv4 address, or the /64 of an IPv6 address,
// in which one host can use any address (RFC 4291, section 2.5.4).
type source [16]byte

func sourceOf(a [16]byte) source {
	if !netip.AddrFrom16(a).Is4In6() {
		clear(a[8:])
	}
	return a
}

// recent is a circular buffer of entries, the oldest first, in which those of each source are
// linked with each other. A full one forgets the oldest.
type recent struct {
	slots        []slot
	first, count int // of the slots in use, with those that are taken
	sources      map[source]linked
}

// slot holds an entry.
type slot struct {
	written
	next  uint32 // the slot of the same source's next younger entry; undefined in its last
	taken bool   // removed from the middle: the slot is empty
}

// linked are the entries of one source.
type linked struct {
	first, last uint32 // slots
	count       uint32 // greater than 0
}

func newRecent(size int) recent {
	return recent{slots: make([]slot, size), sources: make(map[source]linked)}
}

// push adds an entry as the youngest.
func (r *recent) push(w written) {
	if r.count == len(r.slots) {
		r.pop()
	}
	i := uint32((r.first + r.count) % len(r.slots))
	r.slots[i] = slot{written: w}
	r.count++
	l := r.sources[sourceOf(w.source)]
	if l.count == 0 {
		l.first = i
	} else {
		r.slots[l.last].next = i
	}
	l.last, l.count = i, l.count+1
	r.sources[sourceOf(w.source)] = l
}

// pushOldest adds an entry as the oldest. It reports whether the buffer had a free slot.
func (r *recent) pushOldest(w written) bool {
	if r.count == len(r.slots) {
		return false
	}
	r.first, r.count = (r.first+len(r.slots)-1)%len(r.slots), r.count+1
	i, l := uint32(r.first), r.sources[sourceOf(w.source)]
	r.slots[i] = slot{written: w, next: l.first}
	if l.count == 0 {
		l.last = i
	}
	l.first, l.count = i, l.count+1
	r.sources[sourceOf(w.source)] = l
	return true
}

// oldest returns the oldest entry; nil: there is none.
func (r *recent) oldest() *written {
	for ; r.count > 0; r.first, r.count = (r.first+1)%len(r.slots), r.count-1 {
		if s := &r.slots[r.first]; !s.taken {
			return &s.written
		}
	}
	return nil
}

// pop removes the oldest entry, if there is one.
func (r *recent) pop() {
	if w := r.oldest(); w != nil {
		r.popOf(sourceOf(w.source))
	}
}

// oldestOf returns a source's oldest entry, and how many the source has; nil if it has none.
func (r *recent) oldestOf(s source) (*written, int) {
	l := r.sources[s]
	if l.count == 0 {
		return nil, 0
	}
	return &r.slots[l.first].written, int(l.count)
}

// popOf removes the oldest entry of a source that has one.
func (r *recent) popOf(s source) {
	l := r.sources[s]
	r.slots[l.first].taken = true
	if l.count == 1 {
		delete(r.sources, s)
	} else {
		r.sources[s] = linked{first: r.slots[l.first].next, last: l.last, count: l.count - 1}
	}
	r.oldest() // gives free slots at the front back
}
