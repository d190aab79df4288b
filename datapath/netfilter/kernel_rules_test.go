//go:build linux

package netfilter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
)

// ruleMaker makes up rules about the world's addresses, ports and devices, so that they
// match often.
type ruleMaker struct {
	*rand.Rand
	*world
	number uint64 // of the set of rules, for names that no set before had
	rate   int    // number of the last rule that counts something by name
}

// generated is a set of rules as iptables-save would print it.
func (w *world) generated(t testing.TB, seed uint64) *iptables.Dump {
	t.Helper()
	m := &ruleMaker{Rand: rand.New(rand.NewPCG(seed, 0)), world: w, number: seed}
	var b strings.Builder
	for _, table := range iptables.TableNames() {
		m.table(&b, table)
	}
	family := iptables.IPv6
	if w.is4 {
		family = iptables.IPv4
	}
	d, err := iptables.Parse(strings.NewReader(b.String()), iptables.Options{Family: family})
	if err != nil {
		t.Fatalf("%v\n%s", err, numbered(b.String()))
	}
	return d
}

// madeChain is a chain that is being made up.
type chainPlan struct {
	table string
	name  string
	hooks []string // the built-in chains it is reached from; its own name for one of these
}

func (m *ruleMaker) percent(n int) bool { return m.IntN(100) < n }

func (m *ruleMaker) table(b *strings.Builder, table string) {
	fmt.Fprintf(b, "*%s\n", table)
	var chains []chainPlan
	for _, c := range iptables.BuiltinChains(table) {
		policy := "ACCEPT"
		if table == "filter" && m.percent(10) || table != "nat" && m.percent(2) {
			policy = "DROP"
		}
		fmt.Fprintf(b, ":%s %s [0:0]\n", c, policy)
		chains = append(chains, chainPlan{table, c, []string{c}})
	}
	builtin := len(chains)
	for i := range 1 + m.IntN(4) {
		var hooks []string
		for _, c := range chains[:builtin] {
			if m.percent(50) {
				hooks = append(hooks, c.name)
			}
		}
		if len(hooks) == 0 {
			hooks = []string{chains[m.IntN(builtin)].name}
		}
		c := chainPlan{table, fmt.Sprintf("user%d", i), hooks}
		fmt.Fprintf(b, ":%s - [0:0]\n", c.name)
		chains = append(chains, c)
	}
	for i, c := range chains {
		// Only to later ones, so that there are no circles.
		var targets []string
		for _, to := range chains[max(i+1, builtin):] {
			if subset(c.hooks, to.hooks) {
				targets = append(targets, to.name)
			}
		}
		for range m.IntN(4) {
			m.rule(b, c, targets)
		}
	}
	b.WriteString("COMMIT\n")
}

func subset(a, of []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(of, s) })
}

// only says whether the chain is reached from no other hooks.
func (c chainPlan) only(hooks ...string) bool { return subset(c.hooks, hooks) }

func (m *ruleMaker) rule(b *strings.Builder, c chainPlan, chains []string) {
	protocol := ""
	if m.percent(40) {
		protocol = pick(m.Rand, []string{"tcp", "tcp", "udp", "sctp", m.icmp()})
	}
	target := m.target(c, chains, &protocol)
	var words []string
	if m.percent(20) {
		words = append(words, m.not()+"-s "+m.network())
	}
	if m.percent(20) {
		words = append(words, m.not()+"-d "+m.network())
	}
	if m.percent(12) && c.only("PREROUTING", "INPUT", "FORWARD") {
		words = append(words, m.not()+"-i "+pick(m.Rand, m.deviceNames))
	}
	if m.percent(12) && c.only("FORWARD", "OUTPUT", "POSTROUTING") {
		words = append(words, m.not()+"-o "+pick(m.Rand, m.deviceNames))
	}
	switch {
	case protocol != "" && strings.HasPrefix(protocol, "-"):
		words = append(words, protocol)
	case protocol != "":
		words = append(words, "-p "+protocol)
		if m.percent(60) {
			words = append(words, m.transport(protocol))
		}
	case m.percent(8):
		words = append(words, "! -p tcp")
	}
	for range m.IntN(2) + m.IntN(2)*m.IntN(2) {
		words = append(words, m.match(c, protocol))
	}
	line := strings.Join(slices.DeleteFunc(append(words, target), func(s string) bool { return s == "" }), " ")
	fmt.Fprintf(b, "-A %s %s\n", c.name, line)
}

func (m *ruleMaker) not() string {
	if m.percent(20) {
		return "! "
	}
	return ""
}

func (m *ruleMaker) icmp() string {
	if m.is4 {
		return "icmp"
	}
	return "ipv6-icmp"
}

func (m *ruleMaker) network() string { return pick(m.Rand, m.networks) }
func (m *ruleMaker) port() int       { return int(pick(m.Rand, m.ports)) }
func (m *ruleMaker) ports2() string {
	p := m.port()
	if m.percent(50) {
		return fmt.Sprint(p)
	}
	return fmt.Sprintf("%d:%d", max(0, p-m.IntN(100)), p+m.IntN(100))
}

// transport is a match of the protocol's own.
func (m *ruleMaker) transport(protocol string) string {
	sides := []string{"--dport " + m.ports2(), "--dport " + m.ports2(), "--sport 40000:40001", "--sport 1:1023"}
	side := m.not() + pick(m.Rand, sides)
	switch protocol {
	case "tcp":
		switch m.IntN(5) {
		case 0:
			return "-m tcp " + m.not() + "--tcp-flags " + pick(m.Rand, []string{"FIN,SYN,RST,ACK SYN", "SYN,ACK ACK", "RST RST", "FIN,ACK NONE"})
		case 1:
			return "-m tcp " + m.not() + "--tcp-option 2"
		}
		return "-m tcp " + side
	case "udp":
		return "-m udp " + side
	case "sctp":
		if m.percent(40) {
			return "-m sctp " + m.not() + "--chunk-types " + pick(m.Rand, []string{"any INIT,DATA", "all INIT", "only INIT", "any DATA", "only INIT_ACK"})
		}
		return "-m sctp " + side
	case "icmp":
		return "-m icmp " + m.not() + "--icmp-type " + pick(m.Rand, []string{"8", "0", "any", "8/0", "3/1"})
	}
	return "-m icmp6 " + m.not() + "--icmpv6-type " + pick(m.Rand, []string{"128", "129", "128/0", "1/4"})
}

func (m *ruleMaker) bits() string {
	return pick(m.Rand, []string{"0x1", "0x2", "0x0", "0x1/0x1", "0x2/0x2", "0x0/0x3", "0x4/0x4", "0x10/0x10"})
}

// match is a match of a module that goes with the chain and the protocol.
func (m *ruleMaker) match(c chainPlan, protocol string) string {
	for {
		if text := m.tryMatch(c, protocol); text != "" {
			return text
		}
	}
}

func (m *ruleMaker) tryMatch(c chainPlan, protocol string) string {
	switch m.IntN(25) {
	case 0:
		return `-m comment --comment "a comment"`
	case 1, 2:
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
			return ""
		}
		list := fmt.Sprintf("%d,%d,%d:%d", m.port(), m.port(), 40000, 40001)
		if m.percent(50) {
			list = fmt.Sprintf("%d,%d", m.port(), 500)
		}
		return "-m multiport " + m.not() + pick(m.Rand, []string{"--dports ", "--sports ", "--ports "}) + list
	case 3, 4, 5:
		return m.conntrack()
	case 6:
		return "-m state " + m.not() + "--state " + pick(m.Rand, []string{"NEW", "ESTABLISHED", "INVALID", "RELATED,ESTABLISHED", "UNTRACKED,NEW"})
	case 7, 8:
		return "-m mark " + m.not() + "--mark " + m.bits()
	case 9:
		return "-m connmark " + m.not() + "--mark " + m.bits()
	case 10, 11:
		return m.addrtype(c)
	case 12:
		if m.percent(50) {
			return "-m statistic --mode random " + m.not() + "--probability 0.50000000000"
		}
		every := 2 + m.IntN(2)
		return fmt.Sprintf("-m statistic --mode nth %s--every %d --packet %d", m.not(), every, m.IntN(every))
	case 13, 14:
		return m.recent()
	case 15:
		return "-m physdev " + pick(m.Rand, []string{"--physdev-is-in", "! --physdev-is-in", "! --physdev-in veth1", "--physdev-in veth1", "! --physdev-is-bridged"})
	case 16:
		if !c.only("PREROUTING") || c.table != "raw" && c.table != "mangle" {
			return ""
		}
		return "-m rpfilter" + pick(m.Rand, []string{"", " --loose", " --invert", " --accept-local", " --loose --invert"})
	case 17:
		return "-m limit --limit 1/hour --limit-burst " + fmt.Sprint(1+m.IntN(4))
	case 18:
		m.rate++
		return fmt.Sprintf("-m hashlimit --hashlimit-%s 1/hour --hashlimit-burst %d --hashlimit-mode %s --hashlimit-name h%d-%d",
			pick(m.Rand, []string{"upto", "above"}), 1+m.IntN(3), pick(m.Rand, []string{"srcip", "dstip", "srcip,dstport", "srcport"}), m.number, m.rate)
	case 19:
		if !c.only("OUTPUT", "POSTROUTING") {
			return ""
		}
		return "-m owner " + m.not() + pick(m.Rand, []string{"--uid-owner 0", "--uid-owner 1000", "--gid-owner 1000", "--socket-exists", "--uid-owner 0-999"})
	case 20:
		if !c.only("PREROUTING", "INPUT", "FORWARD") {
			return ""
		}
		return "-m mac " + m.not() + "--mac-source 02:00:00:00:01:01"
	case 21:
		return "-m iprange " + m.not() + pick(m.Rand, []string{"--src-range ", "--dst-range "}) + pick(m.Rand, m.ranges)
	case 22:
		return "-m length " + m.not() + "--length " + pick(m.Rand, []string{"0:40", "41:65535", "32:60", "44"})
	case 23:
		if !c.only("PREROUTING", "INPUT") || c.table != "mangle" {
			return ""
		}
		return "-m socket" + pick(m.Rand, []string{"", " --nowildcard", " --transparent", " --transparent --nowildcard"})
	}
	return "-m pkttype " + m.not() + "--pkt-type " + pick(m.Rand, []string{"unicast", "broadcast", "multicast"})
}

func (m *ruleMaker) conntrack() string {
	options := []string{
		"--ctstate " + pick(m.Rand, []string{"NEW", "NEW", "ESTABLISHED", "RELATED,ESTABLISHED", "INVALID", "DNAT", "SNAT", "UNTRACKED", "RELATED,ESTABLISHED,DNAT"}),
		"--ctstate NEW",
		"--ctproto " + pick(m.Rand, []string{"6", "17"}),
		"--ctorigdst " + m.network(), "--ctorigsrc " + m.network(), "--ctreplsrc " + m.network(), "--ctrepldst " + m.network(),
		"--ctorigdstport " + m.ports2(), "--ctreplsrcport " + m.ports2(), "--ctorigsrcport 40000:40001",
		"--ctstatus " + pick(m.Rand, []string{"NONE", "SEEN_REPLY", "ASSURED", "CONFIRMED", "SEEN_REPLY,ASSURED"}),
	}
	text := "-m conntrack " + m.not() + pick(m.Rand, options)
	if m.percent(10) {
		text += " --ctdir " + pick(m.Rand, []string{"ORIGINAL", "REPLY"})
	}
	return text
}

func (m *ruleMaker) addrtype(c chainPlan) string {
	types := []string{"LOCAL", "LOCAL", "UNICAST", "BROADCAST", "MULTICAST", "LOCAL,BROADCAST"}
	if !m.is4 {
		types = []string{"LOCAL", "LOCAL", "UNICAST", "MULTICAST", "UNREACHABLE", "LOCAL,UNREACHABLE"}
	}
	text := "-m addrtype " + m.not() + pick(m.Rand, []string{"--src-type ", "--dst-type ", "--dst-type "}) + pick(m.Rand, types)
	switch {
	case m.percent(15) && c.only("PREROUTING", "INPUT", "FORWARD"):
		text += " --limit-iface-in"
	case m.percent(15) && c.only("FORWARD", "OUTPUT", "POSTROUTING"):
		text += " --limit-iface-out"
	}
	return text
}

func (m *ruleMaker) recent() string {
	mask := pick(m.Rand, []string{"255.255.255.255", "255.255.255.0"})
	if !m.is4 {
		mask = pick(m.Rand, []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff::"})
	}
	// A list keeps the mask of the rule that makes it.
	n := m.IntN(2)
	if n == 0 {
		mask = map[bool]string{true: "255.255.255.255", false: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}[m.is4]
	} else {
		mask = map[bool]string{true: "255.255.255.0", false: "ffff:ffff:ffff:ffff::"}[m.is4]
	}
	mode := pick(m.Rand, []string{"--set", "--set", "--rcheck", "--rcheck --seconds 3600 --hitcount 2", "--update --seconds 3600", "--update --hitcount 3", "--remove", "--rcheck --rttl"})
	return fmt.Sprintf("-m recent %s%s --name r%d-%d --mask %s %s", m.not(), mode, m.number, n, mask, pick(m.Rand, []string{"--rsource", "--rsource", "--rdest"}))
}

// target is the target of a rule, with -j or -g. protocol is changed to one that the
// target wants.
func (m *ruleMaker) target(c chainPlan, chains []string, protocol *string) string {
	if len(chains) > 0 && m.percent(35) {
		return pick(m.Rand, []string{"-j ", "-j ", "-j ", "-g "}) + pick(m.Rand, chains)
	}
	if c.table == "nat" && m.percent(70) {
		return m.natTarget(c, protocol)
	}
	for {
		if text := m.tryTarget(c, protocol); text != "" {
			return text
		}
	}
}

func (m *ruleMaker) tryTarget(c chainPlan, protocol *string) string {
	in := func(tables ...string) bool { return slices.Contains(tables, c.table) }
	switch m.IntN(24) {
	case 0:
		return "-j ACCEPT"
	case 1:
		if in("nat") || m.percent(40) {
			return ""
		}
		return "-j DROP"
	case 2, 3:
		return "-j RETURN"
	case 4:
		return `-j LOG --log-prefix "a prefix "`
	case 5:
		return "-j NFLOG --nflog-group 5"
	case 6, 7, 8:
		return "-j MARK --set-xmark " + pick(m.Rand, []string{"0x1/0x1", "0x2/0x2", "0x0/0xffffffff", "0x3/0x0", "0x10/0x10", "0x4/0xffffffff"})
	case 9, 10:
		return "-j CONNMARK " + pick(m.Rand, []string{
			"--set-xmark 0x1/0x1", "--set-xmark 0x2/0xffffffff", "--save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
			"--restore-mark --nfmask 0xffffffff --ctmask 0xffffffff", "--restore-mark --nfmask 0xf --ctmask 0x3",
		})
	case 11, 12, 13:
		if !in("filter", "security") || !c.only("INPUT", "FORWARD", "OUTPUT") || c.table != "filter" {
			return ""
		}
		return m.reject(protocol)
	case 14, 15:
		if !in("raw") {
			return ""
		}
		return "-j CT " + pick(m.Rand, []string{"--notrack", "--zone 5", "--zone mark"})
	case 16:
		if !in("raw") {
			return ""
		}
		return "-j NOTRACK"
	case 17:
		if m.percent(60) {
			return ""
		}
		return "-j NFQUEUE --queue-num 5" + pick(m.Rand, []string{"", " --queue-bypass"})
	case 18:
		if !in("mangle") || !c.only("PREROUTING") {
			return ""
		}
		*protocol = pick(m.Rand, []string{"tcp", "udp"})
		return "-j TPROXY --on-port 50080 --on-ip " + map[bool]string{true: "0.0.0.0", false: "::"}[m.is4] + " --tproxy-mark 0x1/0x1"
	case 19:
		if !in("mangle") {
			return ""
		}
		return "-j TOS --set-tos " + pick(m.Rand, []string{"0x10/0xff", "0x08/0x3f", "0x04/0x04"})
	case 20:
		if !in("mangle") {
			return ""
		}
		return "-j DSCP --set-dscp 0x0a"
	case 21:
		if !in("mangle") {
			return ""
		}
		if m.percent(50) {
			*protocol = "-p tcp -m tcp --tcp-flags SYN,RST SYN"
			return "-j TCPMSS --set-mss 1000"
		}
		return "-j CHECKSUM --checksum-fill"
	case 22:
		return "-j AUDIT --type accept"
	}
	return " " // only counts
}

func (m *ruleMaker) reject(protocol *string) string {
	if m.percent(30) {
		*protocol = "tcp"
		return "-j REJECT --reject-with tcp-reset"
	}
	if m.is4 {
		return "-j REJECT --reject-with icmp-" + pick(m.Rand, []string{
			"net-unreachable", "host-unreachable", "port-unreachable", "proto-unreachable", "net-prohibited", "host-prohibited", "admin-prohibited"})
	}
	return "-j REJECT --reject-with icmp6-" + pick(m.Rand, []string{"no-route", "adm-prohibited", "addr-unreachable", "port-unreachable"})
}

func (m *ruleMaker) natTarget(c chainPlan, protocol *string) string {
	random := pick(m.Rand, []string{"", "", "", " --random", " --random-fully"})
	ported := m.percent(50)
	if ported {
		*protocol = pick(m.Rand, []string{"tcp", "udp", "sctp"})
	}
	to := func(address string) string {
		if !ported {
			return address
		}
		port := pick(m.Rand, []string{"8080", "80", "9000-9010", "40000-40002"})
		if m.is4 {
			return address + ":" + port
		}
		return "[" + strings.ReplaceAll(address, "-", "]-[") + "]:" + port
	}
	if !m.is4 && ported { // "[a]-[b]:port" is written "[a-b]:port"
		to = func(address string) string {
			return "[" + address + "]:" + pick(m.Rand, []string{"8080", "80", "9000-9010", "40000-40002"})
		}
	}
	switch {
	case c.only("PREROUTING", "OUTPUT"):
		switch m.IntN(6) {
		case 0:
			if ported {
				return "-j REDIRECT --to-ports " + pick(m.Rand, []string{"8080", "9000-9010"}) + strings.TrimSuffix(random, "-fully")
			}
			return "-j REDIRECT"
		case 1:
			return "-j NETMAP --to " + m.netmapTo
		}
		return "-j DNAT --to-destination " + to(pick(m.Rand, m.endpoints)) + strings.TrimSuffix(random, "-fully") + pick(m.Rand, []string{"", "", " --persistent"})
	case c.only("POSTROUTING"):
		switch m.IntN(6) {
		case 0, 1, 2:
			if ported {
				return "-j MASQUERADE --to-ports " + pick(m.Rand, []string{"8080", "9000-9010", "40000-40002"}) + random
			}
			return "-j MASQUERADE" + random
		case 3:
			return "-j NETMAP --to " + m.netmapTo
		}
		return "-j SNAT --to-source " + to(pick(m.Rand, m.sourcesTo)) + random + pick(m.Rand, []string{"", "", " --persistent"})
	case c.only("INPUT", "POSTROUTING"):
		return "-j SNAT --to-source " + to(pick(m.Rand, m.sourcesTo)) + random
	}
	return "-j ACCEPT"
}
