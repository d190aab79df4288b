package conntrack

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"syscall"
)

// Fake is a connection tracking table in memory, for tests. It interprets the same messages as the
// kernel, and refuses what the kernel refuses. It is safe for concurrent use.
type Fake struct {
	// Max is how many entries there may be; 0: any number.
	Max int
	// NoPorts: no source port is free to make a reply tuple unique.
	NoPorts bool
	// Interrupt is how many of the next dumps end early with [ErrInterrupted].
	Interrupt int

	mu       sync.Mutex
	entries  map[fakeKey]*State // by both directions
	nextID   uint32
	locks    Locks
	watchers []*fakeEvents
}

type fakeKey struct {
	tuple Tuple
	zone  uint16
}

// NewFake makes an empty table.
func NewFake() *Fake { return &Fake{entries: make(map[fakeKey]*State)} }

// Table opens the fake as [Open] opens the kernel's.
func (f *Fake) Table() *Table { return &Table{transport: f, locks: &f.locks} }

// Close does nothing: the fake outlives the tables opened on it.
func (f *Fake) Close() error { return nil }

// Len counts the connections.
func (f *Fake) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.entries) / 2
}

// Get finds the connection that has the tuple in either direction.
func (f *Fake) Get(t Tuple) (State, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.entries[fakeKey{t, 0}]; s != nil {
		return *s, true
	}
	return State{}, false
}

// Change lets change alter the connection that has the tuple, as packets
// would, and panics if there is none.
func (f *Fake) Change(t Tuple, change func(*State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.mustHave(t)
	before := *s
	change(s)
	f.sendUpdate(&before, s)
}

// End removes the connection that has the tuple, as time or a packet would, and panics if
// there is none.
func (f *Fake) End(t Tuple) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(f.mustHave(t), 0)
}

func (f *Fake) mustHave(t Tuple) *State {
	s := f.entries[fakeKey{t, 0}]
	if s == nil {
		panic("conntrack: fake has no entry " + t.String())
	}
	return s
}

// remove removes a connection on request of the netlink port.
func (f *Fake) remove(s *State, port uint32) {
	delete(f.entries, fakeKey{s.Original, s.Zone})
	delete(f.entries, fakeKey{s.Reply, s.Zone})
	f.sendEnd(s, port)
}

// exchange processes the messages as nfnetlink does: in order, with a reply only to those that
// request one or fail.
func (f *Fake) exchange(req []byte, to receiver) error {
	reply := to.receive
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(req) >= nlmsgHdrLen {
		n := binary.NativeEndian.Uint32(req)
		typ, seq := binary.NativeEndian.Uint16(req[4:]), binary.NativeEndian.Uint32(req[8:])
		if typ == msgCTGet && binary.NativeEndian.Uint16(req[6:])&flagDump == flagDump {
			return f.dump(req[nlmsgHdrLen:n], seq, reply) // takes the socket for itself
		}
		if typ == msgCTGetStats {
			reply(seq, typ, f.stats())
			req = req[n:]
			continue
		}
		answer, errno := f.handle(typ, binary.NativeEndian.Uint16(req[6:]), req[nlmsgHdrLen:n])
		switch {
		case errno != 0:
			reply(seq, nlmsgError, binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))))
		case answer != nil:
			reply(seq, msgCTNew, answer)
		}
		req = req[n:]
	}
	return nil
}

// stats replies with the number of entries and their limit.
func (f *Fake) stats() []byte {
	b := appendUint32(make([]byte, nfgenmsgLen), ctaStatsGlobalEntries, uint32(len(f.entries)/2))
	return appendUint32(b, ctaStatsGlobalMaxEntries, uint32(f.Max))
}

func (f *Fake) handle(typ, flags uint16, body []byte) (answer []byte, errno syscall.Errno) {
	s, err := parseState(body)
	if err != nil {
		return nil, syscall.EINVAL
	}
	var zone uint16
	var nat fakeNAT
	_ = attributes(body[nfgenmsgLen:], func(typ uint16, v []byte) error {
		switch typ {
		case ctaZone:
			zone = binary.BigEndian.Uint16(v)
		case ctaNATDst:
			nat.dst, nat.dstPort = parseNAT(v)
		case ctaNATSrc:
			nat.src, _ = parseNAT(v)
		}
		return nil
	})
	existing := f.entries[fakeKey{s.Original, zone}]
	switch typ {
	case msgCTNew:
		if flags&flagCreate == 0 {
			if existing == nil {
				return nil, syscall.ENOENT
			}
			existing.Timeout = s.Timeout
			f.sendRefresh(existing)
			return nil, 0
		}
		return nil, f.create(s, zone, nat)
	case msgCTGet:
		if existing == nil {
			return nil, syscall.ENOENT
		}
		return appendState(nil, existing), 0
	case msgCTDelete:
		if existing == nil {
			existing = f.entries[fakeKey{s.Reply, zone}] // for an interrupted dump
		}
		if existing == nil || existing.ID != s.ID {
			return nil, syscall.ENOENT
		}
		f.remove(existing, fakePort)
		return nil, 0
	}
	return nil, syscall.EOPNOTSUPP
}

// dump replies with each entry that has the family and, if one is given, the protocol.
func (f *Fake) dump(body []byte, seq uint32, reply func(seq uint32, typ uint16, body []byte)) error {
	filter, err := parseState(body)
	if err != nil {
		return err
	}
	var found []*State
	for k, s := range f.entries {
		family := Filter{IPv6: k.tuple.Source.Addr().Is6()}.family()
		if k.tuple == s.Original && family == body[0] && (filter.Original.Protocol == 0 || filter.Original.Protocol == k.tuple.Protocol) {
			found = append(found, s)
		}
	}
	if f.Interrupt > 0 {
		f.Interrupt--
		found, err = found[:len(found)/2], ErrInterrupted
	}
	for _, s := range found {
		reply(seq, msgCTNew, appendState(nil, s))
	}
	reply(seq, nlmsgDone, make([]byte, 4))
	return err
}

type fakeNAT struct {
	dst, src netip.Addr
	dstPort  uint16
}

func (f *Fake) create(s State, zone uint16, nat fakeNAT) syscall.Errno {
	if f.Max > 0 && len(f.entries)/2 >= f.Max {
		return syscall.ENOMEM
	}
	if f.entries[fakeKey{s.Original, zone}] != nil {
		return syscall.EEXIST
	}
	if f.NoPorts {
		return syscall.EEXIST
	}
	if nat.dst.IsValid() {
		s.Status |= StatusDestinationNAT
		s.Reply.Source = netip.AddrPortFrom(nat.dst, nat.dstPort)
	}
	if nat.src.IsValid() {
		s.Status |= StatusSourceNAT
		s.Reply.Destination = netip.AddrPortFrom(nat.src, s.Reply.Destination.Port())
	}
	for f.entries[fakeKey{s.Reply, zone}] != nil { // the kernel looks for a free port, too
		s.Reply.Destination = netip.AddrPortFrom(s.Reply.Destination.Addr(), max(1024, s.Reply.Destination.Port()+1))
	}
	f.nextID++
	s.ID = f.nextID
	f.entries[fakeKey{s.Original, zone}] = &s
	f.entries[fakeKey{s.Reply, zone}] = &s
	return 0
}

// appendState writes an entry as the kernel reports it.
func appendState(b []byte, s *State) []byte {
	b = append(b, 0, 0, 0, 0) // struct nfgenmsg
	b = appendIdentity(b, s)
	b = appendUint32(b, ctaTimeout, s.Timeout)
	b = appendProtoinfo(b, s)
	return appendCounts(b, s)
}

func appendIdentity(b []byte, s *State) []byte {
	b = appendTuple(b, ctaTupleOrig, s.Original)
	b = appendTuple(b, ctaTupleReply, s.Reply)
	b = appendUint32(b, ctaStatus, uint32(s.Status))
	b = appendUint32(b, ctaMark, s.Mark)
	b = appendUint32(b, ctaID, s.ID)
	return appendZone(b, s.Zone)
}

func appendProtoinfo(b []byte, s *State) []byte {
	b, info := beginAttr(b, ctaProtoinfo)
	if s.Original.Protocol == protoSCTP {
		var sctp attr
		b, sctp = beginAttr(b, ctaProtoinfoSCTP)
		b = endAttr(appendAttr(b, ctaSCTPState, []byte{byte(s.SCTP)}), sctp)
	} else {
		var tcp attr
		b, tcp = beginAttr(b, ctaProtoinfoTCP)
		b = endAttr(appendAttr(b, ctaTCPState, []byte{byte(s.TCP)}), tcp)
	}
	return endAttr(b, info)
}

// appendCounts writes the counters and the times, as far as they are known.
func appendCounts(b []byte, s *State) []byte {
	if s.HasCounters {
		b = appendCounters(b, ctaCountersOrig, s.Sent)
		b = appendCounters(b, ctaCountersReply, s.Received)
	}
	if !s.Start.IsZero() {
		var times attr
		b, times = beginAttr(b, ctaTimestamp)
		b = appendUint64(b, ctaTimestampStart, uint64(s.Start.UnixNano()))
		if !s.Stop.IsZero() {
			b = appendUint64(b, ctaTimestampStop, uint64(s.Stop.UnixNano()))
		}
		b = endAttr(b, times)
	}
	return b
}

func appendCounters(b []byte, typ uint16, c Counters) []byte {
	b, counters := beginAttr(b, typ)
	b = appendUint64(b, ctaCountersPackets, c.Packets)
	return endAttr(appendUint64(b, ctaCountersBytes, c.Bytes), counters)
}

func appendUint64(b []byte, typ uint16, v uint64) []byte {
	return appendAttr(b, typ, binary.BigEndian.AppendUint64(nil, v))
}

// parseNAT reads a range of one address and at most one port.
func parseNAT(b []byte) (a netip.Addr, port uint16) {
	_ = attributes(b, func(typ uint16, v []byte) error {
		switch typ {
		case ctaNATv4MinIP, ctaNATv6MinIP:
			a, _ = netip.AddrFromSlice(v)
		case ctaNATProto:
			return attributes(v, func(typ uint16, v []byte) error {
				if typ == ctaProtonatMin {
					port = binary.BigEndian.Uint16(v)
				}
				return nil
			})
		}
		return nil
	})
	return a, port
}
