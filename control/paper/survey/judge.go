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
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// outcome is what happens to a packet to a service.
type outcome uint8

const (
	served        outcome = iota // it reaches an endpoint, and the reply comes back
	intended                     // kube-proxy drops it, as it should
	refused                      // kube-proxy rejects it: there is no endpoint
	unknown                      // the rules do not show it
	lost                         // a rule or policy drops or rejects it
	replyLost                    // the same with the reply
	replyKept                    // connection tracking does not recognize the reply
	untranslated                 // it keeps its destination
	diverted                     // another rule translates the destination
	unmasqueraded                // it keeps its source: the endpoint replies past this node
	foreignSource                // it gets a source that is none of the host's: the endpoint replies past this node
	noHairpin                    // it would have to leave a bridge by the port that it came in by
)

// lost reports whether the connection fails.
func (f outcome) lost() bool { return f >= lost || f == refused }

// end is the end of a way.
type end struct {
	outcome  outcome
	rule     *iptables.Rule // nil: the policy of the chain, or nothing
	table    string
	chain    string
	rejected bool
	queue    bool // the rule has packets wait for a program
	byMark   bool // the rule sets the mark with which another rule drops them
	doubts   []netfilter.Doubt
	endpoint netip.AddrPort // zero: the packet was not translated
	purpose  audit.Purpose  // of an intended end

	connection *connection
	certainty  Certainty // of a loss
	perhaps    bool      // the reply comes back if a doubt of its own is decided otherwise
	condition  Condition
	part       bool   // the connection may reach other endpoints
	reason     gap    // of an unknown end
	bridge     string // the device on which the reply stays, or which the packet does not leave
	noWay      string // why routing has no way for the packet, of an end that is lost for that
}

// judge finds out what became of a packet.
func (v *walker) judge(c *connection, w *netfilter.Way) end {
	e := end{doubts: w.Doubts, table: w.Table, chain: w.Chain, rule: w.By}
	if w.Packet.Destination != c.to {
		e.endpoint = w.Packet.Destination
	}
	switch w.Verdict {
	case netfilter.Dropped, netfilter.Rejected:
		if r := translator(w.Path); r != nil && !v.wrote(r) && w.Packet.Destination != c.to && !c.serves(w.Packet.Destination) {
			e.outcome, e.rule, e.table, e.chain = diverted, r, "nat", "" // what drops it at the wrong place is no reason
			break
		}
		v.judgeDrop(&e, c, w)
		if keeper, table := v.keeper(w.Path); e.outcome == lost && w.Packet.Destination == c.to && untracks(keeper) {
			e = end{outcome: untranslated, rule: keeper, table: table, doubts: w.Doubts} // a firewall accepts what it translates
		}
	case netfilter.Sent, netfilter.Delivered:
		v.judgeArrival(&e, c, w)
	default:
		e.outcome, e.reason = unknown, stoppedAt(w)
	}
	return e
}

// judgeDrop tells kube-proxy's own drops from others.
func (s *surveyor) judgeDrop(e *end, c *connection, w *netfilter.Way) {
	e.outcome, e.rejected = lost, w.Verdict == netfilter.Rejected
	if w.By == nil {
		switch {
		case w.Chain == "" && s.ipvs != nil && e.rejected && w.Packet.Destination == c.to: // the virtual server has no real server
			e.outcome = intended
		case w.Chain != "":
			s.refusedAnyway(e, c, w)
		case w.NoWay && s.knowsRoutes(w):
			e.noWay = strings.TrimPrefix(w.Why, "routing: ")
		default:
			e.outcome, e.reason = unknown, gap{text: w.Why}
		}
		return
	}
	if strings.Contains(w.Why, " has no address to ") { // to masquerade as, or to redirect to
		e.outcome, e.reason = unknown, gap{text: w.Why}
		return
	}
	e.queue = waits(w.By)
	if s.ipvs != nil && s.ofProxy(w.By) {
		e.outcome = intended
		return
	}
	for _, n := range s.survey.Nodes {
		purpose, _ := n.Purpose(w.By, w.Path)
		switch purpose {
		case audit.NotKubeProxy:
			continue
		case audit.NoEndpoints:
			e.outcome = refused
			for _, d := range w.Doubts {
				if text := d.Rule.String(); d.Rule.Native && strings.Contains(text, "dnat") && pasted.IsMasked(text) {
					e.outcome, e.reason = unknown, gap{"a rule is masked", text}
					return
				}
			}
			// In nftables mode, kube-proxy rejects what is for a cluster IP and was not translated.
			switch other := *e; {
			case w.Packet.Destination != c.to, s.withoutEndpoint(&other, c, w.Packet.Source.Addr()):
			case c.vague, c.lacksEndpoints():
				e.outcome, e.reason = unknown, c.noEndpointsShown()
			default:
				*e = end{outcome: untranslated, doubts: w.Doubts}
				e.rule, e.table = s.keeper(w.Path)
			}
		case audit.DropsForOther:
			s.blameMark(e, w.Path)
		case audit.NoneHere, audit.OtherSource, audit.Protection:
			e.outcome, e.purpose = intended, purpose
			// kube-proxy sends pods and the node itself to endpoints on other nodes, under policy Local too.
			keeper, table := s.keeper(w.Path)
			if keeper != nil && purpose == audit.NoneHere && c.entry != decision.EntryClusterIP && (c.from.Kind == Pod || c.from.Kind == Node) && len(c.port.Endpoints) > 0 {
				e.outcome, e.rule, e.table = untranslated, keeper, table
			}
		}
		return
	}
	s.refusedAnyway(e, c, w)
}

// blameMark makes the last rule the reason that set the mark for which the kubelet's rules drop packets.
func (s *surveyor) blameMark(e *end, path []*iptables.Rule) {
	for _, r := range slices.Backward(path) {
		if set, ok := r.Target.(iptables.SetMark); ok && set.Apply(0)&dropMark != 0 || copiesMark(r) {
			e.rule, e.table, e.byMark = r, s.tableOf(r), true
			return
		}
	}
}

// dropMark is the kubelet's mark, unless --iptables-drop-bit changes it.
const dropMark = 0x8000

// refusedAnyway makes the end of a packet that kube-proxy refuses the intended one, if another rule drops it before: without
// that rule it gets nowhere either. Pods and nodes get to endpoints on other nodes, so their packets are no such ones under
// policy Local.
func (s *surveyor) refusedAnyway(e *end, c *connection, w *netfilter.Way) {
	if s.ipvs != nil || w.Packet.Destination != c.to {
		return
	}
	refusal := *e
	if s.withoutEndpoint(&refusal, c, w.Packet.Source.Addr()) && (refusal.outcome == refused || c.from.Kind == Outside) {
		*e = refusal
	}
}

// knowsRoutes reports whether a packet has no way on the real host either: its routes and sysctls are not guessed.
func (s *surveyor) knowsRoutes(w *netfilter.Way) bool {
	return s.host.Complete() && (s.notForwarded(w) || !s.host.OtherRules)
}

// notForwarded reports whether a packet has no way because its device's packets are not forwarded.
func (s *surveyor) notForwarded(w *netfilter.Way) bool {
	return w.NoWay && !w.Packet.Local && !s.host.Forwards(w.Packet.InInterface, w.Packet.Destination.Addr())
}

// ofProxy reports whether kube-proxy refuses packets by a rule on a node in IPVS mode: one of that mode, for packets to
// addresses that its sets lack, or of iptables mode. Which addresses these are is found without following packets.
func (s *surveyor) ofProxy(r *iptables.Rule) bool {
	if mode, ok := proxymode.OfChain("filter", r.Chain); ok && mode.IPVS() {
		return true
	}
	purpose, _ := s.ipvs.Purpose(r, nil)
	return purpose != audit.NotKubeProxy
}

// waits reports whether a rule has packets wait for a program, and drops them without one.
func waits(r *iptables.Rule) bool {
	_, ok := r.Target.(iptables.NFQueue)
	return ok
}

// judgeArrival judges a packet that no rule dropped.
func (v *walker) judgeArrival(e *end, c *connection, w *netfilter.Way) {
	to := w.Packet.Destination
	if i := slices.IndexFunc(w.Path, isTProxy); i >= 0 && w.Verdict == netfilter.Delivered {
		e.outcome, e.reason = unknown, gap{"a rule gives them to a program of this node, a transparent proxy", w.Path[i].String()}
		return
	}
	switch {
	case c.serves(to), to == c.to && v.onNode(c, w):
	case to == c.to && v.onPurpose(e, c, w):
		return
	case c.lacksEndpoints(): // why is not to be seen from the packet
		e.outcome, e.reason = unknown, c.noEndpointsShown()
		return
	case to == c.to && v.ipvs != nil && !v.host.Has(to.Addr()): // it does not get to IPVS
		e.outcome = intended
		return
	case to == c.to:
		e.outcome = untranslated
		e.rule, e.table = v.keeper(w.Path)
		return
	default:
		e.outcome = diverted
		if e.rule, e.table = translator(w.Path), "nat"; e.rule != nil && v.wrote(e.rule) {
			e.outcome, e.rule = served, nil // of another service, which claims the address too
		}
		return
	}
	if v.keepsSource(c, w) {
		e.outcome, e.rule, e.table, e.chain = unmasqueraded, nil, "", ""
		if e.rule = v.unmarkingRule(w.Path); e.rule != nil {
			e.table = v.tableOf(e.rule)
		} else if r := translator(w.Path); r != nil && v.ipvs == nil && !v.wrote(r) && !strings.HasPrefix(r.Chain, "KUBE-") { // to an endpoint, but without kube-proxy's mark
			e.outcome, e.rule, e.table = diverted, r, "nat"
		}
		return
	}
	if r := v.foreignSource(c, w); r != nil {
		e.outcome, e.rule, e.table, e.chain, e.condition = foreignSource, r, v.tableOf(r), "", SourceNotRouted
		return
	}
	if v.needsHairpin(c, w) {
		e.outcome, e.rule, e.table, e.chain, e.bridge = noHairpin, nil, "", "", w.Out
		return
	}
	if c.from.Kind == Itself {
		return
	}
	if reply, is := v.reply(c, w); is {
		reply.endpoint, reply.doubts = e.endpoint, append(e.doubts, reply.doubts...)
		*e = reply
	}
}

// onNode reports whether rules keep a packet from connection tracking that a program of this node is meant to answer: the
// service address is one of the host's, too, as that of kube-dns is with NodeLocal DNSCache.
func (v *walker) onNode(c *connection, w *netfilter.Way) bool {
	keeper, _ := v.keeper(w.Path)
	if c.entry != decision.EntryClusterIP || w.Verdict != netfilter.Delivered || !untracks(keeper) || !v.host.Has(w.Packet.Destination.Addr()) || isTProxy(keeper) {
		return false
	}
	v.local = append(v.local, w.Packet.Destination)
	return true
}

// marked reports whether kube-proxy marked a packet to be dropped. The mark is looked at in INPUT and
// OUTPUT only: load balancers give nodes their addresses, which the rules do not show.
func (s *surveyor) marked(e *end, path []*iptables.Rule) bool {
	for _, n := range s.survey.Nodes {
		if purpose, _, rule := n.MarksDrop(path); purpose != audit.NotKubeProxy {
			e.outcome, e.purpose, e.rule = intended, purpose, rule
			return true
		}
	}
	return false
}

// onPurpose reports whether kube-proxy does not translate a packet on purpose.
func (s *surveyor) onPurpose(e *end, c *connection, w *netfilter.Way) bool {
	keeper, _ := s.keeper(w.Path)
	return s.marked(e, w.Path) || keeper == nil && s.withoutEndpoint(e, c, w.Packet.Source.Addr())
}

// withoutEndpoint reports whether kube-proxy does not translate packets to a destination, because there is no endpoint, or
// under policy Local none here, or because the source is outside of the load balancer's source ranges. Its rules reject or
// drop the packets later, unless another rule accepts them before: they get nowhere, too.
func (s *surveyor) withoutEndpoint(e *end, c *connection, from netip.Addr) bool {
	for i, n := range s.survey.Nodes {
		r := s.refusals[i][c.destination()]
		if r == nil {
			continue
		}
		purpose, port := n.Purpose(r, nil)
		if purpose == audit.OtherSource && slices.ContainsFunc(port.SourceRanges, func(p netip.Prefix) bool { return p.Contains(from) }) {
			continue
		}
		if e.outcome, e.rule, e.purpose = intended, r, purpose; purpose == audit.NoEndpoints {
			e.outcome = refused
		}
		return true
	}
	return false
}

// refusedByRules records the destinations without an endpoint, or without one on this node, by kube-proxy's rules alone, if the
// file shows too little to follow a connection: kube-proxy writes such a rule for nothing else.
func (s *surveyor) refusedByRules() {
	for i := range s.targets {
		t := &s.targets[i]
		e := &end{connection: &connection{target: t}, outcome: refused}
		switch {
		case t.to.Addr().IsLoopback():
			continue
		case t.port.Refused:
		case t.port.Dropped && t.policy() == decision.Local && t.entry != decision.EntryNone:
			e.outcome, e.purpose = intended, audit.NoneHere
		default:
			continue
		}
		r := new(iptables.Rule) // in nftables mode, an element of a map
		for _, refusals := range s.refusals {
			r = cmp.Or(refusals[t.destination()], r)
		}
		e.rule = r
		s.recordIntended(e)
	}
}

// tableOf is the name of a rule's table.
func (s *surveyor) tableOf(r *iptables.Rule) string {
	for _, d := range s.dumps {
		for _, t := range d.Tables {
			if slices.Contains(t.Rules, r) {
				return t.Name
			}
		}
	}
	return ""
}

func (s *surveyor) wrote(r *iptables.Rule) bool {
	return slices.ContainsFunc(s.survey.Nodes, func(n *audit.Node) bool { return n.IsEndpointRule(r) })
}

// translator is the last rule that translated the destination; nil: none.
func translator(path []*iptables.Rule) (found *iptables.Rule) {
	for _, r := range path {
		switch t := r.Target.(type) {
		case iptables.DNAT, iptables.Redirect, iptables.Netmap:
			found = r
		case iptables.NativeTarget:
			if t.Translates() {
				found = r
			}
		}
	}
	return found
}
