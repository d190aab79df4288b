package hostrules

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// native has nft load a ruleset, and gives the table of that base chain.
func (n node) native(f iptables.Family, name, ruleset string) *iptables.Table {
	n.Helper()
	netnstest.RequireTool(n, "nft")
	n.Exec(ruleset, "nft", "-f", "-")
	for _, t := range n.read().Of(f) {
		if t.Backend == native && t.Name == name {
			return t.nat()
		}
	}
	n.Fatalf("no table %s", name)
	return nil
}

// text is the rules, in lines. Each chain has to be declared, and the text to be read with the
// same meaning, but for what iptables has no text for.
func text(t *testing.T, f iptables.Family, table *iptables.Table) string {
	t.Helper()
	var b strings.Builder
	unknown := false
	for _, r := range table.Rules {
		b.WriteString(ruleChain.ReplaceAllString(r.String(), "rule-H") + "\n")
		unknown = unknown || len(unknownIn(r)) > 0
		if !table.Has(r.Chain) {
			t.Errorf("chain %s is not declared", r.Chain)
		}
	}
	again, err := iptables.Parse(strings.NewReader(dumpOf(f, table).String()), iptables.Options{Family: f})
	switch {
	case unknown, err != nil && strings.Contains(err.Error(), "is given a second time"):
		return b.String()
	case err != nil:
		t.Error(err)
		return b.String()
	}
	for i, r := range again.Tables[0].Rules {
		if diff := cmp.Diff(typed(r), typed(table.Rules[i]), sameValues); diff != "" {
			t.Errorf("%s: by its text (-), as it is (+)\n%s", r, diff)
		}
	}
	return b.String()
}

// ruleChain is the name of a chain that is made for a rule, by its handle.
var ruleChain = regexp.MustCompile(`rule-[0-9]+(-[0-9]+)?`)

// TestNativeRules translates rules one by one, for both families.
func TestNativeRules(t *testing.T) {
	for _, c := range []struct {
		rule string
		// ipv4 and ipv6 are the rules of iptables without "-A POSTROUTING "; several are
		// separated by "; ", those of other chains with "-A chain". "same": as ipv4; "bare": a
		// rule without words; "": no packet of the family meets the rule.
		ipv4, ipv6 string
	}{
		{"masquerade", "-j MASQUERADE", "same"},
		{"counter masquerade fully-random", "-j MASQUERADE --random-fully", "same"},
		{`masquerade random,persistent comment "two words"`, `-m comment --comment "two words" -j MASQUERADE --random`, "same"},
		{"meta l4proto tcp masquerade to :1024-2048", "-p tcp -j MASQUERADE --to-ports 1024-2048", "same"},
		{"snat ip to 192.0.2.1", "-j SNAT --to-source 192.0.2.1", "bare"},
		{"ip protocol tcp snat to 192.0.2.1-192.0.2.9:80-90 random", "-p tcp -j SNAT --to-source 192.0.2.1-192.0.2.9:80-90 --random", ""},
		{"ip6 nexthdr tcp snat to [2001:db8::1]:80", "", `-m nft "payload network 6:1" -j SNAT --to-source [2001:db8::1]:80`},
		{"snat ip6 to 2001:db8::1", "bare", "-j SNAT --to-source 2001:db8::1"},
		{"snat ip prefix to 198.51.100.0/24", "-j NETMAP --to 198.51.100.0/24", "bare"},
		{"snat ip to ip saddr map { 192.0.2.1 : 198.51.100.1 }", `-m nft "lookup @__map0" -j nft snat`, ""},

		{"ip saddr 10.0.0.0/8 return", "-s 10.0.0.0/8 -j RETURN", ""},
		{"ip saddr 10.0.0.0/12 ip daddr != 10.1.2.3 accept", "-s 10.0.0.0/12 ! -d 10.1.2.3/32 -j ACCEPT", ""},
		{"ip saddr & 255.0.255.0 == 10.0.3.0 drop", "-s 10.0.3.0/255.0.255.0 -j DROP", ""},
		{"ip saddr & 255.0.0.0 == 10.1.0.0 return", "", ""},
		{"ip saddr & 255.0.0.0 != 10.1.0.0 return", "-j RETURN", ""},
		{"tcp dport 0-65535 return", "-p tcp -j RETURN", "same"},
		{"ip daddr 10.0.0.1-10.0.0.7 return", "-m iprange --dst-range 10.0.0.1-10.0.0.7 -j RETURN", ""},
		{"ip saddr != 10.0.0.0-10.0.0.7 return", "! -s 10.0.0.0/29 -j RETURN", ""},
		{"ip daddr { 10.0.0.0/8, 192.0.2.1, 203.0.113.4-203.0.113.6 } return",
			"-d 10.0.0.0/8 -j RETURN; -d 192.0.2.1/32 -j RETURN; -m iprange --dst-range 203.0.113.4-203.0.113.6 -j RETURN", ""},
		{"ip daddr { 224.0.0.0-255.255.255.255 } return", "-d 224.0.0.0/3 -j RETURN", ""},
		{"ip daddr != { 10.0.0.0/8, 192.0.2.1 } return", "! -d 10.0.0.0/8 ! -d 192.0.2.1/32 -j RETURN", ""},
		{"ip daddr { 192.0.2.1, 192.0.2.2 } tcp dport { 80, 443 } return",
			"-d 192.0.2.1/32 -p tcp -m multiport --dports 80,443 -j RETURN; -d 192.0.2.2/32 -p tcp -m multiport --dports 80,443 -j RETURN", ""},
		{"ip daddr @hosts return", "-d 192.0.2.1/32 -j RETURN; -d 192.0.2.2/32 -j RETURN", ""},
		{"ip daddr @timed return", `-m nft "lookup @timed" -j RETURN`, ""},
		{"ip daddr @empty return", "", ""},
		{"ip daddr != @empty return", "-j RETURN", ""},
		{"ip daddr . tcp dport { 192.0.2.1 . 80, 192.0.2.2 . 81 } return",
			"-d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j RETURN; -d 192.0.2.2/32 -p tcp -m tcp --dport 81 -j RETURN", ""},
		{"ip6 daddr fd00::/64 return", "", "-d fd00::/64 -j RETURN"},
		{"ip6 saddr { fd00::1, fd00::2 } ip6 daddr != fe80::/10 return", "",
			"-s fd00::1/128 ! -d fe80::/10 -j RETURN; -s fd00::2/128 ! -d fe80::/10 -j RETURN"},
		{"meta nfproto ipv6 return", "", "-j RETURN"},
		{"meta protocol ip return", "-j RETURN", ""},

		{`oifname "docker0" return`, "-o docker0 -j RETURN", "same"},
		{`oifname != "eth*" return`, "! -o eth+ -j RETURN", "same"},
		{`oifname { "lo", "docker0" } return`, "-o docker0 -j RETURN; -o lo -j RETURN", "same"},
		{`oifname != { "lo", "docker0" } return`, "! -o docker0 ! -o lo -j RETURN", "same"},
		{`oif "lo" return`, "-o lo -j RETURN", "same"},
		{"oif 4711 return", `-m nft "meta oif" -j RETURN`, "same"},

		{"ip saddr 192.0.2.1 ip daddr 192.0.2.2 return", "-s 192.0.2.1/32 -d 192.0.2.2/32 -j RETURN", ""},
		{"ip saddr 192.0.2.1 ip daddr 198.51.0.0/16 return", "-s 192.0.2.1/32 -d 198.51.0.0/16 -j RETURN", ""},
		{"ip6 saddr fd00::1 ip6 daddr fd00::/64 return", "", "-s fd00::1/128 -d fd00::/64 -j RETURN"},
		{"tcp sport 90 tcp dport 80 return", "-p tcp -m tcp --sport 90 --dport 80 -j RETURN", "same"},
		{"tcp dport 80 return", "-p tcp -m tcp --dport 80 -j RETURN", "same"},
		{"udp sport 1000-2000 udp dport != 53 return", "-p udp -m udp --sport 1000:2000 ! --dport 53 -j RETURN", "same"},
		{"tcp dport >= 1024 return", "-p tcp -m tcp --dport 1024:65535 -j RETURN", "same"},
		{"tcp dport > 1024 tcp dport < 2000 return", "-p tcp -m tcp ! --dport 0:1024 -m multiport ! --dports 2000:65535 -j RETURN", "same"},
		{"tcp dport { 80, 443, 1000-2000 } return", "-p tcp -m multiport --dports 80,443,1000:2000 -j RETURN", "same"},
		{"tcp dport != { 80, 443 } return", "-p tcp -m multiport ! --dports 80,443 -j RETURN", "same"},
		{"th dport 53 meta l4proto { tcp, udp } return", "-p tcp -m tcp --dport 53 -j RETURN; -p udp -m udp --dport 53 -j RETURN", "same"},
		{"th dport 53 return", `-m nft "payload transport 2:2" -j RETURN`, "same"},
		{"sctp dport 80 return", "-p sctp -m sctp --dport 80 -j RETURN", "same"},
		{"tcp flags syn return", "-p tcp -m tcp --tcp-flags SYN SYN -j RETURN", "same"},
		{"tcp flags & (syn|ack) == syn return", "-p tcp -m tcp --tcp-flags SYN,ACK SYN -j RETURN", "same"},
		{"icmp type echo-request return", "-p icmp -m icmp --icmp-type 8 -j RETURN", ""},
		{"icmp type destination-unreachable icmp code 3 return", "-p icmp -m icmp --icmp-type 3/3 -j RETURN", ""},
		{"icmpv6 type echo-request return", "", "-p ipv6-icmp -m icmp6 --icmpv6-type 128 -j RETURN"},
		{"ip length 5-10 return", "-m length --length 5:10 -j RETURN", ""},
		{"ip frag-off & 0x1fff != 0 return", "-f -j RETURN", ""},

		{"meta mark 0x4000 return", "-m mark --mark 0x4000 -j RETURN", "same"},
		{"meta mark & 0x4000 == 0x4000 masquerade", "-m mark --mark 0x4000/0x4000 -j MASQUERADE", "same"},
		{"meta mark & 0x4000 != 0 masquerade", "-m mark ! --mark 0x0/0x4000 -j MASQUERADE", "same"},
		{"meta mark > 5 return", `-m nft "meta mark" -j RETURN`, "same"},
		{"meta mark set 0x1", "-j MARK --set-xmark 0x1/0xffffffff", "same"},
		{"meta mark set mark or 0x10", "-j MARK --set-xmark 0x10/0x10", "same"},
		{"meta mark set mark xor 0x4000 masquerade", "-j rule-H; -A rule-H -j MARK --set-xmark 0x4000/0x0; -A rule-H -j MASQUERADE", "same"},
		{"ip daddr 192.0.2.1 meta mark set mark and 0xffffffef return",
			"-d 192.0.2.1/32 -g rule-H; -A rule-H -j MARK --set-xmark 0x0/0x10; -A rule-H -j RETURN", ""},
		{"meta mark set 0x2 meta mark 0x2 return",
			`-j rule-H; -A rule-H -j MARK --set-xmark 0x2/0xffffffff; -A rule-H -j nft "return behind a match behind a change"`, "same"},
		{"meta mark set 0x2 oifname eth0 masquerade", "-j rule-H; -A rule-H -j MARK --set-xmark 0x2/0xffffffff; -A rule-H -o eth0 -j MASQUERADE", "same"},
		{"meta mark { 1, 2 } meta mark set 2", `-m nft "several values and a change" -j nft rule`, "same"},
		{"meta mark { 1, 2 } return", "-m mark --mark 0x1 -j RETURN; -m mark --mark 0x2 -j RETURN", "same"},
		{"ct mark set meta mark", "-j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff", "same"},
		{"meta mark set ct mark and 0xff", "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xff", "same"},
		{"ct mark & 0xf == 0x1 return", "-m connmark --mark 0x1/0xf -j RETURN", "same"},
		{"ct mark set ct mark or 0x1", "-j CONNMARK --set-xmark 0x1/0x1", "same"},
		{"meta priority set 0x10001", `-j nft "meta priority set"`, "same"},

		{"ct state established,related accept", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "same"},
		{"ct state new accept", "-m conntrack --ctstate NEW -j ACCEPT", "same"},
		{"ct state != new accept", "-m conntrack ! --ctstate NEW -j ACCEPT", "same"},
		{"ct state { new, untracked } accept", "-m conntrack --ctstate NEW,UNTRACKED -j ACCEPT", "same"},
		{"ct status dnat accept", "-m conntrack --ctstate DNAT -j ACCEPT", "same"},
		{"ct status & (assured|confirmed) == 0 accept", "-m conntrack ! --ctstatus ASSURED,CONFIRMED -j ACCEPT", "same"},
		{"ct original ip saddr 192.0.2.0/24 return", "-m conntrack --ctorigsrc 192.0.2.0/24 -j RETURN", ""},
		{"meta l4proto tcp ct reply proto-src 80 return", "-p tcp -m conntrack --ctreplsrcport 80 -j RETURN", "same"},
		{"ct direction reply return", "-m conntrack --ctdir REPLY -j RETURN", "same"},
		{"fib saddr type local counter accept", "-m addrtype --src-type LOCAL -j ACCEPT", "same"},
		{"fib daddr type { local, broadcast } accept", "-m addrtype --dst-type LOCAL,BROADCAST -j ACCEPT", "same"},
		{"fib daddr type != local accept", "-m addrtype ! --dst-type LOCAL -j ACCEPT", "same"},
		{"limit rate 5/minute burst 7 packets accept", "-m limit --limit 5/min --limit-burst 7 -j ACCEPT", "same"},
		{"limit rate over 5/minute accept", "-m nft limit -j ACCEPT", "same"},
		{"limit rate 5/minute oifname eth0 accept", `-o eth0 -m limit --limit 5/min -m nft "a limit before other matches" -j ACCEPT`, "same"},
		{"meta skuid 1000 return", "-m owner --uid-owner 1000 -j RETURN", "same"},
		{"meta skuid != 1000 return", `-m nft "meta skuid" -j RETURN`, "same"},
		{"meta pkttype broadcast return", "-m pkttype --pkt-type broadcast -j RETURN", "same"},
		{"numgen random mod 100 < 30 accept", "-m nft numgen -j ACCEPT", "same"},
		{`log prefix "x" level info masquerade`, "-j rule-H; -A rule-H -j LOG --log-prefix x --log-level 6; -A rule-H -j MASQUERADE", "same"},
		{"log group 3", "-j NFLOG --nflog-group 3", "same"},
		{"add @timed { ip saddr }", "-m nft dynset -j nft dynset", ""},
		{"log prefix x add @timed { ip saddr }", "-j rule-H; -A rule-H -j LOG --log-prefix x; -A rule-H -m nft dynset -j nft dynset", "-j LOG --log-prefix x"},
		{"log prefix x tcp dport 80 log prefix y tcp sport 90 drop",
			"-j rule-H; -A rule-H -j LOG --log-prefix x; -A rule-H -p tcp -j rule-H; -A rule-H -j LOG --log-prefix y; -A rule-H -m nft \"payload transport 0:2\" -m nft \"payload transport 2:2\" -j DROP", "same"},
		{"meta mark { 1, 2 } log prefix x meta mark set 2", `-m nft "several values and a change" -j nft rule`, "same"},
		{"oifname { a, b } log prefix x drop", "-o a -j rule-H; -A POSTROUTING -o b -j rule-H; -A rule-H -j LOG --log-prefix x; -A rule-H -j DROP", "same"},
		{"jump aux", "-j aux; -A aux -j ACCEPT", "same"},
		{"goto aux", "-g aux; -A aux -j ACCEPT", "same"},
		{"meta mark set 1 jump aux", "-j rule-H; -A rule-H -j MARK --set-xmark 0x1/0xffffffff; -A rule-H -j aux; -A aux -j ACCEPT", "same"},
		{`oifname vmap { "lo" : return, "eth0" : jump aux }`, "-o eth0 -j aux; -A POSTROUTING -o lo -j RETURN; -A aux -j ACCEPT", "same"},
		{"ip saddr . ip daddr vmap { 192.0.2.1 . 192.0.2.2 : drop }", "-s 192.0.2.1/32 -d 192.0.2.2/32 -j DROP", ""},
		{"meta l4proto vmap { tcp : continue }", `-j nft "vmap @__map0"`, "same"},
		{"counter", "bare", "same"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			n := newNode(t)
			ruleset := fmt.Sprintf(`table inet t {
	set hosts { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
	set timed { type ipv4_addr; flags timeout; }
	set empty { type ipv4_addr; flags interval; }
	chain aux { accept; }
	chain out { type nat hook postrouting priority srcnat; %s; }
}`, c.rule)
			for _, f := range families {
				want := c.ipv4
				if f == iptables.IPv6 && c.ipv6 != "same" {
					want = c.ipv6
				}
				var lines strings.Builder
				for part := range strings.SplitSeq(want, "; ") {
					switch {
					case part == "":
					case strings.HasPrefix(part, "-A "):
						lines.WriteString(part + "\n")
					case part == "bare":
						lines.WriteString("-A POSTROUTING\n")
					default:
						lines.WriteString("-A POSTROUTING " + part + "\n")
					}
				}
				if got := text(t, f, n.native(f, "inet t out", ruleset)); got != lines.String() {
					t.Errorf("%s:\n%swant\n%s", f, got, lines.String())
				}
				n.Exec("flush ruleset\n", "nft", "-f", "-")
			}
		})
	}
}

// TestNotOthers: nfqproxy's own tables, one whose hooks are not there, and chains that do not
// translate what leaves are left out.
func TestNotOthers(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n := newNode(t)
	n.Exec(fmt.Sprintf(`
table ip %s { chain p { type nat hook postrouting priority srcnat; masquerade; }; }
table ip6 %[1]s { chain p { type nat hook postrouting priority srcnat; masquerade; }; }
table ip dormant { flags dormant; chain p { type nat hook postrouting priority srcnat; masquerade; }; }
table ip filter { chain p { type filter hook postrouting priority srcnat; accept; }; chain i { type nat hook input priority 100; }; }
table inet %[1]s { chain p { type nat hook postrouting priority srcnat - 3; ip saddr @s masquerade; }; set s { type ipv4_addr; elements = { 192.0.2.1 }; }; }
`, ruleset.TableName), "nft", "-f", "-")
	tables := n.read().Tables
	if len(tables) != 2 { // one of each family
		t.Fatalf("read %v", tables)
	}
	if got, want := tables[0].String(), "nftables chain inet nfqproxy p, for IPv4"; got != want || tables[0].Priority != 97 {
		t.Errorf("read %s with priority %d, want %s", got, tables[0].Priority, want)
	}
}
