package survey

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// forwarded is a connection to a pod of this node from one of another node, without any service: in files that have table
// filter of a node and lack table nat, as iptables -L prints them, it shows whether chain FORWARD lets pods be reached. nil:
// there are services to follow, or no such table.
func (s *surveyor) forwarded() *target {
	if s.known.Only != nil || s.family() != decision.IPv4 || s.ipvs != nil {
		return nil
	}
	forwards := false
	for i, d := range s.dumps {
		n := s.survey.Nodes[i]
		if len(n.Services) > 0 || n.Mode.IPVS() || n.Mode == proxymode.ModeUserspace || d.Table("nat") != nil || d.Ruleset != nil {
			return nil
		}
		ofKubernetes := func(c *iptables.Chain) bool { return strings.HasPrefix(c.Name, "KUBE-") }
		forwards = forwards || d.Table("filter") != nil && d.Lists("filter", "FORWARD") && slices.ContainsFunc(d.Table("filter").Chains, ofKubernetes)
	}
	if !forwards {
		return nil
	}
	uplink := uplinkOf(s.host, s.family())
	to := netip.AddrFrom4([4]byte{10, 244, 1, 2})
	if pod := s.sources[Pod]; pod != nil {
		to = pod.Addr
	} else {
		device := "cni0"
		if named := netfilter.PodDevices(s.dumps); len(named) > 0 {
			device = named[0]
		}
		s.routePodsTo(nodeNetwork(to, 0), device, uplink)
	}
	from := to.As4()
	from[2] ^= 3 // of the network of another node
	s.sources[OtherPod] = &Source{Kind: OtherPod, Addr: netip.AddrFrom4(from), Device: uplink, Guessed: true}
	at := netip.AddrPortFrom(to, 80)
	return &target{port: &audit.Service{Family: s.family(), Protocol: decision.TCP, ClusterIP: to, Port: at.Port()}, to: at, protocol: decision.TCP}
}
