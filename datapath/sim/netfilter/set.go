package netfilter

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// set is set_match (xt_set.c). The contents of sets are unknown without the file of `ipset save`,
// and the counters of elements always are.
func (w *walk) set(m iptables.SetMatch) truth {
	s := w.machine.sets[m.Set]
	if s == nil || m.Packets.Compare != iptables.CompareNone || m.Bytes.Compare != iptables.CompareNone {
		return undecided
	}
	found := w.inSet(s, m.Directions, m.ReturnNomatch, 0)
	if found == undecided {
		return undecided
	}
	return truthOf((found == yes) != m.Negated)
}

// maxSetDepth is how deep lists of sets may be nested here; the kernel knows no lists in
// lists (ip_set_list_set.c).
const maxSetDepth = 2

// inSet looks the packet up. Of the networks that contain it the longest one decides; one with
// nomatch does not match.
func (w *walk) inSet(s *iptables.Set, directions []iptables.SetDirection, returnNomatch bool, depth int) truth {
	_, spec, ok := strings.Cut(s.Type, ":")
	if !ok || depth >= maxSetDepth {
		return undecided
	}
	dimensions := strings.Split(spec, ",")
	for _, d := range dimensions {
		switch d {
		case "ip", "net", "port", "mac", "iface", "set":
		default: // like hash:ip,mark
			return undecided
		}
	}
	if dimensions[0] != "set" && len(directions) < len(dimensions) {
		return no // the kernel refuses such rules, or they never match
	}
	longest, found := -1, no
	for i := range s.Elements {
		e := &s.Elements[i]
		if dimensions[0] == "set" {
			member := w.machine.sets[e.Member]
			if member == nil {
				return undecided
			}
			switch w.inSet(member, directions, returnNomatch, depth+1) {
			case undecided:
				return undecided
			case yes:
				return yes
			}
			continue
		}
		if bits, is := w.inElement(e, dimensions, directions); is && bits > longest {
			longest, found = bits, truthOf(!e.Nomatch || returnNomatch)
		}
	}
	return found
}

// inElement compares the packet with an element in each dimension. bits is the element's prefix
// length.
func (w *walk) inElement(e *iptables.Element, dimensions []string, directions []iptables.SetDirection) (bits int, is bool) {
	p, addresses := &w.packet, 0
	for i, dimension := range dimensions {
		own, device := p.Source, w.in
		if directions[i] == iptables.SetDestination {
			own, device = p.Destination, w.out
		}
		matches := false
		switch dimension {
		case "ip", "net":
			addresses++
			network := e.Network
			if addresses == 2 {
				network = e.Second
			}
			matches = network.IsValid() && network.Contains(own.Addr()) ||
				addresses == 1 && !network.IsValid() && e.Range.First.IsValid() && e.Range.Contains(own.Addr())
			bits += max(network.Bits(), 0)
		case "port":
			port := own.Port()
			if hasICMP(p.Protocol) {
				port = uint16(p.ICMPType)<<8 | uint16(p.ICMPCode)
			}
			matches = (e.Protocol == p.Protocol || len(dimensions) == 1 && HasPorts(p.Protocol)) && e.Ports.Contains(port)
		case "mac":
			matches = w.frame() && *p.MAC == e.MAC
		case "iface":
			matches = device != "" && device == strings.TrimPrefix(e.Interface, "physdev:")
		}
		if !matches {
			return 0, false
		}
	}
	return bits, true
}
