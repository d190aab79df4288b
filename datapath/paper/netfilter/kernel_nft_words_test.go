//go:build linux

package netfilter

import (
	"fmt"
	"slices"
	"strings"
)

// keys are keys of maps and sets that do not overlap, of each family.
var (
	addressKeys = map[string][]string{
		"ip":  {"10.96.0.10", "192.0.2.1", "192.0.2.2", "203.0.113.10", "203.0.113.11", "10.244.1.2", "10.244.1.3", "127.0.0.1", "172.17.0.5"},
		"ip6": {"fd00:96::10", "2001:db8:2::1", "2001:db8:2::2", "2001:db8:113::10", "2001:db8:113::11", "fd00:1::2", "fd00:1::3", "::1", "fd00:17::5"},
	}
	addressRanges = map[string][]string{
		"ip":  {"10.96.0.0/16", "192.0.2.1-192.0.2.77", "203.0.113.10", "203.0.113.11", "10.244.0.0/16", "127.0.0.0/8", "172.17.0.0/16", "198.51.100.0/24", "8.0.0.0/7"},
		"ip6": {"fd00:96::/64", "2001:db8:2::1-2001:db8:2::77", "2001:db8:113::10", "2001:db8:113::11", "fd00:1::/32", "::1", "fd00:17::/64", "2001:db8:51::/48"},
	}
	portKeys   = []string{"80", "53", "8080", "30080", "9000", "40000", "40001", "500"}
	portRanges = []string{"80", "53", "1-52", "8000-8099", "30000-32767", "9000", "40000-40001", "500-1023"}
)

// some are some of the keys, in another order.
func (m *nftMaker) some(keys []string) []string {
	keys = slices.Clone(keys)
	m.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys[:1+m.IntN(len(keys))]
}

func (m *nftMaker) list(keys []string) string { return strings.Join(m.some(keys), ", ") }

// mapping is a list of keys with values.
func (m *nftMaker) mapping(keys, values []string) string {
	var pairs []string
	for _, k := range m.some(keys) {
		pairs = append(pairs, k+" : "+m.form(pick(m.Rand, values)))
	}
	return strings.Join(pairs, ", ")
}

// services are concatenations of an address and a port.
func (m *nftMaker) servicesOf(addresses, ports []string) (all []string) {
	for _, a := range m.some(addresses) {
		for _, p := range m.some(ports)[:1] {
			all = append(all, a+" . "+p)
		}
	}
	return all
}

func (m *nftMaker) addressType() string {
	return map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[m.ip]
}

// own are the world's texts if the rule is for its family, else others.
func (m *nftMaker) own(texts []string) []string {
	if (m.ip == "ip") == m.is4 {
		return slices.DeleteFunc(slices.Clone(texts), func(s string) bool {
			return strings.Contains(s, "/255") || strings.Contains(s, "/0.0.0.255") || strings.Contains(s, "/::")
		})
	}
	return addressKeys[m.ip]
}

// word is what a word of a form stands for.
func (m *nftMaker) word(name string) string {
	one := func(texts ...string) string { return pick(m.Rand, texts) }
	switch name {
	case "ip":
		return m.ip
	case "addr":
		return pick(m.Rand, addressKeys[m.ip])
	case "net":
		return pick(m.Rand, m.own(m.networks))
	case "range":
		return pick(m.Rand, m.own(m.ranges))
	case "not":
		return one("", "", "", "!= ")
	case "op":
		return one("", "!= ", "< ", "> ", "<= ", ">= ")
	case "port":
		return one(portKeys...)
	case "ports":
		return one("80", "53", "1-1023", "8000-9000", "40000-40001", "30080")
	case "portlist":
		return "{ " + m.list(pick(m.Rand, [][]string{portKeys, portRanges})) + " }"
	case "addrlist":
		return "{ " + m.list(pick(m.Rand, [][]string{addressKeys[m.ip], addressRanges[m.ip]})) + " }"
	case "svclist":
		return "{ " + strings.Join(m.servicesOf(addressKeys[m.ip], portKeys), ", ") + " }"
	case "svcranges":
		return "{ " + strings.Join(m.servicesOf(addressRanges[m.ip], portRanges), ", ") + " }"
	case "mark":
		return one("0x0", "0x1", "0x2", "0x3", "0x4", "0x10", "0x7")
	case "marks":
		return one("0x1", "0x0-0x3", "{ 0x1, 0x3-0x5 }", "{ 0x0, 0x2 }")
	case "dev":
		return one(`"eth0"`, `"veth1"`, `"veth*"`, `"docker0"`, `"lo"`, `"cni0"`)
	case "device":
		return one("eth0", "veth1", "docker0", "lo")
	case "tcpflags":
		return one("syn", "ack", "rst", "fin", "syn,ack", "fin,ack", "psh", "ecn", "cwr,ecn")
	case "dscp":
		return one("cs0", "cs1", "af11", "4", "{ cs0, cs1 }")
	case "state":
		return one("new", "established", "related", "invalid", "untracked", "established,related", "new,untracked")
	case "dir":
		return one("original", "reply")
	case "type":
		return one("local", "unicast", "broadcast", "multicast", "blackhole", "unreachable", "prohibit", "{ local, broadcast }", "{ unicast, local }")
	case "seed":
		return one("0x1", "0xdeadbeef", "0x12345678")
	case "endpoint":
		return one(m.singles(m.endpoints)...)
	case "endpoints":
		return one(m.own(m.endpoints)...)
	case "source":
		return one(m.singles(m.sourcesTo)...)
	case "sources":
		return one(m.own(m.sourcesTo)...)
	case "at":
		return m.inBrackets(m.singles(m.endpoints))
	case "from":
		return m.inBrackets(m.singles(m.sourcesTo))
	case "one", "two": // never the same
		keys := addressKeys[m.ip]
		return pick(m.Rand, map[string][]string{"one": keys[:4], "two": keys[4:]}[name])
	case "hop":
		return map[string]string{"ip": "192.0.2.254", "ip6": "2001:db8:2::fe"}[m.ip]
	case "any":
		return map[string]string{"ip": "0.0.0.0/0", "ip6": "::/0"}[m.ip]
	case "endport":
		return one("8080", "80", "9000-9010", "40000-40002")
	case "random":
		return one("", "", "random", "fully-random", "persistent")
	case "icmpcode":
		return one("net-unreachable", "host-unreachable", "prot-unreachable", "port-unreachable", "net-prohibited", "host-prohibited", "admin-prohibited")
	case "icmp6code":
		return one("no-route", "admin-prohibited", "addr-unreachable", "port-unreachable", "policy-fail", "reject-route")
	case "icmpxcode":
		return one("no-route", "port-unreachable", "host-unreachable", "admin-prohibited")
	case "verdict":
		return one("accept", "drop", "return", "continue", "accept", "continue")
	}
	return m.declared(name)
}

// singles are the addresses that are one.
func (m *nftMaker) singles(texts []string) []string {
	return slices.DeleteFunc(slices.Clone(m.own(texts)), func(s string) bool { return strings.Contains(s, "-") })
}

// inBrackets is one of the addresses, as it stands in front of a port.
func (m *nftMaker) inBrackets(texts []string) string {
	a := pick(m.Rand, texts)
	if m.ip == "ip6" {
		a = "[" + a + "]"
	}
	return a
}

// declared declares what a word names.
func (m *nftMaker) declared(name string) string {
	t := m.addressType()
	elements := func(keys []string) string { return "elements = { " + m.list(keys) + " };" }
	switch name {
	case "addrset":
		switch m.IntN(4) {
		case 0:
			return "@" + m.declare("set", "type "+t+"; flags interval; auto-merge; "+elements(addressRanges[m.ip]))
		case 1:
			return "@" + m.declare("set", "type "+t+"; flags timeout; timeout 1h; "+elements(append(slices.Clone(addressKeys[m.ip][1:]), addressKeys[m.ip][0]+` timeout 2h comment "x"`)))
		case 2:
			return "@" + m.declare("set", "typeof "+m.ip+" saddr; counter; "+elements(addressKeys[m.ip]))
		}
		return "@" + m.declare("set", "type "+t+"; "+elements(addressKeys[m.ip]))
	case "svcset":
		return "@" + m.declare("set", "type "+t+" . inet_service; elements = { "+strings.Join(m.servicesOf(addressKeys[m.ip], portKeys), ", ")+" };")
	case "svcrangeset":
		return "@" + m.declare("set", "type "+t+" . inet_service; flags interval; elements = { "+strings.Join(m.servicesOf(addressRanges[m.ip], portRanges), ", ")+" };")
	case "protoset":
		return "@" + m.declare("set", "type inet_proto . inet_service; flags interval; elements = { "+m.list([]string{"tcp . 80", "tcp . 8000-9000", "udp . 53", "udp . 80", "sctp . 0-65535"})+" };")
	case "portset":
		return "@" + m.declare("set", "type inet_service; flags interval; "+elements(portRanges))
	case "devset":
		return "@" + m.declare("set", "type ifname; flags interval; "+elements([]string{`"eth0"`, `"veth*"`, `"lo"`}))
	case "markset":
		return "@" + m.declare("set", "type mark; "+elements([]string{"0x0", "0x1", "0x2", "0x10"}))
	case "stateset":
		return "@" + m.declare("set", "type ct_state; "+elements([]string{"new", "established"}))
	case "addrvmap":
		body := "type " + t + " : verdict; elements = { " + m.mapping(addressKeys[m.ip], []string{"accept", "drop", "return", "continue", "continue"})
		if m.percent(40) {
			body += ", * : " + pick(m.Rand, []string{"accept", "return", "continue"})
		}
		return "@" + m.declare("map", body+" };")
	case "svcvmap":
		return "@" + m.declare("map", "type "+t+" . inet_service : verdict; flags interval; counter; elements = { "+m.mapping(m.servicesOf(addressRanges[m.ip], portRanges), []string{"accept", "return", "continue"})+" };")
	case "addrmark":
		return "@" + m.declare("map", "type "+t+" : mark; elements = { "+m.mapping(addressKeys[m.ip], []string{"$mark"})+" };")
	case "portaddr":
		return "@" + m.declare("map", "type inet_service : "+t+"; elements = { "+m.mapping(portKeys, []string{"$endpoint"})+" };")
	case "addraddr":
		return "@" + m.declare("map", "type "+t+" : "+t+"; flags interval; elements = { "+m.mapping(addressRanges[m.ip], []string{"$endpoint"})+" };")
	case "svcmap":
		return "@" + m.declare("map", "type "+t+" . inet_service : "+t+" . inet_service; elements = { "+m.mapping(m.servicesOf(addressKeys[m.ip], portKeys), []string{"$endpoint . $port"})+" };")
	case "seen":
		if m.seen[m.family+m.ip] == "" {
			m.seen[m.family+m.ip] = m.declare("set", "type "+t+"; size 64; flags dynamic;")
		}
		return "@" + m.seen[m.family+m.ip]
	case "dynset":
		return "@" + m.declare("set", "type "+t+"; size 64; flags dynamic,timeout; timeout 1h;")
	case "dynsmall":
		return "@" + m.declare("set", "type "+t+"; size 2; flags dynamic;")
	case "dynsvc":
		return "@" + m.declare("set", "type "+t+" . inet_service; size 64; flags dynamic;")
	case "dynmark":
		return "@" + m.declare("map", "type "+t+" : mark; size 64; flags dynamic;")
	case "limitset":
		return "@" + m.declare("set", "type "+t+"; limit rate 1/hour burst 2 packets; "+elements(addressKeys[m.ip]))
	case "quotaset":
		return "@" + m.declare("set", "type "+t+"; counter; quota over 100 bytes; "+elements(addressKeys[m.ip]))
	case "limitvmap":
		return "@" + m.declare("map", "type "+t+" : verdict; limit rate 1/hour burst 2 packets; elements = { "+m.mapping(addressKeys[m.ip], []string{"$verdict"})+" };")
	case "limitmap":
		return "@" + m.declare("map", "type "+t+" : limit; elements = { "+m.mapping(addressKeys[m.ip], []string{"$limit"})+" };")
	case "meter":
		m.names++
		return fmt.Sprintf("m%d", m.names)
	case "helper":
		return m.declare("ct helper", `type "ftp" protocol tcp; l3proto `+pick(m.Rand, []string{m.ip, "inet"})+";")
	case "timeout":
		return m.declare("ct timeout", pick(m.Rand, []string{"protocol tcp; l3proto " + m.ip + "; policy = { established: 100, syn_sent: 50 }; ", "protocol udp; l3proto " + m.ip + "; policy = { unreplied: 50, replied: 100 }; "}))
	case "synproxy":
		return m.declare("synproxy", "mss 1460; wscale 7; timestamp")
	case "counter":
		return m.declare("counter", "packets 0 bytes 0")
	case "limit":
		return m.declare("limit", "rate "+pick(m.Rand, []string{"", "over "})+fmt.Sprintf("1/hour burst %d packets", 1+m.IntN(5)))
	case "quota":
		return m.declare("quota", pick(m.Rand, []string{"", "over "})+pick(m.Rand, []string{"100", "150", "400"})+" bytes")
	}
	panic("no word $" + name)
}
