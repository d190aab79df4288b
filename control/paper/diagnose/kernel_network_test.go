//go:build linux

package diagnose_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// plan is how a node is connected, and its addresses.
type plan struct {
	name     string
	external string    // the node's device to everything else
	bridge   string    // of its pods; empty: they have no bridge
	devices  [2]string // of its pods, on the node

	cluster, here, services netip.Prefix // of all pods, of the pods here, of cluster IPs
	gateway                 netip.Addr   // the pods'
	pods, remotePods        [2]netip.Addr
	node, otherNode         netip.Addr
	router                  netip.Addr // the node's default gateway
	bridgeCalls             bool       // bridged packets pass iptables
}

// podDevice is a device by which packets of a pod come to the node's rules.
func (p *plan) podDevice(i int) string {
	if p.bridge != "" {
		return p.bridge
	}
	return p.devices[i]
}

// podDevices matches all of them.
func (p *plan) podDevices() string {
	if p.bridge != "" {
		return p.bridge
	}
	return p.devices[0][:4] + "+"
}

func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// outsider is a client that is in no cluster; vips are addresses of load balancers, and external ones.
var (
	outsider = addr("203.0.113.10")
	vips     = []netip.Addr{addr("198.51.100.20"), addr("198.51.100.21"), addr("198.51.100.22"), addr("198.51.100.23"), addr("198.51.100.24"), addr("198.51.100.25")}
)

// plans are a node of flannel, one of k3s with kube-router's network policies, and one of Calico.
var plans = []*plan{
	{
		name: "flannel", external: "eth0", bridge: "cni0", devices: [2]string{"veth1a2b3c4d", "veth5e6f7a8b"},
		cluster: prefix("10.244.0.0/16"), here: prefix("10.244.1.0/24"), services: prefix("10.96.0.0/12"), gateway: addr("10.244.1.1"),
		pods: [2]netip.Addr{addr("10.244.1.7"), addr("10.244.1.19")}, remotePods: [2]netip.Addr{addr("10.244.2.5"), addr("10.244.3.11")},
		node: addr("192.0.2.11"), otherNode: addr("192.0.2.12"), router: addr("192.0.2.1"), bridgeCalls: true,
	},
	{
		name: "k3s", external: "ens192", bridge: "kube-bridge", devices: [2]string{"vethb1c2d3e4", "vethf5a6b7c8"},
		cluster: prefix("10.42.0.0/16"), here: prefix("10.42.3.0/24"), services: prefix("10.43.0.0/16"), gateway: addr("10.42.3.1"),
		pods: [2]netip.Addr{addr("10.42.3.4"), addr("10.42.3.230")}, remotePods: [2]netip.Addr{addr("10.42.0.9"), addr("10.42.1.77")},
		node: addr("172.31.5.40"), otherNode: addr("172.31.5.41"), router: addr("172.31.5.1"),
	},
	{
		name: "calico", external: "enp1s0", devices: [2]string{"cali0123456789a", "califedcba98765"},
		cluster: prefix("192.168.0.0/16"), here: prefix("192.168.77.64/26"), services: prefix("10.96.0.0/12"), gateway: addr("169.254.1.1"),
		pods: [2]netip.Addr{addr("192.168.77.66"), addr("192.168.77.71")}, remotePods: [2]netip.Addr{addr("192.168.12.130"), addr("192.168.200.3")},
		node: addr("10.0.9.21"), otherNode: addr("10.0.9.22"), router: addr("10.0.9.1"),
	},
}

// network is namespaces that are connected by a plan: the node, two pods on it, and one for all the rest.
type network struct {
	*plan
	node, remote *netns.Namespace
	pods         [2]*netns.Namespace
	gate         *netnstest.Gate
	servers      []server
	entries      *conntrack.Conn
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newNetwork(t testing.TB, p *plan) *network {
	t.Helper()
	n := &network{plan: p}
	for _, s := range []struct {
		ns   **netns.Namespace
		name string
	}{{&n.node, "node"}, {&n.remote, "remote"}, {&n.pods[0], "pod-1"}, {&n.pods[1], "pod-2"}} {
		ns, err := netns.New(s.name)
		check(t, err)
		t.Cleanup(func() { _ = ns.Close() })
		*s.ns = ns
	}
	n.set(t)
	check(t, n.connect())
	gate, err := netnstest.NewGate(n.remote, "to-node", n.node, p.external)
	check(t, err)
	t.Cleanup(func() { _ = gate.Close() })
	n.gate = gate
	n.serve(t)
	check(t, n.node.Do(func() (err error) {
		n.entries, err = conntrack.Dial(nil)
		return err
	}))
	t.Cleanup(func() { _ = n.entries.Close() })
	return n
}

// set makes the settings of the namespaces, before there are devices.
func (n *network) set(t testing.TB) {
	t.Helper()
	for name, value := range map[string]string{
		"net.ipv4.ip_forward":              "1",
		"net.ipv4.conf.all.rp_filter":      "0",
		"net.ipv4.conf.default.rp_filter":  "0",
		"net.ipv4.conf.all.send_redirects": "0", "net.ipv4.conf.default.send_redirects": "0",
		// No type of ICMP message is subject to limits (type 0 is none of ours).
		"net.ipv4.icmp_ratemask": "0",
	} {
		check(t, n.node.SetSysctl(name, value))
	}
	calls := "0"
	if n.bridgeCalls {
		calls = "1"
	}
	if err := n.node.SetSysctl("net.bridge.bridge-nf-call-iptables", calls); err != nil {
		t.Logf("bridged packets pass no rules: %v", err)
	}
	for _, ns := range []*netns.Namespace{n.node, n.remote, n.pods[0], n.pods[1]} {
		// What is not answered at once is not answered: nothing is sent again.
		check(t, ns.SetSysctl("net.ipv4.tcp_synack_retries", "0"))
		check(t, ns.SetSysctl("net.ipv6.conf.all.disable_ipv6", "1"))
		check(t, ns.SetSysctl("net.ipv6.conf.default.disable_ipv6", "1"))
	}
}

// connect makes devices, addresses and routes.
func (n *network) connect() error {
	errs := []error{n.node.AddVeth(n.external, n.remote, "to-node"), n.node.AddAddress(n.external, netip.PrefixFrom(n.plan.node, 24))}
	if n.bridge != "" {
		errs = append(errs, n.node.AddBridge(n.bridge), n.node.AddAddress(n.bridge, netip.PrefixFrom(n.gateway, n.here.Bits())))
	}
	for i, pod := range n.pods {
		device := n.devices[i]
		errs = append(errs, n.node.AddVeth(device, pod, "eth0"))
		if n.bridge != "" {
			errs = append(errs, n.node.SetBridge(device, n.bridge), hairpin(n.node, device, true))
		} else {
			errs = append(errs, n.node.AddRoute(netns.Route{Destination: host(n.plan.pods[i]), Link: device}))
		}
		errs = append(errs,
			// Without a network of its own a pod sends all to its gateway, to the other pod, too: no answer evades the node's rules.
			pod.AddAddress("eth0", host(n.plan.pods[i])),
			pod.AddRoute(netns.Route{Destination: everywhere, Via: n.gateway, Link: "eth0", OnLink: true}),
		)
	}
	errs = append(errs, n.node.AddRoute(netns.Route{Destination: everywhere, Via: n.router, Link: n.external}))
	for _, a := range n.remotePods {
		errs = append(errs, n.node.AddRoute(netns.Route{Destination: netip.PrefixFrom(a, 24).Masked(), Via: n.otherNode, Link: n.external}))
	}
	for _, a := range n.remoteAddresses() {
		errs = append(errs, n.remote.AddAddress("to-node", host(a)))
	}
	errs = append(errs, n.remote.AddRoute(netns.Route{Destination: everywhere, Via: n.plan.node, Link: "to-node", OnLink: true}))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return n.introduce()
}

var everywhere = prefix("0.0.0.0/0")

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (n *network) remoteAddresses() []netip.Addr {
	return []netip.Addr{n.router, n.otherNode, n.remotePods[0], n.remotePods[1], outsider}
}

// introduce tells neighbours each other's hardware addresses: no packet waits for ARP.
func (n *network) introduce() error {
	toPods := [2]string{n.podDevice(0), n.podDevice(1)}
	return errors.Join(
		know(n.node, n.external, n.remote, "to-node", n.router, n.otherNode),
		know(n.remote, "to-node", n.node, n.external, n.plan.node),
		know(n.node, toPods[0], n.pods[0], "eth0", n.plan.pods[0]),
		know(n.node, toPods[1], n.pods[1], "eth0", n.plan.pods[1]),
		know(n.pods[0], "eth0", n.node, toPods[0], n.gateway),
		know(n.pods[1], "eth0", n.node, toPods[1], n.gateway),
	)
}

// hairpin sets whether a bridge sends packets back by the port they came from. CNI plugins have it do so: a pod may get itself as endpoint.
func hairpin(ns *netns.Namespace, device string, on bool) error {
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	return h.LinkSetHairpin(l, on)
}

// know has a namespace know that the addresses are at a device of another.
func know(ns *netns.Namespace, device string, other *netns.Namespace, peer string, addresses ...netip.Addr) error {
	var mac net.HardwareAddr
	if err := other.Do(func() error {
		i, err := net.InterfaceByName(peer)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	}); err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if err := h.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}); err != nil {
			return err
		}
	}
	return nil
}
