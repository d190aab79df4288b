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

// followNeighbours follows packets of neighbour discovery (RFC 4861) to the host. Other than ARP, they pass rules: without them,
// pods and nodes do not find the host's link-layer address, or the host does not find theirs. Connection tracking ignores them.
func (s *surveyor) followNeighbours() error {
	if !s.isIPv6() || len(s.targets) == 0 || s.one != nil || !s.address.IsValid() {
		return nil
	}
	uplink := uplinkOf(s.host, s.family())
	own, peer := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::99")
	near := freeIn(nodeNetwork(s.address, 0), map[netip.Addr]bool{s.address: true}, netip.Prefix{})
	list := []neighbour{{Node, uplink, uplink, []netip.Addr{peer, near}}}
	if pod := s.sources[Pod]; pod != nil && pod.Device != uplink && !strings.HasPrefix(pod.Device, "lxc") { // Cilium answers its pods below
		list = append(list, neighbour{Pod, pod.Device, pod.Device, []netip.Addr{peer, pod.Addr}})
		for _, pod := range s.named {
			list = append(list, neighbour{NamedPod, pod.Addr.String(), pod.Device, []netip.Addr{pod.Addr}})
		}
	}
	host := *s.host
	host.Interfaces = slices.Clone(host.Interfaces)
	for _, n := range list {
		host.AddAddress(n.device, netip.PrefixFrom(own, 64))
	}
	machine, err := s.machineOf(&host)
	if err != nil {
		return err
	}
	for _, n := range list {
		for _, kind := range []uint8{neighbourAdvert, neighbourSolicitation} {
			if w := s.deaf(machine, n.device, kind, n.from, []netip.Addr{own, s.address, netip.MustParseAddr("ff02::1:ff00:1")}); w != nil {
				s.loseNeighbours(&n, w)
				break
			}
		}
	}
	return nil
}

// neighbour is who sends packets of neighbour discovery to the host.
type neighbour struct {
	kind   Kind
	name   string // of the device or, of one pod, its address
	device string
	from   []netip.Addr
}

// deaf is a way of a packet of neighbour discovery that a rule or policy drops, if all such packets by a device are dropped for
// sure, whatever their addresses are; nil: they are not.
func (s *surveyor) deaf(machine *netfilter.Machine, device string, kind uint8, from, to []netip.Addr) (lost *netfilter.Way) {
	work := netfilter.Work{Steps: 1, Visits: maxVisits}
	for _, a := range from {
		for _, b := range to {
			if b.IsMulticast() && kind == neighbourAdvert {
				continue // only those that nobody asked for
			}
			p := iptables.FirstPacket(protoICMPv6, netip.AddrPortFrom(a, 0), netip.AddrPortFrom(b, 0), false)
			p.InInterface, p.ICMPType, p.TTL, p.Length = device, kind, 255, 72
			w, all := ends(machine, p, &work)
			if !all || w == nil {
				return nil
			}
			lost = w
		}
	}
	return lost
}

// ends follows a packet. lost is the first way on which a rule or policy drops it, nil if none does; all: they do on each way.
func ends(machine *netfilter.Machine, p iptables.Packet, work *netfilter.Work) (lost *netfilter.Way, all bool) {
	all = true
	rest := machine.Each(nil, p, func() *netfilter.State { return new(netfilter.State) }, maxWays, work, func(w netfilter.Way) {
		if w.Verdict != netfilter.Dropped && w.Verdict != netfilter.Rejected || w.Chain == "" {
			all = false
		} else if lost == nil {
			lost = &w
		}
	})
	return lost, all && rest == 0
}

// loseNeighbours records that a rule or policy drops neighbour discovery.
func (s *surveyor) loseNeighbours(n *neighbour, w *netfilter.Way) {
	for _, l := range s.order {
		if l.Effect == DropsNeighbours && l.Rule == w.By && l.Table == w.Table && l.Chain == w.Chain {
			if n.kind != NamedPod || !slices.Contains(l.Kinds, Pod) {
				l.Neighbours, l.Kinds = append(l.Neighbours, n.name), append(l.Kinds, n.kind)
			}
			return
		}
	}
	l := &Loss{Effect: DropsNeighbours, Neighbours: []string{n.name}, Kinds: []Kind{n.kind}, Rule: w.By, Table: w.Table, Chain: w.Chain, Rejected: w.Verdict == netfilter.Rejected}
	if w.By == nil {
		l.File, l.Line = s.policyPlace(w.Table, w.Chain)
	}
	s.order = append(s.order, l)
}
