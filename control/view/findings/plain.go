package findings

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// ofRules are findings about the rules of nodes without a daemon. Nobody records their flows: connections to the Services
// are followed through the rules instead.
func (d *Doctor) ofRules(ctx context.Context, nodes []observe.Status, objects *manifest.Objects) (found []diagnose.Finding) {
	var to []netip.Addr
	for _, s := range objects.EndpointSlices {
		for i := range s.Endpoints {
			for _, text := range s.Endpoints[i].Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					to = append(to, a)
				}
			}
		}
	}
	slices.SortFunc(to, netip.Addr.Compare)
	to = slices.Compact(to)
	at := placesOf(ctx, d.Observer)
	for i := range nodes {
		node := nodes[i].Node
		if nodes[i].Proxy == "" || len(to) == 0 {
			continue
		}
		list, err := d.ofNodeRules(ctx, node, to, at.pods[node])
		if err != nil {
			list = append(list, diagnose.Finding{
				Code: diagnose.RulesIncomplete, Text: fmt.Sprintf("not all rules of node %s can be checked, and its flows are not recorded: %v", node, err),
				Do: "look at them on the node: iptables-save -c, nft list ruleset",
			})
		}
		for _, f := range list {
			f.Object = "Node " + node
			found = append(found, f)
		}
	}
	return found
}

func (d *Doctor) ofNodeRules(ctx context.Context, node string, to []netip.Addr, pods []netip.Prefix) (found []diagnose.Finding, err error) {
	rules, err := d.Firewall(ctx, node, to)
	if rules == nil {
		return nil, err
	}
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		dumps, err := rules.Dumps(family)
		if err != nil {
			return found, err
		}
		if len(dumps) == 0 {
			continue
		}
		list, _, err := diagnose.ExamineNode(dumps, survey.Known{Host: &rules.Network, Pods: pods})
		if err != nil {
			return found, err
		}
		for _, f := range list {
			switch f.Code {
			case diagnose.HostRuleDrops, diagnose.HostRuleMayDrop, diagnose.NotTranslated, diagnose.NotMasqueraded, diagnose.RulesInconsistent:
				f.Text = "on node " + node + ", " + f.Text
				f.Do = strings.ReplaceAll(f.Do, "nfqproxy trace ", "on the node, nft list ruleset | nfqproxy trace --rules - ")
				found = append(found, f)
			}
		}
	}
	return found, nil
}

// follow changes an answer where the rules of a deciding node without a daemon do something else than the objects ask for.
func (d *Doctor) follow(ctx context.Context, nodes []observe.Status, answer *diagnose.Answer) {
	expected := answer.Record
	if expected == nil || !slices.ContainsFunc(nodes, func(s observe.Status) bool { return s.Node == answer.Node && s.Proxy != "" }) {
		return
	}
	q := observe.Question{Node: answer.Node, Question: flow.Question{
		Protocol: strings.ToLower(expected.Protocol), Source: expected.Source, Destination: expected.Destination, Local: expected.Local,
	}}
	r, err := d.Observer.Explain(ctx, q)
	if err != nil || r.Verdict == expected.Verdict || answer.Cause != nil {
		return
	}
	answer.Cause = &diagnose.Finding{
		Code: diagnose.NotTranslated, Object: "Node " + answer.Node,
		Text: fmt.Sprintf("the rules of node %s do not handle the packet as the objects ask: verdict %s", answer.Node, r.Verdict),
		Do:   "Explain on the page shows its way through the rules",
	}
	does := map[string]string{decision.Drop.String(): "drops", decision.Reject.String(): "rejects"}[r.Verdict]
	if does == "" || len(r.Steps) == 0 {
		return
	}
	last := &r.Steps[len(r.Steps)-1]
	by := "the policy of chain " + last.Chain
	if last.Rule != "" {
		by = "rule " + last.Rule
	}
	place := fmt.Sprintf("table %s, chain %s", last.Table, last.Chain)
	if last.Handle != 0 {
		place += fmt.Sprintf(", handle %d", last.Handle)
	}
	answer.Cause.Code = diagnose.HostRuleDrops
	answer.Cause.Text = fmt.Sprintf("node %s %s the connection: %s (%s)", answer.Node, does, by, place)
	answer.Cause.Do = "change the rule, or accept these connections before it; Explain on the page shows the whole way"
}
