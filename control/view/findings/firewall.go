package findings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Firewall reads the rules of a node, and its routes to addresses; nil: they are not known here.
type Firewall func(ctx context.Context, node string, to []netip.Addr) (*noderules.Rules, error)

// maxShapes is how many kinds of unanswered flows are followed through the rules.
const maxShapes = 200

// shape is what flows have in common that the same rules should meet.
type shape struct {
	node, protocol, service, from, destination, endpoint string
	// sometimes: they were answered after their first packet was sent again, or a later one like them was answered. Only a
	// rule that drops some packets explains that.
	sometimes bool
}

// unanswered are recent flows of a shape, which got no answer.
type unanswered struct {
	shape
	latest *flow.Record
	flows  int
}

// unansweredOf are those without an answer, in the order of their first flows. The records are in the order of time.
func unansweredOf(records []*flow.Record) (list []*unanswered) {
	by := make(map[shape]*unanswered)
	add := func(s shape, r *flow.Record, flows int) {
		if by[s] == nil {
			by[s] = &unanswered{shape: s}
			list = append(list, by[s])
		}
		by[s].latest = r
		by[s].flows += flows
	}
	for _, r := range records {
		if r.Life == nil || r.Service == "" || r.Endpoint == "" {
			continue
		}
		from, _ := netip.ParseAddrPort(r.Source)
		s := shape{r.Node, r.Protocol, r.Service, from.Addr().String(), r.Destination, r.Endpoint, false}
		some := s
		some.sometimes = true
		switch {
		case r.Life.Answered:
			if u := by[s]; u != nil {
				delete(by, s)
				add(some, u.latest, u.flows)
			}
			if r.Life.Repeated > 0 {
				add(some, r, 1)
			}
		case r.Life.State == flow.Unanswered:
			add(s, r, 1)
		}
	}
	return slices.DeleteFunc(list, func(u *unanswered) bool { return by[u.shape] != u })
}

// flowOf is a flow as its node decided it; ok is false if the record does not show it.
func flowOf(r *flow.Record) (f noderules.Flow, ok bool) {
	protocol, err := decision.ParseProtocol(r.Protocol)
	seen, endpoint, _ := nodepath.Outgoing(r)
	f = noderules.Flow{Protocol: protocol, Source: addrPort(r.Source), Destination: addrPort(r.Destination), Endpoint: addrPort(endpoint), Seen: addrPort(seen), Local: r.Local}
	if r.MasqueradeReason != "" && r.MasqueradeReason != flow.HostMasquerade {
		f.Mark = decision.DefaultMasqueradeMark
	}
	return f, err == nil && f.Source.IsValid() && f.Destination.IsValid() && f.Endpoint.IsValid()
}

func addrPort(text string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(text) // the zero one if it is none
	return a
}

// forwarded is a flow on the node of its endpoint, which another node has decided.
func forwarded(f noderules.Flow) noderules.Flow {
	return noderules.Flow{Protocol: f.Protocol, Source: f.Seen, Destination: f.Endpoint, Endpoint: f.Endpoint, Seen: f.Seen}
}

// droppingRule is what drops flows on a node.
type droppingRule struct{ node, program, table, rule string }

// droppedFlows are the flows that it noderules.
type droppedFlows struct {
	droppingRule
	*noderules.Dropped
	other               *diagnose.Finding // not a rule
	services, endpoints []string
	flows               int
	of                  []*unanswered
}

// blame is the reason why flows got no answer.
type blame struct {
	shape
	on string // the node of the endpoint
	diagnose.Finding
}

// visit is a kind of flow that passes a node.
type visit struct {
	*unanswered
	noderules.Flow
	decided bool // by this node
}

// visitsOf are the recent flows without an answer, or whose first packet was sent again, by the nodes that they pass.
func visitsOf(records []*flow.Record) map[string][]visit {
	flows := unansweredOf(records)
	flows = flows[max(0, len(flows)-maxShapes):]
	visits := make(map[string][]visit)
	for _, u := range flows {
		f, ok := flowOf(u.latest)
		if !ok {
			continue
		}
		visits[u.node] = append(visits[u.node], visit{u, f, true})
		if on := u.latest.EndpointNode; on != "" && on != u.node {
			visits[on] = append(visits[on], visit{u, forwarded(f), false})
		}
	}
	return visits
}

// look finds what on nodes keeps recent flows from their way: rules that drop them after their translation, as the simulator
// follows them, and that have counted packets; routes, and the validation of sources. list has one finding for each, and blamed
// the one for each kind of flow without an answer. read are the nodes as they were read.
func look(ctx context.Context, firewall Firewall, records []*flow.Record, nodes []string, where func() places) (list []diagnose.Finding, blamed []blame, read map[string]*reading) {
	visits := visitsOf(records)
	read = make(map[string]*reading)
	by := make(map[droppingRule]*droppedFlows)
	var order []*droppedFlows
	var known places
	if len(visits) > 0 {
		known = where()
	}
	all := slices.AppendSeq(slices.Clone(nodes), maps.Keys(visits))
	slices.Sort(all)
	for _, node := range slices.Compact(all) {
		var to []netip.Addr
		for _, v := range visits[node] {
			to = append(to, v.Source.Addr(), v.Destination.Addr(), v.Endpoint.Addr(), v.Seen.Addr())
			if s, _ := known.sibling(v.latest.EndpointNode, v.Endpoint.Addr()); s.IsValid() {
				to = append(to, s)
			}
			if s, _ := known.sibling(known.of(v.Seen.Addr()), v.Seen.Addr()); s.IsValid() {
				to = append(to, s)
			}
		}
		if len(to) > 0 {
			to = append(to, known.addresses()...)
		}
		slices.SortFunc(to, netip.Addr.Compare)
		rules, err := firewall(ctx, node, slices.Compact(to))
		r := &reading{Rules: rules}
		if rules != nil {
			read[node] = r
			var e error
			r.host, e = noderules.NewHost(rules.Listings, &rules.Network)
			err = errors.Join(err, e)
		}
		if err != nil && len(visits[node]) > 0 {
			list = append(list, diagnose.Finding{
				Code: diagnose.RulesIncomplete, Object: "Node " + node,
				Text: fmt.Sprintf("recent flows got no answer, and not all firewall rules of node %s can be checked: %v", node, err),
				Do:   "look for rules of the node that drop them: iptables-save -c, nft list ruleset",
			})
		}
		if rules == nil {
			continue
		}
		for _, v := range visits[node] {
			key, d, f := v.cause(node, r, known)
			if d == nil && f == nil {
				continue
			}
			c := by[key]
			if c == nil {
				c = &droppedFlows{droppingRule: key, Dropped: d, other: f}
				by[key], order = c, append(order, c)
			}
			c.of, c.flows = append(c.of, v.unanswered), c.flows+v.flows
			c.services, c.endpoints = append(c.services, v.service), append(c.endpoints, v.endpoint)
		}
		order = append(order, unrouted(node, r, visits[node], by)...)
	}
	for _, c := range order {
		f := c.finding()
		list = append(list, f)
		for _, u := range c.of {
			if !u.sometimes {
				blamed = append(blamed, blame{u.shape, u.latest.EndpointNode, f})
			}
		}
	}
	return list, blamed, read
}

// cause is the rule or the route of a node that stops a flow; nil: none is known.
func (v *visit) cause(node string, r *reading, known places) (droppingRule, *noderules.Dropped, *diagnose.Finding) {
	d := r.host.Find(&v.Flow)
	if d != nil && (d.Packets > 0 || d.Uncounted) && (d.Sometimes || !v.sometimes) {
		return droppingRule{node, d.Program, d.Table, d.String()}, d, nil
	}
	if v.sometimes {
		return droppingRule{}, nil, nil
	}
	f := known.brokenRoute(node, r, v.Endpoint.Addr(), v.latest.EndpointNode, "")
	if f == nil {
		f = known.brokenRoute(node, r, v.Seen.Addr(), known.of(v.Seen.Addr()), ", to which replies go")
	}
	if f == nil {
		return droppingRule{}, nil, nil
	}
	return droppingRule{node: node, rule: f.Text}, nil, f
}

// unrouted blames the validation of sources for flows that got no answer and have no other cause on a node.
func unrouted(node string, r *reading, visits []visit, by map[droppingRule]*droppedFlows) []*droppedFlows {
	c := &droppedFlows{droppingRule: droppingRule{node: node, rule: "rp_filter"}}
	for _, v := range visits {
		if !v.sometimes && !slices.ContainsFunc(slices.Collect(maps.Values(by)), func(o *droppedFlows) bool { return slices.Contains(o.of, v.unanswered) }) {
			c.of, c.flows = append(c.of, v.unanswered), c.flows+v.flows
		}
	}
	if len(c.of) > 0 {
		c.other = filtered(node, r, c.flows)
	}
	if c.other == nil {
		return nil
	}
	return []*droppedFlows{c}
}

func (c *droppedFlows) finding() diagnose.Finding {
	distinct := func(list []string) string {
		slices.Sort(list)
		return nearest.Few(slices.Compact(list))
	}
	flows := quantity.Count(c.flows, "recent flow")
	if c.other != nil {
		f := *c.other
		if len(c.services) > 0 {
			f.Text += fmt.Sprintf("; %s to %s got no answer", flows, distinct(c.services))
		}
		return f
	}
	what, verb := "flows", "drops"
	if c.Reply {
		what = "the replies of flows"
	}
	if c.Rejected {
		verb = "rejects"
	}
	count := "it has counted " + quantity.Count(c.Packets, "packet")
	if c.Uncounted {
		count = "it has no counter"
	}
	if c.Full != "" {
		count += "; " + c.Full + ", so it accepts no more"
	}
	f := diagnose.Finding{Code: diagnose.HostDropsFlows, Object: "Node " + c.node}
	if program := strings.TrimSuffix(c.Program, "-save"); c.Text == "" {
		f.Do = fmt.Sprintf("remove the rule, or accept these packets before it; on node %s: %s -t %s -L %s -n -v --line-numbers", c.node, program, c.table, c.Chain)
		c.Program = program
	} else if f.Do = fmt.Sprintf("on node %s: %s; or accept these packets before it", c.node, c.Remove); c.Remove == "" {
		f.Do = fmt.Sprintf("accept these packets in a rule; on node %s: nft -a list chain %s %s", c.node, c.table, c.Chain)
	}
	if c.Sometimes {
		f.Code = diagnose.HostDropsSome
		f.Text = fmt.Sprintf("node %s %s some packets of %s to %s: %s (%s, table %s, chain %s) does so at random or above a limit; %s, and %s got no answer, or only after a retransmission",
			c.node, verb, what, distinct(c.services), c.droppingRule.rule, c.Program, c.table, c.Chain, count, flows)
		return f
	}
	f.Text = fmt.Sprintf("node %s %s %s to %s after they were translated: %s (%s, table %s) matches %s without an answer, to %s; %s",
		c.node, verb, what, distinct(c.services), c.droppingRule.rule, c.Program, c.table, flows, distinct(c.endpoints), count)
	return f
}
