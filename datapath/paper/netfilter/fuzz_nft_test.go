package netfilter

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// FuzzNftables compiles anything that can be read as a ruleset, and walks packets through it: that ends, whatever the rules are.
func FuzzNftables(f *testing.F) {
	for _, pattern := range []string{"../nftables/testdata/rulesets/*.nft", "../nftables/testdata/every/*.nft", "testdata/nft/*.nft"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal("no files", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	f.Add("table ip t { chain a { type filter hook input priority 0; jump b; }; chain b { goto a; jump b; }; }")
	f.Add("table inet t { chain a { type nat hook output priority -1; dnat to jhash ip saddr . tcp dport mod 3 seed 1 map { 0 : 1.2.3.4, * : ::1 }; }; }")
	f.Fuzz(func(t *testing.T, text string) {
		ruleset, err := nftables.Read("f", strings.NewReader(text))
		if err != nil {
			return
		}
		for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
			d, _ := nftrules.Compile(ruleset, family)
			if d == nil {
				continue
			}
			m, err := New([]*iptables.Dump{d}, nil, fuzzHost, Options{FreshCounters: true})
			if err != nil {
				continue
			}
			for _, p := range fuzzPackets {
				if p.Is4() == (family == iptables.IPv4) {
					m.ExploreFrom(nil, p, nil, 8, &Work{Visits: 20000, Steps: 20000})
				}
			}
		}
	})
}

var fuzzHost = &Host{
	Interfaces: []Interface{
		{Name: loopbackName, Addresses: []Address{{Prefix: netip.MustParsePrefix("127.0.0.1/8")}, {Prefix: netip.MustParsePrefix("::1/128")}}}, {Name: "eth0", Addresses: []Address{{Prefix: netip.MustParsePrefix("192.0.2.1/24")}, {Prefix: netip.MustParsePrefix("2001:db8::1/64")}}},
	},
	Routes: []Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0"}, {Destination: netip.MustParsePrefix("::/0"), Interface: "eth0"}},
}

// fuzzPackets are of both families, from outside and from the host.
var fuzzPackets = []iptables.Packet{
	{Protocol: protoTCP, Source: netip.MustParseAddrPort("203.0.113.9:40000"), Destination: netip.MustParseAddrPort("192.0.2.1:80"), InInterface: "eth0", Flags: iptables.SYN, TTL: 64, Length: 60},
	{Protocol: protoUDP, Source: netip.MustParseAddrPort("192.0.2.1:40000"), Destination: netip.MustParseAddrPort("192.0.2.1:53"), Local: true, TTL: 64, Length: 40},
	{Protocol: protoTCP, Source: netip.MustParseAddrPort("[2001:db8:9::9]:40000"), Destination: netip.MustParseAddrPort("[2001:db8:7::7]:80"), InInterface: "eth0", Flags: iptables.SYN, TTL: 64, Length: 80},
	{Protocol: protoICMPv6, Source: netip.MustParseAddrPort("[2001:db8::1]:0"), Destination: netip.MustParseAddrPort("[2001:db8:9::9]:0"), ICMPType: 128, ICMPID: 1, Local: true, TTL: 64, Length: 80},
}
