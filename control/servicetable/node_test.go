package servicetable

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// withPodCIDRs makes node a with the prefixes of its pods.
func withPodCIDRs(cidrs ...string) *corev1.Node {
	n := node("a")
	n.Spec.PodCIDRs = cidrs
	return n
}

// withAddresses makes node a with addresses written as "InternalIP=172.20.0.2".
func withAddresses(list ...string) *corev1.Node {
	n := node("a")
	for _, s := range list {
		kind, address, _ := strings.Cut(s, "=")
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(kind), Address: address})
	}
	return n
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
			"clusterCIDRs[1]: ::ffff:10.244.0.0/112: an IPv4-mapped prefix: write it in IPv4 form\n" +
				"clusterCIDRs: 2 prefixes of family IPv4: want at most one of each family"},
		{"two prefixes of pods in a family", NodeConfig{ClusterCIDRs: prefixes("fd01::/48", "10.244.0.0/16", "fd02::/48")},
			"clusterCIDRs: 2 prefixes of family IPv6: want at most one of each family"},
		{"several prefixes of node ports in a family", NodeConfig{NodePortAddresses: prefixes("10.0.0.0/8", "172.20.0.0/16")}, ""},
		{"addresses of both families", NodeConfig{IPs: addrs("172.20.0.2", "fd00::2")}, ""},
		{"two addresses in a family", NodeConfig{IPs: addrs("172.20.0.2", "172.20.0.3", "172.20.0.4")},
			"IPs: 3 addresses of family IPv4: want at most one of each family"},
		{"no addresses", NodeConfig{IPs: make([]netip.Addr, 2)}, "IPs[0]: not an address\nIPs[1]: not an address"},
		{"IPv4 address dressed as IPv6", NodeConfig{IPs: addrs("::ffff:172.20.0.2")},
			"IPs[0]: ::ffff:172.20.0.2: an IPv4-mapped address: write it in IPv4 form"},

		{"mode ClusterCIDR needs no prefix", NodeConfig{Mode: ClusterCIDR}, ""},
		{"mode NodeCIDR", NodeConfig{Mode: NodeCIDR}, ""},
		{"mode BridgeInterface", NodeConfig{Mode: BridgeInterface, Bridge: "cbr0"}, ""},
		{"mode InterfaceNamePrefix", NodeConfig{Mode: InterfaceNamePrefix, InterfacePrefix: "veth"}, ""},
		{"mode BridgeInterface without it", NodeConfig{Mode: BridgeInterface, InterfacePrefix: "veth"}, "mode BridgeInterface needs the name of the bridge"},
		{"mode InterfaceNamePrefix without it", NodeConfig{Mode: InterfaceNamePrefix, Bridge: "cbr0"}, "mode InterfaceNamePrefix needs the prefix"},
		{"a mode that is none", NodeConfig{Mode: "clusterCIDR"}, `mode "clusterCIDR": want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix`},

		{"primary node ports", NodeConfig{PrimaryNodePorts: true}, ""},
		{"primary node ports beside others", NodeConfig{PrimaryNodePorts: true, NodePortAddresses: prefixes("172.20.0.0/16")}, ""},
		{"all that is wrong", NodeConfig{Mode: "x", PrimaryNodePorts: true, NodePortAddresses: make([]netip.Prefix, 1)},
			"nodePortAddresses[0]: not a prefix\n" + `mode "x": want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix`},
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
	config := NodeConfig{
		Name: "worker", Zone: "a", IPs: addrs("172.20.0.2"), ClusterCIDRs: prefixes("10.244.0.0/16"), NodePortAddresses: prefixes("172.20.0.0/16", "127.0.0.0/8"),
		LocalhostNodePorts: true, MasqueradeAll: true, NoHairpinMasquerade: true, MasqueradeMark: 1 << 15,
	}
	want := decision.Node{
		Name: "worker", Zone: "a", IPs: config.IPs, Addresses: addrs("172.20.0.2", "172.20.0.3"), NodePortAddresses: config.NodePortAddresses,
		LocalhostNodePorts: true, MasqueradeAll: true, NoHairpinMasquerade: true, MasqueradeMark: 1 << 15, Detector: decision.Detector{CIDRs: config.ClusterCIDRs},
	}
	if got := config.node(nil, addrs("172.20.0.3", "172.20.0.2", "127.0.0.1")); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestLocalhostNodePorts: node ports are open on IPv4 loopback addresses unless the node port
// addresses leave these out, as in kube-proxy (ContainsIPv4Loopback).
func TestLocalhostNodePorts(t *testing.T) {
	tests := []struct {
		name      string
		flag      bool
		addresses []netip.Prefix
		primary   bool
		object    *corev1.Node
		want      bool
	}{
		{"all addresses", true, nil, false, nil, true},
		{"the flag is false", false, nil, false, nil, false},
		{"the flag is false, the addresses allow it", false, prefixes("127.0.0.0/8"), false, nil, false},
		{"loopback among the addresses", true, prefixes("172.20.0.0/16", "127.0.0.0/8"), false, nil, true},
		{"one loopback address", true, prefixes("127.0.0.1/32"), false, nil, true},
		{"another loopback address", true, prefixes("127.9.9.9/32"), false, nil, true},
		{"a part of loopback", true, prefixes("127.128.0.0/9"), false, nil, true},
		{"more than loopback", true, prefixes("126.0.0.0/7"), false, nil, true},
		{"every IPv4 address", true, prefixes("0.0.0.0/0"), false, nil, true},
		{"IPv6 only, which does not concern IPv4", true, prefixes("fd00::/8"), false, nil, true},
		{"without loopback", true, prefixes("172.20.0.0/16"), false, nil, false},
		{"primary", true, nil, true, withAddresses("InternalIP=172.20.0.2", "InternalIP=fd00::2"), false},
		{"primary, of IPv6 only", true, nil, true, withAddresses("InternalIP=fd00::2"), true},
		{"primary, not known", true, nil, true, nil, true},
		{"primary, loopback, which means not known", true, nil, true, withAddresses("InternalIP=127.0.0.1"), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := NodeConfig{Name: "a", LocalhostNodePorts: tt.flag, NodePortAddresses: tt.addresses, PrimaryNodePorts: tt.primary}
			if got := config.node(tt.object, nil).LocalhostNodePorts; got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

func TestZoneOfTheNode(t *testing.T) {
	labelled := node("a")
	labelled.Labels = map[string]string{"topology.kubernetes.io/zone": "zone-a", "failure-domain.beta.kubernetes.io/zone": "old"}
	old := node("a")
	old.Labels = map[string]string{"failure-domain.beta.kubernetes.io/zone": "old"}
	tests := []struct {
		name   string
		config string
		object *corev1.Node
		want   string
	}{
		{"that of the label", "", labelled, "zone-a"},
		{"the configured one goes before the label", "zone-b", labelled, "zone-b"},
		{"the configured one without a Node object", "zone-b", nil, "zone-b"},
		{"none without the label", "", node("a"), ""},
		{"the label of old clusters does not count", "", old, ""},
		{"none without a Node object", "", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := NodeConfig{Name: "a", Zone: tt.config}
			if got := config.node(tt.object, nil).Zone; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAddressesOfTheNodeObject(t *testing.T) {
	tests := []struct {
		name   string
		config []netip.Addr
		object *corev1.Node
		want   []netip.Addr
	}{
		{"internal ones", nil, withAddresses("InternalIP=172.20.0.2", "InternalIP=fd00::2"), addrs("172.20.0.2", "fd00::2")},
		{"internal ones go before external ones, wherever they are listed", nil, withAddresses("ExternalIP=192.0.2.1", "InternalIP=172.20.0.2"), addrs("172.20.0.2")},
		{"an external one of the family without an internal one", nil, withAddresses("ExternalIP=2001:db8::1", "ExternalIP=192.0.2.1", "InternalIP=172.20.0.2"), addrs("172.20.0.2", "2001:db8::1")},
		{"external ones alone", nil, withAddresses("ExternalIP=192.0.2.1"), addrs("192.0.2.1")},
		{"the first of a family", nil, withAddresses("InternalIP=172.20.0.3", "InternalIP=172.20.0.2"), addrs("172.20.0.3")},
		{"names are no addresses", nil, withAddresses("Hostname=172.20.0.9", "InternalDNS=a.internal", "InternalIP=a", "InternalIP=172.20.0.2"), addrs("172.20.0.2")},
		{"IPv4 dressed as IPv6", nil, withAddresses("InternalIP=::ffff:172.20.0.2"), addrs("172.20.0.2")},
		{"none", nil, node("a"), nil},
		{"no Node object", nil, nil, nil},
		{"the configured one counts in its family", addrs("10.0.0.9"), withAddresses("InternalIP=172.20.0.2", "InternalIP=fd00::2"), addrs("10.0.0.9", "fd00::2")},
		{"the configured ones of both families", addrs("fd00::9", "10.0.0.9"), withAddresses("InternalIP=172.20.0.2", "InternalIP=fd00::2"), addrs("fd00::9", "10.0.0.9")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := NodeConfig{Name: "a", IPs: tt.config}
			if got := config.node(tt.object, addrs("10.9.9.9")).IPs; !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestPrimaryNodePorts(t *testing.T) {
	tests := []struct {
		name   string
		config NodeConfig
		object *corev1.Node
		want   []netip.Prefix
	}{
		{"the node's own addresses", NodeConfig{PrimaryNodePorts: true}, withAddresses("InternalIP=172.20.0.2", "InternalIP=fd00::2", "ExternalIP=192.0.2.1"), prefixes("172.20.0.2/32", "fd00::2/128")},
		{"the configured ones", NodeConfig{PrimaryNodePorts: true, IPs: addrs("172.20.0.9")}, withAddresses("InternalIP=172.20.0.2"), prefixes("172.20.0.9/32")},
		{"a family without one is not restricted", NodeConfig{PrimaryNodePorts: true}, withAddresses("InternalIP=172.20.0.2"), prefixes("172.20.0.2/32")},
		{"a loopback one counts as not known", NodeConfig{PrimaryNodePorts: true, IPs: addrs("127.0.0.1", "fd00::2")}, nil, prefixes("fd00::2/128")},
		{"none known", NodeConfig{PrimaryNodePorts: true}, nil, nil},
		{"with prefixes (Kubernetes 1.37)", NodeConfig{PrimaryNodePorts: true, NodePortAddresses: prefixes("192.0.2.0/24")}, withAddresses("InternalIP=172.20.0.2", "InternalIP=fd00::2"),
			prefixes("192.0.2.0/24", "172.20.0.2/32", "fd00::2/128")},
		{"with prefixes, none known", NodeConfig{PrimaryNodePorts: true, NodePortAddresses: prefixes("192.0.2.0/24")}, nil, prefixes("192.0.2.0/24")},
		{"not requested", NodeConfig{NodePortAddresses: prefixes("10.0.0.0/8")}, withAddresses("InternalIP=172.20.0.2"), prefixes("10.0.0.0/8")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.config.node(tt.object, addrs("172.20.0.2")).NodePortAddresses; !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDetectorOfTheMode(t *testing.T) {
	oldStyle := node("a")
	oldStyle.Spec.PodCIDR = "10.244.1.0/24"
	both := withPodCIDRs("10.244.2.0/24")
	both.Spec.PodCIDR = "10.244.1.0/24"
	all := NodeConfig{ClusterCIDRs: prefixes("10.244.0.0/16", "fd01::/48"), Bridge: "cbr0", InterfacePrefix: "veth"}
	tests := []struct {
		name   string
		mode   DetectLocalMode
		object *corev1.Node
		want   decision.Detector
	}{
		{"ClusterCIDR is the default", "", withPodCIDRs("10.244.1.0/24"), decision.Detector{CIDRs: all.ClusterCIDRs}},
		{"ClusterCIDR", ClusterCIDR, nil, decision.Detector{CIDRs: all.ClusterCIDRs}},
		{"NodeCIDR from podCIDRs", NodeCIDR, withPodCIDRs("10.244.1.0/24", "fd01:0:0:1::/64"), decision.Detector{CIDRs: prefixes("10.244.1.0/24", "fd01:0:0:1::/64")}},
		{"NodeCIDR from podCIDR", NodeCIDR, oldStyle, decision.Detector{CIDRs: prefixes("10.244.1.0/24")}},
		{"NodeCIDR from podCIDRs rather than podCIDR", NodeCIDR, both, decision.Detector{CIDRs: prefixes("10.244.2.0/24")}},
		{"NodeCIDR without bits of the host", NodeCIDR, withPodCIDRs("10.244.1.7/24"), decision.Detector{CIDRs: prefixes("10.244.1.0/24")}},
		{"NodeCIDR of IPv4 dressed as IPv6", NodeCIDR, withPodCIDRs("::ffff:10.244.1.0/120"), decision.Detector{CIDRs: prefixes("10.244.1.0/24")}},
		{"NodeCIDR with prefixes that are none", NodeCIDR, withPodCIDRs("", "10.244.1.0"), decision.Detector{}},
		{"NodeCIDR without podCIDRs", NodeCIDR, node("a"), decision.Detector{}},
		{"NodeCIDR without a Node object", NodeCIDR, nil, decision.Detector{}},
		{"BridgeInterface", BridgeInterface, withPodCIDRs("10.244.1.0/24"), decision.Detector{Bridge: "cbr0"}},
		{"InterfaceNamePrefix", InterfaceNamePrefix, withPodCIDRs("10.244.1.0/24"), decision.Detector{InterfacePrefix: "veth"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := all
			config.Mode = tt.mode
			if got := config.node(tt.object, nil).Detector; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestDetectorIsWrittenAsKubeProxyWritesIt(t *testing.T) {
	config := NodeConfig{ClusterCIDRs: prefixes("10.244.1.1/16")}
	n := config.node(nil, nil)
	if got, want := fmt.Sprint(n.Detector.CIDRs), "[10.244.0.0/16]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
