//go:build linux

package netfilter

import (
	"net/netip"
)

// world is what generated rules and packets are about, in one address family.
type world struct {
	is4  bool
	host *Host
	traffic
	deviceNames []string
	networks    []string // for -s, -d
	ranges      []string
	endpoints   []string // for DNAT
	sourcesTo   []string // for SNAT
	netmapTo    string
}

// variant is a way that a host may be set up.
type variant struct {
	routeLocalnet, noDefault, noForwarding, queue, filters bool
	differs                                                string // a device whose packets are forwarded if others are not, and the other way around
}

func newHost(v variant) *Host {
	h := &Host{
		Interfaces: []Interface{
			loopback,
			networkDevice("eth0", "192.0.2.1/24", "192.0.2.2/24", "2001:db8:2::1/64", "2001:db8:2::2/64"),
			networkDevice("veth1", "10.244.1.1/32", "fd00:1::1/128"),
			networkDevice("veth2"),
			networkDevice("docker0", "172.17.0.1/16", "fd00:17::1/64"),
			networkDevice("cni0", "10.244.3.1/24", "fd00:3::1/64"),
		},
		Routes: []Route{
			via("10.244.1.2/32", "veth1", ""), via("fd00:1::2/128", "veth1", ""),
			via("10.244.1.3/32", "veth2", ""), via("fd00:1::3/128", "veth2", ""),
			via("203.0.113.0/24", "eth0", "192.0.2.254"), via("2001:db8:113::/64", "eth0", "2001:db8:2::fe"),
			{Destination: netip.MustParsePrefix("198.51.100.0/26"), Type: Blackhole},
			{Destination: netip.MustParsePrefix("198.51.100.64/26"), Type: Unreachable},
			{Destination: netip.MustParsePrefix("198.51.100.128/26"), Type: Prohibit},
			{Destination: netip.MustParsePrefix("2001:db8:51:1::/64"), Type: Blackhole},
			{Destination: netip.MustParsePrefix("2001:db8:51:2::/64"), Type: Unreachable},
			{Destination: netip.MustParsePrefix("2001:db8:51:3::/64"), Type: Prohibit},
		},
		RouteLocalnet: v.routeLocalnet, NoForwarding: v.noForwarding, NoQueueListeners: !v.queue,
		Sockets: []Socket{
			{Protocol: protoTCP, Address: netip.MustParseAddrPort("0.0.0.0:8080")},
			{Protocol: protoTCP, Address: netip.MustParseAddrPort("[::]:8080")},
			{Protocol: protoTCP, Address: netip.MustParseAddrPort("192.0.2.2:80")},
			{Protocol: protoTCP, Address: netip.MustParseAddrPort("[2001:db8:2::2]:80")},
			{Protocol: protoUDP, Address: netip.MustParseAddrPort("0.0.0.0:30080")},
			{Protocol: protoUDP, Address: netip.MustParseAddrPort("[::]:80")},
			{Protocol: protoUDP, Address: netip.MustParseAddrPort("192.0.2.1:53")},
			{Protocol: protoUDP, Address: netip.MustParseAddrPort("[2001:db8:2::1]:53")},
			{Protocol: protoTCP, Address: netip.MustParseAddrPort("0.0.0.0:50080"), Transparent: true},
			{Protocol: protoTCP, Address: netip.MustParseAddrPort("[::]:50080"), Transparent: true},
		},
	}
	if v.filters {
		h.ReverseFilter = map[string]int{"eth0": 1, "veth1": 1, "veth2": 2, "cni0": 2, "docker0": 1}
	}
	if v.differs != "" {
		h.ForwardingDiffers = []string{v.differs}
	}
	for i := range h.Interfaces {
		group := uint32([]int{0, 0, 5, 0, 6, 0}[i])
		h.Interfaces[i].Group = &group
	}
	if !v.noDefault {
		h.Routes = append(h.Routes, via("0.0.0.0/0", "eth0", "192.0.2.254"), via("::/0", "eth0", "2001:db8:2::fe"))
	}
	return h
}

func newWorld(h *Host, is4 bool) *world {
	w := &world{is4: is4, host: h, deviceNames: []string{"eth0", "veth1", "veth+", "docker0", "lo", "cni0"}}
	ports := []uint16{80, 80, 53, 8080, 30080, 9000}
	if is4 {
		w.traffic = traffic{
			sources: map[string][]netip.Addr{
				"eth0":  addrs("203.0.113.10", "203.0.113.11", "192.0.2.77", "8.8.8.8", "192.0.2.1", "127.0.0.1", "127.0.0.5", "10.244.1.2"),
				"veth1": addrs("10.244.1.2"), "veth2": addrs("10.244.1.3"), "docker0": addrs("172.17.0.5", "172.17.0.6"), "cni0": addrs("10.244.3.2"),
			},
			own: addrs("192.0.2.1", "192.0.2.2", "10.244.1.1", "172.17.0.1", "127.0.0.1", "203.0.113.77"),
			destinations: addrs("10.96.0.10", "10.96.0.10", "192.0.2.1", "192.0.2.2", "10.244.1.1", "127.0.0.1", "127.0.0.5", "10.244.1.2", "10.244.1.3", "172.17.0.5",
				"203.0.113.10", "203.0.113.11", "192.0.2.255", "198.51.100.1", "198.51.100.65", "198.51.100.129", "9.9.9.9", "10.244.3.2", "224.0.0.5"),
			ports: ports,
		}
		w.networks = []string{"10.244.0.0/16", "203.0.113.0/24", "203.0.113.10/32", "10.96.0.10/32", "192.0.2.1/32", "127.0.0.0/8", "172.17.0.0/16", "0.0.0.2/0.0.0.255", "10.244.1.2/32", "192.0.2.0/24"}
		w.ranges = []string{"10.244.1.2-10.244.1.3", "203.0.113.10-203.0.113.10", "10.0.0.0-10.255.255.255", "192.0.2.1-203.0.113.10"}
		w.endpoints = []string{"10.244.1.2", "10.244.1.3", "172.17.0.5", "203.0.113.11", "192.0.2.1", "127.0.0.1", "10.244.1.2-10.244.1.3", "10.244.3.2", "198.51.100.65", "9.9.9.9", "172.17.0.1"}
		w.sourcesTo = []string{"192.0.2.1", "192.0.2.2", "10.244.1.1", "192.0.2.1-192.0.2.2", "203.0.113.99", "172.17.0.1"}
		w.netmapTo = "10.244.3.0/24"
	} else {
		w.traffic = traffic{
			sources: map[string][]netip.Addr{
				"eth0":  addrs("2001:db8:113::10", "2001:db8:113::11", "2001:db8:2::77", "2001:db8:9::9", "2001:db8:2::1", "::1", "fd00:1::2"),
				"veth1": addrs("fd00:1::2"), "veth2": addrs("fd00:1::3"), "docker0": addrs("fd00:17::5", "fd00:17::6"), "cni0": addrs("fd00:3::2"),
			},
			own: addrs("2001:db8:2::1", "2001:db8:2::2", "fd00:1::1", "fd00:17::1", "::1", "2001:db8:113::77"),
			destinations: addrs("fd00:96::10", "fd00:96::10", "2001:db8:2::1", "2001:db8:2::2", "fd00:1::1", "::1", "fd00:1::2", "fd00:1::3", "fd00:17::5",
				"2001:db8:113::10", "2001:db8:113::11", "2001:db8:51:1::1", "2001:db8:51:2::1", "2001:db8:51:3::1", "2001:db8:9::1", "fd00:3::2"),
			ports: ports,
		}
		w.networks = []string{"fd00::/16", "2001:db8:113::/64", "2001:db8:113::10/128", "fd00:96::10/128", "2001:db8:2::1/128", "::1/128", "fd00:17::/64", "::2/::ff", "fd00:1::2/128", "2001:db8:2::/64"}
		w.ranges = []string{"fd00:1::2-fd00:1::3", "2001:db8:113::10-2001:db8:113::10", "fd00::-fd00:ffff::", "2001:db8:2::1-2001:db8:113::10"}
		w.endpoints = []string{"fd00:1::2", "fd00:1::3", "fd00:17::5", "2001:db8:113::11", "2001:db8:2::1", "::1", "fd00:1::2-fd00:1::3", "fd00:3::2", "2001:db8:51:2::1", "2001:db8:9::1", "fd00:17::1"}
		w.sourcesTo = []string{"2001:db8:2::1", "2001:db8:2::2", "fd00:1::1", "2001:db8:2::1-2001:db8:2::2", "2001:db8:113::99", "fd00:17::1"}
		w.netmapTo = "fd00:3::/64"
	}
	w.traffic.host, w.traffic.is4 = h, is4
	return w
}
