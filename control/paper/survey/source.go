package survey

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Kind is the kind of a source.
type Kind uint8

// The kinds.
const (
	Pod      Kind = iota // of this node
	OtherPod             // of another node
	Node                 // the node itself
	Outside
	kinds
	// NamedPod is a pod of this node that rules name, and Itself an endpoint that is its own client.
	NamedPod
	Itself
)

var kindNames = map[Kind]string{
	Pod: "a pod of this node", OtherPod: "a pod of another node", Node: "the node itself", Outside: "outside",
	NamedPod: "a pod of this node that rules name", Itself: "an endpoint to itself",
}

func (k Kind) String() string { return kindNames[k] }

// Source is where connections start.
type Source struct {
	Kind Kind
	// Addr is the address; not valid: the node selects it.
	Addr netip.Addr
	// Device is the one on which packets arrive; empty: they start at the node.
	Device string
	// Guessed: the rules do not show the pods' network, and the address is one that pods may have.
	Guessed bool
}

// String is "a pod of this node (10.244.0.99, by cni0)".
func (s *Source) String() string {
	if !s.Addr.IsValid() {
		return s.Kind.String()
	}
	guess := ""
	if s.Guessed {
		guess = ": a guess"
	}
	return fmt.Sprintf("%s (%s, by %s%s)", s.Kind, s.Addr, s.Device, guess)
}

// place finds an address for each kind of source, and the host's own.
func (s *surveyor) place(host *netfilter.Host) {
	s.host = host
	p := s.proxy()
	uplink := uplinkOf(host, s.family())
	for _, a := range p.NodePortAddresses {
		if !a.IsLoopback() && !host.Has(a) && !host.Complete() {
			host.AddAddress(uplink, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	s.sources[Node] = &Source{Kind: Node}
	s.sources[Outside] = &Source{Kind: Outside, Addr: s.outsider(), Device: uplink}
	taken := s.taken()
	if s.knownPod(uplink) {
		s.placeKnownPods(uplink)
	} else if own, device := s.pods(host, uplink); own.IsValid() {
		a := freeIn(own, taken, netip.Prefix{})
		if !a.IsValid() { // all are endpoints', whose pods are clients, too
			a = freeIn(own, nil, netip.Prefix{})
		}
		s.sources[Pod] = &Source{Kind: Pod, Addr: a, Device: device, Guessed: !p.NodePodCIDR.IsValid() && !s.podNetwork().IsValid()}
		if s.sources[Pod].Guessed {
			s.guess("pods of this node have addresses in %s: a guess from endpoints, or from addresses that rules name", own)
		}
		s.routePodsTo(own, device, uplink)
		s.gateway(s.sources[Pod].Addr, device, uplink, taken)
		s.placeNamedPods(own, device, taken)
	}
	if !host.Complete() {
		s.hostNetwork(host, uplink)
	}
	s.address = ownAddress(host, uplink, s.family())
	if own := p.NodePodCIDR; own.IsValid() && p.PodCIDR.IsValid() && own != p.PodCIDR {
		if a := freeIn(p.PodCIDR, taken, own); a.IsValid() {
			s.sources[OtherPod] = &Source{Kind: OtherPod, Addr: a, Device: deviceTo(host, a, uplink)}
		}
	}
	if s.sources[Pod] == nil || !s.sources[Pod].Addr.IsValid() {
		s.sources[Pod] = nil
		s.skip("connections from pods: the rules do not show the pods' addresses")
	}
}

func (s *surveyor) family() decision.Family { return s.survey.Nodes[0].Family }

// proxy is the configuration of kube-proxy, of the dump that shows most of it.
func (s *surveyor) proxy() *audit.Proxy {
	best := s.survey.Nodes[0]
	for _, n := range s.survey.Nodes[1:] {
		if !best.Proxy.PodCIDR.IsValid() && n.Proxy.PodCIDR.IsValid() || len(best.Services) == 0 && len(n.Services) > 0 {
			best = n
		}
	}
	return &best.Proxy
}

// pods finds the network of this node's pods and their device: by kube-proxy's detection of pods, or
// behind a device of their own that leads to endpoints.
func (s *surveyor) pods(host *netfilter.Host, uplink string) (network netip.Prefix, device string) {
	p := s.proxy()
	own := slices.IndexFunc(s.known.Pods, func(p netip.Prefix) bool { return !p.IsSingleIP() && decision.FamilyOf(p.Addr()) == s.family() })
	switch {
	case own >= 0:
		network = s.known.Pods[own]
	case p.NodePodCIDR.IsValid():
		network = p.NodePodCIDR
	case s.podNetwork().IsValid():
		network = s.near(s.podNetwork())
	default:
		if named := s.namedPods(); len(named) > 0 {
			network = nodeNetwork(named[0], 0)
			break
		}
		if network = s.routedNetwork(uplink); network.IsValid() {
			network = s.near(network)
			break
		}
		network = s.endpointNetwork(host, uplink)
	}
	if !network.IsValid() {
		return network, ""
	}
	device = cmp.Or(p.Bridge, deviceTo(host, network.Addr().Next(), uplink))
	if device != uplink && p.InterfacePrefix == "" {
		return network, device
	}
	// No route shows it.
	named := netfilter.PodDevices(s.dumps)
	named = slices.DeleteFunc(named, func(name string) bool { return !strings.HasPrefix(name, p.InterfacePrefix) })
	switch {
	case slices.Contains(named, host.PodDevice):
		device = host.PodDevice
	case len(named) > 0:
		device = named[0]
	case p.InterfacePrefix != "":
		device = p.InterfacePrefix + "0"
	}
	return network, device
}

// routePodsTo has the host send packets for the pods' network to their device, if its routes do not.
func (s *surveyor) routePodsTo(network netip.Prefix, device, uplink string) {
	if deviceTo(s.host, network.Addr().Next(), uplink) == device {
		return
	}
	s.host.Routes = append(s.host.Routes, netfilter.Route{Destination: network.Masked(), Interface: device})
	if !slices.ContainsFunc(s.host.Interfaces, func(i netfilter.Interface) bool { return i.Name == device }) {
		s.host.Interfaces = append(s.host.Interfaces, netfilter.Interface{Name: device})
	}
	s.guess("the pods of this node have addresses in %s, behind %s", network, device)
}

// gateway gives the pods' bridge the first address of their network, as network plugins do. Masqueraded packets have it.
func (s *surveyor) gateway(pod netip.Addr, device, uplink string, taken map[netip.Addr]bool) {
	if !pod.IsValid() || device == uplink || netfilter.OfOnePod(device) || slices.ContainsFunc(s.host.Interfaces, func(i netfilter.Interface) bool {
		return i.Name == device && slices.ContainsFunc(i.Addresses, func(a netfilter.Address) bool { return decision.FamilyOf(a.Prefix.Addr()) == s.family() })
	}) {
		return
	}
	if a := nodeNetwork(pod, 0).Addr().Next(); a != pod && !taken[a] {
		s.host.AddAddress(device, netip.PrefixFrom(a, a.BitLen()))
		s.guess("%s has the address %s, as the pods' gateway", device, a)
	}
}

// guess adds a guess of the survey's own.
func (s *surveyor) guess(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.survey.Guesses = append(s.survey.Guesses, netfilter.Guess{Text: text, Claim: text})
}

// near is the part of the pods' network that is on a device of the host, or else in which an endpoint is, preferably one of
// this node.
func (s *surveyor) near(pods netip.Prefix) netip.Prefix {
	found := pods
	for _, i := range s.host.Interfaces {
		for _, a := range i.Addresses {
			if on := a.Prefix.Masked(); !on.IsSingleIP() && on.Bits() > pods.Bits() && pods.Contains(on.Addr()) {
				return on
			}
		}
	}
	for _, e := range s.endpoints() {
		if a := e.AddrPort.Addr(); a.IsValid() && pods.Contains(a) && (found == pods || e.Locality == audit.OnThisNode) {
			found = nodeNetwork(a, pods.Bits())
			if e.Locality == audit.OnThisNode {
				return found
			}
		}
	}
	return found
}

// nodeNetwork is the network of an address that is likely to be one node's: 256 addresses.
func nodeNetwork(a netip.Addr, atLeast int) netip.Prefix {
	p, _ := a.Prefix(max(a.BitLen()-8, atLeast))
	return p
}

// apiServers is the service port of the API servers.
const apiServers = "default/kubernetes:https"

// endpointNetwork is the network of most endpoints' addresses; those behind a device other than the uplink count
// first, then those that rules name. One with endpoints of this node and of others is rather that of the nodes, whose pods
// use the host's network.
func (s *surveyor) endpointNetwork(host *netfilter.Host, uplink string) netip.Prefix {
	count := make(map[netip.Prefix]int)
	here, elsewhere := make(map[netip.Prefix]bool), make(map[netip.Prefix]bool)
	var networks []netip.Prefix
	named := s.namedNetworks()
	seen := make(map[netip.Addr]bool)
	for port, e := range s.endpoints() {
		a := e.AddrPort.Addr()
		if !a.IsValid() || a.IsLoopback() || host.Has(a) {
			continue
		}
		network, weight := nodeNetwork(a, 0), 4
		if port.Title() == apiServers {
			weight = 1 // in the nodes' network
		}
		if count[network] == 0 {
			networks = append(networks, network)
			if slices.ContainsFunc(named, func(p netip.Prefix) bool { return p.Contains(network.Addr()) }) {
				weight += 10
			}
		}
		if deviceTo(host, a, uplink) != uplink {
			weight += 1000
		}
		switch e.Locality {
		case audit.OnThisNode:
			weight++
			here[network] = true
		case audit.OnAnotherNode:
			elsewhere[network] = true
		}
		if !seen[a] {
			seen[a] = true
			count[network] += weight
		}
	}
	var best netip.Prefix
	for _, mixed := range []bool{false, true} {
		for _, network := range networks {
			if mixed == (here[network] && elsewhere[network]) && count[network] > count[best] {
				best = network
			}
		}
		if best.IsValid() {
			break
		}
	}
	return best
}

// namedNetworks are those that rules name, each once.
func (s *surveyor) namedNetworks() []netip.Prefix {
	named := make(map[netip.Prefix]bool)
	for _, m := range s.matches() {
		if p := networkOf(m); p.IsValid() && !p.IsSingleIP() && p.Bits() > 8 {
			named[p] = true
		}
	}
	return slices.Collect(maps.Keys(named))
}

// taken are addresses that are not a new pod's: those of endpoints, and of the host.
func (s *surveyor) taken() map[netip.Addr]bool {
	taken := make(map[netip.Addr]bool)
	for _, e := range s.endpoints() {
		taken[e.AddrPort.Addr()] = true
	}
	for _, i := range s.host.Interfaces {
		for _, a := range i.Addresses {
			taken[a.Prefix.Addr()] = true
		}
	}
	// Pods with network policies have rules of their own.
	for _, m := range s.matches() {
		if from, ok := m.(iptables.Source); ok {
			if p, ok := from.Network.Prefix(); ok && p.IsSingleIP() {
				taken[p.Addr()] = true
			}
		}
	}
	return taken
}

// freeIn is an address of a network that nobody is known to have, and not one of another network; the
// zero Addr: there is none.
func freeIn(network netip.Prefix, taken map[netip.Addr]bool, not netip.Prefix) netip.Addr {
	a := network.Masked().Addr()
	if not.IsValid() && not.Contains(a) { // behind it
		for bit := not.Bits(); bit > network.Bits(); bit-- {
			sibling := flip(not.Addr(), bit)
			if network.Contains(sibling) {
				a = sibling
				break
			}
		}
	}
	if not.IsValid() && not.Contains(a) {
		not = netip.Prefix{}
	}
	for range 65536 {
		if a = a.Next(); !network.Contains(a) {
			return netip.Addr{}
		}
		b := a.AsSlice()
		if last := b[len(b)-1]; last < 99 || last == 255 { // the first ones are often bridges
			continue
		}
		if !taken[a] && !(not.IsValid() && not.Contains(a)) {
			return a
		}
	}
	return netip.Addr{}
}

// flip changes the last bit of a prefix of that length: its other half.
func flip(a netip.Addr, bits int) netip.Addr {
	p, _ := a.Prefix(bits)
	b := p.Addr().AsSlice()
	b[(bits-1)/8] ^= 0x80 >> ((bits - 1) % 8)
	other, _ := netip.AddrFromSlice(b)
	return other
}

// uplinkOf is the device of the default route.
func uplinkOf(host *netfilter.Host, f decision.Family) string {
	for _, r := range host.Routes {
		if r.Destination.Bits() == 0 && decision.FamilyOf(r.Destination.Addr()) == f {
			return r.Interface
		}
	}
	return "eth0"
}

// ownAddress is the host's address, preferably at its uplink.
func ownAddress(host *netfilter.Host, uplink string, f decision.Family) (own netip.Addr) {
	for _, i := range host.Interfaces {
		for _, a := range i.Addresses {
			addr := a.Prefix.Addr()
			if addr.IsLoopback() || decision.FamilyOf(addr) != f || own.IsValid() && i.Name != uplink {
				continue
			}
			if own = addr; i.Name == uplink {
				return own
			}
		}
	}
	return own
}

// Outsiders are addresses, one of which stands for all clients outside: those for documentation (RFC 5737, RFC 3849, RFC 9637), two of
// each network, and one for benchmarks (RFC 2544, RFC 5180).
func Outsiders(f decision.Family) []netip.Addr {
	list := "203.0.113.9 198.51.100.9 192.0.2.9 203.0.113.77 198.51.100.77 192.0.2.77 198.18.0.9"
	if f == decision.IPv6 {
		list = "2001:db8:1::9 3fff::9 2001:db8:f::77 3fff::77 2001:2::9"
	}
	var all []netip.Addr
	for text := range strings.FieldsSeq(list) {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// outsider is one that the host does not have, and that no rule or set names: a rule about some clients, such as fail2ban's, says
// nothing about the others, and people write such addresses in the place of real ones.
func (s *surveyor) outsider() netip.Addr {
	all := Outsiders(s.family())
	if i := slices.IndexFunc(all, func(a netip.Addr) bool { return !s.host.Has(a) && !s.names(a) }); i >= 0 {
		return all[i]
	}
	return all[0]
}

// names reports whether a rule or a set is about sources among which the address is, but not all, or about the address as a
// destination.
func (s *surveyor) names(a netip.Addr) bool {
	within := func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(a) }
	for _, set := range s.known.Sets {
		if slices.ContainsFunc(set.Elements, func(e iptables.Element) bool { return within(e.Network) || e.Range.Contains(a) }) {
			return true
		}
	}
	for _, m := range s.matches() {
		switch m := m.(type) {
		case iptables.Source:
			if p, ok := m.Network.Prefix(); ok && within(p) {
				return true
			}
		case iptables.Destination:
			if p, ok := m.Network.Prefix(); ok && p.IsSingleIP() && p.Addr() == a {
				return true
			}
		case iptables.IPRange:
			if m.Source.Given && m.Source.Value.Contains(a) {
				return true
			}
		case iptables.NativeMatch:
			if n := iptables.Names(m); n != nil && slices.ContainsFunc(n.Sources(), within) {
				return true
			}
		}
	}
	return false
}

// deviceTo is the device of the route to an address.
func deviceTo(host *netfilter.Host, to netip.Addr, uplink string) string {
	device, bits := uplink, -1
	see := func(network netip.Prefix, by string) {
		if network.Contains(to) && network.Bits() > bits {
			device, bits = by, network.Bits()
		}
	}
	for _, r := range host.Routes {
		if r.Type == netfilter.Unicast {
			see(r.Destination, r.Interface)
		}
	}
	for _, i := range host.Interfaces {
		if i.Name == netfilter.IPVSDevice {
			continue // which leads nowhere
		}
		for _, a := range i.Addresses {
			see(a.Prefix.Masked(), i.Name)
		}
	}
	return device
}
