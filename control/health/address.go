package health

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ListenAddresses are where the table's node has its health check node ports open: on
// the addresses that node ports are restricted to, loopback ones included, or on all of
// a family, which its unspecified address stands for (kube-proxy: NodePortAddresses).
func ListenAddresses(t *decision.Table) []netip.Addr {
	var list []netip.Addr
	for f, all := range map[decision.Family]netip.Addr{decision.IPv4: netip.IPv4Unspecified(), decision.IPv6: netip.IPv6Unspecified()} {
		if t.AllNodePortAddresses(f) {
			list = append(list, all)
			continue
		}
		for _, a := range append(t.NodePortAddresses(), loopbacks...) {
			// To bind a link-local address takes its interface, which nobody knows here.
			if decision.FamilyOf(a) == f && !(a.Is6() && a.IsLinkLocalUnicast()) && within(a, t.Node().NodePortAddresses) {
				list = append(list, a)
			}
		}
	}
	return normal(list)
}

var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

func within(a netip.Addr, prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
