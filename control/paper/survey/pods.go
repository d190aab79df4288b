package survey

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// maxNamedPods is how many of the pods are followed that rules name, and maxPods how many connections of theirs.
const (
	maxNamedPods = 8
	maxPods      = 20_000
)

// namedPods are the pods' addresses that rules of the tables filter and mangle name: network policies of pods are such rules.
// For a part of the pods' network, which may be this node's, it is one of its addresses.
func (s *surveyor) namedPods() (pods []netip.Addr) {
	for _, d := range s.dumps {
		for _, r := range rulesOf(d, "filter", "mangle") {
			if r.Target == iptables.Accept || r.Chain == "INPUT" || r.Chain == "OUTPUT" || s.wrote(r) {
				continue
			}
			for _, m := range r.Matches {
				if a := s.podOf(m); a.IsValid() && len(pods) < maxNamedPods && s.mayBePod(a) && !slices.Contains(pods, a) {
					pods = append(pods, a)
				}
			}
		}
	}
	return pods
}

// rulesOf are the rules of tables. Those of nftables have no tables of these names: they are all that there are.
func rulesOf(d *iptables.Dump, tables ...string) (rules []*iptables.Rule) {
	if d.Ruleset != nil {
		for _, t := range d.Tables {
			rules = append(rules, t.Rules...)
		}
	}
	for _, name := range tables {
		if t := d.Table(name); t != nil {
			rules = append(rules, t.Rules...)
		}
	}
	return rules
}

// matches are the matches of the rules of tables, as rulesOf has them, with their rules; without tables, of all rules.
func (s *surveyor) matches(tables ...string) iter.Seq2[*iptables.Rule, iptables.Match] {
	return func(yield func(*iptables.Rule, iptables.Match) bool) {
		for _, d := range s.dumps {
			for _, t := range d.Tables {
				if len(tables) > 0 && d.Ruleset == nil && !slices.Contains(tables, t.Name) {
					continue
				}
				for _, r := range t.Rules {
					for _, m := range r.Matches {
						if !yield(r, m) {
							return
						}
					}
				}
			}
		}
	}
}

// podOf is a pod that a match is about; not valid: none.
func (s *surveyor) podOf(m iptables.Match) netip.Addr {
	p := networkOf(m)
	switch all := s.podNetwork(); {
	case !p.IsValid() || p.IsSingleIP():
		return p.Addr()
	case all.IsValid() && all.Contains(p.Addr()) && p.Bits() > all.Bits():
		return freeIn(p, nil, netip.Prefix{})
	}
	return netip.Addr{}
}

// networkOf is the network that a match requires as source or destination; not valid: it does not.
func networkOf(m iptables.Match) (p netip.Prefix) {
	switch m := m.(type) {
	case iptables.Source:
		if !m.Negated {
			p, _ = m.Network.Prefix()
		}
	case iptables.Destination:
		if !m.Negated {
			p, _ = m.Network.Prefix()
		}
	}
	return p
}

// mayBePod reports whether an address is in the pods' network, as far as that is known.
func (s *surveyor) mayBePod(a netip.Addr) bool {
	if network := s.podNetwork(); network.IsValid() {
		return network.Contains(a)
	}
	return a.IsPrivate() && !s.host.Has(a)
}

// maxGuessedNetworks is the maximum number of networks that are tried as the pods'.
const maxGuessedNetworks = 8

// otherPodNetworks are scenarios in which the pods have other addresses, where the rules do not show the pods' network: those of a private
// network that rules name, and that is not that of services.
func (s *surveyor) otherPodNetworks(uplink string) (scenarios []scenario) {
	if s.podNetwork().IsValid() || s.sources[Outside] == nil {
		return nil
	}
	device := uplink
	if pod := s.sources[Pod]; pod != nil {
		device = pod.Device
	}
	known := s.taken()
	seen := make(map[netip.Prefix]bool)
	for r, m := range s.matches("raw", "mangle", "filter") {
		p := networkOf(m)
		if seen[p] || s.wrote(r) {
			continue
		}
		seen[p] = true
		if !p.IsValid() || p.IsSingleIP() || !p.Addr().IsPrivate() || p.Bits() > 8 && slices.ContainsFunc(s.targets, func(t target) bool { return p.Contains(t.to.Addr()) }) ||
			slices.ContainsFunc(s.sources[:], func(f *Source) bool { return f != nil && p.Contains(f.Addr) }) {
			continue
		}
		if a := freeIn(p, known, netip.Prefix{}); a.IsValid() && len(scenarios) < 2*maxGuessedNetworks {
			pod := &Source{Kind: Pod, Addr: a, Device: device}
			for _, own := range []bool{false, true} {
				scenarios = append(scenarios, scenario{host: s.withPod(pod, p, uplink, own), condition: Condition("where pods have addresses in " + p.String()), certainty: NotKnown, sources: &[kinds]*Source{Pod: pod}, few: true})
			}
		}
	}
	return scenarios
}

// withPod is the host with a pod of a network, and with the addresses of endpoints that are then of the nodes' network, and may be
// this host's own.
func (s *surveyor) withPod(pod *Source, pods netip.Prefix, uplink string, own bool) *netfilter.Host {
	host := *s.host
	host.Routes = append(slices.Clone(host.Routes), netfilter.Route{Destination: netip.PrefixFrom(pod.Addr, pod.Addr.BitLen()), Interface: pod.Device})
	if !own {
		return &host
	}
	host.Interfaces = slices.Clone(host.Interfaces)
	added := 0
	for _, e := range s.endpoints() {
		if a := e.AddrPort.Addr(); a.IsValid() && e.Locality != audit.OnAnotherNode && !pods.Contains(a) && !a.IsLoopback() && !host.Has(a) && added < maxHostAddresses {
			host.AddAddress(uplink, netip.PrefixFrom(a, a.BitLen()))
			added++
		}
	}
	return &host
}

// openDevice is the device of one pod to follow connections by, if they fail by the first one of those that rules name, and not by this
// one: the policies of the first pod are not those of all. Empty: the first one, or all are alike.
func (s *surveyor) openDevice() (string, error) {
	others, pod := s.otherDevices(), s.sources[Pod]
	if len(others) == 0 || s.known.Host != nil && s.known.Host.PodDevice != "" {
		return "", nil
	}
	i := slices.IndexFunc(s.targets, func(t target) bool {
		return slices.ContainsFunc(t.port.Endpoints, func(e audit.Endpoint) bool {
			return e.AddrPort.IsValid() && deviceTo(s.host, e.AddrPort.Addr(), "") == pod.Device
		})
	})
	if i < 0 {
		return "", nil
	}
	for n, device := range append([]string{pod.Device}, others...) {
		from := *pod
		from.Device = device
		machine, err := s.machineOf(s.rerouted(device, func(r *netfilter.Route) bool { return r.Interface == pod.Device }))
		if err != nil {
			return "", err
		}
		v := walker{surveyor: s, machine: machine, work: netfilter.Work{Steps: 1}}
		v.follow(&connection{target: &s.targets[i], from: &from})
		if !slices.ContainsFunc(v.ways, func(e end) bool { return e.outcome != served }) {
			if n == 0 {
				return "", nil
			}
			return device, nil
		}
	}
	return "", nil
}

// placeNamedPods adds the pods to the sources that rules name, by their address or their device.
func (s *surveyor) placeNamedPods(network netip.Prefix, device string, taken map[netip.Addr]bool) {
	for _, a := range s.namedPods() {
		s.named = append(s.named, &Source{Kind: NamedPod, Addr: a, Device: device})
	}
	taken = maps.Clone(taken)
	taken[s.sources[Pod].Addr] = true
	for _, device := range s.otherDevices() {
		a := freeIn(network, taken, netip.Prefix{})
		if !a.IsValid() || len(s.named) >= maxNamedPods {
			return
		}
		taken[a] = true
		s.named = append(s.named, &Source{Kind: NamedPod, Addr: a, Device: device})
		s.host.Routes = append(s.host.Routes, netfilter.Route{Destination: netip.PrefixFrom(a, a.BitLen()), Interface: device})
		if !slices.ContainsFunc(s.host.Interfaces, func(i netfilter.Interface) bool { return i.Name == device }) {
			s.host.Interfaces = append(s.host.Interfaces, netfilter.Interface{Name: device})
		}
	}
}

// itself is an endpoint of a target as its client: kube-proxy masquerades such connections, or else the endpoint would
// answer itself. nil: no endpoint is known.
func (s *surveyor) itself(t *target) *Source {
	pod := s.sources[Pod]
	if pod == nil {
		return nil
	}
	for i := range t.port.Endpoints {
		e := &t.port.Endpoints[i]
		uplink := uplinkOf(s.host, s.family())
		if !e.AddrPort.IsValid() || e.Locality == audit.OnAnotherNode || s.host.Has(e.AddrPort.Addr()) || s.podsElsewhere(e.AddrPort.Addr(), uplink) {
			continue
		}
		device := pod.Device
		if s.host.Complete() {
			if device = deviceTo(s.host, e.AddrPort.Addr(), uplink); device == uplink {
				continue
			}
		}
		return &Source{Kind: Itself, Addr: e.AddrPort.Addr(), Device: device}
	}
	return nil
}

// hostNetwork gives the host the addresses of endpoints that are here and no pods' own: their pods use the network of the
// node.
func (s *surveyor) hostNetwork(host *netfilter.Host, uplink string) {
	here := make(map[netip.Prefix][]netip.Addr)
	for _, e := range s.endpoints() {
		if a := e.AddrPort.Addr(); e.Locality == audit.OnThisNode && !a.IsLoopback() && !slices.Contains(here[nodeNetwork(a, 0)], a) {
			here[nodeNetwork(a, 0)] = append(here[nodeNetwork(a, 0)], a)
		}
	}
	for _, addresses := range here {
		if a := addresses[0]; len(addresses) == 1 && !host.Has(a) && s.podsElsewhere(a, uplink) {
			host.AddAddress(uplink, netip.PrefixFrom(a, a.BitLen()))
			s.guess("%s is an address of this host: its endpoint is here, and not in the pods' network", a)
			s.dropStandIn()
		}
	}
}

// dropStandIn takes the address from the host that stands for its own: another one is known.
func (s *surveyor) dropStandIn() {
	stand := audit.Placeholder(s.family())
	for i := range s.host.Interfaces {
		d := &s.host.Interfaces[i]
		d.Addresses = slices.DeleteFunc(slices.Clone(d.Addresses), func(a netfilter.Address) bool { return a.Prefix.Addr() == stand })
	}
	s.survey.Guesses = slices.DeleteFunc(s.survey.Guesses, func(g netfilter.Guess) bool { return g.About == netip.PrefixFrom(stand, stand.BitLen()) })
}

// routedNetwork is a network that the host leads to by another device than its uplink, preferably one with endpoints; not
// valid: there is none, or only those of virtual machines and other containers.
func (s *surveyor) routedNetwork(uplink string) (found netip.Prefix) {
	for _, r := range s.host.Routes {
		p := r.Destination
		if p.Bits() == 0 || p.IsSingleIP() || r.Interface == uplink || decision.FamilyOf(p.Addr()) != s.family() {
			continue
		}
		if s.hasEndpoints(p) {
			return p
		}
		if !found.IsValid() && !guests(r.Interface) {
			found = p
		}
	}
	return found
}

// guests reports whether a bridge's name is one of virtual machines or of containers that are usually no pods.
func guests(bridge string) bool {
	return slices.ContainsFunc([]string{"docker", "br-", "virbr", "lxcbr", "lxdbr", "incusbr", "podman", "cni-podman"}, func(begin string) bool { return strings.HasPrefix(bridge, begin) })
}

// podsElsewhere reports whether the pods' network is known, and an address is not in it.
func (s *surveyor) podsElsewhere(a netip.Addr, uplink string) bool {
	if network := s.podNetwork(); network.IsValid() {
		return !network.Contains(a)
	}
	return deviceTo(s.host, a, uplink) == uplink && s.routedNetwork(uplink).IsValid()
}

// podNetwork is the network of all pods: that by which kube-proxy detects them, or one that is masqueraded towards all
// others, as network plugins do, and in which endpoints are. Virtual machines have such networks, too.
func (s *surveyor) podNetwork() netip.Prefix {
	if s.podsFound {
		return s.podsIn
	}
	s.podsFound, s.podsIn = true, s.proxy().PodCIDR
	for _, d := range s.dumps {
		if !s.podsIn.IsValid() {
			for _, r := range rulesOf(d, "nat") {
				if p := masquerades(r); p.IsValid() && s.hasEndpoints(p) {
					s.podsIn = p
					break
				}
			}
		}
	}
	return s.podsIn
}

// hasEndpoints reports whether endpoints have addresses in a network.
func (s *surveyor) hasEndpoints(p netip.Prefix) bool {
	for _, e := range s.endpoints() {
		if p.Contains(e.AddrPort.Addr()) {
			return true
		}
	}
	return false
}

// masquerades is the network that a rule masquerades towards all others; not valid: it is no such rule.
func masquerades(r *iptables.Rule) (from netip.Prefix) {
	if _, ok := r.Target.(iptables.Masquerade); !ok {
		return from
	}
	var to netip.Prefix
	for _, m := range r.Matches {
		switch m := m.(type) {
		case iptables.Source:
			if p, ok := m.Network.Prefix(); ok && !m.Negated {
				from = p
			}
		case iptables.Destination:
			if p, ok := m.Network.Prefix(); ok && m.Negated {
				to = p
			}
		}
	}
	if from != to {
		return netip.Prefix{}
	}
	return from
}
