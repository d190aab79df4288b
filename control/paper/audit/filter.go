package audit

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// The comments of rules of filter that refuse packets end with these words.
const (
	noEndpointsWords      = " has no endpoints"
	noLocalEndpointsWords = " has no local endpoints"
)

// refusals reads the rules of filter for services without endpoints.
func (r *reader) refusals() {
	for _, chain := range []string{kubechains.Services, kubechains.ExternalServices} {
		for _, rule := range r.filter.rules[chain] {
			r.refusal(chain, rule)
		}
	}
}

func (r *reader) refusal(chain string, rule *rule) {
	_, reject := rule.Target.(iptables.Reject)
	drop := rule.Target == iptables.Drop
	r.noteUnported(rule)
	if !reject && !drop || rule.protocol == 0 || rule.port == 0 || rule.other {
		return
	}
	words := noEndpointsWords
	if drop {
		words = noLocalEndpointsWords
	}
	name, ok := strings.CutSuffix(rule.comment, words)
	if !ok && (r.commented || rule.comment != "") {
		return // another program's: kube-proxy says what its rule is for
	}
	ip, to := rule.destination.host()
	if !to && (!rule.toNode || rule.destination.IsValid()) {
		return
	}
	s := r.refused(name, ip, rule)
	switch {
	case !to:
		r.nodePort(s, rule.port, rule.Line)
	case chain == kubechains.Services:
		r.clusterIP(s, ip, rule.Line)
		r.port(s, rule.port, rule.Line)
	default:
		if !r.index(s).loadBalancerIPs.seen[ip] {
			r.externalIP(s, ip)
		}
		r.port(s, rule.port, rule.Line)
	}
	s.Refused = s.Refused || reject
	if drop {
		s.Dropped = true
		if chain == kubechains.Services {
			s.InternalPolicy = decision.Local
		} else {
			s.ExternalPolicy = decision.Local
		}
	}
	r.markExplained(s, rule)
}

// refused is the service of a refused packet: by name, or by the rule of nat for the same address.
func (r *reader) refused(name string, ip netip.Addr, rule *rule) *Service {
	if _, named := parseName(name); !named {
		if same := r.claims[claim{ip, rule.port, rule.protocol}]; len(same) > 0 {
			return r.node.owners[same[0].Rule].service
		}
	}
	return r.service(name, "", rule.protocol)
}

// firewalls reads KUBE-PROXY-FIREWALL, which drops packets to load balancer IPs from outside the
// source ranges.
func (r *reader) firewalls() {
	for _, rule := range r.filter.rules[kubechains.ProxyFirewall] {
		ip, ok := rule.destination.host()
		name, suffix, _ := strings.Cut(rule.comment, " traffic not accepted by "+firewallPrefix)
		if !ok || rule.Target != iptables.Drop || rule.protocol == 0 || rule.port == 0 {
			continue
		}
		if same := r.claims[claim{ip, rule.port, rule.protocol}]; suffix == "" && len(same) > 0 {
			suffix = r.node.owners[same[0].Rule].service.suffix
		}
		if suffix == "" {
			continue
		}
		s := r.service(name, suffix, rule.protocol)
		r.loadBalancerIP(s, ip)
		r.port(s, rule.port, rule.Line)
		r.markExplained(s, rule)
	}
}

// healthChecks reads KUBE-NODEPORTS of filter.
func (r *reader) healthChecks() {
	byName := make(map[decision.ServicePortName][]*Service)
	for _, s := range r.node.Services {
		byName[s.Name] = append(byName[s.Name], s)
	}
	for _, rule := range r.filter.rules[kubechains.NodePorts] {
		name, ok := strings.CutSuffix(rule.comment, " health check node port")
		spn, named := parseName(name)
		if !ok || !named || rule.port == 0 {
			continue
		}
		// The check always uses TCP, with any protocol of the service.
		for _, s := range byName[spn] {
			s.HealthCheckNodePort, s.ExternalPolicy = rule.port, decision.Local
			r.markExplained(s, rule)
		}
	}
}
