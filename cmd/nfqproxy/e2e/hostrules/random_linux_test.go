package hostrules

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// edgeService has a pod of node-a under policy Local, and a port where nobody listens.
const edgeService = outsideService + `
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: default}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  clusterIP: 10.96.0.91
  clusterIPs: [10.96.0.91, "fd00:10:96::91"]
  ports:
  - {name: http, port: 80, protocol: TCP, nodePort: 30191}
  - {name: echo, port: 53, protocol: UDP, nodePort: 30191}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: edge-ipv4, namespace: default, labels: {kubernetes.io/service-name: edge}}
addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: echo, port: 5353, protocol: UDP}
endpoints:
- {addresses: ["10.244.0.4"], nodeName: node-a}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: edge-ipv6, namespace: default, labels: {kubernetes.io/service-name: edge}}
addressType: IPv6
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: echo, port: 5353, protocol: UDP}
endpoints:
- {addresses: ["fd00:10:244::4"], nodeName: node-a}
`

var hostRulesSeed = flag.Uint64("hostrules.seed", 1, "of the rules that TestRandomHostRules makes")

// TestRandomHostRules: whatever the node's own rules are, the server sees a flow that is
// translated come from where one comes from that is sent to it directly.
func TestRandomHostRules(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"nft", "iptables-nft-restore", "ip6tables-nft-restore", "iptables-legacy-restore", "ip6tables-legacy-restore"} {
		netnstest.RequireTool(t, tool)
	}
	c := e2etest.NewClusterWith(t, nil, func(s *lab.Spec) {
		s.Clients[0].RoutesToPods = true
		s.Clients[0].Ports = []lab.Port{{Port: 8080, Protocol: 6}, {Port: 5353, Protocol: 17}}
	})
	for _, w := range []hostWords{words4, words6} {
		for _, a := range w.own {
			c.Must(c.Host("node-a").AddAddress("eth0", netip.PrefixFrom(netip.MustParseAddr(a), w.bits)))
		}
	}
	// The daemon makes a table with the addresses, which must not be taken for the one with the service.
	for _, a := range slices.Concat(words4.own, words6.own) {
		at := netip.AddrPortFrom(netip.MustParseAddr(a), 30080)
		e2etest.Eventually(t, e2etest.Timeout, "the node port at "+a, func() bool {
			conn, err := c.Host("node-a").Dial(t.Context(), "tcp", e2etest.AnyPort, at)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	c.Edit(func(text string) string { return text + edgeService })
	rng := rand.New(rand.NewPCG(*hostRulesSeed, 0))
	r := &randomRules{Cluster: c, rng: rng, tally: make(map[bool]int), port: 20000}
	rounds := netnstest.Cases(50, 16)
	for round := range rounds {
		backend := []string{"nft", "native"}[round%2]
		if round >= rounds-2 {
			backend = "legacy" // whose changes are seen some seconds later
		}
		r.round(t, backend, round)
		if t.Failed() {
			break
		}
	}
	t.Logf("sources that the rules translated: %d, left alone: %d; could not be told: %d", r.tally[true], r.tally[false], r.untold)
	if flows := r.tally[true] + r.tally[false]; r.tally[true] < rounds || r.tally[false] < rounds || r.untold > flows/10 {
		t.Error("too few of a kind to tell anything")
	}
}

type randomRules struct {
	*e2etest.Cluster
	rng *rand.Rand
	// tally counts flows by whether their source was changed, untold those of which the
	// daemon says that it cannot tell what rules would have done.
	tally  map[bool]int
	untold int
	// port is the next client's. No two have the same: the kernel gives the source that a
	// connection from the same port was translated to again (find_appropriate_src).
	port uint16
}

// round loads rules of one back end, and compares.
func (c *randomRules) round(t *testing.T, backend string, round int) {
	// What was there goes first: when the new rules count, nothing else does.
	const without = "add table inet cni\ndelete table inet cni\n"
	if _, err := c.Host("node-a").Run(without, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	words := []hostWords{words4, words6}
	for _, w := range words {
		loadRules(c.Cluster, "node-a", w.program+"-nft-restore", "*nat\nCOMMIT\n")
	}
	texts := make(map[string]string) // by program
	if backend == "native" {
		e2etest.Eventually(t, e2etest.Timeout, "rules that can be loaded", func() bool {
			texts["nft"] = without + nativeRules(c.rng, round)
			_, err := c.Host("node-a").Run(texts["nft"], "nft", "-f", "-")
			return err == nil
		})
	} else {
		for _, w := range words {
			program := w.program + "-" + backend + "-restore"
			texts[program] = w.rules(c.rng, round)
			loadRules(c.Cluster, "node-a", program, texts[program])
		}
	}
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		c.awaitRules(fmt.Sprintf("round %d", round), at("10.96.0.90", "fd00:10:96::90", 99))
		for _, tt := range []struct{ name, from, service, pod string }{
			{"pod to elsewhere", "shell", at("10.96.0.90", "fd00:10:96::90", 0), at("172.21.0.100", "fd00:172:21::100", 0)},
			{"pod to a pod here", "shell", at("10.96.0.30", "fd00:10:96::30", 0), at("10.244.0.4", "fd00:10:244::4", 0)},
			{"pod to a pod there", "shell", at("10.96.0.50", "fd00:10:96::50", 0), at("10.244.1.2", "fd00:10:244:1::2", 0)},
			{"outside to a pod here, policy Local", "outside", "", at("10.244.0.4", "fd00:10:244::4", 0)},
		} {
			for _, network := range []string{"tcp", "udp"} {
				servicePort, podPort := uint16(80), uint16(8080)
				if network == "udp" {
					servicePort, podPort = 53, 5353
				}
				translated := at("172.21.0.2", "fd00:172:21::2", 30191)
				if tt.service != "" {
					translated = netip.AddrPortFrom(netip.MustParseAddr(tt.service), servicePort).String()
				}
				natural, _ := c.seenFrom(tt.from, network, netip.AddrPortFrom(netip.MustParseAddr(tt.pod), podPort).String())
				seen, changed := c.seenFrom(tt.from, network, translated)
				c.tally[changed]++
				switch {
				case seen == natural:
				case !changed && c.unknownEffect(tt.from, network, translated):
					c.untold++
				default:
					t.Errorf("%s, %s: the server saw %s, and %s without translation; rules:\n%s", tt.name, network, seen, natural, texts)
				}
			}
		}
	})
	c.Use(t)
}

// awaitRules waits until the daemon of node-a has rules with the comment, which are for
// a service's port where nobody answers.
func (c *randomRules) awaitRules(comment, to string) {
	c.T.Helper()
	e2etest.Eventually(c.T, e2etest.Timeout, "the rules of "+comment, func() bool {
		conn := c.Dial("shell", "udp", e2etest.AnyPort, to)
		defer conn.Close()
		if _, err := conn.Write([]byte("now?")); err != nil {
			c.T.Fatal(err)
		}
		return strings.Contains(c.Record("dnat", "UDP", conn.LocalAddr(), conn.RemoteAddr()).MasqueradeRule, `"`+comment+`"`)
	})
}

// unknownEffect reports whether the daemon counts such a flow as one whose rules have an unknown effect.
func (c *randomRules) unknownEffect(from, network, to string) bool {
	c.T.Helper()
	const counter = "nfqproxy_host_rules_unknown_flows_total"
	before := c.Metric("node-a", counter)
	c.seenFrom(from, network, to)
	c.Sync(from)
	return c.Metric("node-a", counter) > before
}

// seenFrom is the source that the server sees, with "low" for ports that only rules choose,
// and whether it is another than the client's own.
func (c *randomRules) seenFrom(from, network, to string) (source string, changed bool) {
	c.T.Helper()
	unspecified := netip.IPv4Unspecified()
	if strings.HasPrefix(to, "[") {
		unspecified = netip.IPv6Unspecified()
	}
	c.port++
	conn := c.Dial(from, network, netip.AddrPortFrom(unspecified, c.port), to)
	defer conn.Close()
	a := c.Ask(conn)
	client := netip.MustParseAddrPort(a.Client)
	ports := ""
	if client.Port() < 1024 {
		ports = " low"
	}
	return client.Addr().String() + ports, a.Client != conn.LocalAddr().String()
}

// hostWords are what rules of one family are made of.
type hostWords struct {
	program string
	own     []string // further addresses of node-a
	bits    int
	matches []string
	targets []string
	first   string // is never given to a flow that is compared
}

var words4 = hostWords{
	program: "iptables", own: []string{"172.21.0.8", "172.21.0.9", "172.21.0.10", "172.21.0.11"}, bits: 16,
	matches: append([]string{
		"-s 10.244.0.0/16", "! -s 10.244.0.0/16", "-d 10.244.0.0/16", "! -d 10.244.0.0/24", "! -d 10.244.0.0/16", "-s 10.244.0.9/32",
		"! -s 10.244.0.9/32", "-d 172.21.0.0/16", "! -d 224.0.0.0/4", "-m iprange --dst-range 10.244.0.3-10.244.0.200", "-m iprange ! --src-range 10.244.0.0-10.244.0.8",
		"-m conntrack --ctreplsrc 10.244.0.0/24", "-m conntrack --ctorigsrc 10.244.0.0/24", "-m addrtype ! --dst-type BROADCAST",
	}, matchesOfBoth...),
	targets: append([]string{"-j SNAT --to-source 172.21.0.8", "-j SNAT --to-source 172.21.0.8-172.21.0.11", "-j SNAT --to-source 172.21.0.8-172.21.0.11 --persistent",
		"-j SNAT --to-source 172.21.0.9 --random-fully", "-j NETMAP --to 172.21.0.8/30", "-p tcp -j SNAT --to-source 172.21.0.10:700-799"}, targetsOfBoth...),
	first: "-s 10.244.0.9/32 -d 172.21.0.100/32 -p udp --dport 9999",
}

var words6 = hostWords{
	program: "ip6tables", own: []string{"fd00:172:21::8", "fd00:172:21::9", "fd00:172:21::a", "fd00:172:21::b"}, bits: 64,
	matches: append([]string{
		"-s fd00:10:244::/56", "! -s fd00:10:244::/56", "-d fd00:10:244::/56", "! -d fd00:10:244::/64", "! -d fd00:10:244::/56", "-s fd00:10:244::9/128",
		"-d fd00:172:21::/64", "! -d ff00::/8", "-m iprange --dst-range fd00:10:244::3-fd00:10:244::ff", "-m conntrack --ctreplsrc fd00:10:244::/64",
	}, matchesOfBoth...),
	targets: append([]string{"-j SNAT --to-source fd00:172:21::8", "-j SNAT --to-source fd00:172:21::8-fd00:172:21::b", "-j SNAT --to-source fd00:172:21::8-fd00:172:21::b --persistent",
		"-j NETMAP --to fd00:172:21::8/126", "-p tcp -j SNAT --to-source [fd00:172:21::a]:700-799"}, targetsOfBoth...),
	first: "-s fd00:10:244::9/128 -d fd00:172:21::100/128 -p udp --dport 9999",
}

var matchesOfBoth = []string{
	"-o eth0", "! -o eth0", "-o solo+", "-p tcp", "-p udp", "! -p tcp", "-p tcp -m tcp --dport 8080", "-p udp -m udp ! --dport 5353", "-p tcp -m tcp --sport 1024:65535",
	"-p tcp -m multiport --dports 80,8080", "-p udp -m multiport --ports 53,5000:5400", "-p tcp -m tcp --tcp-flags SYN,ACK SYN", "-m addrtype ! --dst-type LOCAL",
	"-m addrtype --src-type LOCAL", "-m addrtype --dst-type UNICAST", "-m addrtype ! --dst-type LOCAL --limit-iface-out", "-m conntrack --ctstate NEW",
	"-m conntrack ! --ctstate NEW", "-m conntrack --ctstate SNAT", "-m conntrack --ctproto 17", "-m conntrack --ctdir ORIGINAL", "-m state --state NEW", "-m mark --mark 0x0",
	"-m mark ! --mark 0x4000/0x4000", "-m mark --mark 0x10/0x10", "-m connmark ! --mark 0x1", "-m pkttype --pkt-type unicast", "-m comment --comment said", "",
}

var targetsOfBoth = []string{
	"-j MASQUERADE", "-j MASQUERADE", "-j MASQUERADE --random-fully", "-p udp -j MASQUERADE --to-ports 700-799", "-j RETURN", "-j RETURN", "-j ACCEPT",
	"-j MARK --set-xmark 0x10/0x10", "-j MARK --set-xmark 0x4000/0x0",
}

// rules makes a table nat. Jumps lead to later chains only.
func (w *hostWords) rules(rng *rand.Rand, round int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A POSTROUTING %s -m comment --comment \"round %d\" -j MASQUERADE\n", w.first, round)
	chains := []string{"POSTROUTING", "ONE", "TWO"}
	for i, chain := range chains {
		for range 1 + rng.IntN(4) {
			target := w.targets[rng.IntN(len(w.targets))]
			if later := chains[i+1:]; len(later) > 0 && rng.IntN(3) == 0 {
				target = []string{"-j ", "-g "}[rng.IntN(2)] + later[rng.IntN(len(later))]
			}
			rule := []string{"-A " + chain}
			protocol := strings.Contains(target, "-p ")
			for range 1 + rng.IntN(2) {
				// A protocol is given once.
				if m := w.matches[rng.IntN(len(w.matches))]; m != "" && !(protocol && strings.Contains(m, "-p ")) && !overlaps(rule, m) {
					protocol = protocol || strings.Contains(m, "-p ")
					rule = append(rule, m)
				}
			}
			fmt.Fprintln(&b, strings.Join(append(rule, target), " "))
		}
	}
	return b.String() + "COMMIT\n"
}

// overlaps says whether a rule has an option already that m has.
func overlaps(rule []string, m string) bool {
	for _, r := range rule {
		for _, option := range []string{"-s ", "-d ", "-o "} {
			if strings.HasPrefix(strings.TrimPrefix(r, "! "), option) && strings.HasPrefix(strings.TrimPrefix(m, "! "), option) {
				return true
			}
		}
	}
	return false
}

// nativeMatches and nativeTargets are what rules of nftables are made of.
var (
	nativeMatches = []string{
		"ip saddr 10.244.0.0/16", "ip saddr != 10.244.0.0/16", "ip daddr 10.244.0.0/24", "ip daddr != 10.244.0.0/16", "ip daddr { 10.244.0.0/24, 172.21.0.64/26 }",
		"ip daddr @pods4", "ip daddr != @pods4", "ip6 saddr fd00:10:244::/56", "ip6 saddr != fd00:10:244::/56", "ip6 daddr != fd00:10:244::/64", "ip6 daddr @pods6",
		"ip6 daddr { fd00:10:244::4, fd00:172:21::/64 }", "ip daddr . tcp dport { 10.244.0.4 . 8080, 172.21.0.100 . 80 }", "ip saddr 10.244.0.2-10.244.0.9",
		"oifname eth0", "oifname != eth0", "oif eth0", "oifname \"so*\"", "iifname != lo", "iifname eth0", "meta l4proto tcp", "meta l4proto != udp", "meta l4proto { tcp, sctp }",
		"meta nfproto ipv4", "tcp dport 8080", "udp dport != 5353", "tcp dport { 80, 8080 }", "tcp sport 1024-65535", "tcp flags syn / syn,ack", "fib daddr type != local",
		"fib saddr type local", "fib daddr type unicast", "ct state new", "ct state != new", "ct direction original", "ct mark != 1", "meta mark 0", "meta mark & 0x10 == 0x10", "mark and 0x4000 != 0x4000",
		"ip protocol tcp", "meta pkttype host", "",
	}
	nativeTargets = []string{
		"masquerade", "masquerade", "masquerade random,fully-random", "meta l4proto tcp masquerade to :700-799", "return", "return", "accept", "meta mark set 0x10", "meta mark set mark or 0x10",
		"snat ip to 172.21.0.8", "snat ip to 172.21.0.8-172.21.0.11", "snat ip to 172.21.0.8-172.21.0.11 persistent", "meta l4proto tcp snat ip to 172.21.0.10:700-799", "snat ip6 to fd00:172:21::9",
		"snat ip6 to fd00:172:21::8-fd00:172:21::b",
	}
)

// nativeRules makes a table of nftables. Jumps lead to later chains only. Not all that it
// makes can be loaded: a rule may ask for things of both families.
func nativeRules(rng *rand.Rand, round int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `table inet cni {
set pods4 { type ipv4_addr; flags interval; elements = { 10.244.0.0/24, 10.244.9.0/24 }; }
set pods6 { type ipv6_addr; flags interval; elements = { fd00:10:244::/64 }; }
chain two {}
chain one {}
chain postrouting {
type nat hook postrouting priority srcnat;
ip saddr 10.244.0.9 ip daddr 172.21.0.100 udp dport 9999 masquerade comment "round %[1]d"
ip6 saddr fd00:10:244::9 ip6 daddr fd00:172:21::100 udp dport 9999 masquerade comment "round %[1]d"
}
}
`, round)
	chains := []string{"postrouting", "one", "two"}
	for i, chain := range chains {
		for range 1 + rng.IntN(4) {
			target := nativeTargets[rng.IntN(len(nativeTargets))]
			if later := chains[i+1:]; len(later) > 0 && rng.IntN(3) == 0 {
				target = []string{"jump ", "goto "}[rng.IntN(2)] + later[rng.IntN(len(later))]
			}
			matches := nativeMatches[rng.IntN(len(nativeMatches))]
			if rng.IntN(3) == 0 {
				matches += " " + nativeMatches[rng.IntN(len(nativeMatches))]
			}
			fmt.Fprintf(&b, "add rule inet cni %s %s %s\n", chain, matches, target)
		}
	}
	return b.String()
}
