package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
