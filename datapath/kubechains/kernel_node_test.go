//go:build linux

package kubechains

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// interfaces are those of the node, by the names that packet() gives.
var interfaces = []string{"cni0", "veth1", "eth0"}

// kernelNode is a namespace that plays the node, and one around it that stands for
// all the rest: whatever the node sends out goes there, by eth0, and is captured.
type kernelNode struct {
	node, outside *netns.Namespace
	// send are packet sockets outside, one at the other end of each interface;
	// receive one for all of them. loop captures on the node's lo.
	send          map[string]*packetSocket
	receive, loop *packetSocket
	raw           map[decision.Family]int // for packets made on the node
	lastMarker    uint32
}

// newKernelNode makes a node with the addresses. Both families have the same world, so
// one node does for both.
func newKernelNode(t *testing.T, worlds ...*world) *kernelNode {
	t.Helper()
	n := &kernelNode{node: namespace(t, "node"), outside: namespace(t, "outside"), send: map[string]*packetSocket{}, raw: map[decision.Family]int{}}
	localnet := "0"
	if worlds[0].table.Node().LocalhostNodePorts {
		localnet = "1" // as kube-proxy sets it
	}
	for _, s := range []struct {
		ns          *netns.Namespace
		name, value string
	}{
		// Packet sockets see all; the stack out there would only add to it.
		{n.outside, "net.ipv6.conf.all.disable_ipv6", "1"},
		{n.outside, "net.ipv6.conf.default.disable_ipv6", "1"},
		{n.node, "net.ipv4.ip_forward", "1"},
		{n.node, "net.ipv6.conf.all.forwarding", "1"},
		{n.node, "net.ipv4.conf.all.route_localnet", localnet},
		// Sources are the test's, the node's own included.
		{n.node, "net.ipv4.conf.all.rp_filter", "0"},
		{n.node, "net.ipv4.conf.default.rp_filter", "0"},
		{n.node, "net.ipv4.conf.all.accept_local", "1"},
		// No type of ICMP message is subject to limits (type 0 is none of ours).
		{n.node, "net.ipv4.icmp_ratemask", "0"},
		{n.node, "net.ipv6.icmp.ratemask", "0"},
	} {
		check(t, s.ns.SetSysctl(s.name, s.value))
	}
	for _, name := range interfaces {
		check(t, n.node.AddVeth(name, n.outside, "to-"+name))
	}
	n.neverResolve(t)
	for _, w := range worlds {
		for _, a := range w.table.Node().Addresses {
			check(t, n.node.AddAddress("eth0", hostPrefix(a)))
		}
		everywhere := netip.PrefixFrom(w.addr(0, 0), 0).Masked()
		check(t, n.node.AddRoute(netns.Route{Destination: everywhere, Link: "eth0"}))
	}
	n.openSockets(t)
	check(t, n.watch())
	return n
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// neverResolve has the node's interfaces do without ARP and neighbour discovery:
// there would be no answer.
func (n *kernelNode) neverResolve(t *testing.T) {
	t.Helper()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(n.node.FD()), unix.NETLINK_ROUTE)
	check(t, err)
	defer h.Close()
	for _, name := range interfaces {
		l, err := h.LinkByName(name)
		check(t, err)
		check(t, h.LinkSetARPOff(l))
		check(t, h.LinkSetHardwareAddr(l, nodeMAC))
	}
}

func (n *kernelNode) openSockets(t *testing.T) {
	t.Helper()
	open := func(ns *netns.Namespace, device string) *packetSocket {
		s, err := openPacketSocket(ns, device)
		check(t, err)
		t.Cleanup(func() { _ = unix.Close(s.fd) })
		return s
	}
	for _, name := range interfaces {
		n.send[name] = open(n.outside, "to-"+name)
	}
	n.receive, n.loop = open(n.outside, ""), open(n.node, "lo")
	for f, domain := range map[decision.Family]int{decision.IPv4: unix.AF_INET, decision.IPv6: unix.AF_INET6} {
		check(t, n.node.Do(func() error {
			// IPPROTO_RAW: packets come with their IP header.
			fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			n.raw[f] = fd
			return err
		}))
		t.Cleanup(func() { _ = unix.Close(n.raw[f]) })
	}
}

// load writes the world's rules with one of the back ends.
func (n *kernelNode) load(t *testing.T, b backend, w *world) {
	t.Helper()
	mustRun(t, n.node, rendered(t, w.table, w.family), b.tool(w.family, "restore"), "-w")
}

// delivered is the bit of the connection mark of flows whose packet came through INPUT.
const delivered = 1

// watch adds nftables chains of the test's own, which go with either back end.
func (n *kernelNode) watch() error {
	c, err := nftables.New(nftables.WithNetNSFd(n.node.FD()))
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "watch"})
	// What the node sends to itself is tracked before it comes to INPUT, so there being
	// a flow does not mean that it was let through. (An ICMP error about it belongs to it,
	// too, but is not new.)
	input := c.AddChain(&nftables.Chain{
		Table: table, Name: "input", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityLast,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: input, Exprs: []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Ct{Register: 1, Key: expr.CtKeyMARK},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(^uint32(delivered)), Xor: binaryutil.NativeEndian.PutUint32(delivered)},
		&expr.Ct{Register: 1, SourceRegister: true, Key: expr.CtKeyMARK},
	}})
	// There is no listener on the node. A RST in answer would delete the flow, which is to be
	// looked at.
	output := c.AddChain(&nftables.Chain{
		Table: table, Name: "output", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw,
	})
	const flags, rst = 13, 0x04
	c.AddRule(&nftables.Rule{Table: table, Chain: output, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	return c.Flush()
}

// transmit sends one packet on its way: from outside by its interface, or from the
// node.
func (n *kernelNode) transmit(p *decision.Packet, number uint32) error {
	b := encode(p, number)
	if !p.Local {
		return n.send[p.InInterface].transmit(b)
	}
	f := decision.FamilyOf(p.Destination.Addr())
	var to unix.Sockaddr
	if f == decision.IPv4 {
		to = &unix.SockaddrInet4{Addr: p.Destination.Addr().As4()}
	} else {
		to = &unix.SockaddrInet6{Addr: p.Destination.Addr().As16()}
	}
	err := unix.Sendto(n.raw[f], b, 0, to)
	if errors.Is(err, unix.EPERM) {
		return nil // dropped or refused in OUTPUT: seen by there being no flow
	}
	return err
}

// markers are numbers of packets that only mark the end of others.
const markers = 1 << 31

// barrier returns when the node is done with all packets sent before, and gives what
// was captured of them. On one CPU the kernel hands packets from device to device in
// the order they came, so what was sent before the marker is a step ahead of it. Some
// take more steps than a marker does (lo, then an ICMP error by lo again), therefore
// there are several.
func (n *kernelNode) barrier(w *world) (seen []captured, err error) {
	for range 4 {
		n.lastMarker++
		number := markers + n.lastMarker
		marker := &decision.Packet{
			Protocol: decision.UDP, InInterface: "eth0",
			Source:      netip.AddrPortFrom(w.addr(netOutside, 9), uint16(1024+n.lastMarker)),
			Destination: netip.AddrPortFrom(w.addr(netOutside, 10), 9),
		}
		if err := n.transmit(marker, number); err != nil {
			return nil, fmt.Errorf("sending a marker: %w", err)
		}
		for {
			b, err := n.receive.receive(0)
			if err != nil {
				return nil, fmt.Errorf("waiting for a marker: %w", err)
			}
			c, ok := decode(b)
			if ok && c.number == number {
				break
			}
			if ok && c.number < markers {
				seen = append(seen, c)
			}
		}
	}
	for {
		b, err := n.loop.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return seen, nil
		}
		if err != nil {
			return nil, err
		}
		// Other packets on lo do not count: INPUT is still before them.
		if c, ok := decode(b); ok && c.refusal {
			seen = append(seen, c)
		}
	}
}

// flows are the node's conntrack entries. Those of packets that were dropped or
// refused are not there: an entry is only made when its packet has passed all hooks, up
// to lo in the case of what the node sends to itself.
func (n *kernelNode) flows() (flows []conntrack.Flow, err error) {
	err = n.node.Do(func() error {
		c, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer c.Close()
		flows, err = c.Dump(nil)
		return err
	})
	return flows, err
}
