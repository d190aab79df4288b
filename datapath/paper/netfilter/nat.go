package netfilter

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// side is the translated end of a connection (enum nf_nat_manip_type).
type side uint8

const (
	sourceSide side = iota
	destinationSide
)

// sideOf is HOOK2MANIP (nf_nat.h).
func sideOf(h Hook) side {
	if h == Postrouting || h == Input {
		return sourceSide
	}
	return destinationSide
}

func (e *Entry) done(s side) bool {
	if s == sourceSide {
		return e.SourceDone
	}
	return e.DestinationDone
}

// bind is nf_nat_setup_info: it sets the connection's translation on one side, once. The zero
// range is none: the addresses stay, unless the reply tuple is taken.
func (w *walk) bind(s side, r iptables.NATRange, first, last netip.Addr) {
	e := w.entry
	if e.Confirmed {
		return // it is too late
	}
	// The connection with the translation of the other side.
	current := inverse(e.Reply)
	t, ports := w.unique(s, current, r, first, last)
	// The kernel's random choice is almost never the port that is there. Of an identifier of ICMP, which both sides draw, the
	// second choice is the one that is known.
	unknown := ports != nil && (w.state.chosen(s, t.Protocol) == 0 || hasICMP(t.Protocol) && e.SourcePorts != nil)
	if t != current || unknown {
		e.Reply = inverse(t)
		if s == sourceSide {
			e.SNAT = true
		} else {
			e.DNAT = true
		}
		switch {
		case ports == nil:
		case s == sourceSide || hasICMP(t.Protocol):
			e.SourcePorts = ports
		default:
			e.DestinationPorts = ports
		}
	}
	if s == sourceSide {
		e.SourceDone = true
	} else {
		e.DestinationDone = true
	}
}

type sourceKey struct {
	protocol uint8
	source   netip.AddrPort
	zone     uint16
}

func (e *Entry) sourceKey() sourceKey {
	return sourceKey{e.Original.Protocol, e.Original.Source, e.Zone}
}

// mapped returns the translated source of another connection from the same source: the latest one
// within the range (find_appropriate_src, nf_nat_core.c).
func (s *State) mapped(t iptables.Tuple, zone uint16, r iptables.NATRange, first, last netip.Addr) (netip.AddrPort, bool) {
	list := s.sources[sourceKey{t.Protocol, t.Source, zone}]
	for i := len(list) - 1; i >= 0; i-- {
		if a := inverse(list[i].Reply).Source; within(a, r, first, last) {
			return a, true
		}
	}
	return netip.AddrPort{}, false
}

// unique is get_unique_tuple (nf_nat_core.c): an address of the range, and a port that no other
// connection has. ports is set if the kernel selects one of several.
func (w *walk) unique(s side, t iptables.Tuple, r iptables.NATRange, first, last netip.Addr) (iptables.Tuple, *iptables.PortRange) {
	free := func(t iptables.Tuple) bool { return !w.state.used(inverse(t), w.entry) }
	random := r.Random || r.RandomFully // NF_NAT_RANGE_PROTO_RANDOM_ALL
	own := t.Source
	if s == destinationSide {
		own = t.Destination
	} else if !random {
		// A source within the range stays; a source that other connections already translate gets
		// the same translation.
		if within(t.Source, r, first, last) {
			if free(t) {
				return t, nil
			}
		} else if again, ok := w.state.mapped(t, w.entry.Zone, r, first, last); ok {
			if t := (iptables.Tuple{Protocol: t.Protocol, Source: again, Destination: t.Destination}); free(t) {
				return t, nil
			}
		}
	}
	addr := own.Addr()
	if first.IsValid() {
		addr = w.choose(s, t, r, first, last)
	}
	port := own.Port()
	if hasICMP(t.Protocol) {
		port = t.Source.Port()
	}
	with := func(port uint16) iptables.Tuple {
		changed := t
		switch {
		case s == destinationSide && hasICMP(t.Protocol): // the id is the same in both directions
			changed.Source = netip.AddrPortFrom(t.Source.Addr(), port)
			changed.Destination = netip.AddrPortFrom(addr, t.Destination.Port())
		case s == sourceSide:
			changed.Source = netip.AddrPortFrom(addr, port)
		default:
			changed.Destination = netip.AddrPortFrom(addr, port)
		}
		return changed
	}
	if !iptables.HasPorts(t.Protocol) && !hasICMP(t.Protocol) {
		return with(port), nil
	}
	given := r.HasPorts()
	switch {
	case given && r.FirstPort == r.LastPort:
		return with(r.FirstPort), nil
	case random:
	case given && r.BasePort == 0 && r.FirstPort <= port && port <= r.LastPort && free(with(port)):
		return with(port), nil
	case !given && free(with(port)):
		return with(port), nil
	}
	if s == destinationSide && !given && iptables.HasPorts(t.Protocol) {
		return with(port), nil // the destination port is changed only by a rule with a port
	}
	ports := portsFor(t.Protocol, port)
	if given {
		ports = iptables.PortRange{First: r.FirstPort, Last: r.LastPort}
	}
	switch {
	case s == destinationSide && r.BasePort != 0:
		size := uint32(ports.Last) - uint32(ports.First) + 1
		return with(uint16(uint32(ports.First) + uint32(port-r.BasePort)%size)), nil
	case s == destinationSide && !random:
		for p := uint32(ports.First); p <= uint32(ports.Last); p++ {
			if free(with(uint16(p))) {
				return with(uint16(p)), nil
			}
		}
		return with(ports.Last), nil // the last that it tries
	}
	if chosen := w.state.chosen(s, t.Protocol); ports.Contains(chosen) && chosen != 0 {
		return with(chosen), &ports
	}
	// The kernel begins at random and takes the first that is free.
	if !ports.Contains(port) || !free(with(port)) {
		port = ports.First
		for p := uint32(ports.First); p <= uint32(ports.Last); p++ {
			if free(with(uint16(p))) {
				port = uint16(p)
				break
			}
		}
	}
	return with(port), &ports
}

// chosen is the port that the kernel selects; 0: unknown.
func (s *State) chosen(side side, protocol uint8) uint16 {
	if side == sourceSide || hasICMP(protocol) {
		return s.chosenSource
	}
	return s.chosenDestination
}

// within is nf_in_range (nf_nat_core.c).
func within(a netip.AddrPort, r iptables.NATRange, first, last netip.Addr) bool {
	if first.IsValid() && (a.Addr().Less(first) || last.IsValid() && last.Less(a.Addr())) {
		return false
	}
	return !r.HasPorts() || r.FirstPort <= a.Port() && a.Port() <= r.LastPort
}

// portsFor returns the ports that the kernel selects from without a rule: reserved ports stay
// reserved (nf_nat_l4proto_unique_tuple).
func portsFor(protocol uint8, port uint16) iptables.PortRange {
	switch {
	case hasICMP(protocol):
		return iptables.PortRange{First: 0, Last: 65535}
	case port < 512:
		return iptables.PortRange{First: 1, Last: 511}
	case port < 1024:
		return iptables.PortRange{First: 600, Last: 1023}
	}
	return iptables.PortRange{First: 1024, Last: 65535}
}

// choose selects an address of a range, as the kernel does for the connection.
func (w *walk) choose(s side, t iptables.Tuple, r iptables.NATRange, first, last netip.Addr) netip.Addr {
	return hostnat.Select(first, last, t.Source.Addr(), t.Destination.Addr(), w.entry.Zone, r.Persistent, s == destinationSide)
}

// netmap replaces the prefix's bits of an address (nf_nat_mapping_range, xt_NETMAP.c).
func netmap(to netip.Prefix, a netip.Addr) netip.Addr {
	b, host := to.Masked().Addr().AsSlice(), a.AsSlice()
	if len(b) != len(host) {
		return a
	}
	for bit := to.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= host[bit/8] & (0x80 >> (bit % 8))
	}
	mapped, _ := netip.AddrFromSlice(b)
	return mapped
}

// translate is nf_nat_packet: the translation of this side of the packet by the connection's
// entry.
func (w *walk) translate(s side) (changed bool) {
	e, p := w.entry, &w.Packet
	// In the other direction it is the other translation that is undone.
	translated := e.SNAT
	if (s == destinationSide) != w.reply {
		translated = e.DNAT
	}
	if !translated {
		return false
	}
	target := inverse(e.Reply)
	if w.reply {
		target = inverse(e.Original)
	}
	before := *p
	switch {
	case s == sourceSide:
		p.Source = target.Source
		if hasICMP(p.Protocol) {
			p.ICMPID, p.Source = target.Source.Port(), netip.AddrPortFrom(target.Source.Addr(), 0)
		}
	default:
		p.Destination = target.Destination
		if hasICMP(p.Protocol) {
			p.ICMPID, p.Destination = target.Source.Port(), netip.AddrPortFrom(target.Destination.Addr(), 0)
		}
	}
	return p.Source != before.Source || p.Destination != before.Destination || p.ICMPID != before.ICMPID
}
