package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// gathered is what the readers of both modes gather: services by name and by chain.
type gathered struct {
	node      *Node
	chainKind string // of the chain that balances over the cluster's endpoints
	byName    map[nameKey]*Service
	bySuffix  map[string]*Service
	indexes   map[*Service]*index
	detections
	// named counts the chains whose names are the hash of their purpose, by what is hashed beside addresses, and misnamed are the others.
	named    map[string]int
	misnamed []misnamed
}

// misnamed is a chain with another name than the hash of its purpose.
type misnamed struct {
	Issue
	group string // see gathered.named
}

type nameKey struct {
	name     decision.ServicePortName
	protocol decision.Protocol
}

func newGathered(f decision.Family, chainKind string) gathered {
	return gathered{
		node:      &Node{Family: f, owners: make(map[*iptables.Rule]ruleOwner), chains: make(map[string]*Service), contests: make(map[*iptables.Rule]string)},
		chainKind: chainKind,
		named:     make(map[string]int),
		byName:    make(map[nameKey]*Service), bySuffix: make(map[string]*Service), indexes: make(map[*Service]*index),
		detections: detections{by: make(map[string]*detection)},
	}
}

func (r *gathered) problem(text string, lines ...int) {
	r.node.Problems = append(r.node.Problems, issue(text, lines))
}

func (r *gathered) gap(text string, lines ...int) {
	r.node.Gaps = append(r.node.Gaps, issue(text, lines))
}

// lackChains records the chains that the file does not have, with the lines that lead to them.
func (r *gathered) lackChains(missing []string, lines []int) {
	const few = 5
	switch n := len(missing); {
	case n == 1:
		r.gap(fmt.Sprintf("chain %s is not in the file", missing[0]), lines...)
	case n > 1:
		r.gap(fmt.Sprintf("%d chains are not in the file: %s", n, quantity.Some(missing, few)), lines...)
	}
}

func issue(text string, lines []int) Issue {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l int) bool { return l == 0 })
	slices.Sort(lines)
	return Issue{slices.Compact(lines), text}
}

// service returns the service with that name and those chains, and makes it if needed. name is the
// text of a comment; suffix may be empty.
func (r *gathered) service(name, suffix string, p decision.Protocol) *Service {
	spn, named := parseName(name)
	key := nameKey{spn, p}
	var s *Service
	if named {
		s = r.byName[key]
	}
	if s == nil && suffix != "" {
		// Another name for the same chains is another service, unless it had none.
		if of := r.bySuffix[suffix]; of != nil && (!named || of.Name == decision.ServicePortName{}) {
			s = of
		}
	}
	if s == nil {
		s = &Service{Protocol: p, Family: r.node.Family, chainKind: r.chainKind}
		r.node.Services = append(r.node.Services, s)
	}
	if named && s.Name == (decision.ServicePortName{}) {
		s.Name, s.hashed = spn, name
		r.byName[key] = s
	}
	s.suffix = cmp.Or(s.suffix, suffix)
	if suffix != "" && r.bySuffix[suffix] == nil {
		r.bySuffix[suffix] = s
	}
	return s
}

// enter records that the chain is the service's.
func (r *gathered) enter(s *Service, chain string) {
	if r.node.chains[chain] == nil {
		r.node.chains[chain] = s
	}
}

// once sets a property that a service has once; a second value is a problem.
func once[T comparable](r *gathered, s *Service, property *T, what string, value T, line int) {
	var none T
	if *property != none && *property != value {
		r.problem(fmt.Sprintf("%s has a second %s, %v beside %v", s.Title(), what, value, *property), line)
		return
	}
	*property = value
}

func (r *gathered) clusterIP(s *Service, ip netip.Addr, line int) {
	once(r, s, &s.ClusterIP, "cluster IP", ip, line)
}

func (r *gathered) port(s *Service, port uint16, line int) { once(r, s, &s.Port, "port", port, line) }

func (r *gathered) nodePort(s *Service, port uint16, line int) {
	once(r, s, &s.NodePort, "node port", port, line)
}

// settleLoadBalancerIPs removes load balancer IPs that another port of the same Service shows from
// the external ones.
func (r *gathered) settleLoadBalancerIPs() {
	type address struct {
		of decision.ServiceName
		ip netip.Addr
	}
	known := make(map[address]bool)
	for _, s := range r.node.Services {
		for _, ip := range s.LoadBalancerIPs {
			known[address{s.Name.Service(), ip}] = true
		}
	}
	for _, s := range r.node.Services {
		if !s.Refused || s.Name == (decision.ServicePortName{}) {
			continue
		}
		isKnown := func(ip netip.Addr) bool { return known[address{s.Name.Service(), ip}] }
		for _, ip := range s.ExternalIPs {
			if isKnown(ip) {
				r.loadBalancerIP(s, ip)
			}
		}
		s.ExternalIPs = slices.DeleteFunc(s.ExternalIPs, isKnown)
	}
}

// index has the positions of the values in a service's lists, while it is read.
type index struct {
	externalIPs, loadBalancerIPs unique[netip.Addr]
	sourceRanges                 unique[netip.Prefix]
	endpoints                    map[string]int // by chain
}

func (r *gathered) index(s *Service) *index {
	i := r.indexes[s]
	if i == nil {
		i = &index{endpoints: make(map[string]int)}
		r.indexes[s] = i
	}
	return i
}

func (r *gathered) externalIP(s *Service, ip netip.Addr) {
	i := r.index(s)
	i.externalIPs.add(ip)
	s.ExternalIPs = i.externalIPs.values
}

func (r *gathered) loadBalancerIP(s *Service, ip netip.Addr) {
	i := r.index(s)
	i.loadBalancerIPs.add(ip)
	s.LoadBalancerIPs = i.loadBalancerIPs.values
}

// anAddress ends the name of a group of endpoints' chains.
const anAddress = " and an address"

func (r *gathered) compareName(chain, want, have, of string, line int) {
	group, _, isEndpoint := strings.Cut(of, " and ")
	if isEndpoint {
		group += anAddress
	}
	if want == have {
		r.named[group]++
		return
	}
	r.misnamed = append(r.misnamed, misnamed{issue(fmt.Sprintf("chain %s should be %s, the hash of %s", chain, want, of), []int{line}), group})
}

// checkNames reports the chains with a wrong name. If no name of a service's chains is right, or none of its endpoints' chains, somebody
// made the file anonymous, as people do with the address of the API server: the chains lead to each other all the same.
func (r *gathered) checkNames() {
	anonymous := 0
	for _, m := range r.misnamed {
		switch {
		case r.named[m.group] > 0, len(r.misnamed) == 1 && !strings.HasSuffix(m.group, anAddress):
			r.node.Problems = append(r.node.Problems, m.Issue)
		case len(r.misnamed) == 1:
			r.gap(m.Text+": the name or the address in the file may not be the real one", m.Lines...)
		default:
			anonymous++
		}
	}
	switch {
	case anonymous > 0 && len(r.named) == 0:
		r.gap(fmt.Sprintf("none of the %d chains has the name that kube-proxy would give it: names or addresses in the file are not the real ones", anonymous))
	case anonymous > 0:
		r.gap(fmt.Sprintf("%d chains of services do not have the names that kube-proxy would give them: names or addresses in the file are not the real ones", anonymous))
	}
}

// balances reports whether there is a service with endpoints: its rules show the detection of pods, and whether all flows
// are masqueraded.
func (r *gathered) balances() bool {
	return slices.ContainsFunc(r.node.Services, func(s *Service) bool {
		b := s.balanced[s.InternalPolicy]
		return b != nil && len(b.shares) > 0 && s.ClusterIP.IsValid()
	})
}

// settleLocality sets the locality of endpoints, if a service of policy Local or the prefix of the
// node's pods shows it.
func (r *gathered) settleLocality() {
	where := make(map[netip.Addr]Locality)
	for _, s := range r.node.Services {
		knows := s.balanced[decision.Local] != nil || s.Dropped
		for _, e := range s.Endpoints {
			switch a := e.AddrPort.Addr(); {
			case !a.IsValid():
			case e.LocalShare > 0:
				where[a] = OnThisNode
			case knows && where[a] == LocalityUnknown:
				where[a] = OnAnotherNode
			}
		}
	}
	for _, s := range r.node.Services {
		for i := range s.Endpoints {
			a := s.Endpoints[i].AddrPort.Addr()
			s.Endpoints[i].Locality = cmp.Or(s.Endpoints[i].Locality, where[a], r.node.Proxy.locality(a))
		}
	}
}

// locality returns the locality of an address by the prefixes of pods.
func (p *Proxy) locality(a netip.Addr) Locality {
	switch {
	case !p.NodePodCIDR.IsValid() || !p.PodCIDR.Contains(a):
		return LocalityUnknown
	case p.NodePodCIDR.Contains(a):
		return OnThisNode
	}
	return OnAnotherNode
}
