package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// check looks for inconsistencies in all that was read.
func (r *reader) check() {
	if n := r.node; n.Mode.IPVS() || n.Mode == proxymode.ModeUserspace {
		n.Problems, n.Gaps = nil, nil // all that was read as rules of iptables mode is none
		return
	}
	missing := r.checkCommented()
	if line := r.nat.declared[kubechains.Services]; r.nat.isComplete(kubechains.Services) && !slices.ContainsFunc(r.nat.order, isProxys) {
		r.problem("kube-proxy's chains of table nat are empty, as after iptables -t nat -F: no service is served, until kube-proxy writes all of them again", line)
		return
	}
	if !missing {
		r.checkReferences()
	}
	r.checkClaims()
	for _, s := range r.node.Services {
		r.checkBalance(s, missing)
	}
	r.checkNames()
	r.checkMasquerade()
	r.checkPostrouting()
	r.checkLost()
	r.checkHooks()
	r.checkNodePortJump()
	r.node.sortIssues()
}

func isProxys(chain string) bool { return strings.HasPrefix(chain, "KUBE-") }

// podChains are chains that Istio, Linkerd and Docker's DNS make in the network namespaces of pods and containers.
var podChains = []string{"ISTIO_OUTPUT", "PROXY_INIT_OUTPUT", "DOCKER_OUTPUT"}

// checkCommented records what the file does not show, and reports whether chains are missing that
// rules jump to.
func (r *reader) checkCommented() bool {
	var missing []string
	var lines []int
	seen := make(map[string]bool)
	for _, chain := range r.nat.order {
		for _, rule := range r.nat.rules[chain] {
			if to := rule.jump; strings.HasPrefix(to, "KUBE-") && !r.nat.has(to) && !seen[to] {
				if seen[to] = true; to == kubechains.NodePorts {
					continue // said below, with what is not shown
				}
				missing = append(missing, to)
				lines = append(lines, rule.Line)
			}
		}
	}
	r.lackChains(missing, lines)
	switch {
	case !r.filter.present:
		r.gap("table filter is not in the file: services without endpoints, and firewalls, are not shown")
	case !r.filter.has(kubechains.Services):
		r.gap("the file has no chain KUBE-SERVICES of table filter: services without endpoints are not shown")
	}
	if len(r.unread) > 0 {
		r.gap("addresses or ports of services cannot be read", r.unread...)
	}
	if seen[kubechains.NodePorts] {
		r.gap("the file has no chain KUBE-NODEPORTS of table nat: node ports are not shown")
	}
	switch {
	case !r.nat.present:
		r.gap("table nat is not in the file: services with endpoints are not shown")
	case r.nat.has(kubechains.Services):
	case r.node.Mode == proxymode.ModeIPTables, seen[kubechains.Services]:
		r.gap("the file has no chain KUBE-SERVICES of table nat: which addresses lead to services is not shown")
	default:
		text, lines := "table nat has no chain KUBE-SERVICES: kube-proxy did not write rules in iptables mode on this node, or the file does not have them", []int(nil)
		if plugin, proof := proxymode.EBPF([]*iptables.Dump{r.nat.dump}); plugin != "" {
			text += fmt.Sprintf("; eBPF programs of %s (%s) may translate in its place, which rules do not show", plugin, proof)
		}
		for _, chain := range podChains {
			if r.nat.has(chain) {
				text, lines = fmt.Sprintf("chain %s is one of a pod or container: these rules are of its network namespace, and kube-proxy's are in that of the node", chain), []int{r.nat.declared[chain]}
			}
		}
		r.gap(text, lines...)
	}
	return len(seen) > 0
}

// largeCluster is a number of endpoints for which kube-proxy may be in its mode for more than 1000, of which a node's rules may have
// only a part. In that mode it does not remove chains that are out of use at each change.
const largeCluster = 300

// checkReferences finds chains that no rule jumps to.
func (r *reader) checkReferences() {
	used := make(map[string]bool)
	for _, rules := range r.nat.rules {
		for _, rule := range rules {
			used[rule.jump] = true
		}
	}
	if r.nat.hides || !r.nat.isComplete("PREROUTING") {
		return // a part of the rules
	}
	endpoints, unused := 0, make(map[string]int)
	for chain, line := range r.nat.declared {
		_, _, ok := serviceChain(chain)
		isEndpoint := strings.HasPrefix(chain, endpointPrefix)
		if isEndpoint {
			endpoints++
		}
		if (ok || isEndpoint) && !used[chain] && !pasted.IsMasked(chain) {
			unused[chain] = line
		}
	}
	if endpoints > largeCluster && len(unused) > 0 {
		r.gap(fmt.Sprintf("no rule jumps to %s of services and endpoints: with more than 1000 endpoints, kube-proxy removes what is out of use some time later; if it is in use, it lacks its rule",
			quantity.Count(len(unused), "chain")), slices.Sorted(maps.Values(unused))...)
		return
	}
	for chain, line := range unused {
		text := "no rule jumps to chain " + chain
		if rules := r.nat.rules[chain]; len(rules) > 0 && rules[0].comment != "" {
			text += fmt.Sprintf(" (%s)", rules[0].comment)
		}
		r.problem(text, line)
	}
}

// checkClaims finds addresses and node ports that have two rules. kube-proxy writes one for
// each service that claims an external address or a node port, and for each way of a service
// to have an address.
func (r *reader) checkClaims() {
	type claimant struct {
		service *Service
		entry   decision.Entry
	}
	for at, rules := range r.claims {
		if len(rules) < 2 {
			continue
		}
		seen := make(map[claimant]bool)
		clusterIPs := 0
		for _, rule := range rules {
			seen[claimant{r.node.owners[rule.Rule].service, rule.entry}] = true
			if rule.entry == decision.EntryClusterIP {
				clusterIPs++
			}
		}
		var lines []int
		var titles unique[string]
		for _, rule := range rules {
			lines = append(lines, rule.Line)
			titles.add(r.node.owners[rule.Rule].service.Title())
		}
		names := titles.values
		what := fmt.Sprintf("node port %d", at.port)
		if at.addr.IsValid() {
			what = fmt.Sprintf("%s port %d", at.addr, at.port)
		}
		switch {
		case len(seen) < len(rules) || clusterIPs > 1:
			r.problem(fmt.Sprintf("%s (%s) has %d rules, of %s: only the first is reached", what, at.protocol, len(rules), strings.Join(names, " and ")), lines...)
		case len(names) > 1:
			r.node.Contested = append(r.node.Contested, issue(fmt.Sprintf("%s (%s) is claimed by %s: the first chain that leads to an endpoint gets the flows", what, at.protocol, strings.Join(names, " and ")), lines))
			for _, rule := range rules {
				r.node.contests[rule.Rule] = names[0]
			}
		}
	}
}

// checkBalance checks the chains that select the endpoint.
func (r *reader) checkBalance(s *Service, missing bool) {
	for policy, b := range s.balanced {
		if b == nil {
			continue
		}
		r.checkShares(s, b)
		r.checkAffinity(s, b)
		refused := s.Refused || decision.Policy(policy) == decision.Local && s.Dropped || r.marksDrop(b.chain)
		if len(b.shares) == 0 && !b.foreign && !refused && r.filter.isComplete(kubechains.Services) && r.nat.isComplete(b.chain) {
			r.problem(fmt.Sprintf("%s of %s selects no endpoint, and no rule in table filter rejects its packets: they pass untranslated", b.chain, s.Title()), b.line)
		}
		if len(b.shares) > 0 && s.Refused {
			r.problem(fmt.Sprintf("%s of %s has endpoints, but a rule in table filter says that it has none", b.chain, s.Title()), b.line)
		}
	}
	if r.nat.isComplete(kubechains.Services) && s.suffix != "" && s.balanced == ([2]*balance{}) && !missing && !s.Refused && !s.Dropped {
		r.problem(fmt.Sprintf("no chain of %s selects an endpoint, and no rule in table filter rejects its packets", s.Title()))
	}
	if r.nat.isComplete(kubechains.Services) && r.filter.isComplete(kubechains.Services) && s.suffix != "" && !s.ClusterIP.IsValid() {
		r.problem(fmt.Sprintf("KUBE-SERVICES has no rule for the ClusterIP of %s", s.Title()), r.nat.declared[kubechains.Services])
	}
}

// marksDrop reports whether the chain drops packets without an endpoint, as until 1.24.
func (r *reader) marksDrop(chain string) bool {
	return slices.ContainsFunc(r.nat.rules[chain], func(rule *rule) bool { return rule.jump == markDrop })
}

func (r *reader) checkShares(s *Service, b *balance) {
	switch {
	case len(b.shares) == 0 || !r.nat.isComplete(b.chain):
	case b.left > rounding && r.nat.isWhole(b.chain):
		r.problem(fmt.Sprintf("%s of the flows of %s get no endpoint: the last rule of %s has a probability, too", percent(b.left), s.Title(), b.chain), b.lastLine())
	case b.unequal:
		r.problem(b.unequalText(s), b.lines()...)
	}
}

// checkAffinity finds endpoints whose clients do not come back to them. KUBE-XLB of old versions had none of these rules.
func (r *reader) checkAffinity(s *Service, b *balance) {
	if strings.HasPrefix(b.chain, xlbPrefix) || !r.nat.isComplete(b.chain) {
		return
	}
	gone := maps.Clone(b.sticky)
	for _, share := range b.shares {
		delete(gone, share.chain)
		e := r.endpoints[share.chain]
		switch {
		case e == nil || e.dnat == nil || b.sticky[share.chain] == (e.dnat.recent != nil):
		case e.dnat.recent != nil:
			r.problem(noClients(b, s, e.addrPort.String()), b.line)
		default:
			r.problem(fmt.Sprintf("%s does not record its clients: %s has no session affinity to %s", share.chain, s.Title(), e.addrPort), e.dnatLine)
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(gone)) {
		r.problem(fmt.Sprintf("%s has a rule for the clients of %s, and none that gives it new ones: %s sends no new clients there", b.chain, chain, s.Title()), b.line)
	}
}

// noClients is the sentence about a chain without the rule for the clients of an endpoint.
func noClients(b *balance, s *Service, endpoint string) string {
	return fmt.Sprintf("%s has no rule for the clients of %s: %s has no session affinity to it", b.chain, endpoint, s.Title())
}

// unequalText is the sentence about a chain whose endpoints get unequal shares.
func (b *balance) unequalText(of *Service) string {
	var parts []string
	for _, s := range b.shares {
		parts = append(parts, percent(s.part))
	}
	const few = 8
	if len(parts) > few {
		parts = append(parts[:few], "...")
	}
	return fmt.Sprintf("%s gives the endpoints of %s unequal shares: %s", b.chain, of.Title(), strings.Join(parts, ", "))
}

// lines are those of the rules that choose an endpoint.
func (b *balance) lines() (lines []int) {
	for _, s := range b.shares {
		lines = append(lines, s.line)
	}
	return lines
}

// lastLine is that of the last rule that chooses an endpoint.
func (b *balance) lastLine() int { return b.shares[len(b.shares)-1].line }

// percent is the share, rounded to a hundredth of a percent.
func percent(share float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", 100*share), "0"), ".") + "%"
}

// checkName compares the name of a chain with the hash of its purpose.
func (r *reader) checkName(s *Service, chain string) {
	if s.hashed == "" {
		return
	}
	port := hashedPort(s)
	_, want, _ := serviceChain(port.ServiceChain())
	kind, have, _ := serviceChain(chain)
	r.compareName(chain, kind+want, kind+have, fmt.Sprintf("%s/%s", s.hashed, s.Protocol.Lower()), r.nat.declared[chain])
}

// hashedPort is the service port with the name from which its chains' names are hashed.
func hashedPort(s *Service) *decision.ServicePort {
	namespace, rest, _ := strings.Cut(s.hashed, "/")
	return &decision.ServicePort{Name: decision.ServicePortName{Namespace: namespace, Name: rest}, Protocol: s.Protocol}
}

// checkEndpoint checks a KUBE-SEP chain.
func (r *reader) checkEndpoint(s *Service, chain string, e *endpoint) {
	switch {
	case !e.addrPort.IsValid() && !r.nat.isWhole(chain):
		return
	case !e.addrPort.IsValid():
		r.problem(fmt.Sprintf("%s of %s has no DNAT to one address and port", chain, s.Title()), e.line)
		return
	case e.dnat.protocol != 0 && e.dnat.protocol != s.Protocol && !e.dnat.other:
		r.problem(fmt.Sprintf("%s translates %s only, but %s has packets of %s: they pass untranslated", chain, e.dnat.protocol, s.Title(), s.Protocol), e.dnatLine)
	case e.dnat.conditional():
		r.problem(fmt.Sprintf("%s does not translate every packet of %s: kube-proxy's rule has no condition but the protocol", chain, s.Title()), e.dnatLine)
	}
	switch {
	case !e.hairpin.IsValid():
		r.problem(fmt.Sprintf("%s does not masquerade the packets of %s itself, which cannot reach itself through %s", chain, e.addrPort.Addr(), s.Title()), e.dnatLine)
	case e.hairpin != e.addrPort.Addr():
		r.problem(fmt.Sprintf("%s masquerades the packets of %s, but translates to %s", chain, e.hairpin, e.addrPort), e.hairLine, e.dnatLine)
	}
	if s.hashed != "" {
		r.compareName(chain, hashedPort(s).EndpointChain(e.addrPort), chain, fmt.Sprintf("%s/%s and %s", s.hashed, s.Protocol.Lower(), e.addrPort), e.line)
	}
}

// checkMasquerade finds services whose ClusterIP flows are masqueraded less than those of others.
func (r *reader) checkMasquerade() {
	has := make(map[*Service]bool)
	for _, o := range r.node.owners {
		has[o.service] = has[o.service] || o.masquerade
	}
	if len(r.all)+len(r.masqueraded) == 0 {
		return
	}
	for _, s := range r.node.Services {
		b := s.balanced[s.InternalPolicy]
		if b != nil && s.ClusterIP.IsValid() && !has[s] && len(b.shares) > 0 && r.nat.isComplete(b.chain) {
			r.problem(fmt.Sprintf("%s has no rule that masquerades flows to the ClusterIP of %s, as other services have", b.chain, s.Title()), b.line)
		}
	}
	if n, all := len(r.masqueraded), 0; n > 0 {
		for _, o := range r.node.owners {
			if o.masquerade {
				all++
			}
		}
		if n < all {
			r.problem(fmt.Sprintf("of %d rules that masquerade flows to ClusterIPs, %d match every source", all, n), linesOf(r.masqueraded)...)
		}
	}
}

func linesOf(rules []*rule) (lines []int) {
	for _, rule := range rules {
		lines = append(lines, rule.Line)
	}
	return lines
}

// checkPostrouting looks for the masquerade of marked packets.
func (r *reader) checkPostrouting() {
	mark := r.node.Proxy.MasqueradeMark
	if r.nat.isComplete(kubechains.MarkMasq) && mark == 0 {
		r.problem("KUBE-MARK-MASQ sets no mark: nothing is masqueraded", r.nat.declared[kubechains.MarkMasq])
	}
	if !r.nat.has(kubechains.Postrouting) {
		return
	}
	masquerades := false
	for _, rule := range r.nat.rules[kubechains.Postrouting] {
		switch rule.Target.(type) {
		case iptables.Masquerade, iptables.SNAT:
			masquerades = true
		}
		for _, m := range rule.Matches {
			if m, ok := m.(iptables.Mark); ok && mark != 0 && m.Mark.Value != mark {
				r.problem(fmt.Sprintf("KUBE-POSTROUTING matches the mark %#x, but KUBE-MARK-MASQ sets %#x", m.Mark.Value, mark), rule.Line)
			}
		}
	}
	if !masquerades && r.nat.isWhole(kubechains.Postrouting) {
		r.problem("KUBE-POSTROUTING has no MASQUERADE: flows that should be masqueraded get no replies", r.nat.declared[kubechains.Postrouting])
	}
}

// checkHooks looks for the jumps from the built-in chains that the file has.
func (r *reader) checkHooks() {
	for _, hook := range []struct{ from, to, effect string }{
		{"PREROUTING", kubechains.Services, "packets from pods and from outside reach no service"},
		{"OUTPUT", kubechains.Services, "the node's own packets reach no service"},
		{"POSTROUTING", kubechains.Postrouting, "nothing is masqueraded"},
	} {
		jumps := slices.ContainsFunc(r.nat.rules[hook.from], func(rule *rule) bool { return rule.jump == hook.to })
		if r.nat.isComplete(hook.from) && r.nat.has(hook.to) && !jumps {
			r.problem(fmt.Sprintf("%s of nat does not jump to %s: %s", hook.from, hook.to, hook.effect), r.nat.declared[hook.from])
		}
	}
}

// checkNodePortJump checks the end of KUBE-SERVICES.
func (r *reader) checkNodePortJump() {
	if !r.nat.isComplete(kubechains.Services) {
		return
	}
	rules := r.nat.rules[kubechains.Services]
	jump := func(rule *rule) bool { return rule.jump == kubechains.NodePorts }
	first := slices.IndexFunc(rules, jump)
	switch {
	case first < 0 && r.nat.isWhole(kubechains.Services):
		r.problem("KUBE-SERVICES of nat does not end with a jump to KUBE-NODEPORTS: no node port is served", r.nat.declared[kubechains.Services])
	case first < 0:
		r.gap("the text ends in KUBE-SERVICES of nat, without its last rule, the jump to KUBE-NODEPORTS: is it cut off?", rules[len(rules)-1].Line)
	case !jump(rules[len(rules)-1]):
		behind := slices.DeleteFunc(slices.Clone(rules[first:]), jump)
		slices.SortFunc(behind, func(a, b *rule) int { return cmp.Compare(a.Line, b.Line) })
		r.problem("KUBE-SERVICES of nat has rules after the jump to KUBE-NODEPORTS, which must be the last", linesOf(behind)...)
	}
}
