package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// check looks for inconsistencies in all that was read.
func (r *nftReader) check() {
	missing := r.checkMissing()
	r.checkHooks()
	r.checkShared()
	r.checkElements()
	if !missing && r.leadsToAll() {
		r.checkUnused()
	}
	r.checkClusterIPs()
	for _, s := range r.node.Services {
		r.checkBalance(s, missing)
	}
	r.checkNames()
	r.node.sortIssues()
}

// leadsToAll reports whether the file has all that leads to the chains of services.
func (r *nftReader) leadsToAll() bool {
	return r.chains["nat-prerouting"] != nil && r.chains[nftproxy.Services] != nil && r.sets[nftproxy.ServiceIPs] != nil && r.sets[nftproxy.ServiceNodePorts] != nil
}

// isComplete reports whether the file has the whole table, and not a few of its chains.
func (r *nftReader) isComplete() bool {
	return r.leadsToAll() && r.sets[nftproxy.NoEndpointServices] != nil && r.sets[nftproxy.NoEndpointNodePorts] != nil
}

// bare reports whether the table has only the names of chains, as nft list chains prints it.
func (r *nftReader) bare() bool {
	return len(r.table.Sets) == 0 && !slices.ContainsFunc(r.table.Chains, func(c *nftables.Chain) bool { return len(c.Rules) > 0 })
}

// lacksChains reports whether something leads to chains that the file does not have.
func (r *nftReader) lacksChains() bool {
	for to := range r.leads {
		if r.chains[to] == nil {
			return true
		}
	}
	return false
}

// checkMissing records what the file does not show, and reports whether chains are missing that something leads to.
func (r *nftReader) checkMissing() bool {
	var missing []string
	var lines []int
	for to, from := range r.leads {
		if r.chains[to] == nil {
			missing = append(missing, to)
			lines = append(lines, from[0])
		}
	}
	slices.Sort(missing)
	r.lackChains(missing, lines)
	for _, name := range []string{nftproxy.ServiceIPs, nftproxy.ServiceNodePorts, nftproxy.NoEndpointServices, nftproxy.NoEndpointNodePorts} {
		if r.sets[name] == nil {
			r.gap(fmt.Sprintf("table %s %s has no map %s in the file", r.table.Family, r.table.Name, name))
		}
	}
	return len(missing) > 0
}

// checkElements finds a table without elements of sets, as nft -t prints it.
func (r *nftReader) checkElements() {
	elements := slices.ContainsFunc(r.table.Sets, func(s *nftables.Set) bool { return len(s.Elements) > 0 })
	rules := slices.ContainsFunc(r.table.Chains, func(c *nftables.Chain) bool {
		_, ok := nftproxy.ParseName(c.Name)
		return ok && len(c.Rules) > 0
	})
	if rules && !elements {
		r.gap(fmt.Sprintf("no map of table %s %s has elements: the addresses of services are not shown (nft without -t prints them)", r.table.Family, r.table.Name), r.table.Line)
	}
}

// checkUnused finds chains that nothing leads to. Empty ones are left out: kube-proxy empties the chains of a service that is
// gone, and deletes them when it writes the next time.
func (r *nftReader) checkUnused() {
	if ips := r.sets[nftproxy.ServiceIPs]; len(ips.Elements) == 0 {
		return
	}
	for _, c := range r.table.Chains {
		if name, _ := nftproxy.ParseName(c.Name); name.Kind != "" && len(c.Rules) > 0 && r.leads[c.Name] == nil {
			r.problem(fmt.Sprintf("no rule and no element of a map leads to chain %s", c.Name), c.Line)
		}
	}
}

// checkHooks looks for what leads from the base chains to the services.
func (r *nftReader) checkHooks() {
	if r.bare() {
		if len(r.table.Chains) > 0 {
			r.gap(fmt.Sprintf("no chain of table %s %s has rules: nft list chains prints none, nft list ruleset does", r.table.Family, r.table.Name), r.table.Line)
		}
		return
	}
	for _, hook := range []struct{ from, to, effect string }{
		{"nat-prerouting", nftproxy.Services, "packets from pods and from outside reach no service"},
		{"nat-output", nftproxy.Services, "the node's own packets reach no service"},
		{"nat-postrouting", nftproxy.Masquerading, "nothing is masqueraded"},
		{"filter-input", nftproxy.ServiceEndpoints, "packets to services without endpoints are not rejected"},
		{"filter-forward", nftproxy.ServiceEndpoints, "packets to services without endpoints are not rejected"},
		{"filter-output", nftproxy.ServiceEndpoints, "packets to services without endpoints are not rejected"},
		{"filter-input", nftproxy.NodePortEndpoints, "packets to node ports without endpoints are not rejected"},
		{"filter-prerouting-pre-dnat", nftproxy.FirewallCheck, "source ranges have no effect"},
		{"filter-output-pre-dnat", nftproxy.FirewallCheck, "source ranges have no effect on the node's own packets"},
		{nftproxy.Services, nftproxy.ServiceIPs, "no service is served"},
		{nftproxy.Services, nftproxy.ServiceNodePorts, "no node port is served"},
		{nftproxy.ServiceEndpoints, nftproxy.NoEndpointServices, "packets to services without endpoints are not rejected"},
		{nftproxy.NodePortEndpoints, nftproxy.NoEndpointNodePorts, "packets to node ports without endpoints are not rejected"},
		{nftproxy.FirewallCheck, nftproxy.FirewallIPs, "source ranges have no effect"},
	} {
		from := r.chains[hook.from]
		switch {
		case r.chains[hook.to] == nil && r.sets[hook.to] == nil:
			continue
		case from == nil && strings.HasPrefix(hook.from, "nat-") && r.isComplete() && r.chains["filter-input"] != nil:
			r.problem(fmt.Sprintf("table %s %s has no chain %s: %s", r.table.Family, r.table.Name, hook.from, hook.effect), r.table.Line)
			continue
		case from == nil:
			continue
		}
		leads := false
		for _, rule := range from.rules {
			damaged := rule.other && strings.Contains(rule.Format(stateless), hook.to) // "vmap ©service-ips"
			leads = leads || rule.jump == hook.to || rule.vmap == hook.to || damaged
		}
		if !leads {
			r.problem(fmt.Sprintf("%s does not lead to %s: %s", hook.from, hook.to, hook.effect), from.Line)
		}
	}
}

// checkShared finds rules in the chains on the way of all packets to translation that end it: kube-proxy's only lead to others there.
func (r *nftReader) checkShared() {
	for _, name := range []string{"nat-prerouting", "nat-output", nftproxy.Services, "nat-postrouting", nftproxy.Masquerading} {
		chain := r.chains[name]
		if chain == nil {
			continue
		}
		for _, rule := range chain.rules {
			unmarked := name == nftproxy.Masquerading && rule.unmarked // until 1.35
			ends := rule.verdict == nftables.Accept || rule.verdict == nftables.Drop || rule.verdict == nftables.Return
			if ends && !unmarked || rule.to.IsValid() {
				r.foreign(chain, rule)
			}
		}
	}
}

// checkClusterIPs compares cluster-ips with the cluster IPs of the services.
func (r *nftReader) checkClusterIPs() {
	listed, there := r.addresses(nftproxy.ClusterIPs)
	if !there || len(listed) == 0 {
		return
	}
	for _, s := range r.node.Services {
		ip := s.ClusterIP
		if !ip.IsValid() {
			if s.suffix != "" && r.isComplete() && len(r.sets[nftproxy.ServiceIPs].Elements) > 0 {
				r.problem(fmt.Sprintf("%s has no element for the ClusterIP of %s", nftproxy.ServiceIPs, s.Title()), r.sets[nftproxy.ServiceIPs].Line)
			}
			continue
		}
		if listed[ip] == 0 {
			r.problem(fmt.Sprintf("%s lacks %s, the cluster IP of %s", nftproxy.ClusterIPs, ip, s.Title()), r.sets[nftproxy.ClusterIPs].Line)
		}
		listed[ip] = -max(listed[ip], -listed[ip])
	}
	if !r.isComplete() {
		return // the map that has the service may be missing
	}
	if n := len(listed); len(r.node.Services) == 0 && n > 1 {
		r.problem(fmt.Sprintf("%s has %d addresses, and %s no service: packets to them are rejected", nftproxy.ClusterIPs, n, nftproxy.ServiceIPs), r.sets[nftproxy.ClusterIPs].Line)
		return
	}
	for ip, line := range listed {
		if line > 0 {
			r.problem(fmt.Sprintf("%s has %s, which is not the cluster IP of any service: other programs' packets to it are rejected", nftproxy.ClusterIPs, ip), line)
		}
	}
}

// checkBalance checks the chains that select the endpoint.
func (r *nftReader) checkBalance(s *Service, missing bool) {
	for policy, b := range s.balanced {
		if b == nil {
			continue
		}
		switch {
		case len(b.shares) == 0 && !missing && !b.foreign:
			r.problem(fmt.Sprintf("%s of %s selects no endpoint: its packets pass untranslated", b.chain, s.Title()), b.line)
		case b.left > rounding && len(b.shares) > 0:
			r.problem(fmt.Sprintf("%s of the flows of %s get no endpoint: the map of %s has no element for some of the numbers", percent(b.left), s.Title(), b.chain), b.lastLine())
		case b.unequal:
			r.problem(b.unequalText(s), b.lines()...)
		}
		for _, share := range b.shares {
			if s.AffinitySeconds > 0 && share.chain != "" && !b.sticky[share.chain] {
				r.problem(noClients(b, s, share.chain), b.line)
			}
		}
		if len(b.shares) > 0 && s.Refused {
			r.problem(fmt.Sprintf("%s of %s has endpoints, but %s says that it has none", b.chain, s.Title(), nftproxy.NoEndpointServices), b.line)
		}
		if decision.Policy(policy) == decision.Local && len(b.shares) > 0 && s.Dropped && s.InternalPolicy == decision.Local && s.ExternalPolicy == decision.Local {
			r.problem(fmt.Sprintf("%s of %s has endpoints on this node, but packets are dropped as if it had none", b.chain, s.Title()), b.line)
		}
	}
	if s.suffix != "" && s.balanced == ([2]*balance{}) && !missing && !s.Refused && !s.Dropped {
		r.problem(fmt.Sprintf("no chain of %s selects an endpoint, and its packets are not rejected", s.Title()))
	}
}

// sortIssues puts the issues in the order of their lines.
func (n *Node) sortIssues() {
	byLine := func(a, b Issue) int {
		return cmp.Or(slices.Compare(a.Lines, b.Lines), strings.Compare(a.Text, b.Text))
	}
	slices.SortFunc(n.Problems, byLine)
	slices.SortFunc(n.Gaps, byLine)
	slices.SortFunc(n.Contested, byLine)
}
