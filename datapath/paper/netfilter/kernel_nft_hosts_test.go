//go:build linux

package netfilter

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// nftHost is a host with a ruleset of nftables: its devices with their addresses, by device what comes from there, and where
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
}

// TestKernelAgreesAboutNftablesHosts sends packets to hosts with the rulesets of real ones.
func TestKernelAgreesAboutNftablesHosts(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	seen := make(tally)
	for i, h := range nftHosts {
		t.Run(h.file, func(t *testing.T) {
			name := filepath.Join("testdata/nft", h.file+".nft")
			if _, err := os.Stat(name); err != nil {
				name = filepath.Join("../nftables/testdata/rulesets", h.file+".nft")
			}
			text, err := os.ReadFile(name)
			check(t, err)
			file := strings.NewReplacer("br-1a2b3c4d5e6f", "br-1a2b3c4d", "flush ruleset", "").Replace(string(text)) // the other end has a longer name
			n := newKernelNode(t, h.host())
			for _, is4 := range []bool{true, false} {
				g := h.traffic(file, is4)
				g.host = n.host
				tr := n.loadNative(t, tracking+file, is4, is4, seen)
				n.send(t, tr, *firstSeed+uint64(i), netnstest.Cases(300, 60), &g)
			}
		})
	}
	seen.log(t)
	if packets := 2 * len(nftHosts) * netnstest.Cases(300, 60); seen["packets"] < packets && !t.Failed() {
		t.Errorf("%d packets were sent, want %d", seen["packets"], packets)
	}
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
	own.Routes = append(own.Routes, via("0.0.0.0/0", "eth0", "192.0.2.254"), via("::/0", "eth0", "2001:db8:5::fe"))
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
	for _, found := range serviceInFile.FindAllStringSubmatch(text, -1) {
		if is4 {
			g.services = append(g.services, service{map[string]uint8{"tcp": protoTCP, "udp": protoUDP, "sctp": protoSCTP}[found[2]], found[1] + ":" + found[3]})
		}
	}
	return g
}
