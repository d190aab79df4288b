//go:build linux

package netfilter

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// kernelNode is a namespace with the configuration of a Host, and one around it: the other ends
// of its devices, where packets are sent from and captured.
type kernelNode struct {
	host          *Host
	node, outside *netns.Namespace
	index         map[string]int    // of the devices in the node
	outer         map[string]int    // of their other ends
	device        map[uint32]string // in the node, by index
	outerDevice   map[int]string
	wire          int // packet socket outside, for all devices
	gate          *netnstest.Gate
	trace         int // netlink socket for the node's trace
	log           int // netlink socket for what the legacy back end traces
	raw           map[rawKey]int
	entries       *conntrack.Conn
	lookups       int      // netlink socket, for single entries
	queue         int      // netlink socket of the program at the netfilter queue; -1: there is none
	tables        []string // of nftables that were loaded, by family and name
}

// rawKey is a socket for packets made on the node.
type rawKey struct {
	is4   bool
	owner uint32 // user id; the group's is the same
}

// nodeMAC is the Ethernet address of all the node's devices, neighbours those of who
// sends to it.
var (
	nodeMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	neighbours = []iptables.MACAddress{{2, 0, 0, 0, 1, 1}, {2, 0, 0, 0, 1, 2}}
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newKernelNode(t testing.TB, h *Host) *kernelNode {
	t.Helper()
	n := &kernelNode{host: h, index: map[string]int{}, outer: map[string]int{}, device: map[uint32]string{1: loopbackName}, outerDevice: map[int]string{}, raw: map[rawKey]int{}, queue: -1}
	for _, s := range []struct {
		ns   **netns.Namespace
		name string
	}{{&n.node, "node"}, {&n.outside, "outside"}} {
		ns, err := netns.New(s.name)
		check(t, err)
		t.Cleanup(func() { _ = ns.Close() })
		*s.ns = ns
	}
	n.configure(t)
	n.openSockets(t)
	// Before there are rules: see watch.
	check(t, n.watch())
	return n
}

// configure applies its Host to the node.
func (n *kernelNode) configure(t testing.TB) {
	t.Helper()
	flag := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	for _, s := range []struct {
		ns          *netns.Namespace
		name, value string
	}{
		// Packet sockets see all; the stack out there would only add to it.
		{n.outside, "net.ipv6.conf.all.disable_ipv6", "1"},
		{n.outside, "net.ipv6.conf.default.disable_ipv6", "1"},
		{n.node, "net.ipv4.ip_forward", flag(!n.host.NoForwarding)},
		{n.node, "net.ipv6.conf.all.forwarding", flag(!n.host.NoForwarding)},
		{n.node, "net.ipv4.conf.all.route_localnet", flag(n.host.RouteLocalnet)},
		{n.node, "net.ipv4.conf.all.rp_filter", "0"},
		{n.node, "net.ipv4.conf.default.rp_filter", "0"},
		// No addresses but those of the Host.
		{n.node, "net.ipv6.conf.default.addr_gen_mode", "1"},
		{n.node, "net.netfilter.nf_log.2", "nfnetlink_log"},
		{n.node, "net.netfilter.nf_log.10", "nfnetlink_log"},
		// The simulator knows no sequence numbers.
		{n.node, "net.netfilter.nf_conntrack_tcp_be_liberal", "1"},
		{n.node, "net.netfilter.nf_conntrack_tcp_ignore_invalid_rst", "1"},
		{n.node, "net.ipv4.icmp_ratemask", "0"},
		{n.node, "net.ipv6.icmp.ratemask", "0"},
	} {
		check(t, s.ns.SetSysctl(s.name, s.value))
	}
	// Entries do not expire in the simulator, which would matter on a slow machine: that of an
	// SCTP INIT lives for 3 s in the kernel.
	for _, state := range []string{
		"sctp_timeout_closed", "sctp_timeout_cookie_wait", "sctp_timeout_cookie_echoed", "sctp_timeout_shutdown_sent", "sctp_timeout_shutdown_recd", "sctp_timeout_shutdown_ack_sent",
		"tcp_timeout_close", "udp_timeout", "icmp_timeout", "icmpv6_timeout",
	} {
		check(t, n.node.SetSysctl("net.netfilter.nf_conntrack_"+state, "600"))
	}
	for _, i := range n.host.Interfaces {
		if i.Name != loopbackName {
			check(t, n.node.AddVeth(i.Name, n.outside, "to-"+i.Name))
		}
	}
	for device, value := range n.host.ReverseFilter {
		check(t, n.node.SetSysctl("net.ipv4.conf."+device+".rp_filter", strconv.Itoa(value)))
	}
	for _, device := range n.host.ForwardingDiffers {
		check(t, n.node.SetSysctl("net.ipv4.conf."+device+".forwarding", flag(n.host.NoForwarding)))
	}
	h, err := netlink.NewHandleAt(vnetns.NsHandle(n.node.FD()), unix.NETLINK_ROUTE)
	check(t, err)
	defer h.Close()
	for _, i := range n.host.Interfaces {
		l, err := h.LinkByName(i.Name)
		check(t, err)
		n.index[i.Name], n.device[uint32(l.Attrs().Index)] = l.Attrs().Index, i.Name
		if i.Name != loopbackName {
			// There would be no answer to ARP and neighbour discovery.
			check(t, h.LinkSetARPOff(l))
			check(t, h.LinkSetHardwareAddr(l, nodeMAC))
		}
		if i.Group != nil {
			check(t, h.LinkSetGroup(l, int(*i.Group)))
		}
		for _, a := range inKernelOrder(i.Addresses) {
			if !a.Prefix.Addr().IsLoopback() {
				check(t, h.AddrAdd(l, kernelAddress(a)))
			}
		}
	}
	for _, r := range n.host.Routes {
		if err := h.RouteAppend(n.kernelRoute(r)); err != nil {
			t.Fatalf("route %+v: %v", r, err)
		}
	}
}

// inKernelOrder is the order in which addresses are added: of IPv6 the kernel lists the
// latest first (ipv6_link_dev_addr).
func inKernelOrder(addresses []Address) (order []Address) {
	for _, a := range addresses {
		if a.Prefix.Addr().Is4() {
			order = append(order, a)
		}
	}
	for _, a := range slices.Backward(addresses) {
		if a.Prefix.Addr().Is6() {
			order = append(order, a)
		}
	}
	return order
}

func kernelAddress(a Address) *netlink.Addr {
	k := &netlink.Addr{IPNet: prefixNet(a.Prefix)}
	if a.Prefix.Addr().Is6() {
		k.Flags = unix.IFA_F_NODAD
	}
	if a.Narrow {
		k.Scope = unix.RT_SCOPE_LINK
	}
	if a.NoRoute {
		k.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return k
}

func (n *kernelNode) kernelRoute(r Route) *netlink.Route {
	k := &netlink.Route{Dst: prefixNet(r.Destination), Priority: int(r.Metric), LinkIndex: n.index[r.Interface]}
	if r.Via.IsValid() {
		k.Gw = r.Via.AsSlice()
		k.SetFlag(netlink.FLAG_ONLINK)
	} else if r.Type == Unicast {
		k.Scope = netlink.SCOPE_LINK
	}
	if r.Source.IsValid() {
		k.Src = r.Source.AsSlice()
	}
	switch r.Type {
	case Blackhole:
		k.Type = unix.RTN_BLACKHOLE
	case Unreachable:
		k.Type = unix.RTN_UNREACHABLE
	case Prohibit:
		k.Type = unix.RTN_PROHIBIT
	}
	return k
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// watch adds nftables chains of the test's own around all others. They go with either
// back end of iptables.
//
//   - What the test sends is traced. What the kernel makes by itself (answers to refused
//     packets, multicast listener reports) is traced where it is made, and dropped there:
//     it would count in limits and lists of recent addresses.
//   - What has passed INPUT is dropped there, so that the stack does not answer.
//
// The last chains come behind conntrack's own hook of the same priority, which puts
// entries into the table, because they are there first (nf_hook_entries_grow).
func (n *kernelNode) watch() error {
	c, err := nftables.New(nftables.WithNetNSFd(n.node.FD()))
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: watchTable})
	chain := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority})
	}
	rule := func(chain *nftables.Chain, expressions ...expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: expressions})
	}
	traced := []expr.Any{
		&expr.Immediate{Register: 1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1},
	}
	in := chain("came", nftables.ChainHookPrerouting, nftables.ChainPriorityFirst)
	rule(in, append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: append([]byte(loopbackName), make([]byte, unix.IFNAMSIZ-len(loopbackName))...)},
	}, traced...)...)
	made := chain("made", nftables.ChainHookOutput, nftables.ChainPriorityFirst)
	// Only what a socket of a program sent has a user.
	rule(made, slices.Concat([]expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: 1}}, traced, []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})...)
	rule(made, slices.Concat(traced, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})...)
	// Here the trace of the legacy back end, which has rules only, shows which port
	// the kernel chose for a destination.
	behindNAT := nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 1)
	chain(cameTranslated, nftables.ChainHookPrerouting, behindNAT)
	chain(madeTranslated, nftables.ChainHookOutput, behindNAT)
	chain(sentChain, nftables.ChainHookPostrouting, nftables.ChainPriorityLast)
	rule(chain(deliveredChain, nftables.ChainHookInput, nftables.ChainPriorityLast), &expr.Verdict{Kind: expr.VerdictDrop})
	return c.Flush()
}

// The names of the test's own table and chains.
const (
	watchTable     = "watch"
	sentChain      = "sent"
	deliveredChain = "delivered"
	madeChain      = "made"
	cameTranslated = "came-translated"
	madeTranslated = "made-translated"
)

// barrier returns when the node is done with all that was sent before. Some packets take more steps than a marker
// does (by lo, then out), therefore there are several.
func (n *kernelNode) barrier() error { return n.gate.Pass(4) }

// transmit sends a frame to the device from outside.
func (n *kernelNode) transmit(device string, frame []byte) error {
	return unix.Sendto(n.wire, frame, 0, &unix.SockaddrLinklayer{Ifindex: n.outer[device]})
}
