package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// proxyText is the service proxy with its version and, as far as the files show it, its back end.
func proxyText(dumps []*iptables.Dump, s *survey.Survey) string {
	var texts []string
	if slices.ContainsFunc(dumps, ofDaemon) {
		texts = append(texts, "nfqproxy, by the decisions that the objects ask for")
	}
	for i, n := range s.Nodes {
		if n.Mode == proxymode.ModeUnknown || dumps[i].File == DaemonRules {
			continue
		}
		text := n.Mode.String()
		if n.Proxy.Version != "" {
			text += ", " + n.Proxy.Version
		}
		if at := dumpName(dumps, i); at != "" {
			text += ", " + at
		}
		texts = append(texts, text)
	}
	switch {
	case len(texts) > 0:
		return strings.Join(texts, "; ")
	case slices.ContainsFunc(dumps, hasServicesChain):
		return "kube-proxy; there are no services that would show its mode"
	case slices.ContainsFunc(dumps, func(d *iptables.Dump) bool { t := d.Table("filter"); return t != nil && t.Has(kubechains.Forward) }):
		return "kube-proxy; table filter does not show its mode"
	}
	return "the rules do not show one"
}

// hasServicesChain reports whether iptables-save shows kube-proxy's first chain, which it has without services, too.
func hasServicesChain(d *iptables.Dump) bool {
	t := d.Table("nat")
	return t != nil && t.Has(kubechains.Services)
}

// dumpName is "in iptables-nft (node.rules)": the back end, and the file if there are several; empty: neither is known.
func dumpName(dumps []*iptables.Dump, i int) string {
	d := dumps[i]
	var text string
	if d.Backend != iptables.BackendUnknown {
		text = "in " + d.Backend.String()
	}
	switch {
	case len(dumps) == 1 || d.File == "":
	case text == "":
		text = "in " + d.File
	default:
		text += " (" + d.File + ")"
	}
	return text
}

// proxies are the first two nodes, and dumps, with rules of kube-proxy. What nfqproxy decides does not get to others' rules.
func proxies(dumps []*iptables.Dump, s *survey.Survey) (a, b int, ok bool) {
	var with []int
	for i, n := range s.Nodes {
		if (n.Mode == proxymode.ModeIPTables || n.Mode == proxymode.ModeNFTables) && dumps[i].File != DaemonRules {
			with = append(with, i)
		}
	}
	if len(with) < 2 {
		return 0, 0, false
	}
	return with[0], with[1], true
}

// seeTwice is about the rules of two kube-proxies on a node: the finding, if connections go to endpoints by them that the objects do not have.
// Which of them packets meet first is not known: of two chains of one priority, the one that was made last (nf_hook_entries_grow in
// net/netfilter/core.c).
func (a *Answer) seeTwice(n *Saved, protocol decision.Protocol, from netip.Addr, s *survey.Survey) ([]Finding, error) {
	_, b, ok := proxies(n.Dumps, s)
	if !ok || a.Record == nil || a.Record.Service == "" {
		return nil, nil
	}
	reversed := *n
	reversed.Dumps = slices.Clone(n.Dumps)
	slices.Reverse(reversed.Dumps)
	_, _, other, err := reversed.follow(protocol, from, a.address())
	if err != nil {
		return nil, err
	}
	now, otherwise := a.strangers(s), a.strangers(other)
	if len(now) == 0 && len(otherwise) == 0 {
		return nil, nil
	}
	if !slices.Equal(now, otherwise) {
		a.Unless = cmp.Or(a.Unless, fmt.Sprintf("packets meet the rules %s first, which the rules do not show", twice(n.Dumps, b, "other")))
	}
	f := bothBackEnds(n.Dumps, s)[0]
	f.Text, _, _ = strings.Cut(f.Text, endpointsDiffer)
	f.Text += fmt.Sprintf("; one sends connections to %s, which the objects do not have", nearest.Few(slices.Compact(append(now, otherwise...))))
	if len(now) == 0 {
		a.Notes = append(a.Notes, f)
		return nil, nil
	}
	return []Finding{f}, nil
}

// strangers are the endpoints that a connection reaches by the rules and that the objects do not have, sorted.
func (a *Answer) strangers(s *survey.Survey) (list []string) {
	for _, to := range s.Reached {
		text := to.String()
		known := slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return e.Address == text }) ||
			slices.ContainsFunc(a.Record.Excluded, func(e flow.Excluded) bool { return e.Endpoint == text })
		if !known && to != a.address() {
			list = append(list, text)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// bothBackEnds finds kube-proxy's rules in both back ends of iptables, or in iptables and nftables: the kernel evaluates all.
func bothBackEnds(dumps []*iptables.Dump, s *survey.Survey) []Finding {
	a, b, ok := proxies(dumps, s)
	if !ok {
		return nil
	}
	text := fmt.Sprintf("this host has kube-proxy's rules twice, %s and %s: packets pass through both, and the first rule that translates wins", twice(dumps, a, "one"), twice(dumps, b, "other"))
	if differ := differences(s.Nodes[a], s.Nodes[b]); len(differ) > 0 {
		text += endpointsDiffer + nearest.Few(differ)
	}
	do := "which iptables kube-proxy uses now (its log, or iptables --version in its container), and remove the KUBE-* chains of the other back end, or restart the node"
	if s.Nodes[a].Mode != s.Nodes[b].Mode {
		do = "which mode kube-proxy uses now (its log, or --proxy-mode); kube-proxy --cleanup removes the rules of all modes, and a restart writes those of the current one"
	}
	return []Finding{{Code: TwoBackEnds, Text: text, Do: "if the rules are of two hosts, give those of one; else find out " + do}}
}

const endpointsDiffer = "; the endpoints differ: "

// twice names one of two dumps.
func twice(dumps []*iptables.Dump, i int, otherwise string) string {
	if at := dumpName(dumps, i); at != "" {
		return at
	}
	return "in the " + otherwise + " dump"
}

// differences are the services whose endpoints differ, each with those that only one has.
func differences(a, b *audit.Node) (texts []string) {
	type key struct{ title, protocol string }
	endpoints := func(n *audit.Node) map[key]map[netip.AddrPort]bool {
		all := make(map[key]map[netip.AddrPort]bool)
		for _, s := range n.Services {
			of := make(map[netip.AddrPort]bool)
			for _, e := range s.Endpoints {
				of[e.AddrPort] = true
			}
			all[key{s.Title(), s.Protocol.String()}] = of
		}
		return all
	}
	first, second := endpoints(a), endpoints(b)
	for _, s := range slices.Concat(a.Services, b.Services) {
		k := key{s.Title(), s.Protocol.String()}
		only := slices.Concat(without(first[k], second[k]), without(second[k], first[k]))
		if len(only) > 0 {
			texts = append(texts, fmt.Sprintf("%s (%s in only one)", k.title, nearest.Few(only)))
		}
		delete(first, k)
		delete(second, k)
	}
	return texts
}

// without are the elements of a set that another lacks, in order.
func without(set, other map[netip.AddrPort]bool) (texts []string) {
	for a := range set {
		if !other[a] {
			texts = append(texts, a.String())
		}
	}
	slices.Sort(texts)
	return texts
}
