package netfilter

import "net/netip"

// Unanswered finds the neighbour that the host sends packets for an address to, if its last attempt to resolve it got no answer.
func (m *Machine) Unanswered(to netip.Addr) (n Neighbour, is bool) {
	route := m.network.route(to)
	if route.Type != Unicast || len(route.Others) > 0 {
		return n, false
	}
	if route.Via.IsValid() {
		to = route.Via
	}
	for _, n := range m.network.Neighbours {
		if n.Addr == to && n.Interface == route.Interface && n.Unanswered != "" {
			return n, true
		}
	}
	return n, false
}
