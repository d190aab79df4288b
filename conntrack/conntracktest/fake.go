// Package conntracktest has a connection tracking table in memory, for tests of what uses
// package conntrack: they need no kernel and no privileges.
package conntracktest

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// Fake is a connection tracking table in memory. It interprets the very messages the kernel
// would get and refuses what the kernel would refuse. It is a [conntrack.Transport] and safe
// for concurrent use.
type Fake struct {
	// Max is how many entries there may be; 0: any number.
	Max int
	// NoPorts: no source port is free to make a reply tuple unique.
	NoPorts bool
	// Interrupt is how many of the next dumps end with [conntrack.ErrInterrupted], half done.
	Interrupt int

	mu       sync.Mutex
	entries  map[key]*conntrack.State // by both directions
	nextID   uint32
	locks    conntrack.Locks
	watchers []*events
}

type key struct {
	tuple conntrack.Tuple
	zone  uint16
}

// NewFake makes an empty table.
func NewFake() *Fake { return &Fake{entries: make(map[key]*conntrack.State)} }

// Table opens the fake as [conntrack.Open] opens the kernel's.
func (f *Fake) Table() *conntrack.Table { return conntrack.NewTable(f, &f.locks) }

// Close does nothing: the fake outlives the tables opened on it.
func (f *Fake) Close() error { return nil }

// Len counts the connections.
func (f *Fake) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.entries) / 2
}

// Get finds the connection that has the tuple in either direction.
func (f *Fake) Get(t conntrack.Tuple) (conntrack.State, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.entries[key{t, 0}]; s != nil {
		return *s, true
	}
	return conntrack.State{}, false
}

// Change lets change alter the connection that has the tuple, as packets
// would, and panics if there is none.
func (f *Fake) Change(t conntrack.Tuple, change func(*conntrack.State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.mustHave(t)
	before := *s
	change(s)
	f.sendUpdate(&before, s)
}

// End removes the connection that has the tuple, as time or a packet would, and panics if
// there is none.
func (f *Fake) End(t conntrack.Tuple) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(f.mustHave(t), 0)
}

func (f *Fake) mustHave(t conntrack.Tuple) *conntrack.State {
	s := f.entries[key{t, 0}]
	if s == nil {
		panic("conntracktest: the fake has no entry " + t.String())
	}
	return s
}

// remove removes a connection in the name of a netlink port.
func (f *Fake) remove(s *conntrack.State, port uint32) {
	delete(f.entries, key{s.Original, s.Zone})
	delete(f.entries, key{s.Reply, s.Zone})
	f.sendEnd(s, port)
}

// Exchange processes the messages as nfnetlink does: in order, with an answer only
// to those that request one or fail.
func (f *Fake) Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(req) >= nlmsgHdrLen+nfgenmsgLen {
		n := binary.NativeEndian.Uint32(req)
		typ, flags, seq := binary.NativeEndian.Uint16(req[4:]), binary.NativeEndian.Uint16(req[6:]), binary.NativeEndian.Uint32(req[8:])
		r, err := parseRequest(req[nlmsgHdrLen+nfgenmsgLen : n])
		family := req[nlmsgHdrLen]
		req = req[n:]
		switch {
		case err != nil:
			refuse(answer, seq, syscall.EINVAL)
		case typ == msgCTGet && flags&flagDump == flagDump:
			return f.dump(family, r.original.Protocol, func(typ uint16, body []byte) { answer(seq, typ, body) }) // takes the socket for itself
		case typ == msgCTGetStats:
			answer(seq, typ, f.stats())
		default:
			found, errno := f.handle(typ, flags, &r)
			if errno != 0 {
				refuse(answer, seq, errno)
			} else if found != nil {
				answer(seq, msgCTNew, Body(found))
			}
		}
	}
	return nil
}

func refuse(answer func(seq uint32, typ uint16, body []byte), seq uint32, errno syscall.Errno) {
	answer(seq, nlmsgError, binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))))
}

// stats returns how full the table is.
func (f *Fake) stats() []byte {
	return body(0, func(ae *netlink.AttributeEncoder) {
		ae.Uint32(ctaStatsGlobalEntries, uint32(len(f.entries)/2))
		ae.Uint32(ctaStatsGlobalMaxEntries, uint32(f.Max))
	})
}

// handle does what a request is about. It gives the entry that is to be reported, if one is.
func (f *Fake) handle(typ, flags uint16, r *request) (*conntrack.State, syscall.Errno) {
	existing := f.entries[key{r.original, r.zone}]
	switch typ {
	case msgCTNew:
		if flags&flagCreate == 0 {
			if existing == nil {
				return nil, syscall.ENOENT
			}
			existing.Timeout = r.timeout
			f.sendRefresh(existing)
			return nil, 0
		}
		return nil, f.create(r)
	case msgCTGet:
		if existing == nil {
			return nil, syscall.ENOENT
		}
		return existing, 0
	case msgCTDelete:
		if existing == nil {
			existing = f.entries[key{r.reply, r.zone}] // where that is what was given
		}
		if existing == nil || existing.ID != r.id {
			return nil, syscall.ENOENT
		}
		f.remove(existing, ownPort)
		return nil, 0
	}
	return nil, syscall.EOPNOTSUPP
}

// dump reports each entry that has the family and the protocol, unless these are 0.
func (f *Fake) dump(of byte, protocol uint8, answer func(typ uint16, body []byte)) (err error) {
	var found []*conntrack.State
	for k, s := range f.entries {
		if k.tuple == s.Original && (of == 0 || family(k.tuple) == of) && (protocol == 0 || protocol == k.tuple.Protocol) {
			found = append(found, s)
		}
	}
	if f.Interrupt > 0 {
		f.Interrupt--
		found, err = found[:len(found)/2], conntrack.ErrInterrupted
	}
	for _, s := range found {
		answer(msgCTNew, Body(s))
	}
	answer(nlmsgDone, make([]byte, 4))
	return err
}

func (f *Fake) create(r *request) syscall.Errno {
	if f.Max > 0 && len(f.entries)/2 >= f.Max {
		return syscall.ENOMEM
	}
	if f.entries[key{r.original, r.zone}] != nil {
		return syscall.EEXIST
	}
	if f.NoPorts {
		return syscall.EEXIST
	}
	s := &conntrack.State{Original: r.original, Reply: r.reply, Mark: r.mark, Zone: r.zone, Timeout: r.timeout}
	if r.destination.IsValid() {
		s.Status |= conntrack.StatusDestinationNAT
		s.Reply.Source = r.destination
	}
	if r.source.IsValid() {
		s.Status |= conntrack.StatusSourceNAT
		s.Reply.Destination = netip.AddrPortFrom(r.source, s.Reply.Destination.Port())
	}
	for f.entries[key{s.Reply, r.zone}] != nil { // the kernel looks for a free port, too
		s.Reply.Destination = netip.AddrPortFrom(s.Reply.Destination.Addr(), max(1024, s.Reply.Destination.Port()+1))
	}
	f.nextID++
	s.ID = f.nextID
	f.entries[key{s.Original, r.zone}] = s
	f.entries[key{s.Reply, r.zone}] = s
	return 0
}
