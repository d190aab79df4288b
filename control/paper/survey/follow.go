package survey

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// connection is one connection to a target.
type connection struct {
	*target
	from *Source
}

// maxVisits is the maximum number of rules that the paths of one packet may visit.
const maxVisits = 20_000_000

// maxWays is the maximum number of paths that are followed for one packet; each endpoint is one.
const maxWays = 2000

// sourcePort is that of all connections.
const sourcePort = 40000

// packet is the first packet of a connection.
func (c *connection) packet() iptables.Packet {
	local := c.from.Kind == Node
	from := c.from.Addr
	if local {
		from = netip.IPv4Unspecified()
		if c.to.Addr().Is6() {
			from = netip.IPv6Unspecified()
		}
	}
	if c.from.Kind == Outside && c.entry == decision.EntryLoadBalancer && len(c.port.SourceRanges) > 0 {
		// A client that may use the address; the first address of a network is no client's.
		if r := allowedRange(c.port); !r.Contains(from) {
			if from = r.Addr(); !r.IsSingleIP() {
				if from = r.Masked().Addr().Next(); from == audit.Placeholder(c.port.Family) {
					from = from.Next()
				}
			}
		}
	}
	p := iptables.FirstPacket(uint8(c.protocol), netip.AddrPortFrom(from, sourcePort), c.to, local)
	p.InInterface = c.from.Device
	return p
}

// walker follows a part of the connections.
type walker struct {
	*surveyor
	machine     *netfilter.Machine
	connections int
	judged      int // connections of which at least one way has an end that is known
	partly      int // those of them with another way whose end is not known
	cut         int // connections with more ways than were followed
	// local are service addresses at which programs of this node answer.
	local []netip.AddrPort
	// queues are rules that let packets pass if no program listens at their queues.
	queues []*iptables.Rule
	// reached are the endpoints of the only connection.
	reached []netip.AddrPort
	// ends are those of all connections that do not reach an endpoint, in order.
	ends []end

	// work, state and ways are used again for each connection.
	work  netfilter.Work
	state netfilter.State
	ways  []end
}

// visit follows the connections to a target.
func (v *walker) visit(t *target) {
	for _, from := range v.sourcesFor(t) {
		v.connections++
		v.follow(&connection{target: t, from: from})
	}
}

// follow follows a connection on all its ways.
func (v *walker) follow(c *connection) {
	good, known, all := false, false, true
	v.ways, v.work.Visits = v.ways[:0], maxVisits
	begin := func() *netfilter.State {
		v.state.Reset()
		return &v.state
	}
	rest := v.machine.Each(nil, c.packet(), begin, maxWays, &v.work, func(way netfilter.Way) {
		e := v.judge(c, &way)
		for _, r := range way.Path {
			if t, ok := r.Target.(iptables.NFQueue); ok && t.Bypass && !slices.Contains(v.queues, r) {
				v.queues = append(v.queues, r)
			}
		}
		if c.from.Kind == Itself && e.outcome != unmasqueraded && e.outcome != noHairpin && e.outcome != unknown || c.from.Kind == NamedPod && e.outcome != lost && e.outcome != replyLost {
			e.outcome = served // other sources show the rest
		}
		good = good || e.outcome == served || e.outcome == intended
		known = known || e.outcome != unknown
		all = all && e.outcome != unknown
		v.ways = append(v.ways, e)
	})
	if rest > 0 {
		v.cut++
	}
	if known {
		v.judged++
		if !all {
			v.partly++
		}
	}
	for _, e := range v.ways {
		if e.outcome == served {
			if v.one != nil {
				v.reached = append(v.reached, cmp.Or(e.endpoint, c.to))
			}
			continue
		}
		e.connection, e.part = c, good
		if e.outcome.lost() {
			e.certainty = certaintyOf(v.ways, &e, good)
		}
		v.ends = append(v.ends, e)
	}
}

// record adds an end to the survey.
func (s *surveyor) record(e *end) {
	switch e.outcome {
	case intended, refused:
		s.recordIntended(e)
	case unknown:
		s.countUnknown(e)
	default:
		s.recordLoss(e)
	}
}

// certaintyOf is how sure it is that packets meet an end. A way without doubts is taken. If all ways fail, or all to the same
// endpoint, the reason is the one without rules that may match; if others fail for other reasons, it is not known which of
// them packets meet. Whether kube-proxy's own rules translate is what the doubts of an untranslated packet are about.
func certaintyOf(ends []end, e *end, good bool) Certainty {
	allLost := !slices.ContainsFunc(ends, func(other end) bool { return !other.isLost() })
	if len(e.doubts) == 0 || !good && allLost && !e.perhaps && !(e.outcome == untranslated && e.rule == nil) && isReason(ends, e, netip.AddrPort{}) {
		return Certain
	}
	if e.endpoint.IsValid() && !e.perhaps {
		reaches := func(other end) bool {
			return (other.endpoint == e.endpoint || other.stoppedOnTheWay(e)) && !other.isLost()
		}
		if !slices.ContainsFunc(ends, reaches) && isReason(ends, e, e.endpoint) {
			return Certain
		}
	}
	if slices.ContainsFunc(e.doubts, func(d netfilter.Doubt) bool { return !d.Passing() }) {
		return NotKnown
	}
	return Possible
}

// stoppedOnTheWay reports whether a way ended at a rule whose effect is not known, and to had no endpoint there yet either.
func (e *end) stoppedOnTheWay(to *end) bool {
	if e.outcome != unknown || e.endpoint.IsValid() || len(e.doubts) == 0 {
		return false
	}
	last := e.doubts[len(e.doubts)-1]
	return slices.ContainsFunc(to.doubts, func(d netfilter.Doubt) bool { return d.Rule == last.Rule })
}

// isReason reports whether packets meet the reason of an end for sure, if all ways, or all to the same endpoint, are lost:
// either there is no other reason, or it remains where no rule in doubt matches.
func isReason(ends []end, e *end, to netip.AddrPort) bool {
	same, found := true, false
	for i := range ends {
		other := &ends[i]
		if to.IsValid() && other.endpoint != to {
			continue
		}
		isSame := other.rule == e.rule && other.table == e.table && other.chain == e.chain && other.noWay == e.noWay && other.outcome == e.outcome
		same = same && isSame
		if slices.ContainsFunc(other.doubts, func(d netfilter.Doubt) bool { return d.Matched }) {
			continue
		}
		if isSame {
			return true
		}
		found = true
	}
	return same || !found
}

// isLost reports whether the connection fails for sure on this way.
func (e *end) isLost() bool { return e.outcome.lost() && !e.perhaps }

// always is a source of random numbers with which every doubt and choice matches, or none.
type always float64

func (a always) Float64() float64 { return float64(a) }

// reply follows the reply of a way that reached an endpoint.
func (v *walker) reply(c *connection, way *netfilter.Way) (lost end, is bool) {
	if !v.comesBack(c, way) {
		return lost, false
	}
	p, ok := way.Answer()
	if !ok || !p.Local && p.Source.Addr() == p.Destination.Addr() {
		return lost, false
	}
	if v.staysOnBridge(c, way) {
		return end{outcome: replyKept, bridge: way.Out, doubts: way.Doubts}, true
	}
	first := v.machine.SendFrom(nil, p, way.State, always(0), &v.work)
	if len(first.Doubts) == 0 {
		return v.replyEnd(c, way, &first)
	}
	second := v.machine.SendFrom(nil, p, way.State, always(1), &v.work)
	a, lostA := v.replyEnd(c, way, &first)
	b, lostB := v.replyEnd(c, way, &second)
	switch {
	case lostA && lostB:
		a.doubts = nil
		return a, true
	case lostA:
		a.perhaps = true
		return a, true
	}
	b.perhaps = true
	return b, lostB
}

// staysOnBridge reports whether the reply of an endpoint goes from one port of a bridge to another without passing the rules, though
// the packet was translated.
func (s *surveyor) staysOnBridge(c *connection, way *netfilter.Way) bool {
	b, bridge := s.host.Bridges[way.Out]
	return bridge && !b.PassesRules && way.Out == c.from.Device && way.Entry != nil && way.Entry.Translated() && !way.Entry.SNAT
}

// needsHairpin reports whether a packet has to leave a bridge by the port that it came in by, which no port of that bridge permits. IPVS
// translates after routing, so that the host sends the packet.
func (s *surveyor) needsHairpin(c *connection, way *netfilter.Way) bool {
	return s.ipvs == nil && way.Out == c.from.Device && way.Packet.Destination.Addr() == c.from.Addr && s.host.Bridges[way.Out].ReturnsNone()
}

// replyEnd is the end of a reply, if a rule or routing drops it, or a rule keeps connection tracking from recognizing it: then it
// is not translated back, or kube-proxy drops it as invalid.
func (s *surveyor) replyEnd(c *connection, way, w *netfilter.Way) (e end, is bool) {
	if w.Tracking != netfilter.TrackingEstablished && s.ipvs == nil && (way.Packet.Destination != c.to || w.By != nil && s.wrote(w.By)) {
		if r := untracker(w.Path, way.Path); r != nil {
			return end{outcome: replyKept, rule: r, table: s.tableOf(r), doubts: w.Doubts}, true
		}
	}
	if w.Verdict == netfilter.Stopped && w.Why == netfilter.LeftToCalico {
		return end{outcome: unknown, reason: stoppedAt(w)}, true
	}
	if s.notForwarded(w) && s.host.Complete() {
		return end{outcome: replyLost, noWay: strings.TrimPrefix(w.Why, "routing: ") + ", as the replies do", doubts: w.Doubts}, true
	}
	if w.Verdict != netfilter.Dropped && w.Verdict != netfilter.Rejected || w.Chain == "" || w.By != nil && s.wrote(w.By) {
		return e, false
	}
	e = end{outcome: replyLost, rule: w.By, table: w.Table, chain: w.Chain, rejected: w.Verdict == netfilter.Rejected, doubts: w.Doubts}
	if w.By != nil && waits(w.By) {
		e.queue = true
	}
	if w.By != nil && slices.ContainsFunc(s.survey.Nodes, func(n *audit.Node) bool {
		purpose, _ := n.Purpose(w.By, w.Path)
		return purpose == audit.DropsForOther
	}) {
		s.blameMark(&e, w.Path)
	}
	return e, true
}

// untracker is the rule on the paths of a packet and its reply for which connection tracking does not take the one for the
// reply to the other: it ignores one of them, or their zones differ; nil: there is none.
func untracker(paths ...[]*iptables.Rule) *iptables.Rule {
	for _, path := range paths {
		for _, r := range path {
			t, _ := r.Target.(iptables.CT)
			if untracks(r) || t.Zone.Given || hasEffect(r, "ct zone set") || hasEffect(r, "ct original zone set") || hasEffect(r, "ct reply zone set") {
				return r
			}
		}
	}
	return nil
}

// comesBack reports whether the reply of an endpoint is sent to this host: the source is an address of
// it, or behind it, or else the endpoint is.
func (s *surveyor) comesBack(c *connection, w *netfilter.Way) bool {
	return c.from.Kind != OtherPod && c.from.Kind != Outside || w.Entry != nil && w.Entry.SNAT || s.isLocal(c, w.Packet.Destination)
}

// isLocal reports whether an endpoint is known to be on this node, by kube-proxy's rules or, if they do not show it, by routes: all of
// the host, or one to a part of the pods' network.
func (s *surveyor) isLocal(c *connection, at netip.AddrPort) bool {
	for i := range c.port.Endpoints {
		if e := &c.port.Endpoints[i]; e.AddrPort == at {
			r := s.machine.Route(at.Addr())
			direct := r.Type == netfilter.Unicast && !r.Via.IsValid() && r.Interface != uplinkOf(s.host, s.family()) && tunnelOf(r.Interface) == nil
			all := s.podNetwork()
			known := s.host.Complete() || all.IsValid() && r.Destination.Bits() > all.Bits()
			return e.Locality == audit.OnThisNode || e.Locality != audit.OnAnotherNode && direct && known
		}
	}
	return false
}
