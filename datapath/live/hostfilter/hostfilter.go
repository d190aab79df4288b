// Package hostfilter makes the host's own firewall accept what kube-proxy's rules accept: an
// "accept" in nfqproxy's nftables table does not overrule another base chain that drops, such as
// chain FORWARD of iptables with the policy DROP, which Docker sets.
//
// The rules are where kube-proxy's are (pkg/proxy/iptables/proxier.go): in iptables' table
// "filter", of both back ends and both families, if it has a chain FORWARD or INPUT. Like
// kube-proxy, the package inserts a jump to its own chain at the top, and does not move it if
// other programs insert theirs above it:
//
//	-A FORWARD -m comment --comment "nfqproxy forwarding rules" -j NFQPROXY-FORWARD
//	-A INPUT -m comment --comment "nfqproxy health check service ports" -j NFQPROXY-HEALTHCHECK
//	-A NFQPROXY-FORWARD -m comment --comment "nfqproxy forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
//	-A NFQPROXY-FORWARD -m comment --comment "nfqproxy forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//	-A NFQPROXY-HEALTHCHECK -p tcp -m comment --comment "default/web health check node port" -m tcp --dport 31000 -j ACCEPT
//
// The drop of invalid packets that kube-proxy has in KUBE-FORWARD, in front of these, is in
// nfqproxy's own table: a drop does not depend on other chains.
//
// Both back ends are written through the kernel's interfaces; no program is run. The iptables
// programs list, save and restore the rules like their own.
package hostfilter

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// Names of our chains. iptables allows 28 characters.
const (
	forwardChain     = "NFQPROXY-FORWARD"
	healthCheckChain = "NFQPROXY-HEALTHCHECK"
)

// filterTable is the table of iptables that the rules are in.
const filterTable = "filter"

// Spec is what the host's firewall must accept.
type Spec struct {
	// Mark is the masquerade bit of the packet mark: the first packet of a flow with it is
	// forwarded.
	Mark uint32
	// HealthChecks are the health check node ports of each family, sorted by port.
	HealthChecks map[decision.Family][]HealthCheck
}

// HealthCheck is the health check node port of a Service.
type HealthCheck struct {
	Service decision.ServiceName
	Port    uint16
}

// follower makes a Spec from service tables. The time it takes depends on the changes.
type follower struct {
	table  *decision.Table // nil: none yet
	checks map[decision.Family]map[HealthCheck]bool
	spec   Spec
}

// follow applies a table and reports whether the Spec changed. As with kube-proxy, a health check
// node port is open in the families of its Service, with or without endpoints.
func (f *follower) follow(t *decision.Table) (changed bool) {
	if f.checks == nil {
		f.checks = map[decision.Family]map[HealthCheck]bool{decision.IPv4: {}, decision.IPv6: {}}
	}
	each := func(ports []*decision.ServicePort, do func(checks map[HealthCheck]bool, h HealthCheck)) {
		for _, s := range ports {
			if s.HealthCheckNodePort == 0 {
				continue
			}
			do(f.checks[s.Family], HealthCheck{s.Name.Service(), s.HealthCheckNodePort})
			changed = true
		}
	}
	t.ChangedServices(f.table, func(_ decision.ServiceName, before, after []*decision.ServicePort) {
		each(before, func(checks map[HealthCheck]bool, h HealthCheck) { delete(checks, h) })
		each(after, func(checks map[HealthCheck]bool, h HealthCheck) { checks[h] = true })
	})
	mark := t.Node().Mark()
	changed = changed || f.table == nil || mark != f.spec.Mark
	f.table = t
	if !changed {
		return false
	}
	spec := Spec{Mark: mark, HealthChecks: make(map[decision.Family][]HealthCheck)}
	for family, checks := range f.checks {
		if len(checks) > 0 {
			spec.HealthChecks[family] = slices.SortedFunc(maps.Keys(checks), func(a, b HealthCheck) int {
				return cmp.Or(cmp.Compare(a.Port, b.Port), a.Service.Compare(b.Service))
			})
		}
	}
	changed = !spec.equal(f.spec)
	f.spec = spec
	return changed
}

func (s Spec) equal(other Spec) bool {
	return s.Mark == other.Mark && maps.EqualFunc(s.HealthChecks, other.HealthChecks, slices.Equal[[]HealthCheck])
}

// chain is one of our chains, and the jump to it.
type chain struct {
	name string
	from string // the built-in chain that jumps to it
	jump xtables.Conditions
	want []xtables.Conditions // one rule each, all of which accept
}

// chains are ours for a family.
func (s Spec) chains(f decision.Family) []chain {
	out := []chain{
		{name: forwardChain, from: "FORWARD", jump: commented("nfqproxy forwarding rules"), want: []xtables.Conditions{
			commented("nfqproxy forwarding rules", xtables.Mark(s.Mark, s.Mark)),
			commented("nfqproxy forwarding conntrack rule", xtables.States(xtables.Related|xtables.Established)),
		}},
		{name: healthCheckChain, from: "INPUT", jump: commented("nfqproxy health check service ports")},
	}
	for _, h := range s.HealthChecks[f] {
		c := commented(h.Service.String()+" health check node port", xtables.DestinationPort(h.Port))
		c.Protocol = uint8(decision.TCP)
		out[1].want = append(out[1].want, c)
	}
	return out
}

// commented are conditions after a comment.
func commented(comment string, matches ...xtables.Extension) xtables.Conditions {
	return xtables.Conditions{Matches: append([]xtables.Extension{xtables.Comment(comment)}, matches...)}
}

// rule is a rule with the properties that ours have.
type rule struct {
	handle uint64 // in nftables
	xtables.Conditions
	accept bool
	to     string // the chain that it jumps to
	other  bool   // it has parts that no rule of ours has
}

// accepts reports whether the rule accepts packets that meet the conditions, and nothing else.
func (r rule) accepts(c xtables.Conditions) bool { return r.accept && !r.other && r.Equal(c) }

// plain reports whether the rule matches all packets: it has no matches except comments.
func (r rule) plain() bool {
	return !r.other && r.Protocol == 0 && !slices.ContainsFunc(r.Matches, func(x xtables.Extension) bool { return x.Name != "comment" })
}

// place is one table "filter".
type place struct{ xtables.Place }

var places = []place{
	{xtables.Place{Backend: xtables.NFT, Family: decision.IPv4, Table: filterTable}},
	{xtables.Place{Backend: xtables.NFT, Family: decision.IPv6, Table: filterTable}},
	{xtables.Place{Backend: xtables.Legacy, Family: decision.IPv4, Table: filterTable}},
	{xtables.Place{Backend: xtables.Legacy, Family: decision.IPv6, Table: filterTable}},
}

// difference is a change that one of our chains needs.
type difference struct {
	chain
	create  bool     // the chain is missing
	refill  bool     // its rules differ
	hook    bool     // the jump is missing
	remove  bool     // remove the chain; the fields above are not valid then
	jumps   []uint64 // the handles of all jumps, in nftables
	changed []string // what it is, in words
}

// found are the chains of a table that matter, with their rules: ours, and the built-in ones.
type found map[string][]rule

// compare returns the changes that make the chains as wanted or, with remove, remove them.
func (f found) compare(want []chain, remove bool) []difference {
	var all []difference
	for _, c := range want {
		rules, there := f[c.name]
		from, built := f[c.from]
		d := difference{chain: c, remove: remove, hook: true}
		for _, r := range from {
			if r.to == c.name {
				d.jumps = append(d.jumps, r.handle)
				d.hook = d.hook && !r.plain()
			}
		}
		switch {
		case remove && there:
			d.changed = []string{"chain " + c.name}
		case remove || !built:
			continue
		default:
			d.create, d.refill = !there, !slices.EqualFunc(rules, c.want, rule.accepts)
			if d.create {
				d.changed = append(d.changed, "chain "+c.name+" is missing")
			} else if d.refill {
				d.changed = append(d.changed, "chain "+c.name+" has other rules")
			}
			if d.hook {
				d.changed = append(d.changed, "chain "+c.from+" does not jump to "+c.name)
			}
		}
		if len(d.changed) > 0 {
			all = append(all, d)
		}
	}
	return all
}
