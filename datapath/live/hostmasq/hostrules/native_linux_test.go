package hostrules

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/ti-mo/conntrack"
)

// rulesText is the rules of all chains, in lines.
func rulesText(t *Table) string {
	var b strings.Builder
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			b.WriteString(r.String() + "\n")
		}
	}
	return b.String()
}

// translating is a rule's end that changes the source to something that shows.
const translating = "meta l4proto { tcp, udp } masquerade to :700-799"

// nativeCases are chains at postrouting, a rule per line, with what is printed of their first rule
// for IPv4. Rules without an end translate.
var nativeCases = []struct {
	rules, text string
	// unknown: the effect on some packets cannot be known.
	unknown bool
}{
	{rules: "masquerade", text: "masquerade"},
	{rules: "masquerade random,persistent comment \"two words\"", text: `masquerade random comment "two words"`},
	{rules: "meta l4proto udp masquerade to :700-799 fully-random", text: "meta l4proto udp masquerade to :700-799 fully-random"},
	{rules: "meta l4proto tcp snat ip to 192.0.2.7:80-90", text: "meta l4proto tcp snat to 192.0.2.7:80-90"},
	{rules: "meta l4proto tcp snat ip6 to [fd00::7]:80-180", text: "meta l4proto tcp"},
	{rules: "snat ip to ip saddr map { 192.0.2.1 : 192.0.2.7, 192.0.2.8 : 192.0.2.1 }", text: "meta nfproto ipv4 snat to ip saddr map @__map0"},
	{rules: "snat ip to 192.0.2.7-192.0.2.9", text: "snat to 192.0.2.7-192.0.2.9"},
	{rules: "snat ip to 192.0.2.7-192.0.2.9 persistent", text: "snat to 192.0.2.7-192.0.2.9 persistent"},
	{rules: "snat ip prefix to 192.0.2.8/31", text: "snat prefix to 192.0.2.8-192.0.2.9"},
	{rules: "ip saddr 192.0.2.0/29", text: "ip saddr 192.0.2.0/29"},
	{rules: "ip saddr 192.0.2.0/24", text: "ip saddr 192.0.2.0/24"},
	{rules: "ip saddr 192.0.2.8 ip daddr != 192.0.2.2", text: "ip saddr 192.0.2.8 ip daddr != 192.0.2.2"},
	{rules: "ip saddr & 255.0.0.7 == 192.0.0.1", text: "ip saddr 192.0.0.1/255.0.0.7"},
	{rules: "ip saddr & 255.0.0.0 == 10.1.0.0", text: "ip saddr 10.1.0.0/255.0.0.0"},
	{rules: "ip daddr 192.0.2.1-192.0.2.3", text: "ip daddr 192.0.2.1-192.0.2.3"},
	{rules: "ip saddr != 192.0.2.0-192.0.2.7", text: "ip saddr != 192.0.2.0-192.0.2.7"},
	{rules: "ip saddr { 192.0.2.0/30, 198.51.100.1, 203.0.113.4-203.0.113.6 }", text: "ip saddr @__set1"},
	{rules: "ip saddr != { 10.0.0.0/8, 192.0.2.8 }", text: "ip saddr != @__set1"},
	{rules: "ip saddr @hosts", text: "ip saddr @hosts"},
	{rules: "ip saddr @timed", text: "ip saddr @timed", unknown: true},
	{rules: "ip saddr @empty", text: "ip saddr @empty"},
	{rules: "ip saddr != @empty", text: "ip saddr != @empty"},
	{rules: "ip saddr . udp dport { 192.0.2.1 . 53, 192.0.2.8 . 9 }", text: "ip saddr . udp dport @__set1"},
	{rules: "ip saddr . udp dport { 192.0.2.0/29 . 1-52, 192.0.2.8 . 53 }", text: "ip saddr . udp dport @__set1"},
	{rules: "ip saddr 192.0.2.1 ip daddr 192.0.2.2", text: "ip saddr 192.0.2.1 ip daddr 192.0.2.2"},
	{rules: "ip6 saddr fd00::/125", text: "ip6 saddr fd00::/125"},
	{rules: "ip6 saddr { fd00::1, fd00::9 } ip6 daddr != fe80::/10", text: "ip6 saddr @__set1 ip6 daddr != fe80::/10"},
	{rules: "meta nfproto ipv6", text: "meta nfproto ipv6"},
	{rules: "meta protocol ip", text: "meta protocol 2048"},
	{rules: "ip protocol tcp", text: "ip protocol tcp"},
	{rules: "ip6 nexthdr tcp", text: "ip6 nexthdr tcp", unknown: true},
	{rules: `oifname "veth"`, text: `oifname "veth"`},
	{rules: `oifname != "ve*"`, text: `oifname != "ve*"`},
	{rules: `oifname { "lo", "veth" }`, text: "oifname @__set1"},
	{rules: `oifname != { "lo", "docker0" }`, text: "oifname != @__set1"},
	{rules: `iifname "veth"`, text: `iifname "veth"`},
	{rules: `iifname != "veth"`, text: `iifname != "veth"`},
	{rules: `oif "lo"`, text: "oif 0x1"},
	{rules: `oif "veth"`, text: "oif 0x10001"},
	{rules: "oif 4711", text: "oif 0x1267"},
	{rules: "udp dport 53", text: "udp dport 53"},
	{rules: "udp dport != 53", text: "udp dport != 53"},
	{rules: "udp sport 30000-30004 udp dport 9", text: "udp sport 30000-30004 udp dport 9"},
	{rules: "udp sport 30001 udp dport 9", text: "udp sport 30001 udp dport 9"},
	{rules: "tcp dport > 9 tcp dport < 2000", text: "tcp dport != 0-9 tcp dport != 2000-65535"},
	{rules: "tcp dport >= 53", text: "tcp dport 53-65535"},
	{rules: "udp dport { 9, 1000-2000 }", text: "udp dport @__set1"},
	{rules: "th dport 53", text: "th dport 53"},
	{rules: "tcp flags syn / syn,ack", text: "tcp flags & 0x12 == 2"},
	{rules: "tcp flags & (ecn | cwr) == 0", text: "tcp flags & 0xc0 == 0", unknown: true},
	{rules: "ip frag-off & 0x1fff == 0", text: "ip frag-off & 0x1fff == 0"},
	{rules: "ip ttl 64", text: "ip ttl 64", unknown: true},
	{rules: "meta mark 0", text: "meta mark 0x0"},
	{rules: "meta mark & 0x4000 != 0", text: "meta mark & 0x4000 != 0x0"},
	{rules: "meta mark > 5", text: "meta mark != 0x0-0x5"},
	{rules: "meta mark set 0x1\nmeta mark 0x1", text: "meta mark set 0x1"},
	{rules: "meta mark set mark or 0x10\nmeta mark & 0x30 == 0x10", text: "meta mark set meta mark & 0xffffffef ^ 0x10"},
	{rules: "meta mark set 0x2 meta mark 0x2", text: "meta mark set 0x2 meta mark 0x2"},
	{rules: "meta mark { 0, 1 } meta mark set 2\nmeta mark 2", text: "meta mark @__set1 meta mark set 0x2"},
	{rules: "ct mark set 0x5\nmeta mark set ct mark and 0x4\nmeta mark 4", text: "ct mark set 0x5"},
	{rules: "numgen random mod 2 == 0 meta mark set 2\nmeta mark 2", text: "numgen 0x0 meta mark set 0x2", unknown: true},
	{rules: "numgen random mod 2 == 0 meta mark set 2\nmeta mark & 1 == 0", text: "numgen 0x0 meta mark set 0x2"},
	{rules: "ct state new", text: "ct state new"},
	{rules: "ct state established,related", text: "ct state established,related"},
	{rules: "ct state != new", text: "ct state != 0x8"},
	{rules: "ct state { new, untracked }", text: "ct state @__set1"},
	{rules: "ct status dnat", text: "ct status & 0x20 != 0x0"},
	{rules: "ct direction original", text: "ct direction 0"},
	{rules: "ct original ip saddr 192.0.2.0/29", text: "ct original ip saddr 192.0.2.0/29"},
	{rules: "meta l4proto udp ct original proto-dst 53", text: "meta l4proto udp ct original proto-dst 53"},
	{rules: "ct reply ip saddr 192.0.2.2", text: "ct reply ip saddr 192.0.2.2"},
	{rules: "ct mark 1", text: "ct mark 0x1"},
	{rules: "fib saddr type local", text: "fib saddr type 0x2"},
	{rules: "fib daddr type local", text: "fib daddr type 0x2"},
	{rules: "fib daddr type { local, broadcast }", text: "fib daddr type @__set1"},
	{rules: "fib daddr type != local", text: "fib daddr type != 0x2"},
	{rules: "fib daddr . oif type unicast", text: "fib daddr . oif type 0x1"},
	{rules: "limit rate 5/minute burst 7 packets", text: "limit …", unknown: true},
	{rules: "limit rate 5/minute accept", text: "limit … accept"},
	{rules: "limit rate 5/minute accept\n", text: "limit … accept", unknown: true},
	{rules: "meta skuid 0", text: "meta skuid 0x0", unknown: true},
	{rules: "meta pkttype host", text: "meta pkttype 0"},
	{rules: "numgen random mod 100 < 30", text: "numgen != 0x1e-0xffffffff", unknown: true},
	{rules: `log prefix "x" level info`, text: `log prefix "x"`},
	{rules: "log group 3", text: "log"},
	{rules: "add @timed { ip saddr }", text: "meta nfproto ipv4 dynset …", unknown: true},
	{rules: "counter", text: ""},
	{rules: "udp dport 9 return\n", text: "udp dport 9 return"},
	{rules: "udp dport 9 accept\n", text: "udp dport 9 accept"},
	{rules: "jump aux\n", text: "jump aux"},
	{rules: "goto aux\n", text: "goto aux"},
	{rules: "meta l4proto udp jump aux\nudp dport 9", text: "meta l4proto udp jump aux"},
	{rules: "meta l4proto udp goto aux\nudp dport 9", text: "meta l4proto udp goto aux"},
	{rules: "meta l4proto udp jump twice\nudp dport 53", text: "meta l4proto udp jump twice"},
	{rules: "numgen random mod 2 == 0 jump nothing\nudp dport 53", text: "numgen 0x0 jump nothing"},
	{rules: "numgen random mod 2 == 0 goto nothing\nudp dport 53", text: "numgen 0x0 goto nothing", unknown: true},
	{rules: "jump doubtful\nudp dport 53", text: "jump doubtful"},
	{rules: "oifname vmap { \"lo\" : return, \"veth\" : jump aux }\nudp dport 53", text: "oifname vmap @__map0"},
	{rules: "udp dport vmap { 9 : accept, 53 : continue }\nmeta l4proto udp", text: "udp dport vmap @__map0"},
	{rules: "ip saddr . ip daddr vmap { 192.0.2.8 . 192.0.2.2 : accept }\nmeta l4proto udp", text: "ip saddr . ip daddr vmap @__map0"},
	{rules: "ip saddr vmap { 192.0.2.8 : accept, * : continue }\nmeta l4proto udp", text: "ip saddr vmap @__map0"},
}

// nativeRuleset is the table of a case.
func nativeRuleset(rules string) string {
	var chain strings.Builder
	ends := map[string]bool{"return": true, "accept": true, "aux": true, "twice": true, "nothing": true, "doubtful": true}
	lines := strings.Split(rules, "\n")
	for i, line := range lines {
		words := strings.Fields(line)
		switch {
		case line == "", strings.Contains(line, "masquerade"), strings.Contains(line, "snat"):
		case i < len(lines)-1, ends[words[len(words)-1]]:
		default:
			line += " " + translating
		}
		if line == "" && i > 0 {
			line = translating
		}
		chain.WriteString(line + "\n")
	}
	return fmt.Sprintf(`table inet t {
	set hosts { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
	set timed { type ipv4_addr; flags timeout,dynamic; size 100; }
	set empty { type ipv4_addr; flags interval; }
	chain aux { udp dport 9 accept; %[2]s; }
	chain twice { udp dport 9 return; jump aux; }
	chain nothing { counter; log prefix "x"; }
	chain doubtful { numgen random mod 2 == 0 return; counter; }
	chain out { type nat hook postrouting priority srcnat
%[1]s}
}`, chain.String(), translating)
}

// own are the addresses of the node, from which packets are sent, and theirs those of the peer.
var (
	own   = []string{"192.0.2.1", "192.0.2.8", "fd00::1", "fd00::9"}
	other = []string{"192.0.2.7", "192.0.2.9", "fd00::7"}
	peers = []string{"192.0.2.2", "fd00::2"}
)

// TestNativeRules has the kernel translate packets by rules of nftables, one case after the other, and
// compares with what the rules that were read say of the same packets.
func TestNativeRules(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n, peer := newNode(t), newNode(t)
	n.connect(peer)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	prefix := func(a string) netip.Prefix {
		addr := netip.MustParseAddr(a)
		return netip.PrefixFrom(addr, map[bool]int{true: 24, false: 64}[addr.Is4()])
	}
	host := new(hostnat.Host)
	for _, a := range append(append([]string(nil), own...), other...) {
		if a != "192.0.2.1" {
			must(n.NS.AddAddress("veth", prefix(a)))
		}
		host.AddAddress("veth", prefix(a))
	}
	must(peer.NS.AddAddress("veth", prefix("fd00::2")))
	servers := newSeen(t, peer)
	port := uint16(30000)
	for _, c := range nativeCases {
		t.Run(strings.TrimSpace(c.rules), func(t *testing.T) {
			if out, err := n.NS.Run(nativeRuleset(c.rules), "nft", "-f", "-"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			// Translations of earlier cases hold ports.
			n.Do(func() error {
				c, err := conntrack.Dial(nil)
				if err == nil {
					err = errors.Join(c.Flush(), c.Close())
				}
				return err
			})
			defer n.Exec("flush ruleset\n", "nft", "-f", "-")
			read := n.read()
			set := &hostnat.Ruleset{Host: host, Tables: make(map[decision.Family][]*hostnat.Table)}
			for name, index := range read.Devices {
				host.AddDevice(name, index)
			}
			for _, f := range families {
				for _, table := range read.Of(f) {
					set.Tables[f] = append(set.Tables[f], &hostnat.Table{Name: table.Name, Base: table.Base})
				}
			}
			f := decision.IPv4
			if strings.Contains(c.rules, "ip6") && !strings.Contains(c.rules, "snat") {
				f = decision.IPv6
			}
			if got := translatingEnd.ReplaceAllString(set.Tables[f][0].Base.Rules[0].Body(), ""); got != c.text {
				t.Errorf("printed as\n%s, want\n%s", got, c.text)
			}
			unknown := 0
			for _, from := range own {
				for _, to := range peers {
					if strings.Contains(from, ":") != strings.Contains(to, ":") {
						continue
					}
					for _, network := range []string{"udp", "tcp"} {
						if network == "tcp" && from != own[0] && from != own[2] {
							continue
						}
						for _, service := range []uint16{9, 53} {
							port++
							source, destination := netip.AddrPortFrom(netip.MustParseAddr(from), port), netip.AddrPortFrom(netip.MustParseAddr(to), service)
							protocol := map[string]uint8{"udp": 17, "tcp": 6}[network]
							result := new(hostnat.Evaluator).Evaluate(set, hostnat.Packet{
								Packet: decision.Packet{Protocol: decision.Protocol(protocol), Source: source, Destination: destination, Local: true}, Endpoint: destination, Out: "veth",
							})
							got := servers.source(n.NS, network, source, destination)
							switch {
							case result.Unknown != "":
								unknown++
							case !agrees(result, source, got):
								t.Errorf("%s %s to %s: the peer sees %s; %+v", network, source, destination, got, result)
							}
						}
					}
				}
			}
			if (unknown > 0) != c.unknown {
				t.Errorf("of 12 packets %d are unknown, want some: %t", unknown, c.unknown)
			}
		})
	}
}

// agrees compares a result with the source that the peer saw.
func agrees(r hostnat.Result, source, seen netip.AddrPort) bool {
	address := source.Addr()
	switch {
	case r.Rule == nil:
		return seen == source
	case r.Masquerade && address.Is4():
		address = netip.MustParseAddr(own[0])
	case r.Masquerade: // any of the device's
		return seen != source && (r.LastPort == 0 || r.FirstPort <= seen.Port() && seen.Port() <= r.LastPort)
	default:
		address = r.Source
	}
	return seen.Addr() == address && (r.LastPort == 0 || r.FirstPort <= seen.Port() && seen.Port() <= r.LastPort)
}

// translatingEnd is how the end of a rule is printed that the test adds.
var translatingEnd = regexp.MustCompile(` ?(meta l4proto @__set[0-9] )?masquerade to :700-799$`)

// seen are servers that tell from where they are asked.
type seen struct {
	t    *testing.T
	from chan netip.AddrPort
}

func newSeen(t *testing.T, peer node) *seen {
	t.Helper()
	s := &seen{t, make(chan netip.AddrPort, 1)}
	for _, a := range peers {
		for _, port := range []uint16{9, 53} {
			at := netip.AddrPortFrom(netip.MustParseAddr(a), port)
			udp, err := peer.NS.ListenPacket(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			tcp, err := peer.NS.Listen(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = udp.Close()
				_ = tcp.Close()
			})
			go func() {
				for {
					_, from, err := udp.ReadFrom(make([]byte, 10))
					if err != nil {
						return
					}
					s.from <- netip.MustParseAddrPort(from.String())
				}
			}()
			go func() {
				for {
					c, err := tcp.Accept()
					if err != nil {
						return
					}
					s.from <- netip.MustParseAddrPort(c.RemoteAddr().String())
					_ = c.Close()
				}
			}()
		}
	}
	return s
}

// source sends a packet, and returns the source that the peer sees.
func (s *seen) source(ns *netns.Namespace, network string, from, to netip.AddrPort) netip.AddrPort {
	s.t.Helper()
	c, err := ns.Dial(s.t.Context(), network, from, to)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	if network == "udp" {
		if _, err := c.Write([]byte("x")); err != nil {
			s.t.Fatal(err)
		}
	}
	select {
	case got := <-s.from:
		return got
	case <-time.After(time.Minute):
		s.t.Fatalf("%s %s to %s has not come after a minute", network, from, to)
	}
	return netip.AddrPort{}
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
