package survey

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Certainty is how sure it is that connections fail.
type Certainty uint8

// The certainties.
const (
	Certain  Certainty = iota
	Possible           // it depends on chance, or on other packets
	NotKnown           // it depends on what the rules do not show
)

// Effect is the effect of a rule on connections.
type Effect uint8

// The effects.
const (
	Drops             Effect = iota // a rule or a policy drops or rejects their first packets
	DropsReplies                    // or the replies
	KeepsReplies                    // a rule, or a bridge, keeps connection tracking from recognizing the replies
	Queues                          // a rule has them wait for a program at a netfilter queue, and without it drops them
	Untranslated                    // they keep their destination
	Diverted                        // another rule translates their destination
	Unmasqueraded                   // they keep their source
	ForeignSource                   // they get a source that is none of the host's
	NoHairpin                       // they would have to leave a bridge by the port that they came in by
	NoWay                           // routing has no way for their first packets, or for the replies
	DropsTunnel                     // a rule or a policy drops or rejects the packets in which other nodes send them
	DropsNeighbours                 // or those of neighbour discovery, for all connections of IPv6
	DropsHealthChecks               // or the connections to the health check node port
)

// Loss is connections that fail for one reason.
type Loss struct {
	Effect    Effect
	Certainty Certainty
	Condition Condition
	// Why is the reason why there is no way, a clause; only with NoWay.
	Why string
	// Replies: the host sends their first packets on, and loses the replies.
	Replies bool
	// Bridge is the one on which the replies stay, so that connection tracking does not see them, or which packets do not leave; only with
	// KeepsReplies and NoHairpin.
	Bridge string
	// Tunnel is the one whose packets are dropped; only with DropsTunnel.
	Tunnel *Tunnel
	// Neighbours are the devices, and addresses of pods, of each of Kinds; only with DropsNeighbours.
	Neighbours []string
	Outgoing   bool // the packets are the host's; only with DropsTunnel and DropsNeighbours
	// Rule is the reason; nil: the policy of the chain, or, without a chain, no rule.
	Rule         *iptables.Rule
	Table, Chain string
	// File and Line are the place of the policy's chain; 0: the dump does not declare it.
	File     string
	Line     int
	Rejected bool
	ByMark   bool // Rule sets a mark for which the kubelet's rules drop packets
	// Doubts are the doubts on the path of the first connection; none if it is certain.
	Doubts []netfilter.Doubt
	// Spared are the networks that rules name whose clients get through, where others outside do not.
	Spared []netip.Prefix
	// Connections is their number, of different source kinds and destinations.
	Connections int
	// Titles are the service ports, Kinds the kinds of sources, To the destinations; each once.
	Titles []string
	Kinds  []Kind
	To     []string
	// Endpoints are the first ones that they would reach; none: they do not come so far. Part: others of the same
	// destinations are reached.
	Endpoints []netip.AddrPort
	Part      bool
	Example   Example

	seen map[string]bool
	last *connection
}

// Example is the first connection of a loss.
type Example struct {
	Protocol string
	Source   string // an address; empty: the node selects it
	In       string // the device that it comes in by
	To       netip.AddrPort
	Endpoint netip.AddrPort // zero: it does not come so far
	From     Kind
	// Route is the one that leads to To, or back to the source, as --route of trace takes it, if trace needs it; else empty.
	Route string
}

type lossKey struct {
	effect       Effect
	certainty    Certainty
	condition    Condition
	rule         *iptables.Rule
	table, chain string
	why, bridge  string
}

// recordLoss records a connection that fails.
func (s *surveyor) recordLoss(e *end) {
	c, certainty := e.connection, e.certainty
	effect := map[outcome]Effect{lost: Drops, replyLost: DropsReplies, replyKept: KeepsReplies, untranslated: Untranslated, diverted: Diverted, unmasqueraded: Unmasqueraded, foreignSource: ForeignSource, noHairpin: NoHairpin}[e.outcome]
	switch {
	case e.outcome == foreignSource:
		certainty = max(certainty, Possible)
	case e.queue:
		effect = Queues
	case e.noWay != "":
		effect = NoWay
	}
	key := lossKey{effect, certainty, e.condition, e.rule, e.table, e.chain, e.noWay, e.bridge}
	if strings.HasPrefix(e.noWay, "there is no route to ") { // one cause for all addresses
		key.why = fmt.Sprint("no route, translated: ", e.endpoint.IsValid())
	}
	l := s.losses[key]
	if l == nil {
		l = &Loss{
			Effect: effect, Certainty: certainty, Condition: e.condition, Rule: e.rule, Table: e.table, Chain: e.chain, Why: e.noWay, Bridge: e.bridge, Replies: e.outcome == replyLost || e.outcome == replyKept, Rejected: e.rejected, ByMark: e.byMark, seen: make(map[string]bool),
			Example: Example{Protocol: c.protocol.String(), To: c.to, Endpoint: e.endpoint, From: c.from.Kind, In: c.from.Device},
		}
		if a := c.packet().Source.Addr(); !a.IsUnspecified() {
			if l.Example.Source = a.String(); e.condition == EndpointHere || strings.HasPrefix(string(e.condition), string(arrives)) || c.from.Kind == NamedPod && netfilter.OfOnePod(c.from.Device) {
				l.Example.Route = fmt.Sprintf("%s=%s", netip.PrefixFrom(a, a.BitLen()), c.from.Device)
			}
		}
		if certainty != Certain {
			l.Doubts = e.doubts
		}
		if (c.from.Kind == Outside || c.from.Kind == Pod) && e.outcome == lost && e.condition == "" { // others are not followed where the condition holds
			l.Spared = s.spared(c)
		}
		if e.rule == nil && e.chain != "" {
			l.File, l.Line = s.policyPlace(e.table, e.chain)
		}
		s.losses[key] = l
		s.order = append(s.order, l)
	}
	l.Part = l.Part || e.part
	l.add(c, e, s.known.Only != nil)
}

// lose adds a loss for which a rule or policy drops a packet.
func (s *surveyor) lose(l *Loss, w *netfilter.Way) {
	l.Rule, l.Table, l.Chain, l.Rejected = w.By, w.Table, w.Chain, w.Verdict == netfilter.Rejected
	if w.By == nil {
		l.File, l.Line = s.policyPlace(w.Table, w.Chain)
	}
	s.order = append(s.order, l)
}

// maxSpared is the maximum number of networks that are tried as the source of one connection.
const maxSpared = 16

// spared are the networks that rules name as sources, outside or, for a pod, of other pods, and whose clients reach the endpoints of the
// connection.
func (s *surveyor) spared(c *connection) (all []netip.Prefix) {
	tried := make(map[netip.Prefix]bool)
	for _, m := range s.matches("raw", "mangle", "filter") {
		source, _ := m.(iptables.Source)
		p, ok := source.Network.Prefix()
		if !ok || p.Bits() == 0 || decision.FamilyOf(p.Addr()) != s.family() || tried[p] || len(tried) == maxSpared || p.Overlaps(s.podNetwork()) != (c.from.Kind == Pod) || p.Contains(c.from.Addr) || s.hasEndpoints(p) || p.IsSingleIP() && p.Addr() == s.address {
			continue // or of no client outside
		}
		tried[p] = true
		from := *c.from
		if from.Addr = p.Addr(); !p.IsSingleIP() {
			from.Addr = p.Masked().Addr().Next() // the first address of a network is no client's
		}
		v := walker{surveyor: s, machine: s.machine, work: netfilter.Work{Steps: 1}}
		v.follow(&connection{target: c.target, from: &from})
		if !slices.ContainsFunc(v.ways, func(e end) bool { return e.outcome != served }) {
			all = append(all, p)
		}
	}
	return all
}

// policyPlace finds the declaration of a chain with policy DROP.
func (s *surveyor) policyPlace(table, chain string) (file string, line int) {
	for _, d := range s.dumps {
		if t := d.Table(table); t != nil {
			if c := t.Chain(chain); c != nil && c.Policy == iptables.PolicyDrop {
				return d.File, c.Line
			}
		}
	}
	return "", 0
}

// add counts a connection, once for all its ways. all: it names all endpoints, and not only the first ones.
func (l *Loss) add(c *connection, e *end, all bool) {
	if e.endpoint.IsValid() && (all || len(l.Endpoints) < maxNamed) && !slices.Contains(l.Endpoints, e.endpoint) {
		l.Endpoints = append(l.Endpoints, e.endpoint)
	}
	if l.last == c {
		return
	}
	l.last = c
	l.Connections++
	if title := c.port.Title(); !l.seen[title] {
		l.seen[title] = true
		l.Titles = append(l.Titles, title)
	}
	if to := c.target.String(); !l.seen["to "+to] {
		l.seen["to "+to] = true
		l.To = append(l.To, to)
	}
	l.Kinds = distinct.Append(l.Kinds, c.from.Kind)
}

// maxNamed is the maximum number of endpoints that a loss of many connections names.
const maxNamed = 20

// recordIntended records what kube-proxy does on purpose.
func (s *surveyor) recordIntended(e *end) {
	switch {
	case e.outcome == refused:
		s.survey.Refused = note(&s.refused, s.survey.Refused, e)
	case e.purpose == audit.NoneHere:
		s.survey.NoneHere = note(&s.none, s.survey.NoneHere, e)
	}
}

// note adds a destination to the list of its service port.
func note(known *map[string]int, list []Destinations, e *end) []Destinations {
	if *known == nil {
		*known = make(map[string]int)
	}
	title := e.connection.port.Title()
	i, again := (*known)[title]
	if !again {
		i = len(list)
		(*known)[title] = i
		list = append(list, Destinations{Title: title})
	}
	d := &list[i]
	d.To = distinct.Append(d.To, e.connection.target.String())
	d.Lines = distinct.Append(d.Lines, e.rule.Line)
	return list
}
