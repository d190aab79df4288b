package netfilter

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// routeInput is ip_route_input_slow (net/ipv4/route.c): the route of an arriving packet. false: it
// is dropped.
func (w *walk) routeInput() bool {
	n, from, to := w.machine.network, w.Packet.Source.Addr(), w.Packet.Destination.Addr()
	if to == w.routed { // ip_rcv_finish: the route of a local packet is still valid
		return true
	}
	if from.Is4() {
		zero := netip.PrefixFrom(netip.IPv4Unspecified(), 8)
		switch {
		case from.IsMulticast(), from == allOnes, zero.Contains(from) && to != allOnes && !to.IsLinkLocalMulticast(): // DHCP and IGMP
			return w.end(Dropped, nil, fmt.Sprintf("routing: %s cannot be a source", from))
		case zero.Contains(to):
			return w.end(Dropped, nil, fmt.Sprintf("routing: %s cannot be a destination", to))
		case from.IsLoopback() && !n.RouteLocalnet:
			return w.foreign(from, n.route(from))
		case to.IsLoopback() && !n.RouteLocalnet:
			return w.end(Dropped, nil, fmt.Sprintf("routing: packets from outside cannot use %s while route_localnet is 0", to))
		}
	}
	if to.IsMulticast() {
		if !allHosts(to) && !slices.Contains(n.Groups, to) {
			return w.end(Dropped, nil, fmt.Sprintf("routing: no program on this host has joined the group %s", to))
		}
		w.route = Route{Type: Local}
		return true
	}
	w.route = w.routeOf()
	if to.Is6() && to.IsLoopback() && w.In != loopbackName {
		w.route = n.routeBy(w.In, to) // rt6_need_strict (net/ipv6/route.c): lo is another device
	}
	w.addRoute()
	switch w.route.Type {
	case Local, Broadcast:
		return n.comesFrom(from, w.In, "", w.back("")) || w.foreign(from, w.back(""))
	case Unicast:
	default:
		if to.Is4() && !n.Forwards(w.In, to) { // ip_error; ip6_pkt_drop does not check it
			break
		}
		return w.noWay()
	}
	switch {
	case !n.Forwards(w.In, to):
		w.result.NoWay = true
		what := "packets"
		if !n.NoForwarding {
			what = fmt.Sprintf("packets that arrive on %s (net.ipv4.conf.%[1]s.forwarding is 0)", w.In)
		}
		return w.end(Dropped, nil, "routing: the host does not forward "+what)
	case w.assigned != nil: // ip_forward, ip6_forward
		return w.end(Dropped, nil, "routing: TPROXY assigned the packet to a socket of this host, but its route leads on; the host lacks a routing rule (ip rule) for the packet's mark")
	}
	back := w.back(w.route.Interface)
	return n.comesFrom(from, w.In, w.route.Interface, back) || w.foreign(from, back)
}

// allHosts reports whether it is the group of all hosts.
func allHosts(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{224, 0, 0, 1}) || a == netip.IPv6LinkLocalAllNodes()
}

// comesFrom is fib_validate_source (net/ipv4/fib_frontend.c) without accept_local: whether a packet from the address may arrive
// on the device, on its way to the other one. back is the route to it.
func (n *network) comesFrom(from netip.Addr, in, out string, back Route) bool {
	if from.Is6() {
		return true
	}
	if _, own := n.local[from]; own {
		return false
	}
	filter := n.ReverseFilter[in]
	if filter == 0 && in != out {
		return true
	}
	// As send_redirects is on, a packet that leaves by its input device is checked more strictly.
	switch {
	case back.Type == Local || back.Type == Broadcast:
		return false
	case filter == 0 || back.leaves(in):
		return true
	default:
		d := n.device(in)
		return filter == looseFilter && back.Type == Unicast && d != nil && slices.ContainsFunc(d.Addresses, func(a Address) bool { return a.Prefix.Addr().Is4() })
	}
}

// looseFilter is the value of rp_filter for which a route by any device is enough, if the input device has an address.
const looseFilter = 2

// leaves reports whether packets of the route leave by the device (fib_info_nh_uses_dev).
func (r *Route) leaves(device string) bool {
	return r.Type == Unicast && (r.Interface == device || slices.Contains(r.Others, device))
}

// foreign drops a packet with a source that is not behind its input device.
func (w *walk) foreign(from netip.Addr, back Route) bool {
	if back.Type == Local || back.Type == Broadcast || from.IsLoopback() {
		return w.end(Dropped, nil, fmt.Sprintf("routing: %s is an address of this host, so it cannot be the source of a packet from outside", from))
	}
	w.result.NoWay = true
	return w.end(Dropped, nil, "routing: "+w.machine.network.filterText(from, w.In, back))
}

// filterText is why rp_filter of a device drops packets from an address, a clause.
func (n *network) filterText(from netip.Addr, in string, back Route) string {
	kind, way := "strict", "there is no route to "+from.String()
	if n.ReverseFilter[in] == looseFilter {
		kind = "loose"
	}
	if back.Type == Unicast {
		way = fmt.Sprintf("the route to %s uses %s", from, back.Interface)
	}
	return fmt.Sprintf("rp_filter of %s is %d (%s), and %s", in, n.ReverseFilter[in], kind, way)
}

// Filters returns the device of the host that has the address to, if packets from the address from must not arrive there, and
// the reason, a clause. Both are empty if they may, if the source is known to be behind another device, or if it is not known.
func (h *Host) Filters(from, to netip.Addr) (device, why string) {
	if !from.Is4() || len(h.ReverseFilter) == 0 {
		return "", ""
	}
	n := newNetwork(h, iptables.IPv4)
	device = n.local[to]
	back := n.back(from, to, "", 0)
	if attached := back.Type == Unicast && !back.Via.IsValid(); device == "" || device == loopbackName || back.Type == Local || attached || n.comesFrom(from, device, "", back) {
		return "", ""
	}
	return device, n.filterText(from, device, back)
}

// routeOutput is ip_route_output_key (net/ipv4/route.c): the route of a local packet. false: there
// is none.
func (w *walk) routeOutput() bool {
	n, from := w.machine.network, w.Packet.Source.Addr()
	w.route = w.routeOf()
	w.addRoute()
	switch w.route.Type {
	case Local, Broadcast:
		return true
	case Unicast:
		if from.Is4() && from.IsLoopback() && !n.RouteLocalnet {
			w.result.NoWay = true
			return w.end(Dropped, nil, fmt.Sprintf("routing: %s cannot leave the host while route_localnet is 0", from))
		}
		return true
	}
	return w.noWay()
}

// resets reports whether the kernel sends the reset of a rule (nf_send_reset, nf_send_reset6): it needs a route for it. Else
// the connection's entry stays as it is.
func (w *walk) resets() bool {
	n, from, to := w.machine.network, w.Packet.Source.Addr(), w.Packet.Destination.Addr()
	back := w.back("")
	if w.Packet.Flags&iptables.RST != 0 || back.Type >= Blackhole {
		return false
	}
	if to.Is6() {
		return !from.IsMulticast() && !to.IsMulticast()
	}
	route := w.route // of the packet
	if w.hook == Prerouting && w.In != loopbackName {
		route = back // nf_reject_fill_skb_dst
	} else if to.IsMulticast() {
		return false
	}
	return route.Type != Broadcast && (!to.IsLoopback() || back.Type == Local || n.RouteLocalnet)
}

// noWay ends the walk of a packet without a route.
func (w *walk) noWay() bool {
	w.result.NoWay = true
	to := w.Packet.Destination.Addr()
	with, why := iptables.RejectWith("icmp-net-unreachable"), fmt.Sprintf("routing: there is no route to %s", to)
	if to.Is6() {
		with = "icmp6-no-route"
	}
	is := func(route, what string) string {
		if w.route.Rule > 0 {
			return fmt.Sprintf("routing: the routing rule of priority %d makes it %s", w.route.Rule, what)
		}
		return fmt.Sprintf("routing: %s%s is %s", route, w.route.Destination, what)
	}
	switch w.route.Type {
	case Blackhole:
		return w.end(Dropped, nil, is("the route to ", "a black hole"))
	case Unreachable:
		with, why = "icmp-host-unreachable", is("", "unreachable")
		if to.Is6() {
			with = "icmp6-no-route" // ip6_rt_init_dst_reject makes no difference
			if w.In == "" {         // its sender gets an error
				with = "icmp6-addr-unreachable"
			}
		}
	case Prohibit:
		with, why = "icmp-admin-prohibited", is("", "prohibited")
		if to.Is6() {
			with = "icmp6-adm-prohibited"
		}
	}
	w.result.With = with
	return w.end(Rejected, nil, why)
}

// isType reports whether the address is of one of the types.
func (n *network) isType(a netip.Addr, device string, types iptables.AddrTypes) bool {
	if a.Is4() {
		return types&n.type4(a, device) != 0
	}
	return n.isType6(a, device, types)
}

// type4 is inet_addr_type and inet_dev_addr_type (net/ipv4/fib_frontend.c), which use the local
// table only.
func (n *network) type4(a netip.Addr, device string) iptables.AddrTypes {
	first := a.As4()[0]
	switch {
	case first == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return iptables.AddrBroadcast
	case a.IsMulticast():
		return iptables.AddrMulticast
	}
	if n.loopback.Contains(a) {
		if device == "" || device == loopbackName {
			return iptables.AddrLocal
		}
		return iptables.AddrUnicast
	}
	if on, ok := n.local[a]; ok && (device == "" || device == on) {
		return iptables.AddrLocal
	}
	if on, ok := n.broadcast[a]; ok && (device == "" || device == on) {
		return iptables.AddrBroadcast
	}
	return iptables.AddrUnicast
}

// isType6 is match_type6 (xt_addrtype.c).
func (n *network) isType6(a netip.Addr, device string, types iptables.AddrTypes) bool {
	switch {
	case types&iptables.AddrMulticast != 0 && !a.IsMulticast(),
		types&iptables.AddrUnicast != 0 && (a.IsMulticast() || a.IsUnspecified()),
		types&iptables.AddrUnspec != 0 && !a.IsUnspecified():
		return false
	}
	if types&(iptables.AddrAnycast|iptables.AddrLocal|iptables.AddrUnreachable) == 0 {
		return true
	}
	var found iptables.AddrTypes
	on, own := n.local[a]
	if n.loopback.Contains(a) {
		on, own = loopbackName, true
	}
	local := own && (device == "" || device == on)
	if local {
		found |= iptables.AddrLocal
	}
	r := n.route(a)
	if device != "" && !local {
		r = n.routeBy(device, a)
	}
	if r.Type >= Blackhole {
		found |= iptables.AddrUnreachable
	}
	return types&found != 0
}
