package netfilter

import (
	"net/netip"
	"strings"
	"testing"
)

// filtered has two networks, of which eth1 and eth2 validate sources, and a route by several devices.
func filtered(t *testing.T) *Host {
	t.Helper()
	h := &Host{ReverseFilter: map[string]int{"eth1": 1, "eth2": looseFilter}}
	for _, text := range []string{
		`[{"ifname":"lo","addr_info":[{"local":"127.0.0.1","prefixlen":8,"scope":"host"}]},{"ifname":"eth0","addr_info":[{"local":"172.20.0.2","prefixlen":16}]},
{"ifname":"eth1","addr_info":[{"local":"192.168.50.2","prefixlen":24}]},{"ifname":"eth2","addr_info":[{"local":"192.168.60.2","prefixlen":24}]},{"ifname":"cni0","addr_info":[{"local":"10.244.1.1","prefixlen":24}]}]`,
		`[{"dst":"203.0.113.0/24","gateway":"172.20.0.1","dev":"eth0"},{"dst":"198.51.100.0/24","nexthops":[{"gateway":"172.20.0.1","dev":"eth0"},{"gateway":"192.168.50.1","dev":"eth1"}]}]`,
	} {
		if err := h.Read(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// TestFilters: which sources must not arrive on the device of a destination.
func TestFilters(t *testing.T) {
	h := filtered(t)
	for _, tt := range []struct{ from, to, device, why string }{
		{"203.0.113.9", "192.168.50.2", "eth1", "rp_filter of eth1 is 1 (strict), and the route to 203.0.113.9 uses eth0"},
		{"192.0.2.9", "192.168.50.2", "eth1", "rp_filter of eth1 is 1 (strict), and there is no route to 192.0.2.9"},
		{"192.0.2.9", "192.168.60.2", "eth2", "rp_filter of eth2 is 2 (loose), and there is no route to 192.0.2.9"},
		{"203.0.113.9", "192.168.60.2", "", ""},  // any route is enough
		{"203.0.113.9", "172.20.0.2", "", ""},    // no filter
		{"198.51.100.9", "192.168.50.2", "", ""}, // one of several next hops
		{"192.168.50.7", "192.168.50.2", "", ""},
		{"10.244.1.9", "192.168.50.2", "", ""}, // arrives on its own device
		{"172.20.0.2", "192.168.50.2", "", ""}, // the host itself
		{"203.0.113.9", "127.0.0.1", "", ""},
		{"203.0.113.9", "10.96.0.1", "", ""},
		{"2001:db8::1", "192.168.50.2", "", ""},
	} {
		if device, why := h.Filters(netip.MustParseAddr(tt.from), netip.MustParseAddr(tt.to)); device != tt.device || why != tt.why {
			t.Errorf("from %s to %s: %q, %q", tt.from, tt.to, device, why)
		}
	}
}
