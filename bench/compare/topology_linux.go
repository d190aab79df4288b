package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Addresses. Pods have all of podRange, so that each endpoint of each service is real;
// clients are in the cluster's range, so that they are not masqueraded. The control plane is
// outside of the range of services.
var (
	clusterRange   = netip.MustParsePrefix("10.240.0.0/12")
	podRange       = netip.MustParsePrefix("10.240.0.0/13")
	clientNet      = netip.MustParsePrefix("10.248.0.0/16")
	clientGateway  = netip.MustParseAddr("10.248.255.254")
	firstClient    = netip.MustParseAddr("10.248.0.1")
	podGateway     = netip.MustParsePrefix("172.30.0.1/24")
	podHost        = netip.MustParsePrefix("172.30.0.2/24")
	controlAddress = netip.MustParsePrefix("172.31.0.1/16")
	nodeAddress    = netip.MustParsePrefix("192.0.2.10/32")
	serviceRange   = netip.MustParsePrefix("10.96.0.0/16")
)

const (
	maxClients = 16
	bridge     = "nodes" // in the control plane's namespace
	echoPort   = 8080
)

var anywhere = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// topology is a client and pods with a node in between that reaches the control plane.
// Each visit has one of its own, so that no kernel state of another visit remains.
type topology struct {
	client, node, pods *netns.Namespace
	echo               *process.Process
}

// newControl makes the namespace of the control plane.
func newControl() (*netns.Namespace, error) {
	n, err := netns.New("control")
	if err != nil {
		return nil, err
	}
	// A bridge that has lost its last port takes up to a second to carry packets again
	// (linkwatch_urgent_event in net/core/link_watch.c): it always has one.
	return n, errors.Join(n.AddBridge(bridge), n.AddAddress(bridge, controlAddress), n.AddVeth("stays", n, "end"), n.SetBridge("stays", bridge))
}

// newTopology makes number i; two that live at the same time need different numbers.
func newTopology(control *netns.Namespace, i int) (_ *topology, err error) {
	t := &topology{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("topology: %w", err), t.close())
		}
	}()
	for name, n := range map[string]**netns.Namespace{"client": &t.client, "node": &t.node, "pods": &t.pods} {
		if *n, err = netns.New(name); err != nil {
			return nil, err
		}
	}
	port := fmt.Sprintf("node%d", i)
	// A new address each time: the control plane has neighbour entries of earlier ones.
	atControl := netip.PrefixFrom(traffic.Advance(controlAddress.Addr(), uint32(1+i)), controlAddress.Bits())
	steps := []error{
		t.node.AddVeth("control", control, port), control.SetBridge(port, bridge), t.node.AddAddress("control", atControl),
		t.node.AddVeth("clients", t.client, "eth0"), t.node.AddAddress("clients", netip.PrefixFrom(clientGateway, clientNet.Bits())),
		t.node.AddVeth("pods", t.pods, "eth0"), t.node.AddAddress("pods", podGateway),
		t.node.AddAddress("lo", nodeAddress),
		t.pods.AddAddress("eth0", podHost),
		t.pods.AddRoute(netns.Route{Destination: anywhere, Via: podGateway.Addr(), Link: "eth0"}),
		t.node.AddRoute(netns.Route{Destination: podRange, Via: podHost.Addr(), Link: "pods"}),
		t.pods.Do(haveAllOf(podRange)),
		t.node.SetSysctl("net.ipv4.ip_forward", "1"),
		// No rate limit for ICMP errors: early connections fail at once, each time.
		t.node.SetSysctl("net.ipv4.icmp_ratelimit", "0"),
	}
	for c := range uint32(maxClients) {
		steps = append(steps, t.client.AddAddress("eth0", netip.PrefixFrom(traffic.Advance(firstClient, c), clientNet.Bits())))
	}
	steps = append(steps, t.client.AddRoute(netns.Route{Destination: anywhere, Via: clientGateway, Link: "eth0"}),
		t.client.SetSysctl("net.ipv4.tcp_tw_reuse", "1"),
		t.client.SetSysctl("net.ipv4.ip_local_port_range", "61000 65535")) // the loads choose theirs below
	for _, n := range []*netns.Namespace{t.client, t.pods} {
		// No memory of each of a hundred thousand peers.
		steps = append(steps, n.SetSysctl("net.ipv4.tcp_no_metrics_save", "1"))
	}
	if err := errors.Join(steps...); err != nil {
		return nil, err
	}
	t.echo, err = startSide(t.pods, sideSpec{Echo: echoPort})
	return t, err
}

// haveAllOf makes all addresses of a range the namespace's own.
func haveAllOf(p netip.Prefix) func() error {
	return func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		dst, err := netlink.ParseIPNet(p.String())
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		})
	}
}

// forget empties the node's connection table.
func (t *topology) forget() error {
	return t.node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// setTimeouts sets conntrack's on the node, where conntrack is there.
func (t *topology) setTimeouts(o timeouts) error {
	return errors.Join(
		t.node.SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", fmt.Sprint(o.timeWait)),
		t.node.SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_close", fmt.Sprint(o.close)))
}

func (t *topology) close() error {
	err := t.echo.Stop()
	for _, n := range []*netns.Namespace{t.client, t.node, t.pods} {
		if n != nil {
			err = errors.Join(err, n.Close())
		}
	}
	return err
}
