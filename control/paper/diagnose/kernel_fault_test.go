//go:build linux

package diagnose_test

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// fault is a kind of fault that cuts off services.
type fault struct {
	name string
	// services changes the services before there are rules; nil: it does not.
	services func(c *cluster)
	// firewall adds the host's own rules in the place of a healthy firewall; nil: one of those.
	firewall func(c *cluster, r *ruleset) injury
	// rules damages the rules in the end; nil: it does not.
	rules func(c *cluster, r *ruleset) injury
}

// injury is what a fault did to a node.
type injury struct {
	// added are the table, chain and rule of what was added; empty: it was no rule.
	table, chain, rule string
	// words name the place, each of them with all of its parts: a finding that names one is about the fault.
	words [][]string
	// other are the rules of the other back end.
	other *ruleset
	text  string // what was done, where there is no rule
}

// add puts a rule into a chain, or into a chain of its own that is jumped to from there.
func (c *cluster) add(r *ruleset, table, chain, rule string) injury {
	at := 0
	if c.coin(10) {
		at = len(r.rules[table+" "+chain])
	}
	if own := "LOCAL-RULES"; c.coin(3) {
		r.insert(table, chain, at, "-j "+own)
		r.append(table, own, "-p icmp -j RETURN", rule)
		return injury{table: table, chain: own, rule: rule}
	}
	r.insert(table, chain, at, rule)
	return injury{table: table, chain: chain, rule: rule}
}

// stop is a target by which packets go no further.
func (c *cluster) stop(table string) string {
	if table != "filter" {
		return "-j DROP"
	}
	return pick(c.Rand, "-j DROP", "-j DROP", "-j REJECT --reject-with icmp-port-unreachable", "-j REJECT --reject-with icmp-host-prohibited", "-j REJECT --reject-with icmp-admin-prohibited")
}

var faults = []fault{
	{name: "policy of FORWARD", firewall: forwardPolicy},
	{name: "DROP in FORWARD", rules: forwardDrop},
	{name: "network policy denies", firewall: networkPolicy},
	{name: "host firewall rejects node ports", services: withNodePort, rules: nodePortReject},
	{name: "raw", services: withNodePort, rules: rawDrop},
	{name: "mangle", rules: mangleDrop},
	{name: "no jump in nat", rules: noJump},
	{name: "no masquerade", services: withNodePort, rules: noMasquerade},
	{name: "lost mark", services: withNodePort, rules: lostMark},
	{name: "damaged endpoint", rules: damagedEndpoint},
	{name: "refused", services: refused, rules: func(*cluster, *ruleset) injury { return injury{text: "a service has no endpoints"} }},
	{name: "NFQUEUE", rules: queued},
	{name: "OUTPUT", rules: outputDrop},
	{name: "both back ends", rules: staleBackend},
}

// withNodePort has one service with a node port at least.
func withNodePort(c *cluster) {
	for _, s := range c.services {
		if s.NodePort != 0 {
			return
		}
	}
	s := c.services[0]
	s.NodePort = 31999
	s.Usable, s.Endpoints = [2][]uint32{}, nil
	c.endpoints(s)
	c.update()
}

func refused(c *cluster) {
	s := pick(c.Rand, c.services...)
	s.Endpoints, s.Usable, s.HasEndpoints = nil, [2][]uint32{}, false
	c.update()
}

func forwardPolicy(c *cluster, r *ruleset) injury {
	if c.coin(2) {
		addDocker(r)
	}
	r.policies["filter FORWARD"] = "DROP"
	text := "the policy of FORWARD"
	if c.coin(4) {
		r.append("filter", "FORWARD", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", fmt.Sprintf("-s %s -p udp -j ACCEPT", c.cluster))
		text += ", except for UDP"
	}
	return injury{words: [][]string{{"policy", "FORWARD"}}, text: text}
}

func forwardDrop(c *cluster, r *ruleset) injury {
	pods := c.podDevices()
	match := pick(c.Rand,
		fmt.Sprintf("-d %s", c.cluster), fmt.Sprintf("-s %s", c.cluster), fmt.Sprintf("-d %s", c.here), "-i "+pods, "-o "+pods, "-i "+pods+" -o "+pods,
		"-p tcp", "-p udp", fmt.Sprintf("-d %s -p tcp -m tcp --dport 8080", c.here), fmt.Sprintf("-d %s/32", c.plan.pods[0]), fmt.Sprintf("-d %s/32", c.remotePods[0]),
		"-m conntrack --ctstate NEW", "-m conntrack --ctstate DNAT", fmt.Sprintf("! -s %s -d %s", c.cluster, c.cluster), "! -o "+c.external,
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN", fmt.Sprintf("-d %s -m statistic --mode random --probability 0.50000000000", c.cluster),
	)
	return c.add(r, "filter", "FORWARD", match+" "+c.stop("filter"))
}

func networkPolicy(c *cluster, r *ruleset) injury {
	if c.bridge == "" {
		addCalico(c, r, false)
		return injury{words: [][]string{{"cali-fw-"}, {"cali-tw-"}}, text: "Calico has no profiles"}
	}
	what := pick(c.Rand, denyIngress, denyEgress, denyOfNoRule)
	addKubeRouter(c, r, what)
	return injury{words: [][]string{{"KUBE-POD-FW-"}}, text: fmt.Sprintf("kube-router's policies allow nothing (%d)", what)}
}

func nodePortReject(c *cluster, r *ruleset) injury {
	chain := pick(c.Rand, "FORWARD", "FORWARD", "INPUT")
	matches := []string{
		"-m conntrack --ctorigdstport 30000:32767", "-p tcp -m conntrack --ctorigdstport 30000:32767", "-i " + c.external + " -m conntrack --ctstate DNAT",
		"-i " + c.external + " -m conntrack --ctstate NEW", "! -s " + c.cluster.String() + " -m conntrack --ctstate NEW",
	}
	if chain == "FORWARD" {
		matches = append(matches, "-i "+c.external+" -o "+c.podDevices(), "-d "+c.cluster.String()+" -i "+c.external, "-i "+c.external)
	} else {
		matches = append(matches, "-i "+c.external+" -p tcp -m multiport --dports 53,8080,8443", "-p tcp -m tcp --dport 30000:32767", "-p udp -m udp --dport 8080")
	}
	return c.add(r, "filter", chain, pick(c.Rand, matches...)+" "+c.stop("filter"))
}

func rawDrop(c *cluster, r *ruleset) injury {
	pods, services := c.podDevices(), c.plan.services.String()
	if c.coin(5) {
		return c.add(r, "raw", "OUTPUT", pick(c.Rand, "-d "+services+" -j DROP", "-p tcp -m tcp --dport 30000:32767 -j DROP", "-d "+services+" -j CT --notrack"))
	}
	match := pick(c.Rand, "-p tcp -m tcp --dport 30000:32767", "-i "+c.external+" -p tcp -m tcp --dport 1024:65535", "-p udp -m udp --dport 30000:32767", "-i "+c.external,
		"-d "+services, "-d "+services+" -i "+pods, "-i "+pods, "-s "+c.cluster.String(), "-d 198.51.100.0/24", "-d "+c.plan.node.String()+"/32", "-p udp", "-m addrtype --dst-type LOCAL -p tcp -m multiport --dports 30000:32767")
	// As iptables-save orders them.
	match = strings.Replace(match, "-m addrtype --dst-type LOCAL -p tcp", "-p tcp -m addrtype --dst-type LOCAL", 1)
	return c.add(r, "raw", "PREROUTING", match+" "+pick(c.Rand, "-j DROP", "-j DROP", "-j CT --notrack"))
}

func mangleDrop(c *cluster, r *ruleset) injury {
	pods, services := c.podDevices(), c.plan.services.String()
	s := pick(c.Rand, c.services...)
	p := strings.ToLower(s.Protocol.String())
	place := pick(c.Rand,
		[2]string{"PREROUTING", "-d " + services}, [2]string{"PREROUTING", "-i " + c.external}, [2]string{"PREROUTING", "-i " + pods + " -p " + p},
		[2]string{"PREROUTING", fmt.Sprintf("-p %s -m %s --dport %d", p, p, s.Port)}, [2]string{"PREROUTING", "-d 198.51.100.0/24"},
		[2]string{"FORWARD", "-d " + c.here.String()}, [2]string{"FORWARD", "-i " + pods}, [2]string{"FORWARD", "-p " + p}, [2]string{"FORWARD", "-m conntrack --ctstate NEW"},
		[2]string{"POSTROUTING", "-o " + pods}, [2]string{"POSTROUTING", "-d " + c.cluster.String()}, [2]string{"POSTROUTING", "-m mark --mark 0x4000/0x4000"},
		[2]string{"INPUT", "-p tcp -m multiport --dports 53,8080,8443"}, [2]string{"INPUT", "-i " + c.external + " -p " + p},
		[2]string{"OUTPUT", "-d " + services}, [2]string{"OUTPUT", fmt.Sprintf("-p %s -m %s --dport %d", p, p, s.Port)},
	)
	return c.add(r, "mangle", place[0], place[1]+" -j DROP")
}

func noJump(c *cluster, r *ruleset) injury {
	chain := pick(c.Rand, "PREROUTING", "PREROUTING", "OUTPUT")
	if c.coin(3) {
		rule := pick(c.Rand, "-d "+c.plan.services.String()+" -j ACCEPT", "-j ACCEPT", "-d 198.51.100.0/24 -j RETURN", "-p tcp -m tcp --dport 30000:32767 -j ACCEPT", "-s "+c.cluster.String()+" -j ACCEPT")
		r.insert("nat", chain, 0, rule)
		return injury{table: "nat", chain: chain, rule: rule}
	}
	r.replace("nat", chain, []string{"KUBE-SERVICES"})
	return injury{words: [][]string{{chain, "KUBE-SERVICES"}}, text: "nat " + chain + " does not jump to KUBE-SERVICES"}
}

func noMasquerade(c *cluster, r *ruleset) injury {
	words := [][]string{{"KUBE-POSTROUTING"}, {"masquerade"}, {"MASQUERADE"}}
	switch c.IntN(3) {
	case 0:
		r.replace("nat", "POSTROUTING", []string{"KUBE-POSTROUTING"})
		return injury{words: words, text: "nat POSTROUTING does not jump to KUBE-POSTROUTING"}
	case 1:
		rule := pick(c.Rand, "-j ACCEPT", "-d "+c.cluster.String()+" -j ACCEPT", "-o "+c.external+" -j ACCEPT")
		r.insert("nat", "POSTROUTING", 0, rule)
		return injury{table: "nat", chain: "POSTROUTING", rule: rule, words: words}
	}
	r.replace("nat", "KUBE-POSTROUTING", []string{"MASQUERADE"})
	return injury{words: words, text: "KUBE-POSTROUTING has no MASQUERADE"}
}

func lostMark(c *cluster, r *ruleset) injury {
	words := [][]string{{"KUBE-MARK-MASQ"}, {"KUBE-POSTROUTING"}}
	switch c.IntN(5) {
	case 0:
		r.replace("nat", "KUBE-MARK-MASQ", []string{"0x4000"})
		return injury{words: words, text: "KUBE-MARK-MASQ is empty"}
	case 1:
		r.replace("nat", "KUBE-MARK-MASQ", []string{"0x4000"}, "-j MARK --set-xmark 0x8000/0x8000")
		return injury{words: words, text: "KUBE-MARK-MASQ sets 0x8000"}
	case 2:
		r.replace("nat", "KUBE-POSTROUTING", []string{"! --mark"}, "-j RETURN")
		r.replace("filter", "KUBE-FORWARD", []string{"-m mark"}, `-m comment --comment "kubernetes forwarding rules" -j ACCEPT`)
		return injury{words: words, text: "the marks of KUBE-POSTROUTING and KUBE-FORWARD are lost"}
	case 3:
		rule := pick(c.Rand, "-j MARK --set-xmark 0x0/0xffffffff", "-o "+c.external+" -j MARK --set-xmark 0x0/0xffff", "-j MARK --set-xmark 0x1/0xffffffff")
		return c.add(r, "mangle", "POSTROUTING", rule)
	}
	return c.add(r, "mangle", "FORWARD", "-j MARK --set-xmark 0x0/0xffffffff")
}

func damagedEndpoint(c *cluster, r *ruleset) injury {
	s := pick(c.Rand, c.services...)
	e := pick(c.Rand, s.Endpoints...).AddrPort
	chain := s.EndpointChain(e)
	words := [][]string{{chain}, {e.String()}, {s.ServiceChain()}, {s.PolicyChain(decision.Local)}}
	dnat := "--to-destination " + e.String()
	switch c.IntN(4) {
	case 0:
		gone := pick(c.Rand, e.Addr().Next().Next(), c.plan.pods[0].Prev())
		c.redirect(r, chain, dnat, netip.AddrPortFrom(gone, e.Port()))
		return injury{words: words, text: chain + " translates to an address without a pod"}
	case 1:
		c.redirect(r, chain, dnat, netip.AddrPortFrom(e.Addr(), 9999))
		return injury{words: words, text: chain + " translates to another port"}
	case 2:
		r.replace("nat", chain, []string{dnat})
		return injury{words: words, text: chain + " has no DNAT"}
	}
	for _, of := range []string{s.ServiceChain(), s.PolicyChain(decision.Local)} {
		r.replace("nat", of, []string{"-j " + chain})
	}
	return injury{words: words, text: "nothing jumps to " + chain}
}

// redirect has an endpoint's chain translate to something else.
func (c *cluster) redirect(r *ruleset, chain, dnat string, to netip.AddrPort) {
	key := "nat " + chain
	for i, rule := range r.rules[key] {
		r.rules[key][i] = strings.Replace(rule, dnat, "--to-destination "+to.String(), 1)
	}
}

func queued(c *cluster, r *ruleset) injury {
	place := pick(c.Rand, [2]string{"filter", "FORWARD"}, [2]string{"filter", "FORWARD"}, [2]string{"mangle", "FORWARD"}, [2]string{"mangle", "PREROUTING"}, [2]string{"filter", "INPUT"}, [2]string{"filter", "OUTPUT"}, [2]string{"raw", "PREROUTING"})
	match := pick(c.Rand, "", "-p tcp ", "-d "+c.cluster.String()+" ")
	return c.add(r, place[0], place[1], match+"-j NFQUEUE "+pick(c.Rand, "--queue-num 0", "--queue-num 3", "--queue-balance 0:3", "--queue-num 0 --queue-bypass"))
}

func outputDrop(c *cluster, r *ruleset) injury {
	if c.coin(3) {
		r.policies["filter OUTPUT"] = "DROP"
		r.append("filter", "OUTPUT", "-o lo -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-p udp -j ACCEPT", "-p tcp -m tcp --dport 443 -j ACCEPT")
		return injury{words: [][]string{{"policy", "OUTPUT"}}, text: "the policy of OUTPUT"}
	}
	s := pick(c.Rand, c.services...)
	p := strings.ToLower(s.Protocol.String())
	match := pick(c.Rand, "-d "+c.cluster.String(), "-d "+c.plan.services.String(), "-o "+c.podDevices(), "-o "+c.external, "-p "+p,
		fmt.Sprintf("-p %s -m %s --dport %d", p, p, s.Endpoints[0].AddrPort.Port()), "-m conntrack --ctstate NEW", "! -o lo")
	return c.add(r, "filter", "OUTPUT", match+" "+c.stop("filter"))
}

// staleBackend leaves rules of an earlier kube-proxy in the other back end: the endpoints of some services were others then.
func staleBackend(c *cluster, r *ruleset) injury {
	old := *c
	old.services = nil
	for _, s := range c.services {
		before := *s
		switch c.IntN(4) {
		case 0: // as today
		case 1:
			before.Endpoints, before.Usable, before.HasEndpoints = nil, [2][]uint32{}, false
		default:
			before.Endpoints = nil
			for _, e := range s.Endpoints {
				e.AddrPort = netip.AddrPortFrom(e.AddrPort.Addr().Next(), e.AddrPort.Port())
				before.Endpoints = append(before.Endpoints, e)
			}
		}
		old.services = append(old.services, &before)
	}
	old.update()
	return injury{other: kubeProxy(old.table), words: [][]string{{"twice"}, {"both back ends"}}, text: "rules of another kube-proxy in the other back end"}
}
