package audit

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

// ServicesOfIPVS are the virtual servers of one family as services: one for each address, and one for each node port, with the
// addresses that node ports have. Their endpoints are the real servers that get new connections. sets are the host's ipsets,
// which tell kinds of addresses apart; nil: not known, and a port from 30000 to 32767 is one of nodes. names is the service
// table of the node, which has their names; nil: they have none.
func ServicesOfIPVS(s *ipvs.State, sets map[string]*iptables.Set, family decision.Family, names *decision.Table) (services []*Service, nodes []netip.Addr) {
	kinds := kindsOf(sets)
	local, here, ranges := localIn(sets), here(sets), rangesOf(sets)
	seen := make(map[netip.Addr]bool)
	nodePort := make(map[claim]*Service)
	for _, v := range s.Servers {
		addr, protocol := v.Address.Addr(), decision.Protocol(v.Protocol)
		if v.Protocol == 0 || v.Address.Port() == 0 || decision.FamilyOf(addr) != family {
			continue
		}
		kind := kinds.of(v)
		if sets == nil && v.Address.Port() >= 30000 && v.Address.Port() <= 32767 {
			kind = nodePorts
		}
		port := &Service{Protocol: protocol, Family: family, Endpoints: endpointsOf(v, here), AffinitySeconds: v.Persistence}
		port.ExternalPolicy, port.Refused = local.policy(v), len(port.Endpoints) == 0
		if names != nil {
			if found := names.Candidates(&decision.Packet{Protocol: protocol, Destination: v.Address}); len(found) > 0 {
				port.Name, port.InternalPolicy = found[0].Name, found[0].InternalPolicy
			}
		}
		switch kind {
		case nodePorts:
			if !seen[addr] {
				seen[addr] = true
				nodes = append(nodes, addr)
			}
			at := claim{port: v.Address.Port(), protocol: protocol}
			if nodePort[at] != nil {
				continue
			}
			nodePort[at], port.NodePort = port, at.port
		case externalIP:
			port.ExternalIPs, port.Port = []netip.Addr{addr}, v.Address.Port()
		case loadBalancerIP:
			port.LoadBalancerIPs, port.Port = []netip.Addr{addr}, v.Address.Port()
			port.SourceRanges = ranges[addressKey{v.Protocol, v.Address}]
		default:
			port.ClusterIP, port.Port = addr, v.Address.Port()
		}
		services = append(services, port)
	}
	return services, nodes
}

// here are the endpoints of this node, by KUBE-LOOP-BACK.
func here(sets map[string]*iptables.Set) map[addressKey]bool {
	local := make(map[addressKey]bool)
	for at := range inSets(sets, "KUBE-LOOP-BACK") {
		local[at] = true
	}
	return local
}

// endpointsOf are the real servers that get new connections.
func endpointsOf(v *ipvs.VirtualServer, here map[addressKey]bool) (endpoints []Endpoint) {
	for _, share := range v.Choose(ipvs.Client{To: v.Address}).Shares {
		e := Endpoint{AddrPort: share.Server.Address, Share: share.Probability}
		if here[addressKey{v.Protocol, e.AddrPort}] {
			e.Locality = OnThisNode
		}
		endpoints = append(endpoints, e)
	}
	return endpoints
}

// localIn are the addresses with external traffic policy Local, by kube-proxy's ipsets.
func localIn(sets map[string]*iptables.Set) addressKinds {
	local := make(map[string]*iptables.Set)
	for name, s := range sets {
		if strings.Contains(name, "-LOCAL") {
			local[name] = s
		}
	}
	return kindsOf(local)
}

func (kinds addressKinds) policy(v *ipvs.VirtualServer) decision.Policy {
	if kinds.of(v) != "" {
		return decision.Local
	}
	return decision.Cluster
}

// rangesOf are the source ranges of load balancer IPs.
func rangesOf(sets map[string]*iptables.Set) map[addressKey][]netip.Prefix {
	ranges := make(map[addressKey][]netip.Prefix)
	for at, e := range inSets(sets, "KUBE-LOAD-BALANCER-SOURCE-CIDR") {
		ranges[at] = append(ranges[at], e.Second)
	}
	return ranges
}

// InNoSet are the virtual servers that none of kube-proxy's ipsets has, in the order of the text: its rules treat packets to
// them as those to other programs of the node. nil: there are none, or the sets are not in the text.
func InNoSet(s *ipvs.State, sets map[string]*iptables.Set) (list []*ipvs.VirtualServer) {
	kinds := kindsOf(sets)
	if len(kinds) == 0 {
		return nil
	}
	for _, v := range s.Servers {
		if v.Protocol != 0 && kinds.of(v) == "" && hasSetsFor(sets, v) {
			list = append(list, v)
		}
	}
	return list
}

// hasSetsFor reports whether a text has the ipsets that kube-proxy has for addresses like that of a virtual server, and not only
// others: those of cluster IPs, and of node ports.
func hasSetsFor(sets map[string]*iptables.Set, v *ipvs.VirtualServer) bool {
	family, protocol := "KUBE-", decision.Protocol(v.Protocol).String()
	if v.IPv6 {
		family = "KUBE-6-"
	}
	inRange := v.Address.Port() >= 30000 && v.Address.Port() <= 32767
	return sets[family+"CLUSTER-IP"] != nil && (!inRange || sets[family+"NODE-PORT-"+protocol] != nil || sets[family+"NODE-PORT-"+protocol+"-HASH"] != nil)
}
