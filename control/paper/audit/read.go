package audit

import (
	"cmp"
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
	if d.Ruleset != nil {
		return readNative(d)
	}
	r := newReader(d)
	r.node.Mode, r.node.Proof = proxymode.ModeOf([]*iptables.Dump{d})
	r.portals()
	r.nodePorts()
	r.unledTo()
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
	gathered
	nat, filter table
	endpoints   map[string]*endpoint // by chain
	// claims are the rules for each address and node port, in order.
	claims map[claim][]*rule
	// masqueraded are the rules that masquerade all flows to a ClusterIP.
	masqueraded []*rule
	// withinService: a chain of a service masquerades flows to its ClusterIP, as since 1.21.
	withinService bool
	// commented: rules for services have comments.
	commented bool
	// marks are the rules of endpoints' chains that set the mark themselves, as those of 1.1.
	marks []iptables.SetMark
	// unread are the lines of rules of services whose address or port is masked or lost.
	unread []int
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
	order    []string        // of the chains with rules
	present  bool            // the file has the table
	unread   map[string]bool // the chains with a rule whose target cannot be read, and those of kube-proxy with one of which any part is masked or lost
	hides    bool            // a target cannot be read: it may be any chain
	dump     *iptables.Dump
}

func newTable(d *iptables.Dump, name string) table {
	t := table{name: name, dump: d, declared: make(map[string]int), rules: make(map[string][]*rule), unread: make(map[string]bool)}
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
		rule := newRule(r)
		t.rules[r.Chain] = append(t.rules[r.Chain], rule)
		t.unread[r.Chain] = t.unread[r.Chain] || rule.unread && strings.HasPrefix(r.Chain, "KUBE-") || rule.hides
		t.hides = t.hides || rule.hides
	}
	return t
}

// isComplete reports whether the file has all rules of the chain, and all of each rule, so that one that is not there does not
// exist.
func (t *table) isComplete(chain string) bool {
	return t.has(chain) && !t.unread[chain] && (t.dump.Listing == nil || t.dump.Lists(t.name, chain))
}

// isWhole is isComplete for rules at the end of the chain, which a listing that was cut off there lacks.
func (t *table) isWhole(chain string) bool {
	rules := t.rules[chain]
	last := 0
	for _, of := range t.dump.Tables {
		if n := len(of.Rules); n > 0 {
			last = max(last, of.Rules[n-1].Line)
		}
	}
	cut := t.dump.Listing != nil && len(rules) > 0 && rules[len(rules)-1].Line == last
	return t.isComplete(chain) && !cut
}

// has reports whether the file has the chain.
func (t *table) has(chain string) bool {
	_, ok := t.declared[chain]
	return ok
}

func newReader(d *iptables.Dump) *reader {
	return &reader{
		gathered: newGathered(cmp.Or(d.Family, decision.IPv4), servicePrefix),
		nat:      newTable(d, "nat"), filter: newTable(d, "filter"),
		endpoints: make(map[string]*endpoint), claims: make(map[claim][]*rule),
	}
}

// markExplained records that the service's properties explain the rule.
func (r *reader) markExplained(s *Service, of *rule) {
	r.node.owners[of.Rule] = ruleOwner{service: s}
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
		r.noteUnported(rule)
		// Until 1.23, a rule for an external IP could match more than the address.
		hidden := !ok || rule.port == 0
		if !isService || rule.protocol == 0 || rule.source.IsValid() || hidden && !rule.unread {
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
		if hidden {
			r.unread = append(r.unread, rule.Line)
		}
		switch {
		case !ok:
		case words == clusterIPWords || words == "" && (kind == servicePrefix || kind == localPrefix):
			rule.entry = decision.EntryClusterIP
			r.clusterIP(s, ip, rule.Line)
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
		if rule.port != 0 {
			r.port(s, rule.port, rule.Line)
		}
		if rule.plain() {
			at := claim{ip, rule.port, rule.protocol}
			r.claims[at] = append(r.claims[at], rule)
			r.markExplained(s, rule)
		}
		r.enter(s, rule.jump)
	}
}

// noteUnported records the service of a rule whose port iptables did not print.
func (r *reader) noteUnported(of *rule) {
	if name := of.comment; of.unported {
		for _, w := range []string{clusterIPWords, externalIPWords, loadBalancerWords, noEndpointsWords, noLocalEndpointsWords} {
			name = strings.TrimSuffix(name, w)
		}
		if spn, ok := parseName(name); ok {
			r.node.unported.add(spn.String())
		}
	}
}

// nodePorts reads KUBE-NODEPORTS of nat.
func (r *reader) nodePorts() {
	for _, rule := range r.nat.rules[kubechains.NodePorts] {
		_, suffix, isService := serviceChain(rule.jump)
		r.noteUnported(rule)
		if !isService || rule.protocol == 0 || rule.port == 0 && !rule.unread {
			continue
		}
		s := r.service(rule.comment, suffix, rule.protocol)
		r.enter(s, rule.jump)
		if rule.port == 0 {
			s.hiddenNodePort, r.unread = true, append(r.unread, rule.Line)
			continue
		}
		r.nodePort(s, rule.port, rule.Line)
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

// unledTo reads services of which a part of a dump has the chain that balances, but not the rules that lead to it.
func (r *reader) unledTo() {
	if r.nat.isComplete(kubechains.Services) {
		return
	}
	for _, chain := range r.nat.order {
		kind, suffix, _ := serviceChain(chain)
		if kind != servicePrefix || r.node.chains[chain] != nil {
			continue
		}
		name, at, protocol := "", (*rule)(nil), decision.Protocol(0)
		for _, rule := range r.nat.rules[chain] {
			if portal, ok := strings.CutSuffix(rule.comment, clusterIPWords); ok && rule.jump == kubechains.MarkMasq {
				name, at, protocol = portal, rule, rule.protocol
			} else if strings.HasPrefix(rule.jump, endpointPrefix) {
				name, _, _ = strings.Cut(rule.comment, " -> ")
				for _, translates := range r.nat.rules[rule.jump] {
					protocol = cmp.Or(protocol, translates.protocol)
				}
			}
		}
		if _, ok := parseName(name); !ok || protocol == 0 {
			continue
		}
		s := r.service(name, suffix, protocol)
		if r.enter(s, chain); at == nil {
			continue
		}
		if ip, ok := at.destination.host(); ok && at.port != 0 {
			r.clusterIP(s, ip, at.Line)
			r.port(s, at.port, at.Line)
		}
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
