package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// ExamineIPVS looks at the virtual servers of a node. mode is that of the node's service proxy, by its rules; known is what
// is known of the node besides.
func ExamineIPVS(s *ipvs.State, mode proxymode.Mode, known survey.Known) (found []Finding) {
	for _, v := range s.Servers {
		// Without a client, the choice is that of all of them.
		if c := v.Choose(ipvs.Client{To: v.Address}); c.Refused == 1 {
			found = append(found, Finding{
				Code: NoRealServer, Text: fmt.Sprintf("line %d: virtual server %s refuses new connections: %s", v.Line, named(v, known.Services), c.Basis),
				Do: "check that the Service's selector matches Pods that are ready, and kube-proxy's log",
			})
		}
	}
	if mode == proxymode.ModeIPVS && len(s.Servers) == 0 && len(s.Excerpt) == 0 {
		found = append(found, Finding{
			Code: NoRealServer, Text: fmt.Sprintf("IPVS has no virtual servers, but the rules are those of %s: no Service works here, unless ipvsadm ran in another network namespace", mode),
			Do: "run ipvsadm on the node itself, not in a Pod, and look for errors in kube-proxy's log",
		})
	}
	if mode == proxymode.ModeIPVS {
		found = append(found, inNoSet(s, known)...)
	}
	if (mode == proxymode.ModeIPTables || mode == proxymode.ModeNFTables) && len(s.Servers) > 0 {
		found = append(found, Finding{
			Code: LeftOverServers,
			Text: fmt.Sprintf("there are %s of IPVS, but the rules are those of %s: packets that the rules do not translate may still reach old endpoints", quantity.Count(len(s.Servers), "virtual server"), mode),
			Do:   "remove what is left of IPVS mode: kube-proxy --cleanup, or ipvsadm -C and ip link delete " + netfilter.IPVSDevice,
		})
	}
	return append(found, ipvsAddresses(s, known.Host)...)
}

// named is a virtual server with the name of its Service, if it is known.
func named(v *ipvs.VirtualServer, services *decision.Table) string {
	if services != nil && v.Protocol != 0 {
		if found := services.Candidates(&decision.Packet{Protocol: decision.Protocol(v.Protocol), Destination: v.Address}); len(found) > 0 {
			return fmt.Sprintf("%s of %s", v, found[0].Name)
		}
	}
	return v.String()
}

// inNoSet are the virtual servers that kube-proxy's rules do not know.
func inNoSet(s *ipvs.State, known survey.Known) (found []Finding) {
	for _, v := range audit.InNoSet(s, known.Sets) {
		found = append(found, Finding{
			Code: ServerInNoSet,
			Text: fmt.Sprintf("line %d: virtual server %s is in none of kube-proxy's ipsets: its rules do not masquerade connections to it, and those of chain KUBE-IPVS-FILTER reject them if the address is on %s", v.Line, named(v, known.Services), netfilter.IPVSDevice),
			Do:   "look for errors of ipset in kube-proxy's log, and restart it: it writes the sets again",
		})
	}
	return found
}

// ipvsAddresses compares the addresses of virtual servers with the host's.
func ipvsAddresses(s *ipvs.State, host *netfilter.Host) (found []Finding) {
	if host == nil || len(host.Interfaces) == 0 {
		return nil
	}
	var without []string
	known := make(map[bool]bool) // whether the host's addresses of IPv6, and of IPv4, are
	for _, d := range host.Interfaces {
		for _, a := range d.Addresses {
			addr := a.Prefix.Addr()
			known[addr.Is6()] = known[addr.Is6()] || !addr.IsLoopback()
			if d.Name == netfilter.IPVSDevice && !addr.IsLinkLocalUnicast() && !slices.Contains(s.Addresses(addr.Is6()), addr) {
				without = append(without, addr.String())
			}
		}
	}
	if len(without) > 0 {
		found = append(found, Finding{
			Code: AddressOnly, Text: fmt.Sprintf("%s has %s without a virtual server: %s; the node itself answers there", netfilter.IPVSDevice, quantity.Count(len(without), "address"), nearest.Few(without)),
			Do: "restart kube-proxy, which removes the addresses of Services that are gone, and look for errors in its log",
		})
	}
	for _, ipv6 := range []bool{false, true} {
		for _, a := range s.Addresses(ipv6) {
			if known[ipv6] && !host.Has(a) {
				found = append(found, Finding{
					Code: ServerWithoutAddress, Text: fmt.Sprintf("virtual server address %s is not an address of the node: packets from outside and from Pods are forwarded, and do not reach IPVS", a),
					Do: fmt.Sprintf("look for errors in the log of kube-proxy, which adds the addresses to %s, and for programs that remove them: ip addr add %s dev %s", netfilter.IPVSDevice, netip.PrefixFrom(a, a.BitLen()), netfilter.IPVSDevice),
				})
			}
		}
	}
	return found
}
