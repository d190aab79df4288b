package netfilter

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Host is the properties of a host that a dump of its rules does not have. This package does not
// change it.
type Host struct {
	Interfaces []Interface
	// Routes are those of the main table; the routes that addresses imply (connected networks,
	// local and broadcast addresses) may be left out.
	Routes  []Route
	Sockets []Socket
	// Rules are the routing rules, in their order. If none is for the main table, the usual ones follow: local, main.
	Rules []RoutingRule
	// Tables are the routes of other tables than local and main.
	Tables map[string][]Route
	// SourceMarks: reverse path filters look at marks, too (net.ipv4.conf.*.src_valid_mark).
	SourceMarks bool
	// Groups are the multicast groups that programs have joined, besides that of all hosts.
	Groups []netip.Addr
	// OtherRules: it has routing rules that are not in Rules.
	OtherRules bool
	// NoForwarding: net.ipv4.ip_forward, or the same for IPv6, is 0.
	NoForwarding bool
	// ForwardingDiffers are the devices for whose IPv4 packets it is the other way around (net.ipv4.conf.*.forwarding).
	ForwardingDiffers []string
	// ReverseFilter is rp_filter in force of devices, for IPv4 (the higher value of all and the device): 1 strict, 2 loose. Others: 0.
	ReverseFilter map[string]int
	// Bridges are the Linux bridges, by name; nil: not known. What they do between their ports is not simulated.
	Bridges map[string]Bridge
	// Neighbours are the host's neighbour entries (ARP, neighbor discovery). They are not simulated: they change without anybody's doing.
	Neighbours []Neighbour
	// RouteLocalnet: net.ipv4.conf.all.route_localnet is 1, as kube-proxy sets it.
	RouteLocalnet bool
	// LocalnetKnown: RouteLocalnet is what the host has, whatever its rules are.
	LocalnetKnown bool
	// PodDevice is the one that is guessed to lead to pods, where rules name several; empty: the first.
	PodDevice string
	// NoQueueListeners: no program listens on the netfilter queues.
	NoQueueListeners bool

	// allAddresses and allRoutes: the host has no others, because they were read from ip's output.
	allAddresses, allRoutes bool
}

// Forwards reports whether the host forwards packets that arrive on a device: IN_DEV_FORWARD (include/linux/inetdevice.h), or
// ip6_forward, which asks for all devices.
func (h *Host) Forwards(in string, to netip.Addr) bool {
	return h.NoForwarding == (to.Is4() && slices.Contains(h.ForwardingDiffers, in))
}

// Bridge is a Linux bridge.
type Bridge struct {
	// PassesRules: what goes from one port to another passes the rules (net.bridge.bridge-nf-call-iptables, or nf_call_iptables
	// of the bridge).
	PassesRules bool
	// Ports is the number of its ports, and Hairpins that of those which send a packet back that came in by them.
	Ports, Hairpins int
	// Promiscuous: the bridge also delivers to the host what it forwards.
	Promiscuous bool
}

// ReturnsNone reports whether a packet that came in by a port never leaves by it, because no port is in hairpin mode. It has to where
// a rule translates its destination to an address behind the same port, and the bridge then forwards the packet itself
// (br_nf_pre_routing_finish in net/bridge/br_netfilter_hooks.c, should_deliver in net/bridge/br_forward.c). If packets between ports do not
// pass the rules, the host routes the packet, and no port needs it.
func (b Bridge) ReturnsNone() bool {
	return b.PassesRules && b.Ports > 0 && b.Hairpins == 0 && !b.Promiscuous
}

// HairpinsKnown reports whether it is known of all bridges whether what has to leave by the port that it came in by does.
func (h *Host) HairpinsKnown() bool {
	for _, b := range h.Bridges {
		if b.PassesRules && b.Hairpins < b.Ports && !b.ReturnsNone() {
			return false
		}
	}
	return h.Bridges != nil
}

// Interface is a network device that is up.
type Interface struct {
	// Name is empty for addresses whose device is not known: [GuessHost] gives them one.
	Name string
	// Addresses are the interface's own, with the length of the network they are in, in the
	// kernel's order: the first one of a network is used as a source.
	Addresses []Address
	MAC       iptables.MACAddress
	// PointToPoint: packets on it have no Ethernet header, so that -m mac never matches.
	PointToPoint bool
	// Group is its group (ip link set group); nil: not known.
	Group *uint32
	// Programs see its packets besides the rules, and may drop them or send them elsewhere: "XDP program 12", "qdisc netem". They are not
	// followed.
	Programs []string
}

// known reports whether an address of the family is known besides those that every host has.
func (h *Host) known(is4 bool) bool {
	return slices.ContainsFunc(h.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(a Address) bool { return a.Prefix.Addr().Is4() == is4 && !a.Narrow })
	})
}

// Address is an address of an interface.
type Address struct {
	Prefix netip.Prefix // not masked: the address, and the length of its network
	// Narrow: its scope is link or host, so packets to other networks do not get it as a source.
	Narrow bool
	// Secondary: another address of the same network comes before it.
	Secondary bool
	// NoRoute: it implies no route to its network (noprefixroute).
	NoRoute bool
}

// RouteType is the effect of a route on its packets (RTN_... of rtnetlink.h).
type RouteType uint8

// The types of routes.
const (
	Unicast     RouteType = iota
	Local                 // delivered on this host
	Broadcast             // delivered here, too
	Blackhole             // dropped
	Unreachable           // refused: host unreachable
	Prohibit              // refused: administratively prohibited
	NoRoute               // no route: refused with network unreachable
)

var routeTypeNames = []string{"unicast", "local", "broadcast", "blackhole", "unreachable", "prohibit", "none"}

func (t RouteType) String() string { return routeTypeNames[t] }

// Route is one route.
type Route struct {
	Destination netip.Prefix // masked; length 0: the default route
	Type        RouteType
	Via         netip.Addr // the next hop; not valid: the destination is on the link
	Interface   string
	Others      []string   // devices of other next hops; only the first is simulated
	Source      netip.Addr // preferred source of local packets; not valid: an address of the interface
	Metric      uint32
	Table       string // of a route that was looked up: another than local and main
	Rule        int    // of a route that was looked up: the priority of the routing rule that stands for a route; 0: none
}

// Neighbour is an entry of the host's neighbour table.
type Neighbour struct {
	Addr      netip.Addr
	Interface string
	MAC       iptables.MACAddress // zero: not known
	// Unanswered is FAILED, if the last attempt to resolve the address got no answer, or INCOMPLETE, if there is none yet; empty: neither.
	Unanswered string
	// Permanent: an administrator or a program set it, and the host does not ask.
	Permanent bool
}

// Socket is a listening or receiving socket of a program on the host.
type Socket struct {
	Protocol    uint8          // 6 or 17
	Address     netip.AddrPort // with an unspecified address: any of the host's
	Transparent bool           // IP_TRANSPARENT
}

// Complete reports whether all addresses and routes of the host are known, because they were read from ip's output.
func (h *Host) Complete() bool { return h.allAddresses && h.allRoutes }

// network is a host prepared for lookups in one address family. It is immutable.
type network struct {
	*Host
	local     map[netip.Addr]string // the host's own addresses, with their interface
	broadcast map[netip.Addr]string
	loopback  netip.Prefix
	rules     []RoutingRule
	tables    map[string][]Route // the longest prefix first, of these the least metric
}

func newNetwork(h *Host, f iptables.Family) *network {
	n := &network{Host: h, rules: h.Rules, tables: make(map[string][]Route), local: make(map[netip.Addr]string), broadcast: make(map[netip.Addr]string)}
	n.loopback = netip.MustParsePrefix("127.0.0.0/8")
	if f == iptables.IPv6 {
		n.loopback = netip.MustParsePrefix("::1/128")
	}
	is4 := f != iptables.IPv6
	for _, i := range h.Interfaces {
		for _, a := range i.Addresses {
			addr := a.Prefix.Addr()
			if addr.Is4() != is4 {
				continue
			}
			n.local[addr] = i.Name
			if a.NoRoute || a.Prefix.IsSingleIP() || addr.IsLoopback() {
				continue
			}
			n.tables[mainTable] = append(n.tables[mainTable], Route{Destination: a.Prefix.Masked(), Interface: i.Name, Source: addr})
			if is4 && a.Prefix.Bits() < 31 {
				n.broadcast[last(a.Prefix)] = i.Name
			}
		}
	}
	n.addTable(mainTable, h.Routes, is4)
	for name, routes := range h.Tables {
		n.addTable(name, routes, is4)
	}
	if !slices.ContainsFunc(n.rules, func(r RoutingRule) bool { return r.Table == mainTable && r.MinBits == 0 }) {
		n.rules = append(slices.Clip(n.rules), RoutingRule{Table: localTable}, RoutingRule{Table: mainTable})
	}
	return n
}

// addTable adds routes of a family to a table.
func (n *network) addTable(name string, routes []Route, is4 bool) {
	list := n.tables[name]
	for _, r := range routes {
		if r.Destination.Addr().Is4() == is4 {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b Route) int {
		return cmp.Or(b.Destination.Bits()-a.Destination.Bits(), cmp.Compare(a.Metric, b.Metric))
	})
	n.tables[name] = list
}

// last is the last address of a network of IPv4.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}

// isLocal reports whether the address is the host's own.
func (n *network) isLocal(a netip.Addr) bool {
	if n.loopback.Contains(a) {
		return true
	}
	_, ok := n.local[a]
	return ok
}

func (n *network) isBroadcast(a netip.Addr) bool {
	if _, ok := n.broadcast[a]; ok {
		return true
	}
	return a == allOnes
}

// allOnes is the broadcast address of the packet's own network (RFC 919).
var allOnes = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// route finds the route to an address of packets that no routing rule selects by anything else.
func (n *network) route(to netip.Addr) Route { return n.lookup(flowKey{to: to}) }

// routeBy finds the route to an address through one device only.
func (n *network) routeBy(device string, to netip.Addr) Route {
	for _, r := range n.tables[mainTable] {
		if r.Interface == device && r.Destination.Contains(to) {
			return r
		}
	}
	return Route{Destination: alone(to), Type: NoRoute}
}

const loopbackName = "lo"

// device finds an interface by its name.
func (h *Host) device(name string) *Interface {
	for i := range h.Interfaces {
		if h.Interfaces[i].Name == name {
			return &h.Interfaces[i]
		}
	}
	return nil
}

// hasAddress reports whether a device has an address of a family.
func (h *Host) hasAddress(device string, is4 bool) bool {
	d := h.device(device)
	return d != nil && slices.ContainsFunc(d.Addresses, func(a Address) bool { return a.Prefix.Addr().Is4() == is4 && !a.Narrow })
}

// source returns the source address of packets on the route; the zero Addr if there is none.
func (n *network) source(r Route, to netip.Addr) netip.Addr {
	if to.Is4() {
		return n.source4(r, to)
	}
	return n.source6(r, to)
}

// source6 is ipv6_dev_get_saddr (net/ipv6/addrconf.c), as far as rules 5, 6 and 8 of RFC
// 6724 go: an address of the device, of the same kind (global, unique local) as the
// destination, and of these the one that has most of it in common.
func (n *network) source6(r Route, to netip.Addr) (best netip.Addr) {
	most := -1
	for _, d := range n.Interfaces {
		for _, a := range d.Addresses {
			addr := a.Prefix.Addr()
			if !addr.Is6() || a.Narrow && addr != to {
				continue
			}
			if d.Name != r.Interface && (to.IsLoopback() || to.IsLinkLocalUnicast() || to.IsMulticast()) {
				continue
			}
			score := min(commonBits(addr, to), a.Prefix.Bits())
			if addr.IsPrivate() == to.IsPrivate() {
				score += 1000
			}
			if d.Name == r.Interface {
				score += 2000
			}
			if addr == to {
				score += 4000 // rule 1
			}
			if score > most {
				best, most = addr, score
			}
		}
	}
	return best
}

// commonBits is how many bits two addresses of IPv6 begin with together.
func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if x[i] != y[i] {
			return 8*i + bits.LeadingZeros8(x[i]^y[i])
		}
	}
	return 128
}

// source4 is, for IPv4, the first primary address
// of the interface in the next hop's network, else its first one, else any of the host's
// (inet_select_addr, net/ipv4/devinet.c). The zero Addr: there is none.
func (n *network) source4(r Route, to netip.Addr) netip.Addr {
	next := to
	if r.Via.Is4() == to.Is4() && r.Via.IsValid() {
		next = r.Via
	}
	var first netip.Addr
	if d := n.device(r.Interface); d != nil {
		for _, a := range d.Addresses {
			addr := a.Prefix.Addr()
			if a.Secondary || a.Narrow || addr.Is4() != to.Is4() {
				continue
			}
			if a.Prefix.Contains(next) {
				return addr
			}
			if !first.IsValid() {
				first = addr
			}
		}
	}
	if first.IsValid() {
		return first
	}
	for _, d := range n.Interfaces {
		for _, a := range d.Addresses {
			if addr := a.Prefix.Addr(); !a.Narrow && !a.Secondary && addr.Is4() == to.Is4() && !addr.IsLoopback() {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// localSource returns the source address of a program's packet without one.
func (n *network) localSource(to netip.Addr) netip.Addr {
	r := n.route(to)
	switch {
	case r.Type == Local:
		return to // fib_select: the local route's preferred source is the address itself
	case r.Source.IsValid():
		return r.Source
	}
	return n.source(r, to)
}

// socket finds the socket that gets a packet to the address.
func (n *network) socket(protocol uint8, to netip.AddrPort) *Socket {
	var any *Socket
	for i := range n.Sockets {
		s := &n.Sockets[i]
		if s.Protocol != protocol || s.Address.Port() != to.Port() {
			continue
		}
		if s.Address.Addr() == to.Addr() {
			return s
		}
		if s.Address.Addr().IsUnspecified() && s.Address.Addr().Is4() == to.Addr().Is4() {
			any = s
		}
	}
	return any
}

// Has reports whether the address is one of the host's interfaces.
func (h *Host) Has(a netip.Addr) bool {
	for _, i := range h.Interfaces {
		for _, own := range i.Addresses {
			if own.Prefix.Addr() == a {
				return true
			}
		}
	}
	return false
}
