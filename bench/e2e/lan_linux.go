package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// family is one address family of the cluster: the control plane's address in the network of the
// nodes, and ranges. Nodes have the addresses that follow firstNode.
type family struct {
	control    netip.Prefix
	firstNode  netip.Addr
	pods       netip.Prefix // of all nodes
	podBits    int          // of one node's range
	services   netip.Prefix
	clusterDNS netip.Addr
	// outsider is the address of clients outside of the nodes' network, to which
	// balancers, the range of the load balancer's addresses, has no route by default.
	outsider  netip.Addr
	balancers netip.Prefix
}

var (
	ipv4 = family{
		control:    netip.MustParsePrefix("172.30.0.1/24"),
		firstNode:  netip.MustParseAddr("172.30.0.11"),
		pods:       netip.MustParsePrefix("10.244.0.0/16"),
		podBits:    24,
		services:   netip.MustParsePrefix("10.96.0.0/16"),
		clusterDNS: netip.MustParseAddr("10.96.0.10"),
		outsider:   netip.MustParseAddr("192.0.2.1"),
		balancers:  netip.MustParsePrefix("172.31.0.0/16"),
	}
	ipv6 = family{
		control:    netip.MustParsePrefix("fd00:172:30::1/64"),
		firstNode:  netip.MustParseAddr("fd00:172:30::11"),
		pods:       netip.MustParsePrefix("fd00:10:244::/56"),
		podBits:    64,
		services:   netip.MustParsePrefix("fd00:10:96::/112"),
		clusterDNS: netip.MustParseAddr("fd00:10:96::a"),
		outsider:   netip.MustParseAddr("2001:db8::1"),
		balancers:  netip.MustParsePrefix("fd00:172:31::/64"),
	}
)

// maxNodes keeps the ranges apart.
const maxNodes = 9

// node is the address of a node; they count from 1.
func (f family) node(i int) netip.Addr {
	b := f.firstNode.AsSlice()
	b[len(b)-1] += byte(i - 1)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// podCIDR is the range of a node's pods.
func (f family) podCIDR(i int) netip.Prefix {
	b := f.pods.Addr().AsSlice()
	b[f.podBits/8-1] = byte(i)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, f.podBits)
}

func (f family) everywhere() netip.Prefix { return netip.PrefixFrom(f.control.Addr(), 0).Masked() }

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// lan is the network of the nodes. The control plane, the load balancer and the clients of the
// tests are in its network namespace, which is the nodes' router.
type lan struct {
	*netns.Namespace
	families []family
}

func newLAN(router *netns.Namespace, families []family) (*lan, error) {
	l := &lan{router, families}
	return l, l.prepare()
}

func (l *lan) prepare() error {
	for name, value := range map[string]string{
		"net.ipv4.ip_forward":                "1",
		"net.ipv6.conf.all.forwarding":       "1",
		"net.ipv6.conf.default.accept_dad":   "0",
		"net.ipv4.fib_multipath_hash_policy": "1", // by ports, as load balancers do
		"net.ipv6.fib_multipath_hash_policy": "1",
	} {
		if err := l.SetSysctl(name, value); err != nil {
			return err
		}
	}
	// The network is a switch, not a filter. Without br_netfilter there is no such setting.
	for _, name := range []string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"} {
		_ = l.SetSysctl(name, "0")
	}
	if err := l.AddBridge("br0"); err != nil {
		return err
	}
	if err := l.addLost(); err != nil {
		return err
	}
	for _, f := range l.families {
		if err := errors.Join(l.AddAddress("br0", f.control), l.AddAddress("lo", host(f.outsider)), l.blackhole(f)); err != nil {
			return err
		}
	}
	return nil
}

// attach makes the network namespace of a node.
func (l *lan) attach(i int) (*netns.Namespace, error) {
	ns, err := netns.New(nodeName(i))
	if err != nil {
		return nil, err
	}
	if err := l.connect(ns, i); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

func (l *lan) connect(ns *netns.Namespace, i int) error {
	port := fmt.Sprintf("node%d", i)
	if err := errors.Join(
		l.AddVeth(port, ns, "eth0"),
		l.SetBridge(port, "br0"),
		ns.SetSysctl("net.ipv4.ip_forward", "1"),
		ns.SetSysctl("net.ipv6.conf.all.forwarding", "1"),
	); err != nil {
		return err
	}
	for _, f := range l.families {
		if err := errors.Join(
			ns.AddAddress("eth0", netip.PrefixFrom(f.node(i), f.control.Bits())),
			ns.AddRoute(netns.Route{Destination: f.everywhere(), Via: f.control.Addr(), Link: "eth0"}),
			l.AddRoute(netns.Route{Destination: f.podCIDR(i), Via: f.node(i), Link: "br0"}),
		); err != nil {
			return err
		}
	}
	return nil
}

// route adds routes to the pods of the other nodes, so that no router is between nodes.
func (l *lan) route(ns *netns.Namespace, i, nodes int) error {
	var errs []error
	for _, f := range l.families {
		for j := range nodes {
			if j+1 != i {
				errs = append(errs, ns.AddRoute(netns.Route{Destination: f.podCIDR(j + 1), Via: f.node(j + 1), Link: "eth0"}))
			}
		}
	}
	return errors.Join(errs...)
}

func (l *lan) services() (ranges []netip.Prefix) {
	for _, f := range l.families {
		ranges = append(ranges, f.services)
	}
	return ranges
}

// of is the family of an address.
func (l *lan) of(a netip.Addr) (family, bool) {
	i := slices.IndexFunc(l.families, func(f family) bool { return f.control.Addr().Is4() == a.Is4() })
	if i < 0 {
		return family{}, false
	}
	return l.families[i], true
}

func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

// lost is a device from which packets do not return: they reach the other end of the pair with a
// hardware address that is not its own.
const lost = "lost0"

func (l *lan) addLost() error {
	if err := l.AddVeth(lost, l.Namespace, "lost1"); err != nil {
		return err
	}
	return l.Do(func() error {
		link, err := netlink.LinkByName(lost)
		if err != nil {
			return err
		}
		return netlink.LinkSetARPOff(link)
	})
}

// blackhole routes the addresses of the load balancer to where packets are lost without an error, as
// in a cloud: those of no Service, and those of a Service without nodes.
func (l *lan) blackhole(f family) error {
	if err := l.Do(func() error {
		link, err := netlink.LinkByName(lost)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(f.balancers), Src: f.outsider.AsSlice()})
	}); err != nil {
		return fmt.Errorf("route of %s: %w", f.balancers, err)
	}
	return nil
}

// balance routes an address of the load balancer to nodes. Without nodes its packets are lost.
func (l *lan) balance(a netip.Addr, nodes []int) error {
	f, ok := l.of(a)
	if !ok {
		return fmt.Errorf("no network has addresses like %s", a)
	}
	r := &netlink.Route{Dst: ipNet(host(a)), Src: f.outsider.AsSlice()}
	switch len(nodes) {
	case 0:
	case 1:
		r.Gw = f.node(nodes[0]).AsSlice()
	default:
		for _, i := range nodes {
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{Gw: f.node(i).AsSlice()})
		}
	}
	err := l.Do(func() error {
		if len(nodes) > 0 {
			return netlink.RouteReplace(r)
		}
		if err := netlink.RouteDel(r); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil // there was none
	})
	if err != nil {
		return fmt.Errorf("route of %s to nodes %v: %w", a, nodes, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
