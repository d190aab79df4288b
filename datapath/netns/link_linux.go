package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lastIndex numbers the devices made by AddVeth. If both ends of a veth pair happen
// to have the same index, each in its namespace, the kernel regards them as
// ordinary hardware, and up to a second passes before they carry packets
// (linkwatch_urgent_event in net/core/link_watch.c).
var lastIndex atomic.Int32

const firstIndex = 1 << 16 // far from those that the kernel assigns

// AddVeth makes a pair of connected Ethernet devices, one end named name in this
// namespace, the other named peerName in the other, and brings both up.
func (n *Namespace) AddVeth(name string, peer *Namespace, peerName string) error {
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name, Namespace: netlink.NsFd(n.FD()), Index: firstIndex + int(lastIndex.Add(1))},
		PeerName:      peerName,
		PeerNamespace: netlink.NsFd(peer.FD()),
	}
	if err := n.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth %s in %s to %s in %s: %w", name, n.name, peerName, peer.name, err)
	}
	return errors.Join(n.SetUp(name), peer.SetUp(peerName))
}

// AddBridge makes a bridge and brings it up. It sets a hardware address: a bridge without one
// takes the lowest of its ports', which changes with the ports, also when a namespace at
// the other end is cleaned up some time after its Close. Hosts with the old address in
// their neighbour table would then lose packets until the entry becomes stale, half a
// minute later (br_stp_recalculate_bridge_id in net/bridge/br_stp_if.c).
func (n *Namespace) AddBridge(name string) error {
	if err := n.links.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: randomHardwareAddr()}}); err != nil {
		return fmt.Errorf("bridge %s in %s: %w", name, n.name, err)
	}
	return n.SetUp(name)
}

// randomHardwareAddr is a locally administered unicast address.
func randomHardwareAddr() net.HardwareAddr {
	a := binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6]
	a[0] = a[0]&^1 | 2
	return a
}

// SetBridge makes the device a port of the bridge.
func (n *Namespace) SetBridge(name, bridge string) error {
	port, err := n.link(name)
	if err != nil {
		return err
	}
	master, err := n.link(bridge)
	if err != nil {
		return err
	}
	if err := n.links.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("%s into bridge %s in %s: %w", name, bridge, n.name, err)
	}
	return nil
}

// SetUp brings a device up.
func (n *Namespace) SetUp(name string) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.links.LinkSetUp(l); err != nil {
		return fmt.Errorf("bringing %s in %s up: %w", name, n.name, err)
	}
	return nil
}

// SetDown takes a device down: it carries no packets until SetUp. Routes by the device are removed.
func (n *Namespace) SetDown(name string) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.links.LinkSetDown(l); err != nil {
		return fmt.Errorf("taking %s in %s down: %w", name, n.name, err)
	}
	return nil
}

// DeleteLink removes a device, and with one end of a veth pair the other one.
func (n *Namespace) DeleteLink(name string) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.links.LinkDel(l); err != nil {
		return fmt.Errorf("removing %s in %s: %w", name, n.name, err)
	}
	return nil
}

// AddAddress adds an address to a device. An IPv6 address can be used at once:
// there is no duplicate address detection.
func (n *Namespace) AddAddress(name string, p netip.Prefix) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.links.AddrAdd(l, a); err != nil {
		return fmt.Errorf("address %s on %s in %s: %w", p, name, n.name, err)
	}
	if p.Addr().Is6() {
		return n.awaitLocal(p.Addr(), name)
	}
	return nil
}

// awaitLocal waits until packets to an IPv6 address are delivered here. Even without
// duplicate address detection the kernel leaves that to a work queue (addrconf.c,
// addrconf_dad_work), which takes its time when the machine is busy.
func (n *Namespace) awaitLocal(a netip.Addr, name string) error {
	local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: ipNet(netip.PrefixFrom(a, a.BitLen()))}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(200 * time.Microsecond) {
		routes, err := n.links.RouteListFiltered(netlink.FAMILY_V6, local, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		switch {
		case err != nil:
			return fmt.Errorf("address %s on %s in %s: read routes: %w", a, name, n.name, err)
		case len(routes) > 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("address %s on %s in %s: the kernel does not activate it", a, name, n.name)
		}
	}
}

// Route is a route to a destination.
type Route struct {
	Destination netip.Prefix
	Via         netip.Addr // the next hop; the zero Addr: the destination is on the link
	Link        string     // the device
	OnLink      bool       // the next hop is on the link, whatever its address
	Table       int        // the routing table; 0: the main one
}

// AddRoute adds a route.
func (n *Namespace) AddRoute(r Route) error {
	l, err := n.link(r.Link)
	if err != nil {
		return err
	}
	nr := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(r.Destination), Table: r.Table}
	switch {
	case r.Via.IsValid():
		nr.Gw = r.Via.AsSlice()
	default:
		nr.Scope = netlink.SCOPE_LINK
	}
	if r.OnLink {
		nr.SetFlag(netlink.FLAG_ONLINK)
	}
	if err := n.links.RouteAdd(nr); err != nil {
		return fmt.Errorf("route to %s via %s on %s in %s: %w", r.Destination, r.Via, r.Link, n.name, err)
	}
	return nil
}

// AddOwnTable adds a routing table for packets that the namespace itself sends: it precedes
// the main table, in both families. Forwarded packets do not use it.
func (n *Namespace) AddOwnTable(table int) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r := netlink.NewRule()
		r.Family, r.Table, r.IifName, r.Priority = family, table, "lo", table
		if err := n.links.RuleAdd(r); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("rule for table %d in %s: %w", table, n.name, err)
		}
	}
	return nil
}

// SetSysctl writes a setting under net, "net.ipv4.ip_forward" for example. Dots in a
// device name have to be written as slashes, as for sysctl(8).
func (n *Namespace) SetSysctl(name, value string) error {
	path, err := sysctlPath(name)
	if err != nil {
		return err
	}
	// /proc/sys/net shows the namespace of the thread that opens it.
	if err := n.Do(func() error { return os.WriteFile(path, []byte(value), 0) }); err != nil {
		return fmt.Errorf("sysctl %s=%s in %s: %w", name, value, n.name, err)
	}
	return nil
}

// Sysctl reads a setting under net; see [Namespace.SetSysctl].
func (n *Namespace) Sysctl(name string) (value string, err error) {
	path, err := sysctlPath(name)
	if err != nil {
		return "", err
	}
	err = n.Do(func() error {
		text, err := os.ReadFile(path)
		value = strings.TrimSpace(string(text))
		return err
	})
	return value, err
}

func sysctlPath(name string) (string, error) {
	swapped := strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
	if !strings.HasPrefix(swapped, "net/") || filepath.Clean(swapped) != swapped {
		return "", fmt.Errorf("sysctl %s: want one under net", name)
	}
	return "/proc/sys/" + swapped, nil
}

func (n *Namespace) link(name string) (netlink.Link, error) {
	l, err := n.links.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("device %s in %s: %w", name, n.name, err)
	}
	return l, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
