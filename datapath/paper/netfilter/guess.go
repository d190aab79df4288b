package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Guess is an assumption about something that a dump does not show.
type Guess struct {
	Text string // one sentence
	// Claim is its main clause, without the reason.
	Claim string
	// About, if valid, is the network of the guess: it does not matter for packets without an
	// address in it.
	About netip.Prefix
	// Otherwise are the hosts for which the guess is wrong, if the rules leave it open. A verdict
	// that is another one there depends on the guess.
	Otherwise []Otherwise
	// Silent: the guess only matters for a verdict that depends on it.
	Silent bool
}

// Otherwise is a host as it also may be.
type Otherwise struct {
	Host *Host
	In   string // the packet's input device
}

// GuessHost completes a host with what the rules and a packet suggest: interfaces and their
// networks, the location of pods, the host's own addresses, and, if unknown, the packet's input
// device, which it sets in p. It never contradicts or changes given data, and returns another
// Host. p may be nil for many packets, see [Machine.Place].
func GuessHost(dumps []*iptables.Dump, known *Host, p *iptables.Packet) (*Host, []Guess) {
	many := p == nil
	if many {
		p = &iptables.Packet{Local: true}
	}
	evidence := hintsOf(dumps)
	given := *p
	run := func(c choice, p *iptables.Packet) *guesser {
		h := *known
		h.Interfaces, h.Routes = slices.Clone(known.Interfaces), slices.Clone(known.Routes)
		for i := range h.Interfaces {
			h.Interfaces[i].Addresses = slices.Clip(h.Interfaces[i].Addresses)
		}
		family := dumps[0].Family
		// ip -j route prints the routes of IPv4 only.
		h.allRoutes = h.allRoutes && slices.ContainsFunc(h.Routes, func(r Route) bool { return r.Destination.Addr().Is6() == (family == iptables.IPv6) })
		g := &guesser{
			host: &h, packet: p, family: family, hints: evidence, dumps: dumps, choice: c,
			inside: make(map[string]bool), given: newNetwork(known, family), addressGiven: known.known(family != iptables.IPv6),
		}
		g.guess()
		return g
	}
	g := run(choice{}, p)
	for _, o := range g.open {
		for _, c := range o.otherwise {
			if many {
				break
			}
			other := given
			of := &g.guesses[o.guess].Otherwise
			*of = append(*of, Otherwise{run(c, &other).host, other.InInterface})
		}
	}
	return g.host, g.guesses
}

type guesser struct {
	host    *Host
	packet  *iptables.Packet
	family  iptables.Family
	dumps   []*iptables.Dump
	hints   []hint
	choice  choice
	guesses []Guess
	open    []openGuess
	pods    netip.Prefix
	uplink  string
	inside  map[string]bool // devices with a network of their own
	// given is what was known before, and addressGiven an address among it.
	given        *network
	addressGiven bool
	gateway      bool           // the host forwards for private networks
	unplaced     []netip.Prefix // given addresses without a device
	// forwarded are the networks and addresses that rules of FORWARD name.
	forwarded forwarded
	placed    bool                // the packet's source is behind a device by choice only
	services  map[netip.Addr]bool // see named; nil: not collected yet
}

// choice is what to assume instead of the most likely. The zero value is nothing.
type choice struct {
	destination place  // where the packet's destination is
	device      string // of pods
	via         string // the device that leads to the packet's destination
	source      string // the device that the packet arrives on
	servers     string // the device that leads to what rules translate to
}

// openGuess is a guess that the rules leave open, and what else may be.
type openGuess struct {
	guess     int // its position
	otherwise []choice
}

// note records a guess about a network; the zero prefix: about every packet.
func (g *guesser) note(about netip.Prefix, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	g.guesses = append(g.guesses, Guess{Text: text, Claim: text, About: about})
}

// last is the guess noted last.
func (g *guesser) last() *Guess { return &g.guesses[len(g.guesses)-1] }

// leaveOpen marks the last guess as one that may be wrong, and says what else may be.
func (g *guesser) leaveOpen(otherwise ...choice) { g.leaveOpenAt(len(g.guesses)-1, otherwise...) }

// leaveOpenAt is leaveOpen for the guess at a position.
func (g *guesser) leaveOpenAt(i int, otherwise ...choice) {
	if len(otherwise) > 0 && g.choice == (choice{}) {
		g.open = append(g.open, openGuess{i, otherwise})
	}
}

// alone returns the network with one address.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (g *guesser) guess() {
	addresses, routes := !g.host.allAddresses, !g.host.allRoutes // those to guess
	if g.host.device(loopbackName) == nil {
		g.host.AddAddress(loopbackName, netip.MustParsePrefix("127.0.0.1/8"))
		g.host.AddAddress(loopbackName, netip.MustParsePrefix("::1/128"))
	}
	if g.kubeProxy() && !g.host.LocalnetKnown {
		g.host.RouteLocalnet = true // kube-proxy sets it; without it node ports on 127.0.0.1 fail
		if p := g.packet; p.Destination.Addr().IsLoopback() && slices.ContainsFunc(g.hints, func(h hint) bool { return h.serves(p) }) {
			g.note(netip.Prefix{}, "net.ipv4.conf.all.route_localnet is 1, as kube-proxy sets it")
		}
	}
	g.findPods()
	g.findForwarded()
	g.takeUnplaced()
	if addresses {
		g.bridges()
	}
	if routes {
		g.podRoute()
	}
	g.uplink = g.uplinkName()
	g.placeAddresses()
	if routes {
		g.forwardedRoutes()
		if g.choice.via != "" {
			g.route(alone(g.packet.Destination.Addr()), g.choice.via)
		}
	}
	if addresses && routes {
		g.hidden()
	}
	if routes {
		g.masqueraded()
		g.behindIn()
		devices := g.innerDevices()
		g.placeSource(devices)
		g.placeServers(devices)
		g.defaultRoute()
	}
	g.proxies()
	if addresses {
		g.addresses()
		g.uplinkFirst()
	}
	g.inInterface()
	if to := g.packet.Destination.Addr(); to.IsMulticast() && !g.packet.Local && !allHosts(to) {
		g.host.Groups = append(slices.Clip(g.host.Groups), to)
		g.note(alone(to), "a program on this host has joined the group %s", to)
	}
}

// uplinkFirst gives the uplink its usual place before the bridges that programs add: the kernel takes the first device that has an
// address if the one that a packet leaves by has none.
func (g *guesser) uplinkFirst() {
	slices.SortStableFunc(g.host.Interfaces, func(a, b Interface) int {
		rank := func(name string) int { return slices.Index([]string{g.uplink, loopbackName}, name) }
		return rank(b.Name) - rank(a.Name)
	})
}

// anyHint reports whether there is such a rule.
func (g *guesser) anyHint(is func(h *hint) bool) bool {
	for i := range g.hints {
		if is(&g.hints[i]) {
			return true
		}
	}
	return false
}

// kubeProxy reports whether the rules are kube-proxy's.
func (g *guesser) kubeProxy() bool {
	return g.anyHint(func(h *hint) bool {
		return h.table == "nat" && (h.Chain == servicesChain || isTo(h.Rule, servicesChain) || marksMasquerade(h.Rule))
	})
}

// kubernetes reports whether programs of a cluster's node wrote some of the rules.
func (g *guesser) kubernetes() bool {
	return g.anyHint(func(h *hint) bool {
		return strings.HasPrefix(h.Chain, "KUBE-") || strings.HasPrefix(h.Rule.JumpsTo(), "KUBE-") || marksMasquerade(h.Rule)
	})
}

// marksMasquerade reports whether kube-proxy marks packets to masquerade at a rule, in mode iptables or nftables. Newer versions
// of the latter have no chain for it.
func marksMasquerade(r *iptables.Rule) bool {
	if isTo(r, kubechains.MarkMasq) { // also as nft lists rules of iptables
		return true
	}
	_, sets := r.Target.(iptables.SetMark)
	return r.Native && (isTo(r, "mark-for-masquerade") || sets && strings.Contains(r.Text, "@cluster-ips"))
}

// forNodePorts reports whether packets to node ports, whose destinations are the node's addresses, meet the rule.
func forNodePorts(r *iptables.Rule) bool {
	return isTo(r, nodePortsChain) || r.Native && strings.Contains(r.Text, "@service-nodeports")
}

const servicesChain = "KUBE-SERVICES"

func isTo(r *iptables.Rule, chain string) bool {
	name := r.JumpsTo()
	return name == chain
}

// near reports whether the address is a pod's, behind a device with its network, or of a forwarded
// network.
func (g *guesser) near(a netip.Addr) bool {
	return a.IsValid() && (g.pods.IsValid() && g.pods.Contains(a) || g.leads(alone(a)) || g.forwarded.network(a) != nil)
}

// leads reports whether there is a route to a whole network, other than the default route.
func (g *guesser) leads(to netip.Prefix) bool { return newNetwork(g.host, g.family).leads(to) }

func (n *network) leads(to netip.Prefix) bool {
	return slices.ContainsFunc(n.tables[mainTable], func(r Route) bool {
		return r.Destination.Bits() > 0 && r.Destination.Bits() <= to.Bits() && r.Destination.Contains(to.Addr())
	})
}

// route adds a route through a device, and the device if it is missing.
func (g *guesser) route(to netip.Prefix, device string) {
	g.host.Routes = append(g.host.Routes, Route{Destination: to, Interface: device})
	if g.host.device(device) == nil {
		g.host.Interfaces = append(g.host.Interfaces, Interface{Name: device})
	}
}

func (g *guesser) defaultRoute() {
	everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if g.family == iptables.IPv6 {
		everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if slices.ContainsFunc(g.host.Routes, func(r Route) bool { return r.Destination == everything }) {
		return
	}
	g.route(everything, g.uplink)
	g.note(netip.Prefix{}, "all other addresses are behind %s", g.uplink)
}

// inInterface guesses the packet's input device.
func (g *guesser) inInterface() {
	p := g.packet
	if p.Local || p.InInterface != "" {
		return
	}
	r := newNetwork(g.host, g.family).back(p.Source.Addr(), p.Destination.Addr(), "", 0)
	p.InInterface = r.Interface
	if r.Type != Unicast {
		p.InInterface = g.uplink
	}
	g.note(netip.Prefix{}, "the packet arrives on %s, which leads to %s", p.InInterface, p.Source.Addr())
}
