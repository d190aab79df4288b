//go:build linux

package netfilter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// otherUser is a user and a group that is not root's.
const otherUser = 1000

// owners are the users that packets from the node may be of. The namespace of an
// ordinary user has one only, and does not load rules about others.
var owners = func() []uint32 {
	var first, outside, length int
	text, err := os.ReadFile("/proc/self/uid_map")
	if err == nil {
		_, err = fmt.Sscan(string(text), &first, &outside, &length)
	}
	if err != nil || length <= otherUser {
		return []uint32{0}
	}
	return []uint32{0, otherUser}
}()

// openSockets opens the sockets that packets are sent by and seen at, and those that the
// Host has.
func (n *kernelNode) openSockets(t testing.TB) {
	t.Helper()
	open := func(ns *netns.Namespace, what string, f func() (int, error)) int {
		fd := -1
		err := ns.Do(func() (err error) {
			fd, err = f()
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	n.wire = open(n.outside, "packet socket outside", func() (int, error) {
		for _, i := range n.host.Interfaces {
			if i.Name == loopbackName {
				continue
			}
			outer, err := net.InterfaceByName("to-" + i.Name)
			if err != nil {
				return -1, err
			}
			n.outer[i.Name], n.outerDevice[outer.Index] = outer.Index, i.Name
		}
		return packetSocket(unix.ETH_P_ALL)
	})
	gate, err := netnstest.NewGate(n.outside, "to-eth0", n.node, "eth0")
	check(t, err)
	t.Cleanup(func() { _ = gate.Close() })
	n.gate = gate
	n.trace = open(n.node, "trace", func() (int, error) { return netfilterSocket(unix.NFNLGRP_NFTRACE) })
	n.log = open(n.node, "log", logSocket)
	if !n.host.NoQueueListeners {
		n.queue = open(n.node, "netfilter queue", queueSocket)
	}
	for _, is4 := range []bool{true, false} {
		for _, owner := range owners {
			n.raw[rawKey{is4, owner}] = open(n.node, "raw socket", func() (int, error) { return rawSocket(is4, owner) })
		}
	}
	for _, s := range n.host.Sockets {
		open(n.node, fmt.Sprintf("socket %+v", s), func() (int, error) { return s.open() })
	}
	check(t, n.node.Do(func() (err error) {
		n.entries, err = conntrack.Dial(nil)
		return err
	}))
	t.Cleanup(func() { _ = n.entries.Close() })
	n.lookups = open(n.node, "connection table", func() (int, error) { return netfilterSocket(0) })
}

func packetSocket(protocol uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, errors.Join(
		// What the socket waits for comes at once or never: the limit is so that the test
		// ends.
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8}),
	)
}

// netfilterSocket talks to nfnetlink, and listens to a group of it; 0: to none.
func netfilterSocket(group int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	// The larger buffer is for root only; the ordinary one is enough for a packet.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	if group != 0 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
	}
	return fd, err
}

// rawSocket is for packets with an IP header of their own, and has an owner: rules look
// at the credentials that it was opened with (xt_owner.c).
func rawSocket(is4 bool, owner uint32) (int, error) {
	domain := unix.AF_INET6
	if is4 {
		domain = unix.AF_INET
	}
	if err := errors.Join(unix.Setfsuid(int(owner)), unix.Setfsgid(int(owner))); err != nil {
		return -1, err
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	err = errors.Join(err, unix.Setfsuid(0), unix.Setfsgid(0))
	if err != nil {
		return -1, err
	}
	return fd, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
}

// sockaddr is an address for sockets.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// open opens the real socket.
func (s Socket) open() (int, error) {
	domain, typ := unix.AF_INET6, unix.SOCK_DGRAM
	if s.Address.Addr().Is4() {
		domain = unix.AF_INET
	}
	if s.Protocol == protoTCP {
		typ = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if s.Transparent {
		level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
		if domain == unix.AF_INET {
			level, option = unix.SOL_IP, unix.IP_TRANSPARENT
		}
		err = unix.SetsockoptInt(fd, level, option, 1)
	}
	if domain == unix.AF_INET6 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1))
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, sockaddr(s.Address)))
	if s.Protocol == protoTCP {
		err = errors.Join(err, unix.Listen(fd, 16))
	}
	return fd, err
}

// sendLocal sends a packet that is made on the node. refused is the error that the
// sender gets: the packet did not get out.
func (n *kernelNode) sendLocal(p *iptables.Packet, b []byte) (refused, err error) {
	fd := n.raw[rawKey{p.Is4(), p.Owner.UID}]
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.Mark)); err != nil {
		return nil, err
	}
	err = unix.Sendto(fd, b, 0, sockaddr(netip.AddrPortFrom(p.Destination.Addr(), 0)))
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return err, nil
	}
	return nil, err
}
