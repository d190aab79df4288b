//go:build linux

package netfilter

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// nftHost is a host with a ruleset of nftables, and some with rules of iptables-nft beside it: its devices with their addresses, by device what comes from there, and where
// the host sends packets to that the file does not name.
type nftHost struct {
	file    string
	devices map[string][]string
	behind  map[string][]string
	to      []string
}

// nftHosts are hosts in the shape of published ones.
var nftHosts = []nftHost{
	{
		"arch", map[string][]string{"enp1s0": {"192.168.1.5/24", "fd00:1::5/64"}, "eth0": {"172.20.1.5/16", "2001:db8:5::5/64"}},
		map[string][]string{"enp1s0": {"192.168.1.9", "10.1.2.3", "203.0.113.5", "fd00:1::9", "2001:db8:9::9"}, "eth0": {"172.20.1.9", "203.0.113.6", "fd00:1::a"}},
		[]string{"203.0.113.80", "2001:db8:9::9", "192.168.1.255"},
	},
	{
		"debian", map[string][]string{"eth0": {"198.51.100.5/24", "2001:db8:5::5/64"}},
		map[string][]string{"eth0": {"198.51.100.9", "192.0.2.8", "2001:db8:5::9"}}, []string{"203.0.113.80", "2001:db8:9::9"},
	},
	{
		"firewalld", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.0.1/24"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "eth1": {"10.0.0.5", "203.0.113.10"}}, []string{"10.0.0.5", "203.0.113.80", "2002:a00::1", "2001:db8:9::9"},
	},
	{
		"containers", map[string][]string{
			"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "docker0": {"172.17.0.1/16"}, "br-1a2b3c4d": {"172.18.0.1/16"}, "podman0": {"10.88.0.1/16"}, "virbr0": {"192.168.122.1/24"},
		},
		map[string][]string{
			"eth0": {"192.0.2.9", "192.0.2.77", "198.51.100.3", "203.0.113.9", "2001:db8::7", "2001:db8:5::9"}, "docker0": {"172.17.0.2"}, "br-1a2b3c4d": {"172.18.0.2"}, "podman0": {"10.88.0.5"},
			"virbr0": {"192.168.122.5"},
		},
		[]string{"172.17.0.2", "172.18.0.2", "10.88.0.5", "192.168.122.5", "203.0.113.80", "2001:db8:5::9"},
	},
	{
		"gateway", map[string][]string{
			"eth0": {"203.0.113.2/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.254/24", "fd00:1::ff/64"}, "eth2": {"10.0.2.1/24"}, "eth3": {"10.0.3.1/24"}, "wg0": {"10.8.0.1/24"},
		},
		map[string][]string{
			"eth0": {"203.0.113.9", "198.51.100.7", "198.51.100.9", "2001:db8:5::9"}, "eth1": {"10.0.1.5", "10.0.5.2", "10.0.9.3", "fd00:1::5"}, "eth2": {"10.0.2.10"}, "eth3": {"10.0.3.3"},
			"wg0": {"10.8.0.2", "10.8.0.7"},
		},
		[]string{"10.0.1.5", "10.0.2.10", "198.51.100.80", "2001:db8:9::9", "fd00:2::3"},
	},
	{
		"kube-proxy", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "veth1": {"10.244.1.1/32"}, "veth2": nil},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "10.244.2.2", "2001:db8:5::9"}, "veth1": {"10.244.1.2"}, "veth2": {"10.244.1.3"}},
		[]string{"203.0.113.80", "10.244.1.2", "2001:db8:9::9"},
	},
	{
		"docker", map[string][]string{"eth0": {"192.0.2.5/24", "192.0.2.6/24", "2001:db8:5::5/64"}, "docker0": {"172.17.0.1/16"}, "br-app": {"172.18.0.1/16"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "docker0": {"172.17.0.2", "172.17.0.3"}, "br-app": {"172.18.0.2", "172.18.0.3"}},
		[]string{"203.0.113.80", "172.17.0.2", "172.18.0.3", "2001:db8:9::9"},
	},
	{
		"libvirt", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "virbr0": {"192.168.122.1/24", "fd00:122::1/64"}, "virbr1": {"192.168.100.1/24"}, "virbr2": {"192.168.150.1/24"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "virbr0": {"192.168.122.5", "192.168.122.6", "fd00:122::5"}, "virbr1": {"192.168.100.5"}, "virbr2": {"192.168.150.5"}},
		[]string{"203.0.113.80", "192.168.122.5", "192.168.100.5", "192.168.150.5", "2001:db8:9::9", "fd00:122::5"},
	},
	{
		"calico", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "calia": {"10.244.1.1/32"}, "calib": nil, "calic": nil},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "10.244.2.2", "2001:db8:5::9"}, "calia": {"10.244.1.2"}, "calib": {"10.244.1.3", "10.244.9.9"}, "calic": {"10.244.1.4"}},
		[]string{"203.0.113.80", "10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.2.2", "2001:db8:9::9"},
	},
	{
		"fail2ban", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "198.51.100.3", "203.0.113.9", "203.0.113.10", "2001:db8:5::9", "2001:db8:66::7"}}, []string{"203.0.113.80", "10.1.1.1", "2001:db8:9::9"},
	},
	{
		"ufw", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.1/24", "fd00:1::1/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "eth1": {"10.0.1.9", "10.0.1.10", "fd00:1::9"}}, []string{"203.0.113.80", "10.0.1.9", "192.0.2.255", "2001:db8:9::9", "fd00:1::9"},
	},
	{
		"firewalld-zones", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.1/24", "fd00:1::1/64"}, "eth2": {"10.0.2.1/24", "fd00:2::1/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "203.0.113.10", "198.51.100.7", "2001:db8:5::9"}, "eth1": {"10.0.1.9", "10.9.0.7", "fd00:1::9"}, "eth2": {"10.0.2.10", "fd00:2::10"}},
		[]string{"203.0.113.80", "10.0.1.9", "10.0.2.10", "10.9.0.7", "2001:db8:9::9", "fd00:1::9", "fd00:2::10", "2002:a00::1"},
	},
	{
		"netavark", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "podman0": {"10.88.0.1/16"}, "podman1": {"10.89.0.1/24", "fd00:89::1/64"}, "podman2": {"10.89.1.1/24"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "podman0": {"10.88.0.5", "10.88.0.6"}, "podman1": {"10.89.0.7", "fd00:89::7"}, "podman2": {"10.89.1.3"}},
		[]string{"203.0.113.80", "10.88.0.6", "10.89.0.7", "10.89.1.3", "2001:db8:9::9", "fd00:89::7"},
	},
	{
		"docker-iptables", map[string][]string{"eth0": {"192.0.2.5/24", "192.0.2.6/24", "2001:db8:5::5/64"}, "docker0": {"172.17.0.1/16"}, "br-app": {"172.18.0.1/16"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "203.0.113.10", "198.51.100.7", "172.17.0.9", "2001:db8:5::9"}, "docker0": {"172.17.0.2", "172.17.0.3"}, "br-app": {"172.18.0.2", "172.18.0.3"}},
		[]string{"203.0.113.80", "172.17.0.3", "172.18.0.3", "2001:db8:9::9"},
	},
	{
		"ufw-iptables", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.1/24"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "203.0.113.10", "2001:db8:5::9"}, "eth1": {"10.0.1.9", "10.0.1.10"}}, []string{"203.0.113.80", "10.0.1.10", "192.0.2.255", "2001:db8:9::9"},
	},
	{
		"k3s", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "cni0": {"10.42.1.1/24", "fd00:42:0:1::1/64"}, "flannel.1": {"10.42.1.0/32"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "203.0.113.10", "2001:db8:5::9"}, "cni0": {"10.42.1.2", "10.42.1.3", "10.42.1.4", "fd00:42:0:1::2"}, "flannel.1": {"10.42.2.9", "10.42.2.1"}},
		[]string{"203.0.113.81", "10.42.1.4", "10.43.0.99", "2001:db8:9::9", "fd00:42:0:1::2", "fd00:42:0:2::2"},
	},
	{
		"k3s-iptables", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "cni0": {"10.42.1.1/24"}, "flannel.1": {"10.42.1.0/32"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "203.0.113.10", "2001:db8:5::9"}, "cni0": {"10.42.1.2", "10.42.1.3", "10.42.1.4"}, "flannel.1": {"10.42.2.9", "10.42.2.1"}},
		[]string{"203.0.113.81", "10.42.1.2", "10.42.1.4", "10.43.7.7", "10.43.7.7", "127.0.0.5", "2001:db8:9::9"},
	},
	{
		"kindnet", map[string][]string{"eth0": {"192.168.8.2/24", "2001:db8:5::5/64"}, "knet1": {"10.244.1.1/32"}, "knet2": nil},
		map[string][]string{"eth0": {"192.168.8.3", "203.0.113.9", "10.244.2.2", "2001:db8:5::9"}, "knet1": {"10.244.1.2", "fd00:10:244:1::2"}, "knet2": {"10.244.1.3"}},
		[]string{"203.0.113.80", "10.244.1.3", "10.244.2.2", "192.168.8.3", "2001:db8:9::9", "fd00:10:244:1::2"},
	},
	{
		"cni", map[string][]string{"eth0": {"192.0.2.5/24", "192.0.2.6/24", "2001:db8:5::5/64"}, "cni0": {"10.85.0.1/16", "fd00:85::1/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "cni0": {"10.85.0.2", "10.85.0.3", "10.85.0.4", "fd00:85::2", "fd00:85::3"}},
		[]string{"203.0.113.80", "10.85.0.4", "2001:db8:9::9", "fd00:85::3"},
	},
	{
		"ovn", map[string][]string{"br-ex": {"192.0.2.5/24", "2001:db8:5::5/64", "169.254.0.2/17", "fd69::2/112"}, "ovn-k8s-mp0": {"10.128.1.2/24", "fd01:0:0:1::2/64"}, "eth0": nil},
		map[string][]string{"eth0": {"203.0.113.77"}, "br-ex": {"192.0.2.9", "203.0.113.9", "169.254.0.1", "2001:db8:5::9", "fd69::1"}, "ovn-k8s-mp0": {"10.128.1.5", "10.128.1.6", "10.128.2.7", "fd01:0:0:1::5"}},
		[]string{"203.0.113.80", "10.128.1.6", "172.30.0.30", "2001:db8:9::9", "fd01:0:0:1::5"},
	},
	{
		"openwrt", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "br-lan": {"192.168.1.1/24", "fd00:1::1/64"}, "br-guest": {"192.168.3.1/24"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.66", "198.51.100.9", "203.0.113.9", "2001:db8:5::9"}, "br-lan": {"192.168.1.20", "192.168.1.21", "fd00:1::20"}, "br-guest": {"192.168.3.9"}},
		[]string{"203.0.113.80", "192.168.1.20", "192.168.1.30", "192.168.3.9", "2001:db8:9::9", "fd00:1::20"},
	},
	{
		"incus", map[string][]string{"eth0": {"192.0.2.5/24", "192.0.2.6/24", "2001:db8:5::5/64"}, "incusbr0": {"10.100.0.1/24", "fd42:100::1/64"}, "incusbr1": {"10.101.0.1/24"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "incusbr0": {"10.100.0.10", "10.100.0.11", "fd42:100::10"}, "incusbr1": {"10.101.0.5", "203.0.113.5"}},
		[]string{"203.0.113.80", "192.0.2.9", "10.100.0.11", "10.101.0.5", "2001:db8:9::9", "fd42:100::10"},
	},
	{
		"proxmox", map[string][]string{"eth0": nil, "vmbr0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "vmbr1": {"10.10.0.1/16"}},
		map[string][]string{"eth0": {"203.0.113.77"}, "vmbr0": {"192.0.2.9", "203.0.113.9", "203.0.113.10", "2001:db8:5::9"}, "vmbr1": {"10.10.0.9", "10.10.66.9"}}, []string{"203.0.113.80", "10.10.0.9", "10.10.66.9", "192.0.2.255", "2001:db8:9::9"},
	},
	{
		"tailscale", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.1/24", "fd00:1::1/64"}, "tailscale0": {"100.101.102.103/32", "fd7a:115c:a1e0::1/128"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "100.64.0.9", "100.115.92.7", "2001:db8:5::9"}, "eth1": {"10.0.1.9", "fd00:1::9"}, "tailscale0": {"100.90.1.2", "fd7a:115c:a1e0::2"}},
		[]string{"203.0.113.80", "10.0.1.9", "100.90.1.2", "2001:db8:9::9", "fd00:1::9", "fd7a:115c:a1e0::2"},
	},
	{
		"home-router", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"192.168.1.1/24", "fd00:1::1/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.42", "2001:db8:5::9"}, "eth1": {"192.168.1.9", "10.7.7.7", "fd00:1::9", "fd00:7::7"}}, []string{"203.0.113.80", "192.168.1.9", "2001:db8:9::9", "fd00:1::9"},
	},
	{
		"balancing", map[string][]string{
			"eth0": {"192.0.2.5/24", "192.0.2.80/32", "192.0.2.81/32", "192.0.2.82/32", "192.0.2.83/32", "192.0.2.84/32", "192.0.2.85/32", "2001:db8:5::5/64", "2001:db8:5::80/128", "2001:db8:5::81/128"},
			"eth1": {"10.0.1.1/24", "fd00:1::1/64"},
		},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "203.0.113.200", "2001:db8:5::9", "2001:db8:9::1"}, "eth1": {"10.0.1.10", "10.0.1.11", "10.0.1.12", "fd00:1::10"}},
		[]string{"192.0.2.80", "192.0.2.81", "192.0.2.82", "192.0.2.83", "192.0.2.84", "192.0.2.84", "192.0.2.85", "203.0.113.80", "2001:db8:5::80", "2001:db8:5::81", "2001:db8:9::9"},
	},
	{
		"knocking", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}}, map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}}, []string{"192.0.2.5", "192.0.2.5", "2001:db8:5::5", "2001:db8:5::5"},
	},
	{
		"bans", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.1/24", "fd00:1::1/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "192.0.2.77", "198.51.100.3", "198.51.100.70", "203.0.113.66", "203.0.113.9", "2001:db8:5::9", "2001:db8:66::7", "2001:db8:9::66"}, "eth1": {"10.0.1.9", "fd00:1::9"}},
		[]string{"203.0.113.80", "10.0.1.9", "2001:db8:9::9", "fd00:1::9"},
	},
	{
		"perimeter", map[string][]string{"eth0": {"192.0.2.5/24", "2001:db8:5::5/64"}, "eth1": {"10.0.1.1/24", "fd00:1::1/64"}, "eth2": {"10.0.2.1/24", "fd00:2::1/64"}},
		map[string][]string{"eth0": {"192.0.2.9", "203.0.113.9", "2001:db8:5::9"}, "eth1": {"10.0.1.2", "10.0.1.3", "fd00:1::2"}, "eth2": {"10.0.2.2", "10.0.2.3", "fd00:2::2"}},
		[]string{"203.0.113.80", "10.0.1.2", "10.0.2.2", "2001:db8:9::9", "fd00:1::2", "fd00:2::2"},
	},
}

// TestKernelAgreesAboutNftablesHosts sends packets to hosts with the rulesets of real ones.
func TestKernelAgreesAboutNftablesHosts(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	for _, tool := range []string{program("nft", true), "ipset"} {
		netnstest.RequireTool(t, tool)
	}
	seen := make(tally)
	packets := netnstest.Cases(300, 40)
	for i, h := range nftHosts {
		t.Run(h.file, func(t *testing.T) {
			n := newKernelNode(t, h.host())
			for _, is4 := range []bool{true, false} {
				g := h.traffic(h.read(t, ".nft")+h.read(t, ".rules"), is4)
				g.host = n.host
				seed := *firstSeed + uint64(i)
				n.send(t, h.load(t, n, seed, is4, seen), seed, packets, &g)
			}
		})
	}
	seen.log(t)
	if want := 2 * len(nftHosts) * packets; seen["packets"] < want && !t.Failed() {
		t.Errorf("%d packets were sent, want %d", seen["packets"], want)
	}
}

// comparable makes the files fit the test: names of devices that leave room for the other end's, rates at which nothing comes back
// while packets are sent, as the kernel's clock and the simulator's differ, and a rule of netdev that drops nothing, as that is not
// simulated.
var comparable = strings.NewReplacer(
	"br-1a2b3c4d5e6f", "br-1a2b3c4d", "flush ruleset", "", "/second", "/hour", "/minute", "/hour", "/min ", "/hour ", "== fin|psh|urg drop; }\n", "== syn drop; }\n",
)

// read is what the host has in a file of its name, if it has one.
func (h nftHost) read(t testing.TB, extension string) string {
	t.Helper()
	for _, dir := range []string{"testdata/nft", "../nftables/testdata/rulesets"} {
		text, err := os.ReadFile(filepath.Join(dir, h.file+extension))
		if err == nil {
			return comparable.Replace(string(text))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return ""
}

// load has the kernel load the host's ipsets, the rules of iptables-nft and those of nftables: with an odd seed the latter first, which
// shows where chains have the same priority.
func (h nftHost) load(t testing.TB, n *kernelNode, seed uint64, is4 bool, y tally) *trial {
	t.Helper()
	check(t, n.unload())
	var beside besideNative
	if text := h.read(t, ".ipset"); text != "" {
		_, err := run(n.node, text, "ipset", "-exist", "restore")
		check(t, err)
		beside.sets, err = iptables.ParseSets(strings.NewReader(text))
		check(t, err)
	}
	native := func() { n.loadAccepted(t, tracking+h.read(t, ".nft"), y) }
	text := h.read(t, ".rules")
	if beside.last = seed%2 == 1; beside.last || text == "" {
		native()
	}
	if text != "" {
		_, err := run(n.node, text, program("nft", true), "-w")
		check(t, err)
		beside.dump, err = iptables.Parse(strings.NewReader(text), iptables.Options{})
		check(t, err)
		if !beside.last {
			native()
		}
	}
	return n.listed(t, &beside, seed/2%2 == 0 == is4, is4, y)
}

// tracking has the kernel track connections and give them ports of their own, also where no other rule needs that.
const tracking = "table inet tracking { chain c { type nat hook output priority 5; ct state invalid counter; }; }\n"

func (h nftHost) host() *Host {
	own := &Host{Interfaces: []Interface{loopback}, NoQueueListeners: true}
	for _, name := range sortedKeys(h.devices) {
		own.Interfaces = append(own.Interfaces, networkDevice(name, h.devices[name]...))
		for _, a := range addrs(h.behind[name]...) {
			if own.leadsTo(a, name) {
				continue
			}
			own.Routes = append(own.Routes, Route{Destination: netip.PrefixFrom(a, a.BitLen()), Interface: name})
		}
	}
	gateway := netip.MustParseAddr("2001:db8:5::fe")
	for _, i := range own.Interfaces {
		if own.leadsTo(gateway, i.Name) {
			own.Routes = append(own.Routes, via("0.0.0.0/0", i.Name, "192.0.2.254"), via("::/0", i.Name, gateway.String()))
		}
	}
	return own
}

// leadsTo reports whether a device's own network has the address.
func (h *Host) leadsTo(a netip.Addr, device string) bool {
	return slices.ContainsFunc(h.device(device).Addresses, func(own Address) bool { return own.Prefix.Contains(a) })
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

var (
	addressInFile = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b|\b(?:fd|fe80|2001)[0-9a-f]*:[0-9a-f:]+[0-9a-f]\b`)
	portInFile    = regexp.MustCompile(`dport (\d+)|(?:tcp|udp|sctp) \. (\d+)`)
	serverInFile  = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+)(?::| \. )(\d+)\b`)
	serviceInFile = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+) \. (tcp|udp|sctp) \. (\d+)`)
)

// traffic goes where the file names something.
func (h nftHost) traffic(text string, is4 bool) traffic {
	g := traffic{is4: is4, sources: make(map[string][]netip.Addr), ports: []uint16{22, 80, 443, 53, 9000}}
	family := func(texts []string) []netip.Addr {
		return slices.DeleteFunc(addrs(texts...), func(a netip.Addr) bool { return a.Is4() != is4 })
	}
	for name, from := range h.behind {
		g.sources[name] = family(from)
		if len(g.sources[name]) == 0 {
			g.sources[name] = map[bool][]netip.Addr{true: addrs("203.0.113.99"), false: addrs("2001:db8:9::99")}[is4]
		}
	}
	for _, list := range h.devices {
		for _, p := range list {
			if a := netip.MustParsePrefix(p).Addr(); a.Is4() == is4 {
				g.own, g.destinations = append(g.own, a), append(g.destinations, a)
			}
		}
	}
	slices.SortFunc(g.own, netip.Addr.Compare)
	g.own = append(g.own, map[bool]netip.Addr{true: netip.MustParseAddr("127.0.0.1"), false: netip.IPv6Loopback()}[is4])
	g.destinations = append(append(g.destinations, g.own...), family(h.to)...)
	for _, s := range addressInFile.FindAllString(text, -1) {
		if a, err := netip.ParseAddr(s); err == nil && a.Is4() == is4 && !a.IsUnspecified() && !a.IsMulticast() && len(g.destinations) < 80 {
			g.destinations = append(g.destinations, a)
		}
	}
	for _, found := range portInFile.FindAllStringSubmatch(text, -1) {
		g.ports = append(g.ports, netip.MustParseAddrPort("0.0.0.0:"+found[1]+found[2]).Port())
	}
	if !is4 {
		return g
	}
	for _, found := range serverInFile.FindAllStringSubmatch(text, -1) {
		g.services = append(g.services, service{protoTCP, found[1] + ":" + found[2]})
	}
	for _, found := range serviceInFile.FindAllStringSubmatch(text, -1) {
		g.services = append(g.services, service{map[string]uint8{"tcp": protoTCP, "udp": protoUDP, "sctp": protoSCTP}[found[2]], found[1] + ":" + found[3]})
	}
	return g
}
