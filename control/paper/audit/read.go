package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// Read reads the services from a dump. It never fails: rules that it does not understand are among
// the problems or gaps.
func Read(d *iptables.Dump) *Node {
	r := newReader(d)
	r.node.Mode, r.node.Proof = proxymode.ModeOf([]*iptables.Dump{d})
	r.portals()
	r.nodePorts()
	r.refusals()
	r.firewalls()
	r.healthChecks()
	for _, s := range r.node.Services {
		r.follow(s)
	}
	r.proxy()
	r.settleLocality()
	r.settleLoadBalancerIPs()
	r.check()
	slices.SortStableFunc(r.node.Services, compareServices)
	return r.node
}

// reader is the state of Read.
type reader struct {
	node        *Node
	nat, filter table
	byName      map[nameKey]*Service
	bySuffix    map[string]*Service
	endpoints   map[string]*endpoint // by chain
	indexes     map[*Service]*index
	// claims are the rules for each address and node port, in order.
	claims map[claim][]*rule
	// detectors are the rules that detect pods, by kind.
	detectors  []detection
	detectedBy map[string]int // the index of each
	// masqueraded are the rules that masquerade all flows to a ClusterIP.
	masqueraded []*rule
	// withinService: a chain of a service masquerades flows to its ClusterIP, as since 1.21.
	withinService bool
	// commented: rules for services have comments.
	commented bool
	// marks are the rules of endpoints' chains that set the mark themselves, as those of 1.1.
	marks []iptables.SetMark
	// named and misnamed count the chains whose names are the hash of their purpose, and the
	// others.
	named    int
	misnamed []Issue
}

type nameKey struct {
	name     decision.ServicePortName
	protocol decision.Protocol
}

// claim is the destination of a service's packets.
type claim struct {
	addr     netip.Addr // zero: a node port
	port     uint16
	protocol decision.Protocol
}

// table is a table of the dump, chain by chain.
type table struct {
	name     string
	declared map[string]int // the chains in the file, with their lines
	rules    map[string][]*rule
	order    []string // of the chains with rules
	present  bool     // the file has the table
	dump     *iptables.Dump
}

func newTable(d *iptables.Dump, name string) table {
	t := table{name: name, dump: d, declared: make(map[string]int), rules: make(map[string][]*rule)}
	from := d.Table(name)
	if from == nil {
		return t
	}
	t.present = true
	for _, c := range from.Chains {
		t.declared[c.Name] = c.Line
	}
	for _, r := range from.Rules {
		if _, ok := t.declared[r.Chain]; !ok {
			t.declared[r.Chain] = r.Line
		}
		if t.rules[r.Chain] == nil {
			t.order = append(t.order, r.Chain)
		}
		t.rules[r.Chain] = append(t.rules[r.Chain], newRule(r))
	}
	return t
}

// isComplete reports whether the file has all rules of the chain, so that one that is not there does not
// exist.
func (t *table) isComplete(chain string) bool {
	return t.has(chain) && (t.dump.Listing == nil || t.dump.Lists(t.name, chain))
}

// has reports whether the file has the chain.
func (t *table) has(chain string) bool {
	_, ok := t.declared[chain]
	return ok
}

func newReader(d *iptables.Dump) *reader {
	family := decision.IPv4
	if d.Family == iptables.IPv6 {
		family = decision.IPv6
	}
	return &reader{
		node: &Node{Family: family, owners: make(map[*iptables.Rule]ruleOwner), chains: make(map[string]*Service), contests: make(map[*iptables.Rule]string)},
		nat:  newTable(d, "nat"), filter: newTable(d, "filter"),
		byName: make(map[nameKey]*Service), bySuffix: make(map[string]*Service),
		endpoints: make(map[string]*endpoint), indexes: make(map[*Service]*index), claims: make(map[claim][]*rule),
		detectedBy: make(map[string]int),
	}
}

// markExplained records that the service's properties explain the rule.
func (r *reader) markExplained(s *Service, of *rule) {
	r.node.owners[of.Rule] = ruleOwner{service: s}
}

func (r *reader) problem(text string, lines ...int) {
	r.node.Problems = append(r.node.Problems, issue(text, lines))
}

func (r *reader) gap(text string, lines ...int) {
	r.node.Gaps = append(r.node.Gaps, issue(text, lines))
}

func issue(text string, lines []int) Issue {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l int) bool { return l == 0 })
	slices.Sort(lines)
	return Issue{slices.Compact(lines), text}
}

// service returns the service with that name and those chains, and makes it if needed. name is the
// text of a comment; suffix may be empty.
func (r *reader) service(name, suffix string, p decision.Protocol) *Service {
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
		s = &Service{Protocol: p, Family: r.node.Family}
		r.node.Services = append(r.node.Services, s)
	}
	if named && s.Name == (decision.ServicePortName{}) {
		s.Name, s.hashed = spn, name
		r.byName[key] = s
	}
	if suffix != "" && s.suffix == "" {
		s.suffix = suffix
	}
	if suffix != "" && r.bySuffix[suffix] == nil {
		r.bySuffix[suffix] = s
	}
	return s
}

// The comments of the rules for each kind of address end with these words.
const (
	clusterIPWords    = " cluster IP"
	externalIPWords   = " external IP"
	loadBalancerWords = " loadbalancer IP"
)

// portals reads the rules for addresses, in KUBE-SERVICES of nat.
func (r *reader) portals() {
	for _, rule := range r.nat.rules[kubechains.Services] {
		ip, ok := rule.destination.host()
		kind, suffix, isService := serviceChain(rule.jump)
		// Until 1.23, a rule for an external IP could match more than the address.
		if !ok || !isService || rule.protocol == 0 || rule.port == 0 || rule.source.IsValid() {
			continue
		}
		r.commented = r.commented || rule.comment != ""
		name, words := rule.comment, ""
		for _, w := range []string{clusterIPWords, externalIPWords, loadBalancerWords} {
			if n, ok := strings.CutSuffix(rule.comment, w); ok {
				name, words = n, w
			}
		}
		s := r.service(name, suffix, rule.protocol)
		switch {
		case words == clusterIPWords || words == "" && (kind == servicePrefix || kind == localPrefix):
			rule.entry = decision.EntryClusterIP
			r.clusterIP(s, ip, rule)
			if kind == localPrefix {
				s.InternalPolicy = decision.Local
			}
		case words == loadBalancerWords || words == "" && kind == firewallPrefix:
			rule.entry = decision.EntryLoadBalancer
			r.loadBalancerIP(s, ip)
		default:
			rule.entry = decision.EntryExternalIP
			r.externalIP(s, ip)
		}
		r.port(s, rule)
		if rule.plain() {
			at := claim{ip, rule.port, rule.protocol}
			r.claims[at] = append(r.claims[at], rule)
			r.markExplained(s, rule)
		}
		r.enter(s, rule.jump)
	}
}

// enter records that the chain is the service's.
func (r *reader) enter(s *Service, chain string) {
	if r.node.chains[chain] == nil {
		r.node.chains[chain] = s
	}
}

// once sets a property that a service has once; a second value is a problem.
func once[T comparable](r *reader, s *Service, property *T, what string, value T, rule *rule) {
	var none T
	if *property != none && *property != value {
		r.problem(fmt.Sprintf("%s has a second %s, %v beside %v", s.Title(), what, value, *property), rule.Line)
		return
	}
	*property = value
}

func (r *reader) clusterIP(s *Service, ip netip.Addr, rule *rule) {
	once(r, s, &s.ClusterIP, "cluster IP", ip, rule)
}

func (r *reader) port(s *Service, rule *rule) { once(r, s, &s.Port, "port", rule.port, rule) }

func (r *reader) nodePort(s *Service, rule *rule) {
	once(r, s, &s.NodePort, "node port", rule.port, rule)
}

// nodePorts reads KUBE-NODEPORTS of nat.
func (r *reader) nodePorts() {
	for _, rule := range r.nat.rules[kubechains.NodePorts] {
		_, suffix, isService := serviceChain(rule.jump)
		if !isService || rule.protocol == 0 || rule.port == 0 {
			continue
		}
		s := r.service(rule.comment, suffix, rule.protocol)
		r.nodePort(s, rule)
		r.enter(s, rule.jump)
		if rule.counter == kubechains.LocalhostAccepted && rule.plain() && !rule.source.IsValid() {
			// The next rule does the same, without counting.
			r.node.Proxy.NFAcct = true
			r.node.owners[rule.Rule] = ruleOwner{service: s, counts: true}
			continue
		}
		rule.entry = decision.EntryNodePort
		if rule.plain() && !rule.source.IsValid() && !rule.destination.IsValid() {
			at := claim{netip.Addr{}, rule.port, rule.protocol}
			r.claims[at] = append(r.claims[at], rule)
			r.markExplained(s, rule)
		}
	}
}

// settleLoadBalancerIPs removes load balancer IPs that another port of the same Service shows from
// the external ones.
func (r *reader) settleLoadBalancerIPs() {
	known := make(map[decision.ServiceName]map[netip.Addr]bool)
	for _, s := range r.node.Services {
		name := s.Name.Service()
		if known[name] == nil {
			known[name] = make(map[netip.Addr]bool)
		}
		for _, ip := range s.LoadBalancerIPs {
			known[name][ip] = true
		}
	}
	for _, s := range r.node.Services {
		if !s.Refused || s.Name == (decision.ServicePortName{}) {
			continue
		}
		of := known[s.Name.Service()]
		isKnown := func(ip netip.Addr) bool { return of[ip] }
		for _, ip := range s.ExternalIPs {
			if isKnown(ip) {
				r.loadBalancerIP(s, ip)
			}
		}
		s.ExternalIPs = slices.DeleteFunc(s.ExternalIPs, isKnown)
	}
}

func compareServices(a, b *Service) int {
	unnamed := func(s *Service) int {
		if s.Name == (decision.ServicePortName{}) {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(unnamed(a), unnamed(b)),
		a.Name.Service().Compare(b.Name.Service()),
		a.ClusterIP.Compare(b.ClusterIP),
		cmp.Compare(a.Name.Port, b.Name.Port),
		cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol),
	)
}
