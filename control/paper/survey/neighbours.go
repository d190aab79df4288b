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
	from := map[string]netip.Addr{uplink: freeIn(nodeNetwork(s.address, 0), map[netip.Addr]bool{s.address: true}, netip.Prefix{})}
	kinds := map[string]Kind{uplink: Node}
	devices := []string{uplink}
	if pod := s.sources[Pod]; pod != nil && pod.Device != uplink && !strings.HasPrefix(pod.Device, "lxc") { // Cilium answers its pods below
		from[pod.Device], kinds[pod.Device], devices = pod.Addr, Pod, append(devices, pod.Device)
	}
	host := *s.host
	host.Interfaces = slices.Clone(host.Interfaces)
	own := netip.MustParseAddr("fe80::1")
	for _, device := range devices {
		host.AddAddress(device, netip.PrefixFrom(own, 64))
	}
	machine, err := s.machineOf(&host)
	if err != nil {
		return err
	}
	for _, device := range devices {
		for _, kind := range []uint8{neighbourAdvert, neighbourSolicitation} {
			if w := s.deaf(machine, device, kind, []netip.Addr{netip.MustParseAddr("fe80::99"), from[device]}, []netip.Addr{own, s.address, netip.MustParseAddr("ff02::1:ff00:1")}); w != nil {
				s.loseNeighbours(device, kinds[device], w)
				break
			}
		}
	}
	return nil
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

// loseNeighbours records that a rule or policy drops neighbour discovery by a device.
func (s *surveyor) loseNeighbours(device string, kind Kind, w *netfilter.Way) {
	for _, l := range s.order {
		if l.Effect == DropsNeighbours && l.Rule == w.By && l.Table == w.Table && l.Chain == w.Chain {
			l.Devices, l.Kinds = append(l.Devices, device), append(l.Kinds, kind)
			return
		}
	}
	l := &Loss{Effect: DropsNeighbours, Devices: []string{device}, Kinds: []Kind{kind}, Rule: w.By, Table: w.Table, Chain: w.Chain, Rejected: w.Verdict == netfilter.Rejected}
	if w.By == nil {
		l.File, l.Line = s.policyPlace(w.Table, w.Chain)
	}
	s.order = append(s.order, l)
}
