package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// hostDevice is the uplink of every host and pod. A node has one more device for each of its
// pods.
const (
	hostDevice   = "eth0"
	routerBridge = "bridge0"
)

// topology is the network of a lab. Nodes stay; pods and clients come and go. It is safe for concurrent use, but for hosts
// of the same name.
type topology struct {
	spec    *Spec // at the start
	router  *netns.Namespace
	ports   devices            // of the router
	devices map[string]devices // of the nodes, by name

	mu    sync.Mutex
	hosts map[string]*attached // by the names of Spec.Hosts
}

// attached is a host in the network.
type attached struct {
	*netns.Namespace
	// link is the device at the other end of its own one, on another host; that of a node is on the router.
	link  string
	other *netns.Namespace
}

// newTopology makes all namespaces and connects them. On an error it removes everything.
func newTopology(s *Spec) (*topology, error) {
	t := &topology{spec: s, hosts: make(map[string]*attached), devices: make(map[string]devices), ports: devices{routerBridge: true}}
	if err := t.build(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close closes all namespaces.
func (t *topology) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, n := range t.hosts {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// find returns a host; nil: there is none.
func (t *topology) find(name string) *attached {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hosts[name]
}

// remove removes a pod or client, with its processes that were started to end with it.
func (t *topology) remove(name string) error {
	t.mu.Lock()
	h := t.hosts[name]
	delete(t.hosts, name)
	t.mu.Unlock()
	if h == nil {
		return nil
	}
	// The namespace may live on in a process. The name of the device is free at once.
	var err error
	if h.link != "" {
		err = h.other.DeleteLink(h.link)
	}
	return errors.Join(err, h.Close())
}

func (t *topology) build() error {
	if err := t.buildRouter(); err != nil {
		return err
	}
	for i := range t.spec.Nodes {
		if err := t.buildNode(&t.spec.Nodes[i]); err != nil {
			return err
		}
	}
	// The router has routes to pods for its own packets only, which are ICMP errors: senders
	// to unreachable addresses get one at once. It does not forward other packets to pods.
	if err := errors.Join(t.router.AddOwnTable(ownTable), t.addPodRoutes(t.router, nil, routerBridge, ownTable)); err != nil {
		return err
	}
	for i := range t.spec.Clients {
		if err := t.buildClient(&t.spec.Clients[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *topology) buildClient(c *Client) error {
	h, err := t.attach(c.Name, c.Addresses)
	if err != nil || !c.RoutesToPods {
		return err
	}
	return t.addPodRoutes(h.Namespace, nil, hostDevice, 0)
}

// make makes the namespace of a host.
func (t *topology) make(name string) (*attached, error) {
	n, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	h := &attached{Namespace: n}
	t.mu.Lock()
	t.hosts[name] = h
	t.mu.Unlock()
	return h, setSysctls(n, everyHost)
}

type sysctl struct{ name, value string }

// setSysctls sets those sysctls that exist: a kernel without IPv6, or before connection
// tracking is loaded, lacks some.
func setSysctls(n *netns.Namespace, settings []sysctl) error {
	for _, s := range settings {
		if err := n.SetSysctl(s.name, s.value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// everyHost is for all hosts: routing may be asymmetric; and there is no rate limit for ICMP
// errors, which a kernel normally limits per destination, so that a repeated request in a lab
// gets the same error again.
var everyHost = []sysctl{
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
	{"net.ipv4.icmp_ratelimit", "0"},
	{"net.ipv6.icmp.ratelimit", "0"},
	// Of a namespace since Linux 6.13; before, of the whole machine.
	{"net.ipv4.icmp_msgs_per_sec", "100000"},
	{"net.ipv4.icmp_msgs_burst", "10000"},
}

// forwarding makes a router of a host, without ICMP redirects.
var forwarding = []sysctl{
	{"net.ipv4.ip_forward", "1"},
	{"net.ipv6.conf.all.forwarding", "1"},
	{"net.ipv4.conf.all.send_redirects", "0"},
	{"net.ipv4.conf.default.send_redirects", "0"},
}

// conntrackAccounting makes the kernel count the packets of new connections.
var conntrackAccounting = []sysctl{{"net.netfilter.nf_conntrack_acct", "1"}}

func (t *topology) buildRouter() error {
	h, err := t.make(labfile.Router)
	if err != nil {
		return err
	}
	t.router = h.Namespace
	if err := setSysctls(t.router, forwarding); err != nil {
		return err
	}
	if err := t.router.AddBridge(routerBridge); err != nil {
		return err
	}
	for _, n := range t.spec.Networks {
		if err := t.router.AddAddress(routerBridge, netip.PrefixFrom(n.Gateway, n.CIDR.Bits())); err != nil {
			return err
		}
	}
	return nil
}

// attach makes a host and connects it to the router.
func (t *topology) attach(name string, addresses []netip.Addr) (*attached, error) {
	n, err := t.make(name)
	if err != nil {
		return nil, err
	}
	port := t.ports.name(name)
	n.link, n.other = port, t.router
	if err := errors.Join(n.AddVeth(hostDevice, t.router, port), t.router.SetBridge(port, routerBridge)); err != nil {
		return nil, err
	}
	for _, a := range addresses {
		network := t.spec.Network(a)
		err := errors.Join(
			n.AddAddress(hostDevice, netip.PrefixFrom(a, network.CIDR.Bits())),
			n.AddRoute(netns.Route{Destination: everywhere(a), Via: network.Gateway, Link: hostDevice}),
		)
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

// everywhere is the destination of the default route in an address's family.
func everywhere(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// ownTable is the router's routing table for its own packets.
const ownTable = 100

// addPodRoutes adds the routes to the pods of all nodes but one to a routing table.
func (t *topology) addPodRoutes(n *netns.Namespace, except *Node, device string, table int) error {
	for i := range t.spec.Nodes {
		node := &t.spec.Nodes[i]
		if node == except {
			continue
		}
		for _, c := range node.PodCIDRs {
			via, _ := decision.AddressOf(node.Addresses, decision.FamilyOf(c.Addr())) // there is one: see validation
			// All hosts are on one wire, so the next hop may be of another network.
			if err := n.AddRoute(netns.Route{Destination: c, Via: via, Link: device, OnLink: true, Table: table}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *topology) buildNode(node *Node) error {
	n, err := t.attach(node.Name, node.Addresses)
	if err != nil {
		return err
	}
	if err := errors.Join(setSysctls(n.Namespace, forwarding), setSysctls(n.Namespace, conntrackAccounting), t.addPodRoutes(n.Namespace, node, hostDevice, 0)); err != nil {
		return err
	}
	t.devices[node.Name] = devices{hostDevice: true}
	for i := range t.spec.Pods {
		if p := &t.spec.Pods[i]; p.Node == node.Name {
			if err := t.buildPod(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// buildPod connects a pod as the CNI plug-in ptp (and kindnet) does: its only neighbour is the
// gateway, which all pods of a node share.
func (t *topology) buildPod(p *Pod) error {
	node, n := t.spec.Node(p.Node), t.find(p.Node)
	if node == nil || n == nil {
		return fmt.Errorf("pod %s: no node %q", p.FullName(), p.Node)
	}
	pod, err := t.make(p.FullName())
	if err != nil {
		return err
	}
	device := t.devices[p.Node].name(p.Name)
	if err := n.AddVeth(device, pod.Namespace, hostDevice); err != nil {
		return err
	}
	pod.link, pod.other = device, n.Namespace
	for _, a := range p.Addresses {
		gateway, err := gatewayOf(node, a)
		if err != nil {
			return err
		}
		err = errors.Join(
			n.AddAddress(device, single(gateway)),
			n.AddRoute(netns.Route{Destination: single(a), Link: device}),
			pod.AddAddress(hostDevice, single(a)),
			pod.AddRoute(netns.Route{Destination: everywhere(a), Via: gateway, Link: hostDevice, OnLink: true}),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// gatewayOf returns the gateway of a pod's address on a node.
func gatewayOf(n *Node, pod netip.Addr) (netip.Addr, error) {
	for _, c := range n.PodCIDRs {
		switch {
		case !c.Contains(pod):
		case c.IsSingleIP():
			own, _ := decision.AddressOf(n.Addresses, decision.FamilyOf(pod)) // there is one: see validation
			return own, nil
		default:
			return labfile.Gateway(c), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("pod address %s is not in the podCIDRs of node %s", pod, n.Name)
}

// addAddresses gives a pod more addresses, which are in the range of its node.
func (t *topology) addAddresses(pod string, addresses []netip.Addr) error {
	h := t.find(pod)
	if h == nil {
		return fmt.Errorf("no pod %q", pod)
	}
	for _, a := range addresses {
		if err := errors.Join(h.other.AddRoute(netns.Route{Destination: single(a), Link: h.link}), h.AddAddress(hostDevice, single(a))); err != nil {
			return fmt.Errorf("pod %s, address %s: %w", pod, a, err)
		}
	}
	return nil
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
