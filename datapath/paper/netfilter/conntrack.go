package netfilter

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Protocols that connection tracking distinguishes, by their IANA numbers.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
)

func hasICMP(protocol uint8) bool { return protocol == protoICMP || protocol == protoICMPv6 }

// inverse is the tuple of the reply (nf_ct_invert_tuple).
func inverse(t iptables.Tuple) iptables.Tuple {
	if !hasICMP(t.Protocol) {
		return iptables.Tuple{Protocol: t.Protocol, Source: t.Destination, Destination: t.Source}
	}
	answer := icmpAnswer(t.Protocol, uint8(t.Destination.Port()>>8))
	return iptables.Tuple{
		Protocol:    t.Protocol,
		Source:      netip.AddrPortFrom(t.Destination.Addr(), t.Source.Port()),
		Destination: netip.AddrPortFrom(t.Source.Addr(), uint16(answer)<<8|t.Destination.Port()&0xff),
	}
}

// icmpAnswers are the types of messages and their replies, of those that may begin or continue a
// connection (invmap of nf_conntrack_proto_icmp.c and ..._icmpv6.c).
var icmpAnswers = map[uint8][][2]uint8{
	protoICMP:   {{8, 0}, {13, 14}, {15, 16}, {17, 18}},
	protoICMPv6: {{128, 129}, {139, 140}},
}

func icmpAnswer(protocol, typ uint8) uint8 {
	for _, pair := range icmpAnswers[protocol] {
		switch typ {
		case pair[0]:
			return pair[1]
		case pair[1]:
			return pair[0]
		}
	}
	return typ
}

// Entry is an entry of the connection table.
type Entry struct {
	iptables.Connection
	// SourcePorts and DestinationPorts are set if the kernel selects the translated port; the port
	// in Reply is then one of them. For ICMP SourcePorts are ids.
	SourcePorts, DestinationPorts *iptables.PortRange

	tcp         tcpConnection
	unanswered  bool    // SCTP: none of its INITs is acknowledged (SCTP_CONNTRACK_CLOSED)
	streams     float64 // State.Now from which on UDP is a stream
	served      *served // its connection of IPVS; nil: it has none
	masqueraded string  // the device at which it was, as the source is an address of it (masq_index); empty: it was not
}

// Tracking is the state of a packet in connection tracking (enum ip_conntrack_info).
type Tracking uint8

// The states of a packet.
const (
	TrackingInvalid     Tracking = iota // without an entry, and not exempted
	TrackingUntracked                   // by a rule, or as neighbour discovery
	TrackingNew                         // its connection has seen no reply
	TrackingEstablished                 // of a connection that has seen packets in both directions
)

var trackingNames = []string{"INVALID", "UNTRACKED", "NEW", "ESTABLISHED"}

func (t Tracking) String() string { return trackingNames[t] }

// bit is that of --ctstate.
func (t Tracking) bit() iptables.States {
	return [...]iptables.States{iptables.StateInvalid, iptables.StateUntracked, iptables.StateNew, iptables.StateEstablished}[t]
}

// connection is a direction of an entry.
type connection struct {
	entry *Entry
	reply bool
}

type tupleKey struct {
	iptables.Tuple
	zone uint16
}

// State is the state that packets leave in the kernel. The zero value is that of a host that has
// just booted. It is not safe for concurrent use.
type State struct {
	// Now is the time in seconds since the host booted, which limits and recent lists use. The
	// sender of packets advances it.
	Now float64
	// Began is the time at which Now was 0, for -m time; zero: unknown.
	Began time.Time

	// The ports that the kernel selects for the next packet, where it may choose; 0: unknown.
	chosenSource, chosenDestination uint16

	table     map[tupleKey]connection
	sources   map[sourceKey][]*Entry // those in the table, by the source they had; the latest is the last
	templates map[*iptables.Rule]*Entry
	memory    iptables.Memory
}

// Reset makes it the state of a host that has just booted again. Entries of results stay valid.
func (s *State) Reset() {
	clear(s.table)
	clear(s.sources)
	*s = State{table: s.table, sources: s.sources}
}

// track is nf_conntrack_in: it finds the packet's connection or begins one.
func (s *State) track(p *iptables.Packet, zone uint16) (c connection, t Tracking) {
	if p.Protocol == protoICMPv6 && p.ICMPType >= 130 && p.ICMPType <= 136 {
		return connection{}, TrackingUntracked // neighbour discovery (noct_valid_new)
	}
	if p.Protocol == protoTCP && !validFlags(p.Flags) {
		return connection{}, TrackingInvalid
	}
	tuple := p.Tuple()
	c, ok := s.table[tupleKey{tuple, zone}]
	if ok {
		switch s.advance(c, p) {
		case invalid:
			return connection{}, TrackingInvalid
		case goesOn:
			c.count(p)
			return c, c.sees()
		case uncounted:
			return c, c.sees()
		case ends:
			c.count(p)
			s.forget(c.entry)
			return c, c.sees()
		}
		s.forget(c.entry) // the packet restarts it
	}
	if !mayBegin(p) {
		return connection{}, TrackingInvalid
	}
	e := &Entry{Connection: iptables.Connection{Original: tuple, Reply: inverse(tuple), Zone: zone}, streams: s.Now + streamAfter}
	if p.Protocol == protoTCP {
		e.tcp.last = kindOf(p.Flags)
		e.tcp.state = tcpTransitions[0][e.tcp.last][tcpNone]
	}
	e.unanswered = p.Protocol == protoSCTP && len(p.Chunks) > 0 && p.Chunks[0].Type == sctpInit
	c = connection{entry: e}
	c.count(p)
	return c, TrackingNew
}

// count counts a packet (nf_ct_acct_update).
func (c connection) count(p *iptables.Packet) {
	t := &c.entry.Traffic[0]
	if c.reply {
		t = &c.entry.Traffic[1]
	}
	t.Packets++
	t.Bytes += uint64(p.Length)
}

// closed is already_closed (nf_conncount.c).
func (e *Entry) closed() bool {
	return e.Original.Protocol == protoTCP && (e.tcp.state == tcpTimeWait || e.tcp.state == tcpClosed)
}

// expires returns the remaining life of the entry in seconds, by the kernel's defaults
// (nf_conntrack_proto_*.c). An entry that is not in the table has none yet.
func (e *Entry) expires() uint32 {
	of := func(state string, usual uint32) uint32 {
		if own, ok := e.Timeouts[state]; ok {
			return own
		}
		return usual
	}
	switch {
	case !e.Confirmed:
		return 0
	case e.Original.Protocol == protoTCP:
		usual := of(tcpStateNames[e.tcp.state], tcpTimeouts[e.tcp.state])
		if e.tcp.state == tcpEstablished && !e.SeenReply {
			return min(usual, of("unack", 300))
		}
		return usual
	case e.Original.Protocol == protoUDP && e.Assured:
		return of("replied", 120)
	case e.Original.Protocol == protoUDP:
		return of("unreplied", 30)
	case hasICMP(e.Original.Protocol):
		return 30
	}
	return 600
}

// template is the entry that packets get by a rule with -j CT (nf_ct_tmpl_alloc): without
// addresses, and one for all of them.
func (s *State) template(r *iptables.Rule, is4 bool) *Entry {
	if s.templates == nil {
		s.templates = make(map[*iptables.Rule]*Entry)
	}
	e := s.templates[r]
	if e == nil {
		e = newTemplate(is4)
		s.templates[r] = e
	}
	return e
}

func newTemplate(is4 bool) *Entry {
	none := netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	if is4 {
		none = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	of := iptables.Tuple{Source: none, Destination: none}
	return &Entry{Connection: iptables.Connection{Original: of, Reply: of, Confirmed: true}}
}

// streamAfter is the time in seconds after which a replied UDP flow is a stream
// (nf_conntrack_proto_udp.c).
const streamAfter = 2

// advance is the protocol's own tracker.
func (s *State) advance(c connection, p *iptables.Packet) transition {
	switch p.Protocol {
	case protoTCP:
		return c.entry.advance(p.Flags, c.reply)
	case protoUDP, protoUDPLite:
		c.entry.Assured = c.entry.Assured || c.entry.SeenReply && s.Now > c.entry.streams
	case protoSCTP:
		return c.advanceSCTP(p.Chunks)
	}
	return goesOn
}

// advanceSCTP is nf_conntrack_sctp_packet, for the counters only: a repeated INIT is not counted.
func (c connection) advanceSCTP(chunks []iptables.ChunkType) transition {
	f := goesOn
	for _, k := range chunks {
		switch k.Type {
		case sctpInit:
			if c.entry.unanswered {
				f = uncounted
			}
		case sctpInitAck:
			c.entry.unanswered = c.entry.unanswered && !c.reply
		case sctpAbort:
			c.entry.unanswered = true
		}
	}
	return f
}

// sees returns the state of a packet of a known connection.
func (c connection) sees() Tracking {
	c.entry.SeenReply = c.entry.SeenReply || c.reply
	if c.entry.SeenReply {
		return TrackingEstablished
	}
	return TrackingNew
}

// forget removes an entry from the table.
func (s *State) forget(e *Entry) {
	delete(s.table, tupleKey{e.Original, e.Zone})
	delete(s.table, tupleKey{e.Reply, e.Zone})
	k := e.sourceKey()
	s.sources[k] = slices.DeleteFunc(s.sources[k], func(other *Entry) bool { return other == e })
}

// confirm adds the entry of an accepted packet to the table; false: another entry has one of its
// tuples (__nf_conntrack_confirm).
func (s *State) confirm(c connection) bool {
	if c.entry == nil || c.entry.Confirmed {
		return true
	}
	original, reply := tupleKey{c.entry.Original, c.entry.Zone}, tupleKey{c.entry.Reply, c.entry.Zone}
	if s.table[original].entry != nil || s.table[reply].entry != nil {
		return false
	}
	if s.table == nil {
		s.table, s.sources = make(map[tupleKey]connection), make(map[sourceKey][]*Entry)
	}
	c.entry.Confirmed = true
	k := c.entry.sourceKey()
	s.sources[k] = append(s.sources[k], c.entry)
	s.table[original] = connection{c.entry, false}
	s.table[reply] = connection{c.entry, true}
	return true
}

// Add adds the entry of a connection that another program has made, with its translation: rules of nat do not change
// it. The connection has its tuples, zone, mark, SNAT and DNAT only. false: another entry has one of the tuples.
func (s *State) Add(c iptables.Connection) bool {
	c.SourceDone, c.DestinationDone = true, true
	return s.confirm(connection{entry: &Entry{Connection: c, streams: s.Now + streamAfter}})
}

// Forget ends a connection, as its timeout would: the next packet begins another.
func (s *State) Forget(e *Entry) {
	for _, t := range []iptables.Tuple{e.Original, e.Reply} {
		key := tupleKey{t, e.Zone}
		if s.table[key].entry == e {
			delete(s.table, key)
		}
	}
}

// used reports whether another connection has the tuple in its reply direction
// (nf_nat_used_tuple).
func (s *State) used(reply iptables.Tuple, e *Entry) bool {
	c, ok := s.table[tupleKey{reply, e.Zone}]
	return ok && c.entry != e
}

// validFlags reports whether TCP flags may be combined (tcp_valid_flags of
// nf_conntrack_proto_tcp.c).
func validFlags(f iptables.TCPFlags) bool {
	switch f &^ (iptables.PSH | iptables.ECE | iptables.CWR) {
	case iptables.SYN, iptables.SYN | iptables.URG, iptables.SYN | iptables.ACK, iptables.RST, iptables.RST | iptables.ACK,
		iptables.FIN | iptables.ACK, iptables.FIN | iptables.ACK | iptables.URG, iptables.ACK, iptables.ACK | iptables.URG:
		return true
	}
	return false
}

// mayBegin reports whether the packet can be a connection's first.
func mayBegin(p *iptables.Packet) bool {
	switch p.Protocol {
	case protoTCP:
		return tcpTransitions[0][kindOf(p.Flags)][tcpNone] != tcpInvalid
	case protoICMP, protoICMPv6:
		return slices.ContainsFunc(icmpAnswers[p.Protocol], func(pair [2]uint8) bool { return pair[0] == p.ICMPType })
	case protoSCTP:
		return len(p.Chunks) == 0 || p.Chunks[0].Type == sctpInit || p.Chunks[0].Type == sctpHeartbeat
	}
	return true
}

// Types of SCTP chunks (RFC 9260).
const (
	sctpInit      = 1
	sctpInitAck   = 2
	sctpHeartbeat = 4
	sctpAbort     = 6
)
