package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// Examined is the scope of an examination of a node's rules. Findings, or their absence, concern this scope only.
type Examined struct {
	// Files are the files of the rules; Family is IPv4 or IPv6.
	Files  []string `json:"files,omitempty"`
	Family string   `json:"family"`
	// Proxy is the service proxy that wrote the rules, its mode and its back end.
	Proxy string `json:"proxy"`
	// OtherMode is the reason why the rules show no services; empty: they may.
	OtherMode string `json:"otherMode,omitempty"`
	// Ports are the service ports, Destinations their addresses, and Connections those that were followed from the Sources. It
	// is known what becomes of the Judged ones, on one of their ways at least, and of the Partly ones among them not on all.
	Ports        int `json:"servicePorts"`
	Destinations int `json:"destinations"`
	Connections  int `json:"connections"`
	Judged       int `json:"judged"`
	Partly       int `json:"partly"`
	// Unclear is of how many rules and policies it is not known whether they keep connections from services.
	Unclear int      `json:"unclear"`
	Sources []string `json:"sources"`
	// Not lists what was not examined, and Guesses the assumptions about the host: one sentence each.
	Not     []string `json:"notExamined"`
	Guesses []string `json:"guesses"`
}

// ExamineNode looks at the rules of a node, of one address family (one dump, or those of both back ends). It
// follows a connection to every service from every kind of source through all rules, and checks that kube-proxy's rules
// are consistent. known is what is known of the node besides. An error is about rules that cannot be simulated.
func ExamineNode(dumps []*iptables.Dump, known survey.Known) ([]Finding, *Examined, error) {
	s, err := survey.Run(dumps, known)
	if err != nil {
		return nil, nil, err
	}
	var found []Finding
	add := func(code Code, d *iptables.Dump, list []audit.Issue, do string) {
		for _, i := range list {
			text := i.String()
			if len(dumps) > 1 && d.File != "" {
				text = d.File + ": " + text
			}
			found = append(found, Finding{Code: code, Text: text, Do: do})
		}
	}
	daemon := slices.ContainsFunc(dumps, ofDaemon)
	for i, n := range s.Nodes {
		if len(n.Services) == 0 && s.Ports > 0 && hasServicesChain(dumps[i]) || daemon && dumps[i].File != DaemonRules {
			continue // chains that are out of use, beside those of the back end in use, or nfqproxy, which decides first
		}
		add(RulesInconsistent, dumps[i], n.Problems, "compare with the rules that kube-proxy should write (nfqproxy render, nfqproxy diff), and look for errors in its log")
		add(ClaimedTwice, dumps[i], n.Contested, "give each Service its own addresses and ports")
	}
	found = append(found, gaps(dumps, s)...)
	found = append(found, bothBackEnds(dumps, s)...)
	found = append(found, withoutEndpoints(s)...)
	found = append(found, ofIPTablesMode(s)...)
	found = append(found, podsOutside(s)...)
	damaged := slices.ContainsFunc(found, func(f Finding) bool { return f.Code == RulesInconsistent })
	for _, l := range s.Losses {
		if damaged && l.Rule == nil && l.Chain == "" && l.Effect != survey.NoWay {
			continue // kube-proxy's own rules are the reason, and named
		}
		found = append(found, lossFinding(l, len(dumps) > 1, known.TraceFlags))
	}
	found = slices.Concat(found, strayFindings(s), unansweredFindings(s))
	var below []Finding
	if s.Ports > 0 {
		below = belowNetwork(dumps, known.Host)
	}
	found = append(found, below...)
	Sort(found)
	e := examined(dumps, s)
	unclear := make(map[string]bool)
	for _, l := range s.Losses {
		if l.Certainty == survey.NotKnown {
			e.Not = append(e.Not, unclearText(l, len(dumps) > 1))
			unclear[reasonText(l, true)] = true
		}
	}
	for _, f := range below {
		e.Not = append(e.Not, f.Text)
	}
	e.Unclear = len(unclear) + len(below)
	return found, e, nil
}

// gaps are what the files do not show. Of two dumps, the one without kube-proxy's rules lacks nothing.
func gaps(dumps []*iptables.Dump, s *survey.Survey) (found []Finding) {
	shown := s.Ports > 0 || slices.ContainsFunc(dumps, hasServicesChain)
	for i, n := range s.Nodes {
		if len(n.Services) == 0 && len(dumps) > 1 && shown && !hasServicesChain(dumps[i]) || dumps[i].File == DaemonRules {
			continue
		}
		for _, gap := range n.Gaps {
			f := Finding{
				Code: RulesIncomplete, Text: gap.String(),
				Do: "use the output of iptables-save as root and of the version that wrote the rules, not a listing of some chains or one table; --objects compares the rules with the Services",
			}
			if !slices.ContainsFunc(found, func(other Finding) bool { return other.Text == f.Text }) { // of the other back end
				found = append(found, f)
			}
		}
	}
	return found
}

// strayFindings are about endpoints to which the node has no route of its own, one for each default gateway.
func strayFindings(s *survey.Survey) (found []Finding) {
	for i := range s.Strays {
		first := &s.Strays[i]
		same := func(stray survey.Stray) bool { return stray.Gateway == first.Gateway }
		if slices.ContainsFunc(s.Strays[:i], same) {
			continue
		}
		var to, titles []string
		for _, stray := range s.Strays[i:] {
			if same(stray) {
				to, titles = append(to, stray.To.String()), append(titles, stray.Titles...)
			}
		}
		found = append(found, Finding{
			Code: OnlyDefaultRoute,
			Text: fmt.Sprintf("the node has no route of its own to %s (%s), as it has to %s (via %s): packets go to the default gateway, %s, and arrive only if that knows the way",
				nearest.Few(to), nearest.Few(titles), first.Other, first.OtherVia, first.Gateway),
			Do: fmt.Sprintf("check the network plugin on this node, which sets the routes to Pods, and whether the endpoints still exist; on the node: ip route get %s", first.To),
		})
	}
	return found
}

// withoutEndpoints are the services that kube-proxy rejects or drops.
func withoutEndpoints(s *survey.Survey) (found []Finding) {
	for _, d := range s.Refused {
		do := "check that the Service's selector matches Pods that are ready: " + describe(d.Title)
		if strings.HasPrefix(d.Title, "default/kubernetes:") {
			do = "the API servers write its endpoints: check that one runs, and that the address it announces (--advertise-address) is of the cluster IP's family: kubectl -n default get endpointslices"
		}
		found = append(found, Finding{
			Code: NoEndpoints, Do: do, service: d.Title,
			Text: fmt.Sprintf("%s%s has no endpoints: kube-proxy's rules reject connections to %s", linesText(d.Lines), d.Title, nearest.Few(d.To)),
		})
	}
	for _, d := range s.NoneHere {
		found = append(found, Finding{
			Code: NodesWithout, service: d.Title,
			Text: fmt.Sprintf("%s%s has traffic policy Local and no endpoint on this node: kube-proxy's rules drop connections to %s", linesText(d.Lines), d.Title, nearest.Few(d.To)),
			Do:   "send connections to nodes with an endpoint (load balancers ask the health check node port), run a Pod on each node, or set the policy to Cluster",
		})
	}
	return found
}

// Unexplained leaves out the findings about rules that refuse connections to a Service of which the objects show what is wrong.
func Unexplained(ofRules, ofObjects []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(ofRules), func(f Finding) bool {
		service, _, _ := strings.Cut(f.service, ":")
		return service != "" && slices.ContainsFunc(ofObjects, func(o Finding) bool { return o.Object == "Service "+service && o.Code.Severity() == Error })
	})
}

// The finding PodsOutside, from rules or from objects.
const (
	podsOutsideText   = "kube-proxy takes %s for the network of the Pods, and these have addresses outside: %s. Their connections to Services get the node's address as source, which network policies and servers see instead of the Pod's"
	podsOutsideRemedy = "set clusterCIDR of kube-proxy (ConfigMap kube-system/kube-proxy, or --cluster-cidr) to the network of the Pods, and restart kube-proxy; or correct the network of the network plugin"
)

// podsOutside compares the network that kube-proxy takes for that of the Pods (--cluster-cidr) with the Pods of the
// cluster's DNS, which are in it: they have addresses of their own, unlike Pods in the network of their node.
func podsOutside(s *survey.Survey) (found []Finding) {
	for _, n := range s.Nodes {
		network := n.Proxy.PodCIDR
		// The network of one node's Pods (--detect-local-mode=NodeCIDR) looks the same, but is smaller.
		const shared, shared6 = 24, 64
		if !network.IsValid() || network.Bits() >= shared && network.Addr().Is4() || network.Bits() >= shared6 || n.Proxy.MasqueradeAll {
			continue
		}
		nodes := make(map[netip.Addr]bool)
		for _, service := range n.Services {
			if service.Name.Service() == (decision.ServiceName{Namespace: "default", Name: "kubernetes"}) {
				for _, e := range service.Endpoints {
					nodes[e.AddrPort.Addr()] = true
				}
			}
		}
		for _, service := range n.Services {
			if service.Name.Namespace != "kube-system" || !strings.Contains(service.Name.Name, "dns") || len(service.Endpoints) == 0 {
				continue
			}
			if slices.ContainsFunc(service.Endpoints, func(e audit.Endpoint) bool {
				a := e.AddrPort.Addr()
				return !a.IsValid() || network.Contains(a) || nodes[a]
			}) {
				continue
			}
			found = append(found, Finding{
				Code: PodsOutside,
				Text: fmt.Sprintf(podsOutsideText, network, fmt.Sprintf("endpoint %s of %s", service.Endpoints[0].AddrPort.Addr(), service.Name.Service())),
				Do:   podsOutsideRemedy,
			})
			break
		}
	}
	return found
}

// ofIPTablesMode are the rules of filter by which kube-proxy refused packets in iptables mode, on a node in mode ipvs: it
// writes none there, and does not remove these.
func ofIPTablesMode(s *survey.Survey) (found []Finding) {
	for _, n := range s.Nodes {
		if !n.Mode.IPVS() {
			continue
		}
		refusals := n.Refusals()
		inOrder := slices.SortedFunc(maps.Keys(refusals), func(a, b audit.Destination) int { return refusals[a].Line - refusals[b].Line })
		for _, to := range inOrder {
			r := refusals[to]
			purpose, service := n.Purpose(r, nil)
			if purpose == audit.OtherSource {
				continue
			}
			at := fmt.Sprintf("node port %d", to.Port)
			if to.Addr.IsValid() {
				at = netip.AddrPortFrom(to.Addr, to.Port).String()
			}
			found = append(found, Finding{
				Code: HostRuleDrops,
				Text: fmt.Sprintf("%sa rule of kube-proxy's iptables mode (table filter: %s) refuses connections to %s at %s before IPVS translates them, no matter which endpoints IPVS has", linesText([]int{r.Line}), r, service.Title(), at),
				Do:   fmt.Sprintf("remove what is left of iptables mode: iptables -F %s, or restart the node; ipvsadm -Sn shows the endpoints", r.Chain),
			})
		}
	}
	return found
}

// describe is a command that shows a Service and its endpoints.
func describe(title string) string {
	namespace, name, ok := strings.Cut(title, "/")
	if !ok {
		return "kubectl describe service"
	}
	name, _, _ = strings.Cut(name, ":")
	return fmt.Sprintf("kubectl -n %s describe service %s", namespace, name)
}

func linesText(lines []int) string {
	if len(lines) == 0 || lines[0] == 0 {
		return ""
	}
	return audit.Issue{Lines: lines}.String()
}

// belowNetwork are about what sees packets before or below the rules that were followed, and may drop them: tables of nftables, and
// programs on the devices of the host, if that is known.
func belowNetwork(dumps []*iptables.Dump, host *netfilter.Host) (found []Finding) {
	for _, d := range dumps {
		if d.Ruleset == nil {
			continue
		}
		for _, t := range d.Ruleset.Tables {
			if f := (Finding{
				Code: HostRuleUnclear,
				Text: fmt.Sprintf("rules of table %s %s may drop packets below the network layer, where they were not followed", t.Family, t.Name),
				Do:   fmt.Sprintf("look for drop and reject in them: nft list table %s %s", t.Family, t.Name),
			}); nftables.BelowNetwork(t) && slices.ContainsFunc(t.Chains, mayDrop) && !slices.Contains(found, f) {
				found = append(found, f)
			}
		}
	}
	var programs []string
	on := make(map[string][]string)
	for _, i := range cmp.Or(host, new(netfilter.Host)).Interfaces {
		for _, program := range i.Programs {
			programs, on[program] = distinct.Append(programs, program), append(on[program], i.Name)
		}
	}
	for _, program := range programs {
		found = append(found, Finding{
			Code: HostRuleUnclear,
			Text: fmt.Sprintf("%s on %s may drop packets, or send them elsewhere, and was not followed", program, nearest.Few(on[program])),
			Do:   fmt.Sprintf("look at what it does: ip -d link show %[1]s; tc -s qdisc show dev %[1]s; tc filter show dev %[1]s ingress (or egress)", on[program][0]),
		})
	}
	return found
}

// mayDrop reports whether a chain of nftables, or a map that its rules look up, may drop packets.
func mayDrop(c *nftables.Chain) bool {
	return c.Base != nil && c.Base.Policy == "drop" || slices.ContainsFunc(c.Rules, func(r *nftables.Rule) bool {
		return slices.ContainsFunc(strings.Fields(r.String()), func(word string) bool { return word == "drop" || word == "reject" || word == "vmap" })
	})
}

// examined describes what the survey covered.
func examined(dumps []*iptables.Dump, s *survey.Survey) *Examined {
	e := &Examined{
		Family: s.Nodes[0].Family.String(), Proxy: proxyText(dumps, s), Ports: s.Ports, Destinations: s.Destinations, Connections: s.Connections, Judged: s.Judged, Partly: s.Partly,
		Sources: []string{}, Not: []string{}, Guesses: []string{},
	}
	for i, d := range dumps {
		if d.File != "" && (i == 0 || dumps[i-1].File != d.File) {
			e.Files = append(e.Files, d.File)
		}
		if text := s.Nodes[i].OtherMode(); text != "" && !s.IPVS {
			e.OtherMode = text
		}
	}
	for _, from := range s.Sources {
		e.Sources = append(e.Sources, from.String())
	}
	e.Not = append(e.Not, s.Skipped...)
	if len(dumps) == 1 && dumps[0].LegacyToo {
		e.Not = append(e.Not, "the rules of iptables-legacy, which iptables warns about: packets pass through them too; give the output of iptables-legacy-save with a second --rules")
	}
	if s.IPVS {
		e.Guesses = append(e.Guesses, "IPVS selects real servers and translates as documented: this is not checked against a kernel")
	}
	if s.Connections > 0 || len(s.Losses) > 0 {
		for _, g := range s.Guesses {
			e.Guesses = append(e.Guesses, g.Text)
		}
	}
	return e
}
