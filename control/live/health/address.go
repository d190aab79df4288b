package health

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ListenAddresses returns the listen addresses of health check node ports: the addresses that node
// ports are restricted to, loopback ones included, or all of a family, as its unspecified address
// (kube-proxy: NodePortAddresses).
func ListenAddresses(t *decision.Table) []netip.Addr {
	var list []netip.Addr
	for f, all := range map[decision.Family]netip.Addr{decision.IPv4: netip.IPv4Unspecified(), decision.IPv6: netip.IPv6Unspecified()} {
		if t.AllNodePortAddresses(f) {
			list = append(list, all)
			continue
		}
		for _, a := range append(t.NodePortAddresses(), loopbacks...) {
			// Binding a link-local address requires its interface, which is not known here.
			if decision.FamilyOf(a) == f && !(a.Is6() && a.IsLinkLocalUnicast()) && slices.ContainsFunc(t.Node().NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(a) }) {
				list = append(list, a)
			}
		}
	}
	return normal(list)
}

var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
