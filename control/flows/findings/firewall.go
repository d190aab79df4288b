package findings

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/flows/noderules"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/sim/drops"
)

// Firewall reads the rules of a node, and its routes to addresses; nil: they are not known here.
type Firewall func(ctx context.Context, node string, to []netip.Addr) (*noderules.Rules, error)

// maxShapes is how many kinds of unanswered flows are followed through the rules.
const maxShapes = 200

// shape is what flows have in common that the same rules should meet.
type shape struct {
	node, protocol, service, from, destination, endpoint string
}

// unanswered are recent flows of a shape, which got no answer.
type unanswered struct {
	shape
	latest *flow.Record
	flows  int
}

// unansweredOf are those of which none was answered since, in the order of their first flows. The records are in the
// order of time.
func unansweredOf(records []*flow.Record) (list []*unanswered) {
	by := make(map[shape]*unanswered)
	for _, r := range records {
		if r.Life == nil || r.Service == "" || r.Endpoint == "" {
			continue
		}
		from, _ := netip.ParseAddrPort(r.Source)
		s := shape{r.Node, r.Protocol, r.Service, from.Addr().String(), r.Destination, r.Endpoint}
		switch {
		case r.Life.Answered:
			delete(by, s)
		case r.Life.State != flow.Unanswered:
		case by[s] == nil:
			by[s] = &unanswered{shape: s, latest: r, flows: 1}
			list = append(list, by[s])
		default:
			by[s].latest = r
			by[s].flows++
		}
	}
	return slices.DeleteFunc(list, func(u *unanswered) bool { return by[u.shape] != u })
}

// flowOf is a flow as its node decided it; ok is false if the record does not show it.
func flowOf(r *flow.Record) (f drops.Flow, ok bool) {
	protocol, err := decision.ParseProtocol(r.Protocol)
	seen, endpoint, _ := r.Leaves()
	f = drops.Flow{Protocol: protocol, Source: addrPort(r.Source), Destination: addrPort(r.Destination), Endpoint: addrPort(endpoint), Seen: addrPort(seen), Local: r.Local}
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
func forwarded(f drops.Flow) drops.Flow {
	return drops.Flow{Protocol: f.Protocol, Source: f.Seen, Destination: f.Endpoint, Endpoint: f.Endpoint, Seen: f.Seen}
}

// culprit is what drops flows on a node.
type culprit struct{ node, program, table, rule string }

// victims are the flows that it drops.
type victims struct {
	culprit
	*drops.Dropped
	services, endpoints []string
	flows               int
	of                  []*unanswered
}

// blame is the reason why flows got no answer.
type blame struct {
	shape
	diagnose.Finding
}

// dropped finds the rules of nodes that drop recent flows after their translation, as the simulator follows them, and
// that have counted packets. list has one finding for each rule, and blamed the one for each kind of flow.
func dropped(ctx context.Context, firewall Firewall, records []*flow.Record) (list []diagnose.Finding, blamed []blame) {
	flows := unansweredOf(records)
	flows = flows[max(0, len(flows)-maxShapes):]
	type visit struct {
		*unanswered
		drops.Flow
	}
	visits := make(map[string][]visit) // by node
	for _, u := range flows {
		f, ok := flowOf(u.latest)
		if !ok {
			continue
		}
		visits[u.node] = append(visits[u.node], visit{u, f})
		if on := u.latest.EndpointNode; on != "" && on != u.node {
			visits[on] = append(visits[on], visit{u, forwarded(f)})
		}
	}
	by := make(map[culprit]*victims)
	var order []*victims
	for _, node := range slices.Sorted(maps.Keys(visits)) {
		var to []netip.Addr
		for _, v := range visits[node] {
			to = append(to, v.Source.Addr(), v.Destination.Addr(), v.Endpoint.Addr(), v.Seen.Addr())
		}
		slices.SortFunc(to, netip.Addr.Compare)
		host, err := readFirewall(ctx, firewall, node, slices.Compact(to))
		if err != nil {
			list = append(list, diagnose.Finding{
				Code: diagnose.RulesIncomplete, Object: "Node " + node,
				Text: fmt.Sprintf("recent flows got no answer, and not all firewall rules of node %s can be checked: %v", node, err),
				Do:   "look for rules of the node that drop them: iptables-save -c, nft list ruleset",
			})
		}
		if host == nil {
			continue
		}
		for _, v := range visits[node] {
			d := host.Find(&v.Flow)
			if d == nil || d.Packets == 0 {
				continue
			}
			key := culprit{node, d.Program, d.Table, d.String()}
			c := by[key]
			if c == nil {
				c = &victims{culprit: key, Dropped: d}
				by[key], order = c, append(order, c)
			}
			c.of, c.flows = append(c.of, v.unanswered), c.flows+v.flows
			c.services, c.endpoints = append(c.services, v.service), append(c.endpoints, v.endpoint)
		}
	}
	for _, c := range order {
		f := c.finding()
		list = append(list, f)
		for _, u := range c.of {
			blamed = append(blamed, blame{u.shape, f})
		}
	}
	return list, blamed
}

// readFirewall may return both rules and an error about others.
func readFirewall(ctx context.Context, firewall Firewall, node string, to []netip.Addr) (*drops.Host, error) {
	rules, err := firewall(ctx, node, to)
	if err != nil || rules == nil {
		return nil, err
	}
	return drops.New(rules.Listings, &rules.Network)
}

func (c *victims) finding() diagnose.Finding {
	distinct := func(list []string) string {
		slices.Sort(list)
		return nearest.Few(slices.Compact(list))
	}
	what, verb := "flows", "drops"
	if c.Reply {
		what = "the replies of flows"
	}
	if c.Rejected {
		verb = "rejects"
	}
	counted := func(n uint64, noun string) string {
		if n == 1 {
			return "1 " + noun
		}
		return fmt.Sprintf("%d %ss", n, noun)
	}
	program := strings.TrimSuffix(c.Program, "-save")
	return diagnose.Finding{
		Code: diagnose.HostDropsFlows, Object: "Node " + c.node,
		Text: fmt.Sprintf("node %s %s %s to %s after they were translated: %s (%s, table %s) matches %s without an answer, to %s; it has counted %s",
			c.node, verb, what, distinct(c.services), c.culprit.rule, program, c.table, counted(uint64(c.flows), "recent flow"), distinct(c.endpoints), counted(c.Packets, "packet")),
		Do: fmt.Sprintf("remove the rule, or accept these packets before it; on node %s: %s -t %s -L %s -n -v --line-numbers", c.node, program, c.table, c.Chain),
	}
}
