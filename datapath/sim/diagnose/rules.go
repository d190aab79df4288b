package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/sim/audit"
	"github.com/nfqproxy/nfqproxy/datapath/sim/drops"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/sim/netfilter"
)

// ExamineRules looks at the iptables rules of a node, of one address family (one dump, or those of both back ends): whether kube-proxy's are consistent,
// and whether other rules drop connections to services. An error is about rules that cannot be simulated.
//
// Connections start at a pod of the node, if the rules show the pods' prefix, and at the node itself. They go to the
// cluster IPs of 100 service ports at most: rules of others seldom tell services apart.
func ExamineRules(dumps []*iptables.Dump) ([]Finding, error) {
	d := dumps[0]
	n := audit.Read(d)
	var found []Finding
	add := func(code Code, list []audit.Issue, do string) {
		for _, i := range list {
			found = append(found, Finding{Code: code, Text: i.String(), Do: do})
		}
	}
	add(RulesInconsistent, n.Problems, "compare with the rules that kube-proxy should write (nfqproxy render, nfqproxy diff), and look for errors in its log")
	add(ClaimedTwice, n.Contested, "give each Service addresses and ports of its own")
	add(RulesIncomplete, n.Gaps, "use the output of iptables-save as root, not a listing of some chains")
	dropping, err := droppedByOthers(d, n)
	if err != nil {
		return nil, err
	}
	found = append(found, dropping...)
	Sort(found)
	return found, nil
}

// droppedByOthers finds rules that are not kube-proxy's and that drop connections to services.
func droppedByOthers(d *iptables.Dump, n *audit.Node) ([]Finding, error) {
	host, _ := netfilter.GuessHost([]*iptables.Dump{d}, &netfilter.Host{}, nil)
	m, err := netfilter.New([]*iptables.Dump{d}, nil, host, netfilter.Options{})
	if err != nil {
		return nil, err
	}
	type victims struct {
		rule     *iptables.Rule
		services []string
		first    string
	}
	var order []*iptables.Rule
	by := make(map[*iptables.Rule]*victims)
	const most = 100
	tried := 0
	for _, s := range n.Services {
		if !s.ClusterIP.IsValid() || len(s.Endpoints) == 0 || s.Name.Name == "" {
			continue
		}
		if tried++; tried > most {
			break
		}
		to := netip.AddrPortFrom(s.ClusterIP, s.Port)
		for _, from := range sourcesOf(n) {
			drop := drops.Find(m, drops.First(s.Protocol, netip.AddrPortFrom(from.addr, sourcePort), to, from.addr.IsUnspecified()), nil)
			if drop == nil || drop.Rule == nil || strings.HasPrefix(drop.Chain, "KUBE-") {
				continue
			}
			rule := drop.Rule
			v := by[rule]
			if v == nil {
				v = &victims{rule: rule, first: fmt.Sprintf("a connection from %s to %s", from.text, to)}
				by[rule], order = v, append(order, rule)
			}
			if name := s.Name.String(); !slices.Contains(v.services, name) {
				v.services = append(v.services, name)
			}
		}
	}
	var found []Finding
	for _, rule := range order {
		v := by[rule]
		found = append(found, Finding{
			Code: HostRuleDrops,
			Text: fmt.Sprintf("line %d: a rule that is not kube-proxy's (%s) drops connections to %s, such as %s", rule.Line, rule, nearest.Few(v.services), v.first),
			Do:   "change the rule, or accept these connections before it; nfqproxy trace shows the whole way of a packet",
		})
	}
	return found, nil
}

// origin is where a connection comes from.
type origin struct {
	text string
	addr netip.Addr // the unspecified one: the node itself
}

func sourcesOf(n *audit.Node) []origin {
	unspecified := netip.IPv4Unspecified()
	if n.Family == decision.IPv6 {
		unspecified = netip.IPv6Unspecified()
	}
	list := []origin{{"the node itself", unspecified}}
	for _, p := range []netip.Prefix{n.Proxy.NodePodCIDR, n.Proxy.PodCIDR} {
		if p.IsValid() {
			// Not the first address, which is often the bridge's.
			a := p.Masked().Addr()
			for range 99 {
				a = a.Next()
			}
			return append(list, origin{"a pod (" + a.String() + ")", a})
		}
	}
	return list
}
