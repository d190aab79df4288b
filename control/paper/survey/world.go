package survey

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// scenario is another possible state of the host. A connection that fails only there is lost under a condition.
type scenario struct {
	host      *netfilter.Host
	condition Condition
	certainty Certainty
	// concerns reports whether an endpoint is elsewhere than in the first scenario.
	concerns func(*audit.Endpoint) bool
	address  netip.Addr // of the host; not valid: as in the first scenario
	// sources are all of this scenario; nil: as in the first one.
	sources *[kinds]*Source
	few     bool // targets are followed: the first maxTargets
}

// Condition is a condition under which connections fail.
type Condition string

// The conditions; empty: none.
const (
	EndpointElsewhere  Condition = "where the endpoint is on another node"
	EndpointHere       Condition = "where the endpoint is on this node"
	NoTunnel           Condition = "where packets to other nodes are routed without a tunnel"
	AddressOfThisHost  Condition = "where the address that the rule names is this host's"
	BehindBridge       Condition = "where the pods of this node are behind a bridge"
	EndpointOfThisHost Condition = "where the endpoint is this host itself"
	SourceNotRouted    Condition = "where packets for that address, which is not the node's, are not sent to this node"
)

// scenarios are the hosts for which rules may do something else: endpoints are on this node or on others, and one that is not
// in the pods' network may be this host.
func (s *surveyor) scenarios() (scenarios []scenario) {
	if s.host.Complete() {
		return nil // where everything is, is known
	}
	here := s.endpointsOfThisNode()
	away := func(e *audit.Endpoint) bool { return e.AddrPort.IsValid() && !here[e.AddrPort.Addr()] }
	uplink := uplinkOf(s.host, s.family())
	if devices := s.podDevices(uplink, away); len(devices) > 0 {
		pod := s.sources[Pod]
		host := s.rerouted(uplink, func(r *netfilter.Route) bool { return devices[r.Interface] && r.Destination.Bits() > 0 })
		host.Routes = append(host.Routes, netfilter.Route{Destination: netip.PrefixFrom(pod.Addr, pod.Addr.BitLen()), Interface: pod.Device})
		scenarios = append(scenarios, scenario{host: host, condition: EndpointElsewhere, certainty: Possible, concerns: func(e *audit.Endpoint) bool {
			return away(e) && devices[deviceTo(s.host, e.AddrPort.Addr(), uplink)]
		}})
	}
	host := *s.host
	host.Interfaces = slices.Clone(host.Interfaces)
	own := make(map[netip.Addr]bool)
	for _, e := range s.endpoints() {
		if a := e.AddrPort.Addr(); away(e) && !own[a] && len(own) < maxHostAddresses && !a.IsLoopback() && !host.Has(a) && s.podsElsewhere(a, uplink) {
			own[a] = true
		}
	}
	for a := range own {
		host.AddAddress(uplink, netip.PrefixFrom(a, a.BitLen()))
	}
	if len(own) > 0 {
		scenarios = append(scenarios, scenario{host: &host, condition: EndpointOfThisHost, certainty: NotKnown, concerns: func(e *audit.Endpoint) bool { return own[e.AddrPort.Addr()] }})
	}
	if host, a := s.otherAddress(uplink); host != nil {
		scenarios = append(scenarios, scenario{host: host, condition: AddressOfThisHost, certainty: NotKnown, address: a})
	}
	if host := s.withoutTunnel(uplink); host != nil {
		scenarios = append(scenarios, scenario{host: host, condition: NoTunnel, certainty: Possible, concerns: func(e *audit.Endpoint) bool {
			return away(e) && deviceTo(s.host, e.AddrPort.Addr(), uplink) == tunnel
		}})
	}
	return slices.Concat(scenarios, s.behindOthers(), s.behindBridge(uplink), s.otherPodNetworks(uplink), s.otherUplinks(uplink))
}

// arrives is that packets from outside arrive on another device than the uplink, whose name follows.
const arrives Condition = "where they arrive on "

// otherUplinks are the scenarios in which packets from outside arrive on another device that may be an uplink, and for which rules drop
// packets.
func (s *surveyor) otherUplinks(uplink string) (scenarios []scenario) {
	outside := s.sources[Outside]
	if outside == nil {
		return nil
	}
	seen := map[string]bool{uplink: true}
	for r, m := range s.matches("raw", "mangle", "filter") {
		in, ok := m.(iptables.InInterface)
		_, rejects := r.Target.(iptables.Reject)
		name := in.Interface.Name
		if !ok || in.Negated || in.Interface.Wildcard || seen[name] || !rejects && r.Target != iptables.Drop || !netfilter.MayBeUplink(name) {
			continue
		}
		seen[name] = true
		if slices.ContainsFunc(s.host.Routes, func(r netfilter.Route) bool { return r.Interface == name }) {
			continue // it leads to a network of its own
		}
		host := *s.host
		host.Routes = append(slices.Clone(host.Routes), netfilter.Route{Destination: netip.PrefixFrom(outside.Addr, outside.Addr.BitLen()), Interface: name})
		of := *outside
		of.Device = name
		scenarios = append(scenarios, scenario{host: &host, condition: arrives + Condition(name), certainty: Possible, sources: &[kinds]*Source{Outside: &of}, few: true})
	}
	return scenarios
}

// behindOthers are the scenarios in which the endpoints of this node are behind another one of the devices of one pod that rules
// name: which pod has which is in the routes.
func (s *surveyor) behindOthers() (scenarios []scenario) {
	pod := s.sources[Pod]
	for _, device := range s.otherDevices() {
		if !s.tells(device, pod.Device) {
			continue
		}
		host := *s.host
		host.Routes = slices.Clone(host.Routes)
		moved := make(map[netip.Addr]bool)
		for _, n := range s.survey.Nodes {
			for _, port := range n.Services[:min(len(n.Services), maxTargets)] {
				for i := range port.Endpoints {
					a := port.Endpoints[i].AddrPort.Addr()
					if a.IsValid() && port.Endpoints[i].Locality != audit.OnAnotherNode && !moved[a] && deviceTo(s.host, a, "") == pod.Device {
						moved[a] = true
						host.Routes = append(host.Routes, netfilter.Route{Destination: netip.PrefixFrom(a, a.BitLen()), Interface: device})
					}
				}
			}
		}
		scenarios = append(scenarios, scenario{host: &host, condition: Condition("where the endpoint is behind " + device), certainty: NotKnown, few: true, concerns: func(e *audit.Endpoint) bool { return moved[e.AddrPort.Addr()] }})
	}
	return scenarios
}

// otherDevices lists the pods' own devices that rules name, except for the source's; none: pods share a device.
func (s *surveyor) otherDevices() (names []string) {
	if pod := s.sources[Pod]; pod != nil && netfilter.OfOnePod(pod.Device) {
		names = slices.DeleteFunc(netfilter.PodDevices(s.dumps), func(name string) bool { return name == pod.Device || !netfilter.OfOnePod(name) })
	}
	return names
}

// behindBridge is the scenario in which the pods have a bridge with an address of their network, where the rules show no device of
// theirs. Masqueraded packets have that address, and the node's own.
func (s *surveyor) behindBridge(uplink string) []scenario {
	pod := s.sources[Pod]
	if pod == nil || pod.Device != uplink || !pod.Guessed {
		return nil
	}
	network := nodeNetwork(pod.Addr, 0)
	gateway := network.Addr().Next()
	if s.taken()[gateway] {
		return nil
	}
	const bridge = "cni0"
	host := *s.host
	host.Interfaces = slices.Clone(host.Interfaces)
	host.AddAddress(bridge, netip.PrefixFrom(gateway, network.Bits()))
	sources := s.sources
	sources[Pod] = &Source{Kind: Pod, Addr: pod.Addr, Device: bridge, Guessed: true}
	return []scenario{{host: &host, condition: BehindBridge, certainty: NotKnown, sources: &sources, few: true}}
}

// podDevices are the devices by which packets leave to endpoints that may also be on other nodes, if a rule tells them from
// the uplink: that of this node's pods, and one that a network is guessed to be behind.
func (s *surveyor) podDevices(uplink string, away func(*audit.Endpoint) bool) map[string]bool {
	devices := make(map[string]bool)
	if s.sources[Pod] == nil {
		return devices
	}
	for _, e := range s.endpoints() {
		if away(e) {
			devices[deviceTo(s.host, e.AddrPort.Addr(), uplink)] = true
		}
	}
	maps.DeleteFunc(devices, func(d string, _ bool) bool { return d == uplink || d == tunnel || !s.tells(d, uplink) })
	return devices
}

// endpointsOfThisNode are the addresses of endpoints that are known to be here.
func (s *surveyor) endpointsOfThisNode() map[netip.Addr]bool {
	here := make(map[netip.Addr]bool)
	for _, e := range s.endpoints() {
		if e.Locality == audit.OnThisNode {
			here[e.AddrPort.Addr()] = true
		}
	}
	return here
}

// tunnel is flannel's device, by which packets to other nodes leave unless its backend is host-gw.
const tunnel = "flannel.1"

// withoutTunnel is the host without flannel's device; nil: it has none, or no rule tells it from the uplink.
func (s *surveyor) withoutTunnel(uplink string) *netfilter.Host {
	if !slices.ContainsFunc(s.host.Routes, func(r netfilter.Route) bool { return r.Interface == tunnel }) || !s.tells(tunnel, uplink) {
		return nil
	}
	return s.rerouted(uplink, func(r *netfilter.Route) bool { return r.Interface == tunnel })
}

// rerouted is the host with some of its routes by another device.
func (s *surveyor) rerouted(device string, some func(*netfilter.Route) bool) *netfilter.Host {
	host := *s.host
	host.Routes = slices.Clone(host.Routes)
	for i := range host.Routes {
		if r := &host.Routes[i]; some(r) {
			r.Interface = device
		}
	}
	return &host
}

// otherAddress is the host with an address before its own that rules of PREROUTING or INPUT name as destination, or any as that of
// a connection before its translation, and that address; nil: all of its own are known, or the rules name none or several.
func (s *surveyor) otherAddress(uplink string) (*netfilter.Host, netip.Addr) {
	var found []netip.Addr
	for _, d := range s.dumps {
		for _, t := range d.Tables {
			if t.Name == "nat" {
				continue
			}
			for _, r := range t.Rules {
				translated := t.Name == "filter" && r.Chain != "INPUT" || slices.Contains([]string{"FORWARD", "OUTPUT", "POSTROUTING"}, r.Chain)
				if guardsDevice(r) {
					continue
				}
				for _, m := range r.Matches {
					_, to := m.(iptables.Destination)
					of, tracked := m.(iptables.Conntrack)
					var p netip.Prefix
					switch {
					case to && !translated:
						p = networkOf(m)
					case tracked && of.OriginalDestination.Given && !of.OriginalDestination.Negated:
						p, _ = of.OriginalDestination.Value.Prefix()
					}
					if p.IsValid() && p.IsSingleIP() && p.Addr().IsGlobalUnicast() {
						found = distinct.Append(found, p.Addr())
					}
				}
			}
		}
	}
	found = slices.DeleteFunc(found, func(a netip.Addr) bool {
		return slices.ContainsFunc(s.targets, func(t target) bool { return t.to.Addr() == a && t.entry != decision.EntryExternalIP })
	})
	if s.host.Complete() || len(found) != 1 || s.host.Has(found[0]) {
		return nil, netip.Addr{}
	}
	host := *s.host
	host.Interfaces = slices.Clone(host.Interfaces)
	for i := range host.Interfaces {
		if d := &host.Interfaces[i]; d.Name == uplink {
			d.Addresses = slices.Insert(slices.Clone(d.Addresses), 0, netfilter.Address{Prefix: netip.PrefixFrom(found[0], found[0].BitLen())})
		}
	}
	return &host, found[0]
}

// guardsDevice reports whether a rule is about all devices but one, as that of wg-quick: the address that it names is that device's.
func guardsDevice(r *iptables.Rule) bool {
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		in, ok := m.(iptables.InInterface)
		return ok && in.Negated && in.Interface.Name != "lo"
	})
}

// maxHostAddresses is the maximum number of addresses that are tried as the host's.
const maxHostAddresses = 50

// tells reports whether a rule tells two devices apart.
func (s *surveyor) tells(a, b string) bool {
	differ := func(i iptables.Interface) bool { return i.Matches(a) != i.Matches(b) }
	for _, d := range s.dumps {
		for _, t := range d.Tables {
			for _, r := range t.Rules {
				for _, m := range r.Matches {
					switch m := m.(type) {
					case iptables.OutInterface:
						if differ(m.Interface) {
							return true
						}
					case iptables.InInterface:
						if differ(m.Interface) && t.Name != "nat" {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

// lossPlace is a connection that fails, and the endpoint that it has.
type lossPlace struct {
	target   *target
	from     *Source
	endpoint netip.AddrPort
}

func placeOf(e *end) lossPlace {
	return lossPlace{e.connection.target, e.connection.from, e.endpoint}
}

// followScenarios follows connections in the other scenarios, and records what fails only there.
func (s *surveyor) followScenarios(failed map[lossPlace]bool) error {
	for _, w := range s.scenarios() {
		machine, err := s.machineOf(w.host)
		if err != nil {
			return err
		}
		sources, named := s.sources, s.named
		if w.sources != nil {
			s.sources, s.named = *w.sources, nil
		}
		follows := func(t *target) *target {
			switch {
			case w.few && t.index >= maxTargets:
				return nil
			case w.concerns != nil && !slices.ContainsFunc(t.port.Endpoints, func(e audit.Endpoint) bool { return w.concerns(&e) }):
				return nil
			case w.address.IsValid() && t.entry == decision.EntryNodePort && t.to.Addr() == s.address:
				of := *t
				of.to = netip.AddrPortFrom(w.address, t.to.Port())
				return &of
			}
			return t
		}
		walkers := s.walkAll(machine, follows)
		s.sources, s.named = sources, named
		for _, walker := range walkers {
			for i := range walker.ends {
				e := &walker.ends[i]
				at, first := placeOf(e), placeOf(e)
				if at.from.Kind < kinds {
					first.from = s.sources[at.from.Kind]
				}
				if kind := e.connection.from.Kind; !e.outcome.lost() || e.outcome == refused || failed[at] || failed[first] || kind == NamedPod || kind == Itself || e.certainty == NotKnown {
					continue
				}
				if w.concerns != nil && !slices.ContainsFunc(e.connection.port.Endpoints, func(of audit.Endpoint) bool { return of.AddrPort == e.endpoint && w.concerns(&of) }) {
					continue
				}
				failed[at] = true
				e.condition, e.certainty = w.condition, w.certainty
				s.record(e)
			}
		}
	}
	return nil
}
