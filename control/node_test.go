package control

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func addrs(s ...string) []netip.Addr {
	list := []netip.Addr{}
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func prefixes(s ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func TestNodeConfigValidate(t *testing.T) {
	tests := []struct {
		name   string
		config NodeConfig
		want   string
	}{
		{"zero value", NodeConfig{}, ""},
		{"everything", NodeConfig{Name: "worker", ClusterCIDRs: prefixes("10.244.0.0/16", "fd01::/48"), NodePortAddresses: prefixes("0.0.0.0/0"), MasqueradeAll: true}, ""},
		{"no prefixes", NodeConfig{ClusterCIDRs: make([]netip.Prefix, 1), NodePortAddresses: make([]netip.Prefix, 1)},
			"clusterCIDRs[0]: not a prefix\nnodePortAddresses[0]: not a prefix"},
		{"IPv4 dressed as IPv6", NodeConfig{ClusterCIDRs: prefixes("10.244.0.0/16", "::ffff:10.244.0.0/112")},
			"clusterCIDRs[1]: ::ffff:10.244.0.0/112: write an IPv4 prefix in the IPv4 form"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := tt.config.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLocalAddresses(t *testing.T) {
	tests := []struct {
		name     string
		in, want []netip.Addr
	}{
		{"none", nil, addrs()},
		{"sorted, each once", addrs("172.20.0.2", "fd00::2", "10.0.0.1", "172.20.0.2"), addrs("10.0.0.1", "172.20.0.2", "fd00::2")},
		{"without loopback", addrs("127.0.0.1", "127.5.0.1", "::1", "10.0.0.1"), addrs("10.0.0.1")},
		{"in plain form", addrs("::ffff:10.0.0.1", "fe80::1%eth0"), addrs("10.0.0.1", "fe80::1")},
		{"without those that are none", []netip.Addr{{}}, addrs()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := localAddresses(tt.in); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNodeOfTheTable(t *testing.T) {
	config := NodeConfig{Name: "worker", ClusterCIDRs: prefixes("10.244.0.0/16"), NodePortAddresses: prefixes("172.20.0.0/16"), MasqueradeAll: true}
	want := decision.Node{Name: "worker", Addresses: addrs("172.20.0.2"), ClusterCIDRs: config.ClusterCIDRs, NodePortAddresses: config.NodePortAddresses, MasqueradeAll: true}
	if got := config.node(addrs("172.20.0.2")); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
