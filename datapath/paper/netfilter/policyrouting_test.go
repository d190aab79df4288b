package netfilter

import (
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// TestRoutingRules: the routes that the rules of Amazon's network plugin, Cilium, wg-quick and Tailscale select.
func TestRoutingRules(t *testing.T) {
	a, p := netip.MustParseAddr, netip.MustParsePrefix
	host := func(rules ...RoutingRule) *Host {
		return &Host{
			Interfaces: []Interface{{Name: "eth0", Addresses: []Address{{Prefix: p("10.0.0.10/24")}}}},
			Routes:     []Route{{Destination: p("0.0.0.0/0"), Interface: "eth0", Via: a("10.0.0.1")}, {Destination: p("10.0.0.55/32"), Interface: "eni1"}},
			Tables: map[string][]Route{
				"2":     {{Destination: p("10.9.0.0/16"), Type: NoRoute}, {Destination: p("0.0.0.0/0"), Interface: "eth1", Via: a("10.0.0.1")}},
				"2004":  {{Destination: p("0.0.0.0/0"), Type: Local, Interface: "lo"}},
				"51820": {{Destination: p("0.0.0.0/0"), Interface: "wg0"}},
			},
			Rules: rules,
		}
	}
	masked := func(value, mask uint32) iptables.MaskedValue { return iptables.MaskedValue{Value: value, Mask: mask} }
	local, main := RoutingRule{Table: "local"}, RoutingRule{Table: "main"}
	amazon := host(local, RoutingRule{To: p("10.0.0.55/32"), Table: "main"}, RoutingRule{Mark: masked(0x80, 0x80), Table: "main"}, RoutingRule{From: p("10.0.0.55/32"), Table: "2"}, main)
	cilium := host(RoutingRule{Mark: masked(0x200, 0xf00), Table: "2004"}, local, main)
	wireguard := host(local, RoutingRule{Table: "main", MinBits: 1}, RoutingRule{Not: true, Mark: masked(0xca6c, ^uint32(0)), Table: "51820"}, main)
	tailscale := host(local, RoutingRule{Mark: masked(0x80000, 0xff0000), Type: Unreachable}, RoutingRule{Table: "52"}, main)
	behind := host(local, RoutingRule{In: "eth1", Table: "2"}, main)
	none := netip.Addr{}
	for _, tt := range []struct {
		host     *Host
		from, to netip.Addr
		in       string
		mark     uint32
		want     RouteType
		device   string
	}{
		{amazon, none, a("192.0.2.1"), "lo", 0, Unicast, "eth0"},
		{amazon, a("10.0.0.55"), a("192.0.2.1"), "eni1", 0, Unicast, "eth1"},
		{amazon, a("10.0.0.55"), a("192.0.2.1"), "eni1", 0x80, Unicast, "eth0"},
		{amazon, a("10.0.0.55"), a("10.9.0.1"), "eni1", 0, Unicast, "eth0"}, // throw
		{amazon, a("10.0.0.55"), a("10.0.0.10"), "eni1", 0, Local, "lo"},
		{amazon, a("192.0.2.1"), a("10.0.0.55"), "eth1", 0, Unicast, "eni1"},
		{cilium, none, a("192.0.2.1"), "lo", 0x3200, Local, "lo"},
		{cilium, none, a("192.0.2.1"), "lo", 0x300, Unicast, "eth0"},
		{wireguard, none, a("10.0.0.20"), "lo", 0, Unicast, "eth0"},
		{wireguard, none, a("192.0.2.1"), "lo", 0, Unicast, "wg0"},
		{wireguard, none, a("192.0.2.1"), "lo", 0xca6c, Unicast, "eth0"},
		{tailscale, none, a("192.0.2.1"), "lo", 0x80000, Unreachable, "lo"},
		{tailscale, none, a("192.0.2.1"), "lo", 0, Unicast, "eth0"},
		{behind, a("192.0.2.9"), a("192.0.2.1"), "eth1", 0, Unicast, "eth1"},
		{behind, a("192.0.2.9"), a("192.0.2.1"), "eth0", 0, Unicast, "eth0"},
	} {
		if r := newNetwork(tt.host, iptables.IPv4).lookup(flowKey{tt.from, tt.to, tt.in, tt.mark}); r.Type != tt.want || r.Interface != tt.device {
			t.Errorf("from %s to %s by %s with mark %#x: %s by %q, want %s by %q", tt.from, tt.to, tt.in, tt.mark, r.Type, r.Interface, tt.want, tt.device)
		}
	}
}
