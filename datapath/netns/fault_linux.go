package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SetDelay makes packets late that leave by a device: by a fixed time, and a random one up to jitter. It uses the kernel's
// netem; the error is [errors.ErrUnsupported] where the kernel has none.
func (n *Namespace) SetDelay(device string, delay, jitter time.Duration) error {
	l, err := n.link(device)
	if err != nil {
		return err
	}
	q := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Latency: uint32(delay.Microseconds()), Jitter: uint32(jitter.Microseconds()), Limit: 1 << 16})
	err = n.links.QdiscAdd(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("delay on %s in %s: the kernel has no netem (CONFIG_NET_SCH_NETEM; as root, modprobe sch_netem): %w", device, n.name, errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("delay on %s in %s: %w", device, n.name, err)
	}
	return nil
}

// ClearDelay ends the effect of SetDelay.
func (n *Namespace) ClearDelay(device string) error {
	l, err := n.link(device)
	if err != nil {
		return err
	}
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}, QdiscType: "netem"}
	if err := n.links.QdiscDel(q); err != nil {
		return fmt.Errorf("delay on %s in %s: %w", device, n.name, err)
	}
	return nil
}

// HasDelay reports whether SetDelay is in effect.
func (n *Namespace) HasDelay(device string) (bool, error) {
	l, err := n.link(device)
	if err != nil {
		return false, err
	}
	qdiscs, err := n.links.QdiscList(l)
	if err != nil {
		return false, fmt.Errorf("queueing disciplines of %s in %s: %w", device, n.name, err)
	}
	return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "netem" }), nil
}

// Routes are the routes of the main table to one destination.
type Routes []netlink.Route

// ReplaceRoute replaces the routes of the main table to a destination by one, and returns those before.
// Without Via, packets to the destination are dropped (a blackhole).
func (n *Namespace) ReplaceRoute(r Route) (before Routes, err error) {
	if before, err = n.routesTo(r.Destination); err != nil {
		return nil, err
	}
	if err := n.deleteRoutes(before); err != nil {
		return before, err
	}
	if r.Via.IsValid() {
		return before, n.AddRoute(r)
	}
	if err := n.links.RouteAdd(&netlink.Route{Dst: ipNet(r.Destination), Type: unix.RTN_BLACKHOLE}); err != nil {
		return before, fmt.Errorf("blackhole route to %s in %s: %w", r.Destination, n.name, err)
	}
	return before, nil
}

// HasRoute reports whether a route of ReplaceRoute is in the main table.
func (n *Namespace) HasRoute(r Route) (bool, error) {
	routes, err := n.routesTo(r.Destination)
	return slices.ContainsFunc(routes, func(now netlink.Route) bool {
		if !r.Via.IsValid() {
			return now.Type == unix.RTN_BLACKHOLE
		}
		via, ok := netip.AddrFromSlice(now.Gw)
		return ok && via.Unmap() == r.Via
	}), err
}

// RestoreRoute undoes ReplaceRoute.
func (n *Namespace) RestoreRoute(destination netip.Prefix, before Routes) error {
	now, err := n.routesTo(destination)
	if err != nil {
		return err
	}
	if err := n.deleteRoutes(now); err != nil {
		return err
	}
	for i := range before {
		if err := n.links.RouteAdd(&before[i]); err != nil {
			return fmt.Errorf("route to %s in %s: %w", destination, n.name, err)
		}
	}
	return nil
}

func (n *Namespace) routesTo(destination netip.Prefix) (Routes, error) {
	family := netlink.FAMILY_V4
	if destination.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := n.links.RouteListFiltered(family, &netlink.Route{Dst: ipNet(destination), Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes to %s in %s: %w", destination, n.name, err)
	}
	return routes, nil
}

func (n *Namespace) deleteRoutes(routes Routes) error {
	for i := range routes {
		if err := n.links.RouteDel(&routes[i]); err != nil {
			return fmt.Errorf("route to %s in %s: %w", routes[i].Dst, n.name, err)
		}
	}
	return nil
}
