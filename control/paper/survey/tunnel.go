package survey

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Tunnel is the way of packets between the pods of different nodes: the nodes send them to each other in other packets.
type Tunnel struct {
	Device   string
	Protocol uint8  // of the outer packets: 4 or 17
	Port     uint16 // their destination port, if Protocol is 17
}

// String is "UDP port 8472" or "IP protocol 4 (IPIP)".
func (t *Tunnel) String() string {
	if t.Protocol == protoIPIP {
		return "IP protocol 4 (IPIP)"
	}
	return fmt.Sprintf("UDP port %d", t.Port)
}

const (
	protoIPIP     = 4
	protoUDP      = 17
	wireguardPort = 51820 // of both ends
)

// twoWay reports whether the packets of both directions are one connection for connection tracking, so that what this node sends lets
// in what others send. Those of VXLAN have different source ports.
func (t *Tunnel) twoWay() bool { return t.Protocol == protoIPIP || t.Port == wireguardPort }

// tunnelOf is the tunnel of a network plugin's device, as the plugin configures it by default; nil: it is not known to be one.
func tunnelOf(device string) *Tunnel {
	switch {
	case device == "flannel.1", device == "flannel-v6.1", device == "cilium_vxlan":
		return &Tunnel{device, protoUDP, 8472}
	case device == "vxlan.calico", device == "vxlan-v6.calico":
		return &Tunnel{device, protoUDP, 4789}
	case device == "flannel-wg", device == "wireguard.cali":
		return &Tunnel{device, protoUDP, wireguardPort}
	case device == "tunl0", device == "flannel.ipip":
		return &Tunnel{Device: device, Protocol: protoIPIP}
	}
	return nil
}

// tunnels are those by which the host reaches the pods of other nodes.
func (s *surveyor) tunnels() (list []*Tunnel) {
	add := func(device string) {
		if t := tunnelOf(device); t != nil && !slices.ContainsFunc(list, func(other *Tunnel) bool { return other.Device == device }) {
			list = append(list, t)
		}
	}
	if other := s.sources[OtherPod]; other != nil {
		add(other.Device)
	}
	for _, r := range s.host.Routes {
		if r.Type == netfilter.Unicast && r.Destination.Bits() > 0 && r.Destination.Addr().Is6() == s.isIPv6() {
			add(r.Interface)
		}
	}
	for r, m := range s.matches("raw") {
		udp, ok := m.(iptables.UDP)
		if name := outerName(r.Chain, udp.Destination); ok && name != "" && untracks(r) && !slices.ContainsFunc(list, func(t *Tunnel) bool { return t.Device == name }) {
			list = append(list, &Tunnel{name, protoUDP, udp.Destination.Range.First})
		}
	}
	return list
}

// outerName names the tunnel at a port whose packets rules keep from connection tracking, as Antrea, Cilium and OVN-Kubernetes do; empty:
// it is not the port of one.
func outerName(chain string, ports iptables.Ports) string {
	kind := map[uint16]string{6081: "geneve", 4789: "vxlan", 8472: "vxlan"}[ports.Range.First]
	switch {
	case kind == "" || ports.Negated || ports.Range.Last != ports.Range.First:
		return ""
	case strings.HasPrefix(chain, "ANTREA-"):
		return "antrea-tun0"
	case strings.HasPrefix(chain, "CILIUM_"):
		return "cilium_" + kind
	}
	return "of the network plugin"
}

// namedTunnels are the devices of tunnels that rules name.
func (s *surveyor) namedTunnels() (names []string) {
	for _, m := range s.matches("raw", "mangle", "filter") {
		if in, ok := m.(iptables.InInterface); ok && tunnelOf(in.Interface.Name) != nil && !slices.Contains(names, in.Interface.Name) {
			names = append(names, in.Interface.Name)
		}
	}
	return names
}

func (s *surveyor) isIPv6() bool { return s.family() == decision.IPv6 }

// followTunnels follows the outer packets of other nodes to this one, and those to them. A rule that drops them cuts its pods off from
// those of other nodes, although the rules accept what the tunnel carries. Of one connection, only the tunnels to its endpoints count,
// whose replies come that way.
func (s *surveyor) followTunnels() {
	if len(s.targets) == 0 {
		return
	}
	for _, t := range s.tunnels() {
		if s.known.Only != nil && len(s.beyond(t)) == 0 {
			continue
		}
		if !s.address.IsValid() {
			s.skip("whether the packets of the tunnel %s (%s) are accepted: the rules do not show an address of this node", t.Device, t)
			continue
		}
		nodes := s.otherNodes()
		for _, devices := range [][]string{s.outerDevices(), {""}} {
			lost, certain := s.arrivals(t, nodes, devices, s.known.Only != nil && t.twoWay())
			switch {
			case lost == nil:
			case certain:
				s.loseTunnel(t, nodes[0], lost)
				if t.twoWay() && s.known.Only == nil {
					if again, _ := s.arrivals(t, nodes, devices, true); again == nil {
						s.order[len(s.order)-1].Certainty = Possible
					}
				}
			default:
				where := fmt.Sprintf("the policy of chain %s (table %s)", lost.Chain, lost.Table)
				if lost.By != nil {
					where = fmt.Sprintf("line %d", lost.By.Line)
				}
				s.skip("whether the packets of the tunnel %s (%s) are accepted: this depends on what the rules do not show, such as the addresses of the other nodes; see %s", t.Device, t, where)
			}
		}
	}
}

// beyond are the endpoints that the only connection reaches by a tunnel.
func (s *surveyor) beyond(t *Tunnel) (ends []netip.AddrPort) {
	for _, to := range s.survey.Reached {
		if s.machine.DeviceTo(to.Addr()) == t.Device {
			ends = append(ends, to)
		}
	}
	return ends
}

// arrivals follows a tunnel's packets from other nodes, or, by the device "", those to them. lost is the first way on which a rule or
// policy drops one, nil if none does; certain: they drop all, whatever is not known. With answers, packets have gone the other way before.
func (s *surveyor) arrivals(t *Tunnel, nodes []netip.Addr, devices []string, answers bool) (lost *netfilter.Way, certain bool) {
	certain = true
	for _, in := range devices {
		for _, from := range nodes {
			w, all := s.arrives(t, from, in, answers)
			if certain = certain && all; lost == nil {
				lost = w
			}
		}
	}
	return lost, certain
}

// arrives follows a tunnel's packet from another node, or to it. lost is the first way on which a rule or policy drops it, nil if none
// does; all: they do on each way, whatever is not known.
func (s *surveyor) arrives(t *Tunnel, node netip.Addr, in string, answers bool) (lost *netfilter.Way, all bool) {
	port := uint16(sourcePort)
	if t.twoWay() {
		port = t.Port
	}
	packet := func(in string) iptables.Packet {
		from, to := node, s.address
		if in == "" {
			from, to = to, from
		}
		p := iptables.FirstPacket(t.Protocol, netip.AddrPortFrom(from, port), netip.AddrPortFrom(to, t.Port), in == "")
		p.InInterface, p.Owner = in, nil // the kernel's own
		return p
	}
	p, other := packet(in), packet("")
	if in == "" {
		other = packet(uplinkOf(s.host, s.family()))
	}
	work := netfilter.Work{Steps: 1, Visits: maxVisits}
	begin := func() *netfilter.State {
		state := new(netfilter.State)
		if answers {
			s.machine.SendFrom(nil, other, state, always(0), &work)
		}
		return state
	}
	return ends(s.machine, p, begin, &work)
}

// outerDevices are the devices by which packets of other nodes may arrive: the uplink and, if it is guessed, those that rules
// name and that lead to no pods or containers.
func (s *surveyor) outerDevices() []string {
	names := []string{uplinkOf(s.host, s.family())}
	if s.host.Complete() {
		return names
	}
	inner := netfilter.PodDevices(s.dumps)
	for _, m := range s.matches("raw", "mangle", "filter") {
		in, ok := m.(iptables.InInterface)
		if !ok || in.Negated || in.Interface.Wildcard {
			continue
		}
		name := in.Interface.Name
		isInner := name == "lo" || tunnelOf(name) != nil || slices.Contains(inner, name) || slices.ContainsFunc([]string{"docker", "br-", "virbr", "lxdbr"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if !isInner && len(names) < maxNamedPods && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// otherNodes are addresses that other nodes may have: beside the host's own, next hops of its routes, and one in each network
// that rules name.
func (s *surveyor) otherNodes() (nodes []netip.Addr) {
	add := func(a netip.Addr) {
		if a.IsValid() && a.Is6() == s.isIPv6() && !s.host.Has(a) && len(nodes) < maxNamedPods && !slices.Contains(nodes, a) {
			nodes = append(nodes, a)
		}
	}
	own := map[netip.Addr]bool{s.address: true}
	add(freeIn(nodeNetwork(s.address, 0), own, netip.Prefix{}))
	for _, r := range s.host.Routes {
		add(r.Via)
	}
	for _, d := range s.dumps {
		for _, r := range rulesOf(d, "raw", "mangle", "filter") {
			if s.wrote(r) {
				continue
			}
			for _, m := range r.Matches {
				if p := networkOf(m); p.IsValid() && p.Bits() > 0 && !s.podNetwork().Contains(p.Addr()) && !p.Addr().IsLoopback() && !p.Addr().IsMulticast() {
					if p.IsSingleIP() {
						add(p.Addr())
					} else {
						add(freeIn(p, own, netip.Prefix{}))
					}
				}
			}
		}
	}
	return nodes
}

// loseTunnel records that a rule or policy drops the packets of a tunnel.
func (s *surveyor) loseTunnel(t *Tunnel, node netip.Addr, w *netfilter.Way) {
	for _, l := range s.order {
		if l.Tunnel != nil && *l.Tunnel == *t && l.Outgoing == w.Packet.Local {
			return
		}
	}
	l := &Loss{
		Effect: DropsTunnel, Tunnel: t, Kinds: []Kind{OtherPod},
		Example: Example{Protocol: "UDP", Source: node.String(), To: netip.AddrPortFrom(s.address, t.Port), From: OtherPod, In: uplinkOf(s.host, s.family())},
	}
	if l.Outgoing = w.Packet.Local; l.Outgoing {
		l.Example.Source, l.Example.To, l.Example.In = s.address.String(), netip.AddrPortFrom(node, t.Port), ""
	}
	if s.known.Only != nil {
		l.Endpoints = s.beyond(t)
		s.survey.Reached = slices.DeleteFunc(s.survey.Reached, func(to netip.AddrPort) bool { return slices.Contains(l.Endpoints, to) })
	}
	s.lose(l, w)
}
