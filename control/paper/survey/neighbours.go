package survey

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

const (
	protoICMPv6           = 58
	neighbourSolicitation = 135
	neighbourAdvert       = 136
)

// solicited is the group of an address that ends in 00:0001.
var solicited = netip.MustParseAddr("ff02::1:ff00:1")

// followNeighbours follows packets of neighbour discovery (RFC 4861) to the host, and from it. Other than ARP, they pass rules:
// without them, pods and nodes do not find the host's link-layer address, or the host does not find theirs. Connection tracking ignores
// them.
func (s *surveyor) followNeighbours() {
	if !s.isIPv6() || len(s.targets) == 0 || s.one != nil || !s.address.IsValid() {
		return
	}
	uplink := uplinkOf(s.host, s.family())
	nodes := slices.DeleteFunc(s.otherNodes(), netip.Addr.IsLinkLocalUnicast)
	list := []neighbour{{Node, uplink, uplink, nodes}}
	if pod := s.sources[Pod]; pod != nil && pod.Device != uplink && !strings.HasPrefix(pod.Device, "lxc") { // Cilium answers its pods below
		list = append(list, neighbour{Pod, pod.Device, pod.Device, []netip.Addr{pod.Addr}})
		for _, pod := range s.named {
			list = append(list, neighbour{NamedPod, pod.Addr.String(), pod.Device, []netip.Addr{pod.Addr}})
		}
	}
	for _, n := range list {
		host := *s.host
		host.Interfaces, host.Groups = slices.Clone(host.Interfaces), []netip.Addr{solicited}
		host.AddAddress(n.device, netip.PrefixFrom(linkLocal, 64))
		host.Routes = append(slices.Clone(host.Routes), netfilter.Route{Destination: netip.PrefixFrom(solicited, 128), Interface: n.device})
		s.followNeighbour(s.machine.On(&host), &n)
	}
}

// linkLocal is the host's link-local address, and linkLocalPeer a neighbour's.
var linkLocal, linkLocalPeer = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::99")

// followNeighbour follows the packets of one device: from pods, whose packets have their own addresses as sources (ndisc_solicit), from
// nodes, which may also use link-local ones, and those of the host.
func (s *surveyor) followNeighbour(machine *netfilter.Machine, n *neighbour) {
	for _, kind := range []uint8{neighbourAdvert, neighbourSolicitation} {
		to := []netip.Addr{s.address, linkLocal}
		if kind == neighbourSolicitation {
			to[1] = solicited
		}
		if w := s.deaf(machine, n.device, kind, n.from, to); w != nil {
			certainty := Certain
			if n.kind == Node && s.deaf(machine, n.device, kind, []netip.Addr{linkLocalPeer}, to) == nil {
				certainty = Possible
			}
			s.loseNeighbours(n, w, certainty, false)
			break
		}
	}
	if n.kind == NamedPod {
		return
	}
	for _, kind := range []uint8{neighbourAdvert, neighbourSolicitation} {
		from, to := []netip.Addr{s.address}, append([]netip.Addr{linkLocalPeer}, n.from...)
		if kind == neighbourSolicitation {
			from, to = append(from, linkLocal), []netip.Addr{solicited}
		}
		if w := s.deaf(machine, "", kind, from, to); w != nil {
			s.loseNeighbours(n, w, Certain, true)
			break
		}
	}
}

// neighbour is who sends packets of neighbour discovery to the host, and gets those of the host.
type neighbour struct {
	kind   Kind
	name   string // of the device or, of one pod, its address
	device string
	from   []netip.Addr
}

// deaf is a way of a packet of neighbour discovery that a rule or policy drops, if all such packets by a device are dropped for
// sure, whatever their addresses are; nil: they are not. Without a device, they are the host's own.
func (s *surveyor) deaf(machine *netfilter.Machine, device string, kind uint8, from, to []netip.Addr) (lost *netfilter.Way) {
	work := netfilter.Work{Steps: 1, Visits: maxVisits}
	for _, a := range from {
		for _, b := range to {
			p := iptables.FirstPacket(protoICMPv6, netip.AddrPortFrom(a, 0), netip.AddrPortFrom(b, 0), device == "")
			p.InInterface, p.ICMPType, p.TTL, p.Length, p.Owner = device, kind, 255, 72, nil
			w, all := ends(machine, p, newState, &work)
			if !all || w == nil {
				return nil
			}
			lost = w
		}
	}
	return lost
}

// ends follows a packet. lost is the first way on which a rule or policy drops it, nil if none does; all: they do on each way.
func ends(machine *netfilter.Machine, p iptables.Packet, begin func() *netfilter.State, work *netfilter.Work) (lost *netfilter.Way, all bool) {
	all = true
	rest := machine.Each(nil, p, begin, maxWays, work, func(w netfilter.Way) {
		if w.Verdict != netfilter.Dropped && w.Verdict != netfilter.Rejected || w.Chain == "" {
			all = false
		} else if lost == nil {
			lost = &w
		}
	})
	return lost, all && rest == 0
}

func newState() *netfilter.State { return new(netfilter.State) }

// loseNeighbours records that a rule or policy drops neighbour discovery.
func (s *surveyor) loseNeighbours(n *neighbour, w *netfilter.Way, certainty Certainty, outgoing bool) {
	for _, l := range s.order {
		if l.Effect == DropsNeighbours && l.Rule == w.By && l.Table == w.Table && l.Chain == w.Chain && l.Certainty == certainty {
			if n.kind != NamedPod || !slices.Contains(l.Kinds, Pod) {
				l.Neighbours, l.Kinds = append(l.Neighbours, n.name), append(l.Kinds, n.kind)
			}
			return
		}
	}
	s.lose(&Loss{Effect: DropsNeighbours, Certainty: certainty, Outgoing: outgoing, Neighbours: []string{n.name}, Kinds: []Kind{n.kind}}, w)
}
