package netfilter

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// truth is the result of a match.
type truth uint8

const (
	no truth = iota
	yes
	undecided
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

func (t truth) negatedIf(b bool) truth {
	if b && t != undecided {
		return yes - t
	}
	return t
}

// matches evaluates one match for the packet. The cases are in the order of the kernel's files:
// ip_tables.c first, then xt_*.c.
func (w *walk) matches(m iptables.Match) truth {
	p := &w.packet
	if p.Supposed != 0 && !w.suppose(m) {
		return undecided
	}
	switch m := m.(type) {
	case iptables.Source:
		return truthOf(m.Network.Contains(p.Source.Addr()) != m.Negated)
	case iptables.Destination:
		return truthOf(m.Network.Contains(p.Destination.Addr()) != m.Negated)
	case iptables.InInterface:
		return truthOf(m.Interface.Matches(w.in) != m.Negated)
	case iptables.OutInterface:
		return truthOf(m.Interface.Matches(w.out) != m.Negated)
	case iptables.Protocol:
		return truthOf(m.Number == 0 || (m.Number == p.Protocol) != m.Negated)
	case iptables.Fragment:
		return truthOf(m.Negated) // there are no fragments: see Packet
	case iptables.Comment:
		return yes
	case iptables.TCP:
		return truthOf(p.Protocol == protoTCP && w.tcp(m))
	case iptables.UDP:
		return truthOf(portTest(m.Source, p.Source) && portTest(m.Destination, p.Destination))
	case iptables.SCTP:
		return truthOf(portTest(m.Source, p.Source) && portTest(m.Destination, p.Destination) &&
			(!m.Chunks.Given || chunks(m.Chunks.Value, p.Chunks) != m.Chunks.Negated))
	case iptables.ICMP:
		return truthOf(m.Type.Matches(p.ICMPType, p.ICMPCode) != m.Negated)
	case iptables.ICMP6:
		return truthOf(m.Type.Matches(p.ICMPType, p.ICMPCode) != m.Negated)
	case iptables.Multiport:
		return truthOf(multiport(m, p) != m.Negated)
	case iptables.Conntrack:
		return truthOf(w.conntrack(m))
	case iptables.State:
		return truthOf((m.States&w.stateBits()&^(iptables.StateSNAT|iptables.StateDNAT) != 0) != m.Negated)
	case iptables.Mark:
		return truthOf(m.Mark.Equals(p.Mark) != m.Negated)
	case iptables.Connmark:
		return truthOf(w.entry != nil && m.Mark.Equals(w.entry.Mark) != m.Negated)
	case iptables.Addrtype:
		return truthOf(w.addrtype(m))
	case iptables.Statistic:
		return truthOf(w.statistic(m))
	case iptables.Recent:
		return truthOf(w.recent(m))
	case iptables.SetMatch:
		return w.set(m)
	case iptables.Physdev:
		return truthOf(physdev(m, p))
	case iptables.Rpfilter:
		return truthOf(w.rpfilter(m) != m.Invert)
	case iptables.Limit:
		return truthOf(w.limit(m))
	case iptables.Hashlimit:
		return w.hashlimit(m)
	case iptables.Owner:
		return truthOf(owner(m, p.Owner))
	case iptables.MAC:
		return truthOf(w.frame() && (*p.MAC == m.Address) != m.Negated)
	case iptables.IPRange:
		return truthOf(inRange(m.Source, p.Source.Addr()) && inRange(m.Destination, p.Destination.Addr()))
	case iptables.Length:
		return truthOf(m.Range.Contains(p.Length) != m.Negated)
	case iptables.Socket:
		return truthOf(w.hasSocket(m))
	case iptables.PacketType:
		return truthOf((w.linkType() == m.Type) != m.Negated)
	case iptables.Accounting:
		if !slices.Contains(kubeProxyCounters, m.Counter) {
			w.grant("that the counter %s of -m nfacct has no quota", m.Counter)
		}
		return yes
	case iptables.TTL:
		return truthOf(m.Matches(p.TTL))
	case iptables.HopLimit:
		return truthOf(iptables.TTL(m).Matches(p.TTL))
	case iptables.TOS:
		return truthOf((p.TOS&m.Mask == m.Value) != m.Negated)
	case iptables.DSCP:
		return truthOf((p.TOS>>2 == m.DSCP) != m.Negated)
	case iptables.SegmentSize:
		return truthOf(segmentSize(m, p))
	case iptables.RoutingHeader:
		return no // there are no such headers: see Packet
	case iptables.IPsec:
		// match_policy_in, match_policy_out (xt_policy.c).
		w.grant("that IPsec is not applied to the packet")
		return truthOf(m.None)
	case iptables.Quota:
		return truthOf(w.quota(m))
	case iptables.Connlimit:
		return truthOf(w.connlimit(m))
	case iptables.Connbytes:
		return truthOf(w.connbytes(m))
	case iptables.Helper:
		return truthOf(m.Negated) // there are no related connections: see Tracking
	case iptables.Time:
		return w.time(m)
	case iptables.String:
		image := p.image()
		found, hidden := image.contains(&m)
		if hidden && found == no {
			w.grant("that %q is not in the fields of its headers that are not known", m.Pattern)
		}
		return found.negatedIf(m.Negated)
	case iptables.U32:
		image := p.image()
		return image.u32(m.Tests).negatedIf(m.Negated)
	case iptables.BPF:
		b := bpf{walk: w, image: p.image()}
		return b.run(m.Program)
	case iptables.CPU:
		return truthOf((m.Number == w.processor()) != m.Negated)
	}
	return undecided // an UnknownMatch
}

// kubeProxyCounters are those that kube-proxy makes, which have no quota
// (pkg/proxy/metrics/metrics.go).
var kubeProxyCounters = []string{"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"}

func portTest(t iptables.Ports, a netip.AddrPort) bool {
	return t.Range.Contains(a.Port()) != t.Negated
}

// tcp is tcp_mt (xt_tcpudp.c).
func (w *walk) tcp(m iptables.TCP) bool {
	p := &w.packet
	if !portTest(m.Source, p.Source) || !portTest(m.Destination, p.Destination) {
		return false
	}
	if f := m.Flags; f.Given && (p.Flags&f.Value.Mask == f.Value.Compare) == f.Negated {
		return false
	}
	return !m.Option.Given || slices.Contains(p.TCPOptions, m.Option.Value) != m.Option.Negated
}

// chunks is match_packet (xt_sctp.c).
func chunks(t iptables.ChunkTest, there []iptables.ChunkType) bool {
	found := make([]bool, len(t.Types))
	for _, c := range there {
		i := slices.IndexFunc(t.Types, func(w iptables.ChunkType) bool { return w.Type == c.Type })
		meant := i >= 0 && c.Flags&t.Types[i].FlagMask == t.Types[i].Flags
		switch t.Mode {
		case iptables.ChunksAny:
			if meant {
				return true
			}
		case iptables.ChunksOnly:
			if !meant {
				return false
			}
		}
		if meant {
			found[i] = true
		}
	}
	switch t.Mode {
	case iptables.ChunksAny:
		return false
	case iptables.ChunksAll:
		return !slices.Contains(found, false)
	}
	return true
}

// multiport is multiport_mt (xt_multiport.c).
func multiport(m iptables.Multiport, p *Packet) bool {
	return slices.ContainsFunc(m.Ports, func(r iptables.PortRange) bool {
		return m.Side != iptables.DestinationPorts && r.Contains(p.Source.Port()) ||
			m.Side != iptables.SourcePorts && r.Contains(p.Destination.Port())
	})
}

// stateBits are the states that the packet is in, for --ctstate.
func (w *walk) stateBits() iptables.States {
	bits := w.tracking.bit()
	if w.entry != nil {
		if w.entry.SNAT {
			bits |= iptables.StateSNAT
		}
		if w.entry.DNAT {
			bits |= iptables.StateDNAT
		}
	}
	return bits
}

// conntrack is conntrack_mt (xt_conntrack.c).
func (w *walk) conntrack(m iptables.Conntrack) bool {
	if m.State.Given && (m.State.Value&w.stateBits() != 0) == m.State.Negated {
		return false
	}
	e := w.entry
	if e == nil {
		return m.State.Given
	}
	if m.Direction.Given && (m.Direction.Value == iptables.Reply) != (w.reply != m.Direction.Negated) {
		return false
	}
	address := func(c iptables.Condition[iptables.Network], a netip.AddrPort) bool {
		return !c.Given || c.Value.Contains(a.Addr()) != c.Negated
	}
	port := func(c iptables.Condition[iptables.PortRange], a netip.AddrPort) bool {
		return !c.Given || c.Value.Contains(a.Port()) != c.Negated
	}
	if !address(m.OriginalSource, e.Original.Source) || !address(m.OriginalDestination, e.Original.Destination) ||
		!address(m.ReplySource, e.Reply.Source) || !address(m.ReplyDestination, e.Reply.Destination) ||
		!port(m.OriginalSourcePort, e.Original.Source) || !port(m.OriginalDestinationPort, e.Original.Destination) ||
		!port(m.ReplySourcePort, e.Reply.Source) || !port(m.ReplyDestinationPort, e.Reply.Destination) {
		return false
	}
	if c := m.Protocol; c.Given && (c.Value == e.Original.Protocol) == c.Negated {
		return false
	}
	if c := m.Status; c.Given && (c.Value&e.status() != 0) == c.Negated {
		return false
	}
	if c := m.Expire; c.Given {
		return c.Value.Contains(e.expires()) != c.Negated
	}
	return true
}

// status returns the bits for --ctstatus.
func (e *Entry) status() iptables.CtStatus {
	var s iptables.CtStatus
	if e.SeenReply {
		s |= iptables.StatusSeenReply
	}
	if e.Assured {
		s |= iptables.StatusAssured
	}
	if e.Confirmed {
		s |= iptables.StatusConfirmed
	}
	return s
}

// expires returns the remaining life of the entry in seconds, by the kernel's defaults
// (nf_conntrack_proto_*.c). An entry that is not in the table has none yet.
func (e *Entry) expires() uint32 {
	switch {
	case !e.Confirmed:
		return 0
	case e.Original.Protocol == protoTCP && e.tcp.state == tcpEstablished && !e.SeenReply:
		return 300
	case e.Original.Protocol == protoTCP:
		return tcpTimeouts[e.tcp.state]
	case e.Original.Protocol == protoUDP && e.Assured:
		return 120
	case e.Original.Protocol == protoUDP || hasICMP(e.Original.Protocol):
		return 30
	}
	return 600
}

func hasICMP(protocol uint8) bool { return protocol == protoICMP || protocol == protoICMPv6 }

// statistic is statistic_mt (xt_statistic.c).
func (w *walk) statistic(m iptables.Statistic) bool {
	if m.Nth {
		return w.nth(m) != m.Negated
	}
	switch m.Probability {
	case 0:
		return m.Negated
	case iptables.ProbabilityOne:
		return !m.Negated
	}
	p := float64(m.Probability) / iptables.ProbabilityOne
	if m.Negated {
		p = 1 - p
	}
	return w.draw(p)
}

// turn is the position of a counter of -m statistic --mode nth.
type turn struct {
	known bool
	count uint32 // valid iff known: that of the last packet
	// missed is how many packets in a row did not match; valid iff not known. They exclude as many
	// positions.
	missed uint32
}

// nth evaluates a counter. A dump does not show its position, so on a running host the first
// packet may meet any; from the first match on it is known.
func (w *walk) nth(m iptables.Statistic) bool {
	if m.Every <= 1 {
		return true
	}
	if w.state.counters == nil {
		w.state.counters = make(map[matchKey]turn)
	}
	c, seen := w.state.counters[w.asked]
	if !seen && w.machine.options.FreshCounters {
		c = turn{known: true, count: m.Every - m.Packet - 1}
	}
	if c.known {
		c.count = (c.count + 1) % m.Every
	} else if left := m.Every - c.missed; left == 1 || w.draw(1/float64(left)) {
		c = turn{known: true}
	} else {
		c.missed++
	}
	w.state.counters[w.asked] = c
	return c.known && c.count == 0
}

// draw decides with a probability, and records it for the step.
func (w *walk) draw(p float64) bool {
	decided := w.chooser.coin(p)
	if !decided {
		p = 1 - p
	}
	if w.chance == 0 {
		w.chance = 1
	}
	w.chance *= p
	return decided
}

// physdev is physdev_mt (xt_physdev.c).
func physdev(m iptables.Physdev, p *Packet) bool {
	if p.PhysIn == "" && p.PhysOut == "" {
		// Positive tests fail, negative ones do not.
		return (!m.In.Given || m.In.Negated) && (!m.Out.Given || m.Out.Negated) && (!m.IsIn.Given || m.IsIn.Negated) &&
			(!m.IsOut.Given || m.IsOut.Negated) && (!m.IsBridged.Given || m.IsBridged.Negated)
	}
	if c := m.IsBridged; c.Given && p.Bridged == c.Negated {
		return false
	}
	if c := m.IsIn; c.Given && (p.PhysIn != "") == c.Negated {
		return false
	}
	if c := m.IsOut; c.Given && (p.PhysOut != "") == c.Negated {
		return false
	}
	if c := m.In; c.Given && c.Value.Matches(p.PhysIn) == c.Negated {
		return false
	}
	return !m.Out.Given || m.Out.Value.Matches(p.PhysOut) != m.Out.Negated
}

// owner is owner_mt (xt_owner.c).
func owner(m iptables.Owner, o *Owner) bool {
	if o == nil {
		return (!m.SocketExists.Given || m.SocketExists.Negated) && (!m.UID.Given || m.UID.Negated) && (!m.GID.Given || m.GID.Negated)
	}
	if m.SocketExists.Given && m.SocketExists.Negated {
		return false
	}
	if c := m.UID; c.Given && c.Value.Contains(o.UID) == c.Negated {
		return false
	}
	if c := m.GID; c.Given {
		found := c.Value.Contains(o.GID) || m.SupplementaryGroups && slices.ContainsFunc(o.Groups, c.Value.Contains)
		return found != c.Negated
	}
	return true
}

func inRange(c iptables.Condition[iptables.AddrRange], a netip.Addr) bool {
	return !c.Given || c.Value.Contains(a) != c.Negated
}

// frame reports whether the packet still has the header of its frame.
func (w *walk) frame() bool {
	if w.packet.MAC == nil || w.in == "" || w.in == loopbackName {
		return false
	}
	d := w.machine.network.device(w.in)
	return d == nil || !d.PointToPoint
}

// linkType is that of pkttype_mt (xt_pkttype.c): on lo it follows from the address.
func (w *walk) linkType() iptables.LinkType {
	if w.in != loopbackName && w.in != "" {
		return w.packet.Link
	}
	switch a := w.packet.Destination.Addr(); {
	case a.IsMulticast():
		return iptables.LinkMulticast
	case a.Is4() && w.machine.network.isBroadcast(a):
		return iptables.LinkBroadcast
	}
	return iptables.LinkUnicast
}

// hasSocket is socket_mt (xt_socket.c).
func (w *walk) hasSocket(m iptables.Socket) bool {
	s := w.assigned
	if s == nil {
		s = w.machine.network.socket(w.packet.Protocol, w.packet.Destination)
	}
	if s == nil || !m.NoWildcard && s.Address.Addr().IsUnspecified() {
		return false
	}
	return !m.Transparent || s.Transparent
}
