package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Comparison is the changes between two dumps of a node.
type Comparison struct {
	Services []ServiceChange // by name
	Servers  []ServerChange  // virtual servers of IPVS
	Proxy    []Detail        // the proxy's configuration
	// Tables are the differences that services and configuration do not explain; or all.
	Tables []TableChange
	// Reordered counts rules of services that are in another place without an effect: kube-proxy
	// writes them in no fixed order. They are not among Tables, unless all are.
	Reordered int
	// Notes are about what was not compared, one sentence each.
	Notes []string
}

// Same reports whether nothing changed.
func (c *Comparison) Same() bool {
	return len(c.Services) == 0 && len(c.Servers) == 0 && len(c.Proxy) == 0 && len(c.Tables) == 0
}

// ServiceChange is the change of a service port.
type ServiceChange struct {
	Before  *Service // nil: it is new
	After   *Service // nil: it is gone
	Details []Detail // what changed, if it is in both
	IPVS    bool     // it is one of virtual servers, and not of rules
}

// Detail is one thing that changed.
type Detail struct {
	Change Change `json:"change"`
	Text   string `json:"text"`
}

// Change is the kind of a change.
type Change string

// The changes.
const (
	Added   Change = "added"
	Removed Change = "removed"
	Changed Change = "changed"
)

// Change returns the kind of the change.
func (c *ServiceChange) Change() Change {
	switch {
	case c.Before == nil:
		return Added
	case c.After == nil:
		return Removed
	}
	return Changed
}

// Service returns the service port after the change, or before it if it was removed.
func (c *ServiceChange) Service() *Service { return cmp.Or(c.After, c.Before) }

// Compare returns the differences of the second dump: services first, and then the rules that
// these do not explain. With all it includes every difference of rules.
func Compare(before, after *iptables.Dump, all bool) *Comparison {
	was, is := Read(before), Read(after)
	c := &Comparison{Services: CompareServices(was, is), Proxy: compareProxies(&was.Proxy, &is.Proxy)}
	if names := append(slices.Clone(was.unported.values), is.unported.values...); len(names) > 0 {
		c.Notes = append(c.Notes, "services with rules whose ports iptables did not print: "+nearest.Few(names))
	}
	tables := iptables.Diff(before, after)
	if all {
		for _, t := range tables {
			c.Tables = append(c.Tables, newTableChange(&t))
		}
		return c
	}
	k := knowledge{was, is, make(map[*Service]*ServiceChange), c}
	for i := range c.Services {
		change := &c.Services[i]
		k.changed[change.Before], k.changed[change.After] = change, change
	}
	delete(k.changed, nil)
	for _, t := range tables {
		if t = k.unexplained(t); t.Added || t.Removed || len(t.Chains) > 0 {
			c.Tables = append(c.Tables, newTableChange(&t))
		}
	}
	return c
}

// CompareServices returns the changes of services between two nodes, or one node at two times, whose rules may be of different
// modes: what only one of them shows is not compared.
func CompareServices(before, after *Node) []ServiceChange {
	was, is := before.Services, after.Services
	if (before.Mode == proxymode.ModeNFTables) != (after.Mode == proxymode.ModeNFTables) {
		was, is = shownByAll(was), shownByAll(is)
	}
	return slices.DeleteFunc(compareAll(was, is), func(c ServiceChange) bool {
		name := c.Service().Name.String()
		return before.unported.seen[name] || after.unported.seen[name]
	})
}

// shownByAll are services with what the rules of both modes show: those of nftables do not tell load balancer IPs from external
// IPs in all cases, and have no health checks.
func shownByAll(services []*Service) (list []*Service) {
	for _, s := range services {
		of := *s
		of.ExternalIPs, of.LoadBalancerIPs, of.HealthCheckNodePort = s.addresses(), nil, 0
		list = append(list, &of)
	}
	return list
}

// compareAll pairs services by name and protocol, or by address.
func compareAll(before, after []*Service) []ServiceChange {
	type identity struct {
		nameKey
		at claim
	}
	identify := func(s *Service) identity {
		if s.Name != (decision.ServicePortName{}) {
			return identity{nameKey: nameKey{s.Name, s.Protocol}}
		}
		return identity{at: claim{s.ClusterIP, cmp.Or(s.Port, s.NodePort), s.Protocol}}
	}
	was := make(map[identity]*Service)
	for _, s := range before {
		was[identify(s)] = s
	}
	var changes []ServiceChange
	for _, s := range after {
		old := was[identify(s)]
		delete(was, identify(s))
		if old == nil {
			changes = append(changes, ServiceChange{After: s})
		} else if details := compareService(old, s); len(details) > 0 {
			changes = append(changes, ServiceChange{Before: old, After: s, Details: details})
		}
	}
	for _, s := range was {
		changes = append(changes, ServiceChange{Before: s})
	}
	slices.SortStableFunc(changes, func(a, b ServiceChange) int { return compareServices(a.Service(), b.Service()) })
	return changes
}

// details collects what changed.
type details []Detail

func (d *details) add(change Change, format string, args ...any) {
	*d = append(*d, Detail{change, fmt.Sprintf(format, args...)})
}

// value records a changed property; the zero value means that it has none.
func value[T comparable](d *details, what string, before, after T) {
	var none T
	switch {
	case before == after:
	case before == none:
		d.add(Added, "%s %v", what, after)
	case after == none:
		d.add(Removed, "%s %v", what, before)
	default:
		changed(d, what, before, after)
	}
}

// changed records any change of a property, also from and to the zero value.
func changed[T comparable](d *details, what string, before, after T) {
	if before != after {
		d.add(Changed, "%s %v -> %v", what, before, after)
	}
}

// set records what was added to a list, or removed from it.
func set[T comparable](d *details, what string, before, after []T) {
	was, is := setOf(before), setOf(after)
	for _, v := range before {
		if !is[v] {
			d.add(Removed, "%s %v", what, v)
		}
	}
	for _, v := range after {
		if !was[v] {
			d.add(Added, "%s %v", what, v)
		}
	}
}

func compareService(was, is *Service) []Detail {
	d := &details{}
	value(d, "cluster IP", was.ClusterIP, is.ClusterIP)
	value(d, "port", was.Port, is.Port)
	value(d, "node port", was.NodePort, is.NodePort)
	if was.Refused || is.Refused {
		// The rules of one that is refused show no policies, and all addresses alike.
		set(d, "external IP", was.addresses(), is.addresses())
	} else {
		compareShown(d, was, is)
	}
	value(d, "health check node port", was.HealthCheckNodePort, is.HealthCheckNodePort)
	switch {
	case is.Refused && !was.Refused:
		d.add(Changed, "refused: it has no endpoints anymore")
	case was.Refused && !is.Refused:
		d.add(Changed, "no longer refused: it has endpoints")
	}
	switch {
	case is.Dropped && !was.Dropped:
		d.add(Changed, "dropped under policy Local: it has no endpoints on this node")
	case was.Dropped && !is.Dropped:
		d.add(Changed, "no longer dropped under policy Local")
	}
	compareEndpoints(d, was.Endpoints, is.Endpoints)
	return *d
}

// addresses are those for traffic from outside, load balancer IPs last.
func (s *Service) addresses() []netip.Addr { return slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) }

// compareShown compares what rules show of a service with endpoints only.
func compareShown(d *details, was, is *Service) {
	set(d, "external IP", was.ExternalIPs, is.ExternalIPs)
	set(d, "load balancer IP", was.LoadBalancerIPs, is.LoadBalancerIPs)
	set(d, "source range", was.SourceRanges, is.SourceRanges)
	words := map[bool]string{true: "allowed"}
	value(d, "source range of the node itself", words[was.NodeAllowed], words[is.NodeAllowed])
	changed(d, "internal traffic policy", was.InternalPolicy, is.InternalPolicy)
	if was.External() && is.External() {
		changed(d, "external traffic policy", was.ExternalPolicy, is.ExternalPolicy)
	}
	value(d, "session affinity", was.affinity(), is.affinity())
}

// place is the address of an endpoint, or else the name of its chain.
func (e *Endpoint) place() string {
	if e.AddrPort.IsValid() {
		return e.AddrPort.String()
	}
	return e.Chain
}

func compareEndpoints(d *details, before, after []Endpoint) {
	was, is := make(map[string]*Endpoint), make(map[string]bool)
	for i := range after {
		is[after[i].place()] = true
	}
	for i := range before {
		e := &before[i]
		was[e.place()] = e
		if !is[e.place()] {
			d.add(Removed, "endpoint %s", e.place())
		}
	}
	// Endpoints with the same change of their share are listed together.
	var ways []string
	moved := make(map[string][]string)
	for i := range after {
		e := &after[i]
		old := was[e.place()]
		if old == nil {
			d.add(Added, "endpoint %s (%s)", e.place(), e.shares())
		} else if from, to := old.shares(), e.shares(); from != to {
			way := from + " -> " + to
			if moved[way] == nil {
				ways = append(ways, way)
			}
			moved[way] = append(moved[way], e.place())
		}
	}
	for _, way := range ways {
		d.add(Changed, "share of %s: %s", someOf(moved[way]), way)
	}
}

// someOf lists names, the first few of many.
func someOf(names []string) string {
	const few = 3
	if more := len(names) - few; more > 1 {
		names = append(slices.Clone(names[:few]), fmt.Sprintf("%d others", more))
	}
	return quantity.All(names)
}

// shares is "1/2", or "1/2, 1 under policy Local".
func (e *Endpoint) shares() string {
	if e.ShareUnknown {
		return "share not known"
	}
	local := shareText(e.LocalShare) + " under policy Local"
	switch {
	case e.LocalShare == 0:
		return shareText(e.Share)
	case e.Share == 0:
		return local
	}
	return shareText(e.Share) + ", " + local
}

// shareText is "1/n", if that is the share apart from rounding, or else a percentage.
func shareText(share float64) string {
	if share > 0 {
		n := 1 / share
		if whole := float64(int(n + 0.5)); n > whole*0.999 && n < whole*1.001 {
			if whole == 1 {
				return "all flows"
			}
			return fmt.Sprintf("1/%.0f", whole)
		}
	}
	return percent(share)
}

// compareProxies compares the configuration that both dumps show.
func compareProxies(was, is *Proxy) []Detail {
	d := &details{}
	if was.Version != "" && is.Version != "" && !oneVersion(was, is) {
		value(d, "kube-proxy", was.Version, is.Version)
	}
	if was.balances && is.balances {
		changed(d, "masquerade all ClusterIP flows:", was.MasqueradeAll, is.MasqueradeAll)
	}
	// If all flows are masqueraded, no rule detects pods.
	if was.balances && is.balances && !was.MasqueradeAll && !is.MasqueradeAll {
		value(d, "pods' addresses", validText(was.PodCIDR), validText(is.PodCIDR))
		value(d, "pods' bridge", was.Bridge, is.Bridge)
		value(d, "prefix of pods' interfaces", was.InterfacePrefix, is.InterfacePrefix)
	}
	value(d, "masquerade mark", fmt.Sprintf("%#x", was.MasqueradeMark), fmt.Sprintf("%#x", is.MasqueradeMark))
	changed(d, "node ports on 127.0.0.1:", was.LocalhostNodePorts, is.LocalhostNodePorts)
	set(d, "node ports on", was.NodePortAddresses, is.NodePortAddresses)
	set(d, "cluster IPs in", was.ServiceCIDRs, is.ServiceCIDRs)
	changed(d, "nfacct counters:", was.NFAcct, is.NFAcct)
	changed(d, "INVALID packets pass:", was.PassesInvalid, is.PassesInvalid)
	return *d
}

// counting is the condition for rules that count in nfacct.
func (p *Proxy) counting() [3]bool { return [3]bool{p.NFAcct, p.PassesInvalid, p.LocalhostNodePorts} }

// knowledge is the differences that the comparison of services has shown.
type knowledge struct {
	was, is    *Node
	changed    map[*Service]*ServiceChange
	comparison *Comparison
}

// unexplained removes from the differences those that are explained.
func (k *knowledge) unexplained(t iptables.TableDiff) iptables.TableDiff {
	var left []iptables.ChainDiff
	for _, c := range t.Chains {
		c.Rules = slices.DeleteFunc(c.Rules, func(r iptables.RuleDiff) bool {
			if r.Moved() {
				return k.reordered(&c, &r)
			}
			return r.Before != nil && k.explains(k.was, r.Before, &c) || r.After != nil && k.explains(k.is, r.After, &c)
		})
		toldChain := t.Name == "nat" && (c.After == nil && k.changed[k.was.chains[c.Name]] != nil || c.Before == nil && k.changed[k.is.chains[c.Name]] != nil)
		exists := iptables.Builtin(t.Name, c.Name) || c.Before != nil && c.After != nil
		if len(c.Rules) > 0 || c.PolicyChanged() || !exists && !toldChain {
			left = append(left, c)
		}
	}
	t.Chains = left
	return t
}

// reordered counts a rule that stands in another place of a chain whose order has no
// effect on the services' rules in it.
func (k *knowledge) reordered(c *iptables.ChainDiff, r *iptables.RuleDiff) bool {
	_, owned := k.is.owners[r.After]
	// Of several services with the same claim, the first gets the flows.
	if k.is.contests[r.After] != k.was.contests[r.Before] {
		return false
	}
	switch c.Name {
	case kubechains.Services, kubechains.NodePorts, kubechains.ExternalServices, kubechains.ProxyFirewall:
		if owned {
			k.comparison.Reordered++
			return true
		}
	}
	return false
}

// explains reports whether the change of its service explains that the rule is new or gone.
func (k *knowledge) explains(n *Node, r *iptables.Rule, c *iptables.ChainDiff) bool {
	of, owned := n.owners[r]
	if !owned {
		return false
	}
	change := k.changed[of.service]
	switch {
	case of.counts && k.was.Proxy.counting() != k.is.Proxy.counting():
		return true
	case change == nil:
		return false
	case change.Change() != Changed:
		return true
	case of.masquerade:
		was, is := change.Before, change.After
		return was.ClusterIP != is.ClusterIP || was.Port != is.Port || was.InternalPolicy != is.InternalPolicy ||
			(was.balanced[was.InternalPolicy] == nil) != (is.balanced[is.InternalPolicy] == nil)
	case strings.HasPrefix(r.Chain, endpointPrefix):
		return c.Before == nil || c.After == nil || change.Before.AffinitySeconds != change.After.AffinitySeconds && iptables.NameOf(r.Target) == "DNAT"
	}
	return true
}
