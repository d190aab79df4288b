//go:build linux

package diagnose_test

import (
	"fmt"
	"slices"
)

// firewall adds the rules of a network plugin or of a firewall of the host, that let all flows to services through. Where
// they stand before kube-proxy's or after them with the same effect, either may be.
type firewall struct {
	name string
	// on reports whether a node of the plan may have it; nil: every one.
	on  func(*plan) bool
	add func(c *cluster, r *ruleset)
}

func onlyCalico(p *plan) bool { return p.bridge == "" }
func hasBridge(p *plan) bool  { return p.bridge != "" }

var firewalls = []firewall{
	{"nothing", nil, func(*cluster, *ruleset) {}},
	{"flannel", hasBridge, addFlannel},
	{"docker, accepts for pods", hasBridge, func(c *cluster, r *ruleset) { addDocker(r); acceptPods(c, r) }},
	{"docker and flannel", hasBridge, func(c *cluster, r *ruleset) { addDocker(r); addFlannel(c, r) }},
	{"ufw", nil, addUFW},
	{"RHEL's REJECT at the end", nil, addRejectAtEnd},
	{"kube-router", hasBridge, func(c *cluster, r *ruleset) { addKubeRouter(c, r, allowAll) }},
	{"Calico", onlyCalico, func(c *cluster, r *ruleset) { addCalico(c, r, true) }},
	{"CNI plugins portmap and firewall", nil, addCNIPlugins},
}

// somewhere adds jumps at the head of a chain or at its end.
func (c *cluster) somewhere(r *ruleset, table, chain string, rules ...string) {
	if c.coin(2) {
		r.insert(table, chain, 0, rules...)
	} else {
		r.append(table, chain, rules...)
	}
}

func addFlannel(c *cluster, r *ruleset) {
	all, here := c.cluster, c.here
	c.somewhere(r, "filter", "FORWARD", `-m comment --comment "flanneld forward" -j FLANNEL-FWD`)
	r.append("filter", "FLANNEL-FWD",
		fmt.Sprintf(`-s %s -m comment --comment "flanneld forward" -j ACCEPT`, all),
		fmt.Sprintf(`-d %s -m comment --comment "flanneld forward" -j ACCEPT`, all))
	r.append("nat", "POSTROUTING", `-m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`)
	r.append("nat", "FLANNEL-POSTRTG",
		`-m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN`,
		fmt.Sprintf(`-s %s -d %s -m comment --comment "flanneld masq" -j RETURN`, here, all),
		fmt.Sprintf(`-s %s -d %s -m comment --comment "flanneld masq" -j RETURN`, all, here),
		fmt.Sprintf(`! -s %s -d %s -m comment --comment "flanneld masq" -j RETURN`, all, here),
		fmt.Sprintf(`-s %s ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`, all),
		fmt.Sprintf(`! -s %s -d %s -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`, all, all))
}

// addDocker sets the policy of FORWARD to DROP and accepts what Docker's own containers send.
func addDocker(r *ruleset) {
	r.policies["filter FORWARD"] = "DROP"
	r.insert("filter", "FORWARD", 0,
		"-j DOCKER-USER", "-j DOCKER-ISOLATION-STAGE-1", "-o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-o docker0 -j DOCKER",
		"-i docker0 ! -o docker0 -j ACCEPT", "-i docker0 -o docker0 -j ACCEPT")
	r.declare("filter", "DOCKER")
	r.append("filter", "DOCKER-ISOLATION-STAGE-1", "-i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2", "-j RETURN")
	r.append("filter", "DOCKER-ISOLATION-STAGE-2", "-o docker0 -j DROP", "-j RETURN")
	r.append("filter", "DOCKER-USER", "-j RETURN")
	r.append("nat", "PREROUTING", "-m addrtype --dst-type LOCAL -j DOCKER")
	r.append("nat", "OUTPUT", "! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER")
	r.append("nat", "POSTROUTING", "-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE")
	r.append("nat", "DOCKER", "-i docker0 -j RETURN")
}

func acceptPods(c *cluster, r *ruleset) {
	c.somewhere(r, "filter", "FORWARD", fmt.Sprintf("-s %s -j ACCEPT", c.cluster), fmt.Sprintf("-d %s -j ACCEPT", c.cluster))
}

// addUFW has ufw deny what comes in and is forwarded, with exceptions for pods.
func addUFW(c *cluster, r *ruleset) {
	r.policies["filter INPUT"], r.policies["filter FORWARD"] = "DROP", "DROP"
	first := c.coin(2)
	for chain, name := range map[string]string{"INPUT": "input", "FORWARD": "forward", "OUTPUT": "output"} {
		var jumps []string
		for _, part := range []string{"before-logging", "before", "after", "after-logging", "reject", "track"} {
			jumps = append(jumps, "-j ufw-"+part+"-"+name)
			r.declare("filter", "ufw-"+part+"-"+name)
		}
		if first {
			r.insert("filter", chain, 0, jumps...)
		} else {
			r.append("filter", chain, jumps...)
		}
		if chain != "OUTPUT" {
			r.append("filter", "ufw-after-logging-"+name, `-m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "`)
		}
	}
	r.append("filter", "ufw-before-input",
		"-i lo -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-m conntrack --ctstate INVALID -j ufw-logging-deny",
		"-m conntrack --ctstate INVALID -j DROP", "-p icmp -m icmp --icmp-type 8 -j ACCEPT", "-p udp -m udp --sport 67 --dport 68 -j ACCEPT",
		"-j ufw-not-local", "-d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT", "-j ufw-user-input")
	r.append("filter", "ufw-logging-deny", "-m conntrack --ctstate INVALID -m limit --limit 3/min --limit-burst 10 -j RETURN",
		`-m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "`)
	r.append("filter", "ufw-not-local", "-m addrtype --dst-type LOCAL -j RETURN", "-m addrtype --dst-type MULTICAST -j RETURN", "-m addrtype --dst-type BROADCAST -j RETURN",
		"-m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny", "-j DROP")
	r.append("filter", "ufw-after-input", "-p udp -m udp --dport 137 -j ufw-skip-to-policy-input", "-m addrtype --dst-type BROADCAST -j ufw-skip-to-policy-input")
	r.append("filter", "ufw-skip-to-policy-input", "-j DROP")
	r.append("filter", "ufw-before-forward", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-p icmp -m icmp --icmp-type 8 -j ACCEPT", "-j ufw-user-forward")
	r.append("filter", "ufw-before-output", "-o lo -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-j ufw-user-output")
	r.append("filter", "ufw-track-output", "-p tcp -m conntrack --ctstate NEW -j ACCEPT", "-p udp -m conntrack --ctstate NEW -j ACCEPT")
	r.declare("filter", "ufw-user-output")
	r.append("filter", "ufw-user-input", "-p tcp -m tcp --dport 22 -j ACCEPT", "-p tcp -m multiport --dports 6443,10250 -j ACCEPT")
	acceptEndpointsOfNode(r, "ufw-user-input")
	pods := c.podDevices()
	r.append("filter", "ufw-user-forward", "-i "+pods+" -j ACCEPT", "-o "+pods+" -j ACCEPT")
}

// acceptEndpointsOfNode accepts connections to the Pods that use the network of the node.
func acceptEndpointsOfNode(r *ruleset, chain string) {
	r.append("filter", chain, "-p tcp -m multiport --dports 53,8080,8443 -j ACCEPT", "-p udp -m multiport --dports 53,8080,8443 -j ACCEPT")
}

// addRejectAtEnd is the default of RHEL's iptables-services, with exceptions for pods.
func addRejectAtEnd(c *cluster, r *ruleset) {
	const state = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
	r.append("filter", "INPUT", state, "-p icmp -j ACCEPT", "-i lo -j ACCEPT", "-p tcp -m conntrack --ctstate NEW -m tcp --dport 22 -j ACCEPT")
	acceptEndpointsOfNode(r, "INPUT")
	r.append("filter", "INPUT", "-j REJECT --reject-with icmp-host-prohibited")
	r.append("filter", "FORWARD", fmt.Sprintf("-s %s -j ACCEPT", c.cluster), fmt.Sprintf("-d %s -j ACCEPT", c.cluster), "-j REJECT --reject-with icmp-host-prohibited")
}

// allowed is what kube-router's network policies let pods do.
type allowed int

const (
	allowAll     allowed = iota
	denyIngress          // of the pods here: no policy allows what is for them
	denyEgress           // what they send
	denyOfNoRule         // both: the chains of the policies are empty
)

func addKubeRouter(c *cluster, r *ruleset, what allowed) {
	mark := `-m comment --comment "rule to mark traffic matching a network policy" -j MARK --set-xmark 0x10000/0x10000`
	jump := func(comment, to string) string {
		return fmt.Sprintf(`-m comment --comment "%s" -j %s`, comment, to)
	}
	var forward, input, output []string
	r.append("filter", "KUBE-NWPLCY-DEFAULT", mark)
	r.append("filter", "KUBE-NWPLCY-COMMON", `-p icmp -m comment --comment "allow icmp echo requests" -m icmp --icmp-type 8 -j ACCEPT`)
	for i, pod := range c.plan.pods {
		chain := fmt.Sprintf("KUBE-POD-FW-%s", []string{"7YFQ6TQ7GEZO4V4W", "NMJ3HSCGQSX5EQKZ"}[i])
		policy := fmt.Sprintf("KUBE-NWPLCY-%s", []string{"BZ5T4ZAB3WSPSZ2Q", "XTG5BHXCVI46D2OM"}[i])
		ingress, egress := "KUBE-NWPLCY-DEFAULT", "KUBE-NWPLCY-DEFAULT"
		r.declare("filter", policy)
		if what == denyIngress || what == denyOfNoRule || c.coin(2) {
			ingress = policy
		}
		if what == denyEgress || what == denyOfNoRule || c.coin(4) {
			egress = policy
		}
		if what == allowAll || what == denyEgress && ingress == policy {
			r.append("filter", policy, fmt.Sprintf(`-d %s/32 %s`, pod, mark))
		}
		if what == allowAll || what == denyIngress && egress == policy {
			r.append("filter", policy, fmt.Sprintf(`-s %s/32 %s`, pod, mark))
		}
		name := fmt.Sprintf("POD name:web-%d namespace: default", i)
		r.append("filter", chain,
			`-m comment --comment "rule for stateful firewall for pod" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
			`-m comment --comment "rule to drop invalid state for pod" -m conntrack --ctstate INVALID -j DROP`,
			fmt.Sprintf(`-d %s/32 -m comment --comment "rule to permit the traffic traffic to pods when source is the pod's local node" -m addrtype --src-type LOCAL -j ACCEPT`, pod),
			fmt.Sprintf(`-d %s/32 %s`, pod, jump("run through nw policy for ingress", ingress)),
			fmt.Sprintf(`-s %s/32 %s`, pod, jump("run through nw policy for egress", egress)),
			jump("rule to jump to common chain", "KUBE-NWPLCY-COMMON"),
			fmt.Sprintf(`-m comment --comment "rule to log dropped traffic %s" -m mark ! --mark 0x10000/0x10000 -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100`, name),
			fmt.Sprintf(`-m comment --comment "rule to REJECT traffic destined for %s" -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable`, name),
			`-j MARK --set-xmark 0x0/0x10000`,
			`-m comment --comment "set mark to ACCEPT traffic that comply to network policies" -j MARK --set-xmark 0x20000/0x20000`)
		forward = append(forward, fmt.Sprintf(`-d %s/32 %s`, pod, jump("rule to jump traffic destined to "+name, chain)),
			fmt.Sprintf(`-d %s/32 -m physdev --physdev-is-bridged %s`, pod, jump("rule to jump traffic destined to "+name, chain)),
			fmt.Sprintf(`-s %s/32 %s`, pod, jump("rule to jump traffic from "+name, chain)))
		output = append(output, fmt.Sprintf(`-d %s/32 %s`, pod, jump("rule to jump traffic destined to "+name, chain)))
		input = append(input, fmt.Sprintf(`-s %s/32 %s`, pod, jump("rule to jump traffic from "+name, chain)))
	}
	const explicit = `-m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies" -m mark --mark 0x20000/0x20000 -j ACCEPT`
	input = slices.Concat([]string{
		fmt.Sprintf(`-d %s -m comment --comment "allow traffic to primary cluster IP range" -j RETURN`, c.plan.services),
		`-p tcp -m comment --comment "allow LOCAL TCP traffic to node ports" -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN`,
		`-p udp -m comment --comment "allow LOCAL UDP traffic to node ports" -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN`,
	}, input)
	for chain, rules := range map[string][]string{"FORWARD": forward, "INPUT": input, "OUTPUT": output} {
		r.append("filter", "KUBE-ROUTER-"+chain, append(rules, explicit)...)
		r.insert("filter", chain, 0, jump("kube-router netpol", "KUBE-ROUTER-"+chain))
	}
}

// addCalico has chains for each pod's device. Without profiles, nothing accepts what is for pods and from them.
func addCalico(c *cluster, r *ruleset, profiles bool) {
	if !c.coin(8) {
		addCalicoRaw(r)
	}
	for chain, at := range map[string]string{"PREROUTING": "cali-fip-dnat", "OUTPUT": "cali-fip-dnat"} {
		r.insert("nat", chain, 0, "-j cali-"+chain)
		r.append("nat", "cali-"+chain, "-j "+at)
	}
	r.declare("nat", "cali-fip-dnat")
	r.insert("nat", "POSTROUTING", 0, "-j cali-POSTROUTING")
	r.append("nat", "cali-POSTROUTING", "-j cali-fip-snat", "-j cali-nat-outgoing")
	r.declare("nat", "cali-fip-snat")
	r.append("nat", "cali-nat-outgoing", fmt.Sprintf("-s %s ! -d %s -j MASQUERADE --random-fully", c.cluster, c.cluster))

	r.insert("filter", "FORWARD", 0, "-j cali-FORWARD")
	r.append("filter", "FORWARD", `-m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT`)
	for _, chain := range []string{"cali-from-hep-forward", "cali-to-hep-forward", "cali-cidr-block", "cali-from-host-endpoint", "cali-to-host-endpoint"} {
		r.declare("filter", chain)
	}
	r.append("filter", "cali-FORWARD",
		"-j MARK --set-xmark 0x0/0xe0000", "-m mark --mark 0x0/0x10000 -j cali-from-hep-forward", "-i cali+ -j cali-from-wl-dispatch",
		"-o cali+ -j cali-to-wl-dispatch", "-j cali-to-hep-forward", "-j cali-cidr-block")
	r.insert("filter", "INPUT", 0, "-j cali-INPUT")
	r.append("filter", "cali-INPUT",
		"-i cali+ -g cali-wl-to-host", "-m mark --mark 0x10000/0x10000 -j ACCEPT", "-j MARK --set-xmark 0x0/0xf0000", "-j cali-from-host-endpoint",
		`-m comment --comment "Host endpoint policy accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT`)
	r.append("filter", "cali-wl-to-host", "-j cali-from-wl-dispatch", `-m comment --comment "Configured DefaultEndpointToHostAction" -j ACCEPT`)
	r.insert("filter", "OUTPUT", 0, "-j cali-OUTPUT")
	r.append("filter", "cali-OUTPUT",
		"-m mark --mark 0x10000/0x10000 -j ACCEPT", "-o cali+ -j RETURN", "-j MARK --set-xmark 0x0/0xf0000", "-m conntrack ! --ctstate DNAT -j cali-to-host-endpoint",
		`-m comment --comment "Host endpoint policy accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT`)

	for i, device := range c.devices {
		profile := fmt.Sprintf("kns.ns-%d", i)
		if profiles {
			for _, direction := range []string{"pri", "pro"} {
				r.append("filter", "cali-"+direction+"-"+profile,
					`-m comment --comment "Profile kns allow" -j MARK --set-xmark 0x10000/0x10000`, "-m mark --mark 0x10000/0x10000 -j RETURN")
			}
		}
		for _, to := range []bool{false, true} {
			chain, dispatch, match, direction := "cali-fw-"+device, "cali-from-wl-dispatch", "-i "+device, "pro"
			if to {
				chain, dispatch, match, direction = "cali-tw-"+device, "cali-to-wl-dispatch", "-o "+device, "pri"
			}
			r.append("filter", dispatch, match+" -g "+chain)
			r.append("filter", chain, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-m conntrack --ctstate INVALID -j DROP", "-j MARK --set-xmark 0x0/0x10000")
			if !to {
				r.append("filter", chain, `-p udp -m comment --comment "Drop VXLAN encapped packets originating in workloads" -m multiport --dports 4789 -j DROP`,
					`-p ipencap -m comment --comment "Drop IPinIP encapped packets originating in workloads" -j DROP`)
			}
			if profiles {
				r.append("filter", chain, "-j cali-"+direction+"-"+profile, `-m comment --comment "Return if profile accepted" -m mark --mark 0x10000/0x10000 -j RETURN`)
			}
			r.append("filter", chain, `-m comment --comment "Drop if no profiles matched" -j DROP`)
		}
	}
	r.append("filter", "cali-from-wl-dispatch", `-m comment --comment "Unknown interface" -j DROP`)
	r.append("filter", "cali-to-wl-dispatch", `-m comment --comment "Unknown interface" -j DROP`)
}

// addCalicoRaw are Calico's rules in raw and mangle.
func addCalicoRaw(r *ruleset) {
	r.append("raw", "PREROUTING", "-j cali-PREROUTING")
	r.declare("raw", "cali-from-host-endpoint")
	r.append("raw", "cali-PREROUTING",
		"-j MARK --set-xmark 0x0/0xf0000", "-i cali+ -j MARK --set-xmark 0x40000/0x40000", "-m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP",
		"-m mark --mark 0x0/0x40000 -j cali-from-host-endpoint", "-m mark --mark 0x10000/0x10000 -j ACCEPT")
	r.append("mangle", "PREROUTING", "-j cali-PREROUTING")
	r.declare("mangle", "cali-from-host-endpoint")
	r.append("mangle", "cali-PREROUTING", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-m mark --mark 0x10000/0x10000 -j ACCEPT",
		"-j cali-from-host-endpoint", `-m comment --comment "Host endpoint policy accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT`)
}

// addCNIPlugins are the chains of the reference plugins portmap and firewall, with a port of a pod.
func addCNIPlugins(c *cluster, r *ruleset) {
	pod := c.plan.pods[0]
	c.somewhere(r, "filter", "FORWARD", `-m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`)
	r.append("filter", "CNI-FORWARD", `-m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN`)
	r.declare("filter", "CNI-ADMIN")
	for _, a := range c.plan.pods {
		r.append("filter", "CNI-FORWARD", fmt.Sprintf("-d %s/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", a), fmt.Sprintf("-s %s/32 -j ACCEPT", a))
	}
	const chain = "CNI-DN-2c4b1e0f6a7d8e9b0c1d2"
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		r.append("nat", hook, "-m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT")
	}
	r.append("nat", "CNI-HOSTPORT-DNAT", fmt.Sprintf(`-p tcp -m comment --comment "dnat name: \"cbr0\"" -m multiport --dports 9443 -j %s`, chain))
	r.append("nat", chain,
		fmt.Sprintf("-s %s -p tcp -m tcp --dport 9443 -j CNI-HOSTPORT-SETMARK", c.here), "-s 127.0.0.1/32 -p tcp -m tcp --dport 9443 -j CNI-HOSTPORT-SETMARK",
		fmt.Sprintf("-p tcp -m tcp --dport 9443 -j DNAT --to-destination %s:8443", pod))
	r.append("nat", "CNI-HOSTPORT-SETMARK", `-m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000`)
	r.append("nat", "POSTROUTING", `-m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ`)
	r.append("nat", "CNI-HOSTPORT-MASQ", "-m mark --mark 0x2000/0x2000 -j MASQUERADE")
}

// noise are rules that concern no service, as many hosts have some.
var noise = []struct{ table, chain, rule string }{
	{"raw", "PREROUTING", "-p tcp -m tcp --dport 23 -j DROP"},
	{"raw", "PREROUTING", "-p udp -m udp --sport 19 -j DROP"},
	{"raw", "PREROUTING", "-s 240.0.0.0/5 -j DROP"},
	{"mangle", "PREROUTING", "-m conntrack --ctstate INVALID -j DROP"},
	{"mangle", "PREROUTING", "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j DROP"},
	{"mangle", "FORWARD", "-p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"},
	{"filter", "INPUT", "-p tcp -m tcp --dport 25 -j REJECT --reject-with icmp-port-unreachable"},
	{"filter", "INPUT", "-p tcp -m multiport --dports 10255,2379 -j DROP"},
	{"filter", "FORWARD", "-m conntrack --ctstate INVALID -j DROP"},
	{"filter", "FORWARD", "-p tcp -m tcp --dport 25 -j REJECT --reject-with icmp-port-unreachable"},
	{"filter", "FORWARD", "-i docker0 -j DROP"},
	{"filter", "FORWARD", "-d 169.254.169.254/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable"},
	{"filter", "OUTPUT", "-p tcp -m tcp --dport 25 -j REJECT --reject-with icmp-port-unreachable"},
	{"nat", "POSTROUTING", "-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"},
}

func (c *cluster) addNoise(r *ruleset) {
	for _, n := range noise {
		if c.coin(6) {
			c.somewhere(r, n.table, n.chain, n.rule)
		}
	}
}
