package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// lossFinding is the finding about connections that fail for one reason. The names of files are those of its rules, if
// there are several. flags are those of [survey.Known.TraceFlags].
func lossFinding(l *survey.Loss, several bool, flags string) Finding {
	effect := lossEffect(l)
	switch {
	case l.Tunnel != nil:
		return tunnelFinding(l, several)
	case l.Effect == survey.DropsNeighbours:
		return neighbourFinding(l, several)
	case l.Effect == survey.DropsHealthChecks:
		return healthFinding(l, several, flags)
	}
	f := Finding{Code: effect.code, Text: fmt.Sprintf("%s %s connections %s%s", reasonText(l, several), effect.verb(l.Certainty), scopeText(l), exampleText(l)), Do: effect.do, aboutHost: l.Bridge != "", noRule: l.Effect == survey.Untranslated && l.Rule == nil}
	if len(l.Kinds) == 1 && l.Kinds[0] == survey.NamedPod && l.Certainty == survey.Certain {
		f.Code = HostRuleMayDrop
		f.Text += "; a network policy may intend this"
	}
	if len(l.Spared) > 0 {
		f.Text += "; clients in " + prefixes(l.Spared) + " get through"
		if (len(l.Kinds) == 1 || l.Example.From == survey.Pod) && l.Certainty == survey.Certain {
			f.Code = HostRuleMayDrop
			f.Text += ", so that this may be intended"
		}
	}
	if l.Why != "" {
		f.Text += ": " + l.Why
	}
	depends, unclear := "it depends on chance or on other packets: "+doubtsText(l), "the rules do not show whether it does: "+doubtsText(l)
	if l.Condition != "" {
		depends, unclear = "only "+string(l.Condition), "only "+string(l.Condition)+", which the rules do not show"
	}
	switch l.Certainty {
	case survey.Possible:
		f.Code = HostRuleMayDrop
		f.Text += "; " + depends
	case survey.NotKnown:
		f.Code = HostRuleUnclear
		f.Text += "; " + unclear
	}
	if l.Effect != survey.NoHairpin { // the simulation does not follow packets through bridges
		f.Do += "; " + traceText(l, flags)
	}
	return f
}

// unclearText says of which connections it is not known whether they fail, and why.
func unclearText(l *survey.Loss, several bool) string {
	effect, why := lossEffect(l), ": the rules do not show whether it does ("+doubtsText(l)+")"
	if l.Condition != "" {
		why = ", only " + string(l.Condition) + ": the rules do not show that"
	}
	return fmt.Sprintf("%s %s connections %s%s", reasonText(l, several), effect.may, scopeText(l), why)
}

// effect is what a finding says of a loss.
type effect struct {
	code Code
	does string // "drops"
	may  string // "may drop"
	do   string
}

func (e *effect) verb(c survey.Certainty) string {
	if c == survey.Certain {
		return e.does
	}
	return e.may
}

// drops is what a rule or policy does to packets.
func drops(l *survey.Loss) string {
	if l.Rejected {
		return "rejects"
	}
	return "drops"
}

func lossEffect(l *survey.Loss) effect {
	const change = "change the rule, or accept these connections before it"
	e := effect{HostRuleDrops, drops(l), "may " + strings.TrimSuffix(drops(l), "s"), change}
	switch {
	case l.ByMark:
		e.does, e.may = "sets the mark for which KUBE-FIREWALL drops", "may set the mark for which KUBE-FIREWALL drops"
		e.do = "choose another mark for the rule: its bit 0x8000 is the kubelet's"
	case l.Rule == nil && l.Chain != "" && ofNFTables(l):
		e.do = fmt.Sprintf("accept these connections in a rule of chain %s, or set its policy to accept: in nftables, rules of other tables cannot", l.Chain)
	case l.Rule == nil && l.Chain != "":
		e.do = fmt.Sprintf("accept these connections in a rule of chain %s, or set its policy to ACCEPT", l.Chain)
		if l.Table == "filter" && l.Chain == "FORWARD" {
			e.do += "; the service proxy accepts at most packets with its mark"
		}
	}
	switch l.Effect {
	case survey.DropsReplies:
		e.does, e.may = e.does+" the replies of", e.may+" the replies of"
	case survey.KeepsReplies:
		e = effect{
			NotTranslated, "keeps connection tracking from recognizing the replies of", "may keep connection tracking from recognizing the replies of",
			"exclude pods and services from the rule: clients get the replies from the endpoint's address instead of the service's, and ignore them; invalid replies are dropped",
		}
		if l.Bridge != "" {
			sysctl := explain.BridgeSysctl(l.Example.To.Addr())
			e.does, e.may = "keeps connection tracking from seeing the replies of", "may keep connection tracking from seeing the replies of"
			e.do = fmt.Sprintf("load the kernel module br_netfilter and set the sysctl %s to 1, also for the next start (/etc/modules-load.d, /etc/sysctl.d): clients get the replies from the endpoint's address instead of the service's, and reset the connections", sysctl)
		}
	case survey.Queues:
		e = effect{
			HostRuleQueues, "has a program at a netfilter queue decide about", "may have a program at a netfilter queue decide about",
			"check that the program runs (/proc/net/netfilter/nfnetlink_queue lists the queues), or add --queue-bypass: without a program the kernel drops the packets",
		}
	case survey.NoWay:
		e.code, e.do = BrokenRoute, wayTo(l)
		if strings.HasPrefix(l.Why, "rp_filter") {
			e.code = ReverseFilter
		}
	case survey.NoHairpin:
		e = effect{
			NoHairpin, "does not send back", "may not send back",
			"switch on hairpin mode of the bridge's ports: hairpinMode in the network plugin's configuration (/etc/cni/net.d) for new Pods, bridge link set dev PORT hairpin on for those that run",
		}
	case survey.Untranslated:
		e = effect{NotTranslated, "keeps kube-proxy from translating", "may keep kube-proxy from translating", "exclude service addresses from the rule"}
		switch {
		case l.Rule == nil:
			e.does, e.may, e.do = "does not translate", "may not translate", "compare with the rules that kube-proxy should write (nfqproxy render)"
		case l.Table == "nat" && !strings.HasPrefix(l.Rule.Chain, "KUBE-"):
			e.do += ", or move it after the jump to KUBE-SERVICES"
		}
	case survey.Diverted:
		e = effect{NotTranslated, "sends elsewhere", "may send elsewhere", "exclude service addresses from the rule"}
		if l.Rule != nil && strings.HasPrefix(l.Rule.Chain, "CNI-DN-") {
			e.do = "give the Pod another hostPort, or the Service another port: the network plugin forwards the hostPort of a Pod by this rule"
		}
	case survey.ForeignSource:
		e.may = "may lose, by the source address that it sets, the replies of"
		e.do = "set an address of this node, or use MASQUERADE"
	case survey.Unmasqueraded:
		const past = ": the endpoint replies to the client directly, not to this node, which would translate the reply"
		e = effect{
			NotMasqueraded, "does not masquerade", "may not masquerade",
			"check kube-proxy's rules that mark packets and masquerade them, and in IPVS mode its ipset KUBE-LOOP-BACK" + past,
		}
		if l.Rule != nil {
			e.does, e.may = "keeps kube-proxy from masquerading", "may keep kube-proxy from masquerading"
			e.do = "have the rule leave kube-proxy's mark as it is"
			if l.Table == "nat" {
				e.do = "exclude packets with kube-proxy's mark from the rule, or move it after the jump to KUBE-POSTROUTING"
			}
			e.do += past
		}
	}
	return e
}

// healthFinding is the finding about health checks that are dropped. Not every load balancer makes them.
func healthFinding(l *survey.Loss, several bool, flags string) Finding {
	return Finding{
		Code: HostRuleMayDrop,
		Text: fmt.Sprintf("%s %s the health checks of %s, such as %s -> %s: a load balancer that checks this node sends it no connections", reasonText(l, several), lossEffect(l).does, nearest.Few(l.Titles), l.Example.Source, l.Example.To),
		Do:   fmt.Sprintf("accept TCP port %s (healthCheckNodePort) from the load balancer before it, in chain %s; %s", nearest.Few(l.To), l.Chain, traceText(l, flags)),
	}
}

// neighbourFinding is the finding about packets of neighbour discovery that are dropped.
func neighbourFinding(l *survey.Loss, several bool) Finding {
	var whose []string
	for i, k := range l.Kinds {
		of := map[survey.Kind]string{survey.Pod: "the node's pods", survey.Node: "other nodes and routers", survey.NamedPod: "a pod"}[k]
		whose = append(whose, of+" ("+l.Neighbours[i]+")")
	}
	f := Finding{
		Code: HostRuleDrops,
		Text: fmt.Sprintf("%s %s neighbor discovery from %s: IPv6 needs it in place of ARP, and connections fail once the link-layer addresses have expired", reasonText(l, several), drops(l), quantity.All(whose)),
		Do:   "accept ICMPv6 from any address, at least its types 133 to 136, before it: connection tracking ignores them, and they are never ESTABLISHED",
	}
	switch {
	case l.Outgoing:
		f.Text = strings.Replace(f.Text, "neighbor discovery from", "the node's own neighbor discovery, to", 1)
	case l.Certainty != survey.Certain:
		f.Code = HostRuleMayDrop
		f.Text += "; only where next hops have other than link-local addresses (fe80::/10), which are the sources of what they send"
	}
	return f
}

// tunnelFinding is the finding about a tunnel whose packets are dropped.
func tunnelFinding(l *survey.Loss, several bool) Finding {
	from := "from"
	if l.Outgoing {
		from = "to"
	}
	code, effect := HostRuleDrops, "pods of this node and of other nodes do not reach each other"
	if l.Certainty != survey.Certain {
		code, effect = HostRuleMayDrop, "pods of another node reach those of this node only while connection tracking knows packets that this node has sent there"
		if l.Outgoing {
			effect = "pods of this node reach those of another node only while connection tracking knows packets that have come from there"
		}
	}
	return Finding{
		Code: code,
		Text: fmt.Sprintf("%s %s the packets of the tunnel %s (%s), such as %s -> %s: %s",
			reasonText(l, several), drops(l), l.Tunnel.Device, l.Tunnel, l.Example.Source, l.Example.To.Addr(), effect),
		Do: fmt.Sprintf("accept %s %s the addresses of the other nodes before it, in chain %s", l.Tunnel, from, cmp.Or(l.Chain, "INPUT")),
	}
}

// wayTo is what to do about a node that has no way for packets.
func wayTo(l *survey.Loss) string {
	to := l.Example.To.Addr()
	if e := l.Example.Endpoint; e.IsValid() {
		to = e.Addr()
	}
	switch {
	case strings.Contains(l.Why, "route_localnet"):
		return "connect to an address of the node, or restart kube-proxy, which sets the sysctl net.ipv4.conf.all.route_localnet to 1"
	case strings.HasPrefix(l.Why, "rp_filter"):
		return "set the sysctl net.ipv4.conf.all.rp_filter to 2 (the higher value of all and the device counts), or give the node a route back through the same device"
	case strings.Contains(l.Why, ".forwarding is 0"):
		_, sysctl, _ := strings.Cut(l.Why, "(")
		sysctl, _, _ = strings.Cut(sysctl, " ")
		return fmt.Sprintf("set the sysctl %s to 1, and find out what sets it to 0 (IPv4Forwarding or IPForward in files of systemd-networkd, or files in /etc/sysctl.d)", sysctl)
	case strings.Contains(l.Why, "does not forward") && to.Is4():
		return "set the sysctl net.ipv4.ip_forward to 1, and find out what sets it to 0 (files in /etc/sysctl.d)"
	case strings.Contains(l.Why, "does not forward"):
		return "set the sysctl net.ipv6.conf.all.forwarding to 1, and find out what sets it to 0 (files in /etc/sysctl.d)"
	}
	if rest, is := strings.CutPrefix(l.Why, "the routing rule of priority "); is {
		priority, _, _ := strings.Cut(rest, " ")
		return fmt.Sprintf("look at ip rule on the node; if nothing needs the rule: ip rule del priority %s", priority)
	}
	if !l.Example.Endpoint.IsValid() && strings.HasSuffix(l.Why, "no route to "+to.String()) {
		return "give the node a default route, and look whether its network device is up (ip addr, ip route): the node's own packets need a route to the address of the Service before kube-proxy's rules translate them"
	}
	return fmt.Sprintf("check the network plugin, which sets the routes to Pods, and whether the endpoint still exists; on the node: ip route get %s", to)
}

// ofNFTables reports whether the table is one of nftables, whose names have their family.
func ofNFTables(l *survey.Loss) bool { return strings.Contains(l.Table, " ") }

// reasonText is the rule or policy, with its place.
func reasonText(l *survey.Loss, several bool) string {
	switch {
	case l.Rule != nil:
		what := "that is not kube-proxy's"
		if c := l.Rule.Chain; c == kubechains.Firewall || c == kubechains.Forward {
			what = "that kube-proxy does not write so"
		}
		return fmt.Sprintf("%sa rule %s (table %s: %s)", placeText(l.Rule.File, l.Rule.Line, several), what, l.Table, l.Rule)
	case l.Chain != "":
		policy := "DROP"
		if ofNFTables(l) {
			policy = "drop"
		}
		return fmt.Sprintf("%sthe policy %s of chain %s (table %s)", placeText(l.File, l.Line, several), policy, l.Chain, l.Table)
	case l.Effect == survey.NoWay:
		return "routing on the node"
	case l.Effect == survey.NoHairpin:
		return fmt.Sprintf("the bridge %s, whose ports have hairpin mode off,", l.Bridge)
	case l.Bridge != "":
		return fmt.Sprintf("the bridge %s, while the sysctl %s is not 1,", l.Bridge, explain.BridgeSysctl(l.Example.To.Addr()))
	}
	return "kube-proxy"
}

// placeText is "node.rules, line 7: ": the line, if it is known, and one of several files.
func placeText(file string, line int, several bool) (at string) {
	if line > 0 {
		at = fmt.Sprintf("line %d: ", line)
	}
	if several && file != "" {
		at = file + ", " + at
	}
	return at
}

// sourceNames are the kinds of sources in the plural.
var sourceNames = map[survey.Kind]string{
	survey.NamedPod: "pods that rules name", survey.Itself: "endpoints to themselves", survey.Pod: "pods of this node", survey.OtherPod: "pods of other nodes", survey.Node: "the node itself", survey.Outside: "outside",
}

// scopeText is which connections: from where, and to which services.
func scopeText(l *survey.Loss) string {
	var from []string
	for _, k := range l.Kinds {
		from = append(from, "from "+sourceNames[k])
	}
	text := fmt.Sprintf("%s to %s", quantity.All(from), nearest.Few(l.Titles))
	if l.Part && len(l.Endpoints) > 0 {
		text += fmt.Sprintf(", at %s %s", verb(len(l.Endpoints), "endpoint", "endpoints"), nearest.Few(texts(l.Endpoints)))
	}
	return text
}

// exampleText is one of the connections.
func exampleText(l *survey.Loss) string {
	x := &l.Example
	text := fmt.Sprintf(", such as %s -> %s", cmp.Or(x.Source, "the node itself"), x.To)
	if len(l.To) > 0 && l.To[0] != x.To.String() {
		text += " (" + l.To[0] + ")"
	}
	if x.Endpoint != (netip.AddrPort{}) {
		text += ", translated to " + x.Endpoint.String()
	}
	return text
}

// doubtsText are the rules on the way that may match or not.
func doubtsText(l *survey.Loss) string {
	var texts []string
	for _, d := range l.Doubts {
		what := d.Rule.String()
		switch {
		case d.Match != nil:
			what = iptables.Describe(d.Match)
		case d.Rule.Target != nil:
			what = "target " + iptables.NameOf(d.Rule.Target)
		}
		texts = append(texts, placeText("", d.Rule.Line, false)+what)
	}
	return nearest.Few(texts)
}

// traceText is the command that follows the example.
func traceText(l *survey.Loss, flags string) string {
	x := &l.Example
	if flags != "" {
		flags += " "
	}
	source := "--local"
	if x.Source != "" {
		source = "--source " + x.Source
	}
	route := ""
	if x.Route != "" {
		route = " --route " + x.Route
	}
	if l.Replies {
		route += " --reply"
	}
	return fmt.Sprintf("nfqproxy trace %s--protocol %s %s --destination %s%s shows the whole way", flags, strings.ToLower(x.Protocol), source, x.To, route)
}
