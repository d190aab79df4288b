package survey

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// maxTargets is for how many targets an endpoint is followed as its own client, and the node to 127.0.0.1: kube-proxy's rules
// are the same for all.
const maxTargets = 2000

// target is a destination of connections: an address and port of a service port, or an endpoint of
// this node to which another node has translated.
type target struct {
	port     *audit.Service // the first one, if several have it
	entry    decision.Entry // EntryNone: the endpoint itself
	to       netip.AddrPort
	protocol decision.Protocol
	// ends are the endpoints of the service ports.
	ends  []map[netip.AddrPort]bool
	index int // among the targets
	// vague: the file does not show all endpoints.
	vague bool
}

// destination is the target as kube-proxy's rules name it.
func (t *target) destination() audit.Destination {
	to := audit.Destination{Addr: t.to.Addr(), Port: t.to.Port(), Protocol: t.protocol}
	if t.entry == decision.EntryNodePort {
		to.Addr = netip.Addr{}
	}
	return to
}

// serves reports whether an address is one of the target's endpoints, as far as the file shows them.
func (t *target) serves(a netip.AddrPort) bool {
	if t.vague {
		return true
	}
	if t.entry == decision.EntryNone {
		return a == t.to
	}
	return slices.ContainsFunc(t.ends, func(ends map[netip.AddrPort]bool) bool { return ends[a] })
}

// lacksEndpoints reports whether the target has no known endpoint.
func (t *target) lacksEndpoints() bool {
	return t.entry != decision.EntryNone && !t.vague && !slices.ContainsFunc(t.ends, func(ends map[netip.AddrPort]bool) bool { return len(ends) > 0 })
}

func (t *target) noEndpointsShown() gap {
	return gap{"the file does not show the endpoints", t.port.Title()}
}

// String is "10.96.0.20:80", "node port 30080" or "load balancer IP 192.0.2.10:80".
func (t *target) String() string {
	switch t.entry {
	case decision.EntryNodePort:
		if t.to.Addr().IsLoopback() {
			return fmt.Sprintf("node port %d at %s", t.to.Port(), t.to.Addr())
		}
		return fmt.Sprintf("node port %d", t.to.Port())
	case decision.EntryLoadBalancer:
		return fmt.Sprintf("load balancer IP %s", t.to)
	case decision.EntryExternalIP:
		return fmt.Sprintf("external IP %s", t.to)
	case decision.EntryNone:
		return fmt.Sprintf("endpoint %s", t.to)
	}
	return t.to.String()
}

// policy is the traffic policy for the target's connections from outside.
func (t *target) policy() decision.Policy {
	if t.entry == decision.EntryClusterIP {
		return t.port.InternalPolicy
	}
	return t.port.ExternalPolicy
}

type targetKey struct {
	to       netip.AddrPort
	protocol decision.Protocol
	entry    decision.Entry
}

// destinations lists the targets of all dumps.
func (s *surveyor) destinations() {
	known := make(map[targetKey]int)
	type portKey struct {
		title    string
		protocol decision.Protocol
	}
	ports := make(map[portKey]bool)
	for _, n := range s.survey.Nodes {
		if n != s.ipvs && n.Mode.IPVS() || n.Mode == proxymode.ModeUserspace {
			continue
		}
		for _, port := range n.Services {
			ends, vague := make(map[netip.AddrPort]bool, len(port.Endpoints)), false
			for _, e := range port.Endpoints {
				if ends[e.AddrPort] = true; !e.AddrPort.IsValid() {
					vague = true
				}
			}
			add := func(entry decision.Entry, addr netip.Addr, number uint16) {
				if !addr.IsValid() || number == 0 {
					return
				}
				key := targetKey{netip.AddrPortFrom(addr, number), port.Protocol, cmp.Or(entry, decision.EntryClusterIP)}
				if i, again := known[key]; again {
					t := &s.targets[i]
					t.ends, t.vague = append(t.ends, ends), t.vague || vague
					return
				}
				known[key] = len(s.targets)
				s.targets = append(s.targets, target{port, entry, key.to, port.Protocol, []map[netip.AddrPort]bool{ends}, len(s.targets), vague})
			}
			ports[portKey{port.Title(), port.Protocol}] = true
			add(decision.EntryClusterIP, port.ClusterIP, port.Port)
			if len(n.Proxy.NodePortAddresses) == 0 {
				add(decision.EntryNodePort, s.address, port.NodePort)
			}
			for _, a := range n.Proxy.NodePortAddresses {
				if !a.IsLoopback() {
					add(decision.EntryNodePort, a, port.NodePort)
				}
			}
			if len(s.targets) < maxTargets && n.Family == decision.IPv4 && n.Proxy.LocalhostNodePorts {
				add(decision.EntryNodePort, netip.AddrFrom4([4]byte{127, 0, 0, 1}), port.NodePort)
			}
			for _, a := range port.ExternalIPs {
				add(decision.EntryExternalIP, a, port.Port)
			}
			for _, a := range port.LoadBalancerIPs {
				add(decision.EntryLoadBalancer, a, port.Port)
			}
			s.survey.Destinations = len(s.targets)
		}
	}
	s.survey.Ports = len(ports)
	s.endpointsHere()
}

// endpointsHere adds the endpoints of this node, to which other nodes translate.
func (s *surveyor) endpointsHere() {
	if s.sources[OtherPod] == nil {
		return
	}
	type key struct {
		to       netip.AddrPort
		protocol decision.Protocol
	}
	seen := make(map[key]bool)
	for port, e := range s.endpoints() {
		if at := (key{e.AddrPort, port.Protocol}); e.Locality == audit.OnThisNode && !seen[at] {
			seen[at] = true
			s.targets = append(s.targets, target{port: port, to: e.AddrPort, protocol: port.Protocol})
		}
	}
}

// endpoints are those of all services.
func (s *surveyor) endpoints() iter.Seq2[*audit.Service, *audit.Endpoint] {
	return func(yield func(*audit.Service, *audit.Endpoint) bool) {
		for _, n := range s.survey.Nodes {
			for _, port := range n.Services {
				for i := range port.Endpoints {
					if !yield(port, &port.Endpoints[i]) {
						return
					}
				}
			}
		}
	}
}

// sourcesFor are the sources whose connections to the target reach this node as such. A pod of another
// node uses its own node for all but this node's node ports; nobody outside uses cluster IPs.
func (s *surveyor) sourcesFor(t *target) []*Source {
	if s.one != nil {
		return []*Source{s.one}
	}
	of := kindsFor(t.entry)
	if t.to.Addr().IsLoopback() {
		of = []Kind{Node}
	}
	var sources []*Source
	for _, kind := range of {
		if from := s.sources[kind]; from != nil && (kind != Outside || s.mayUse(t)) {
			sources = append(sources, from)
		}
	}
	if slices.Contains(of, Pod) && len(s.named)*len(s.targets) <= maxPods {
		sources = append(sources, s.named...)
	}
	if t.entry == decision.EntryClusterIP && t.index < maxTargets {
		if from := s.itself(t); from != nil {
			sources = append(sources, from)
		}
	}
	return sources
}

// mayUse reports whether there are clients outside that may use a target: the source ranges of a load balancer may have
// only addresses of the cluster.
func (s *surveyor) mayUse(t *target) bool {
	if t.entry != decision.EntryLoadBalancer || len(t.port.SourceRanges) == 0 {
		return true
	}
	r := allowedRange(t.port)
	return r.Contains(s.sources[Outside].Addr) || !s.podNetwork().Overlaps(r) && (s.sources[Pod] == nil || !r.Contains(s.sources[Pod].Addr))
}

// allowedRange is the source range that connections from outside come from: one with a usual source, or the first one.
func allowedRange(port *audit.Service) netip.Prefix {
	for _, r := range port.SourceRanges {
		if slices.ContainsFunc(Outsiders(port.Family), r.Contains) {
			return r
		}
	}
	return port.SourceRanges[0]
}

func kindsFor(entry decision.Entry) []Kind {
	switch entry {
	case decision.EntryNone:
		return []Kind{OtherPod}
	case decision.EntryClusterIP:
		return []Kind{Pod, Node}
	case decision.EntryNodePort:
		return []Kind{Pod, OtherPod, Node, Outside}
	}
	return []Kind{Pod, Node, Outside}
}
