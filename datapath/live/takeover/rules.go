// Package takeover finds kube-proxy's rules in a node's kernel and removes them: the nftables
// tables of its mode nftables, and the chains of its modes iptables and ipvs with the jumps to
// them, in both back ends of iptables. It uses the kernel's own interfaces; no program is run.
//
// kube-proxy's rules are those that its own cleanup removes (CleanupLeftovers in
// pkg/proxy/iptables, ipvs and nftables), by table and name. Everything else is unchanged, with
// its counters: the chains of kubelet (KUBE-FIREWALL, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT,
// KUBE-MARK-DROP), of kube-router, of CNI plugins, of the administrator. A chain of kube-proxy
// that a rule of another program uses stays, too, and is listed.
//
// Removal while kube-proxy runs is safe but has no effect: kube-proxy checks its chains every sync
// period (30 s) and creates them again. So stop it first; if its rules are there again a minute
// after their removal, a kube-proxy is still running. Connections that kube-proxy translated
// continue, because conntrack has their entries. Without the rules of kube-proxy or a successor,
// new connections to services fail: install the successor's rules first.
//
// Removing the nftables table of kube-proxy removes base chains. The kernel then drops the packets
// that wait in netfilter queues of the namespace; their senders retransmit them.
package takeover

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Rules are kube-proxy's rules in one network namespace at one time.
type Rules struct {
	// tables are kube-proxy's own nftables tables.
	tables []ownTable
	// removals are those from iptables' tables, of either back end.
	removals []*removal
	notes    []string
}

// ownTable is a table that is kube-proxy's as a whole.
type ownTable struct {
	family decision.Family
	name   string // as in nft's language
	chains int
	serves bool // has a chain of a service
}

// Empty reports that there is nothing to remove. There may still be notes.
func (l *Rules) Empty() bool { return len(l.tables) == 0 && len(l.removals) == 0 }

// Serve reports that the rules translate: they have the chain of a service. kube-proxy writes the
// rules of all services in one transaction for each family, and in mode iptables empty chains
// before. It knows only the modes nftables and iptables.
func (l *Rules) Serve() bool {
	return slices.ContainsFunc(l.tables, func(t ownTable) bool { return t.serves }) ||
		slices.ContainsFunc(l.removals, func(r *removal) bool {
			return slices.ContainsFunc(r.chains, func(c string) bool { return strings.HasPrefix(c, endpointPrefix) })
		})
}

// Lines describes what Remove will remove: one line for each table of the kernel.
func (l *Rules) Lines() []string {
	var lines []string
	for _, t := range l.tables {
		lines = append(lines, fmt.Sprintf("nftables table %s with %s", t.name, quantity.Count(t.chains, "chain")))
	}
	for _, r := range l.removals {
		lines = append(lines, r.String())
	}
	return lines
}

// Notes lists the rules of kube-proxy that will stay, and why.
func (l *Rules) Notes() []string { return slices.Clone(l.notes) }

// add plans what to remove from a table.
func (l *Rules) add(t *table) {
	r, notes := t.plan()
	l.notes = append(l.notes, notes...)
	if len(r.chains) > 0 {
		l.removals = append(l.removals, r)
	}
}

var families = []decision.Family{decision.IPv4, decision.IPv6}

// ownTableName is the nftables table of kube-proxy's mode nftables.
const ownTableName = "kube-proxy"

// tableNames are the tables of iptables that kube-proxy has chains in.
var tableNames = []string{"mangle", "filter", "nat"}

// ownServiceChain is in the names of the chains of single services in the table ownTableName, and in no other
// (isServiceChainName in pkg/proxy/nftables). endpointPrefix is that of the chains of endpoints in iptables' table nat.
const (
	ownServiceChain = "/"
	endpointPrefix  = "KUBE-SEP-"
)

// ownChains are kube-proxy's chains with fixed names, by table, including those of mode ipvs.
var ownChains = map[string][]string{
	"mangle": {"KUBE-PROXY-CANARY"},
	"filter": {
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	},
	"nat": {
		"KUBE-SERVICES", "KUBE-NODEPORTS", postroutingChain, markMasqChain, "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER",
	},
}

const (
	markMasqChain    = "KUBE-MARK-MASQ"
	postroutingChain = "KUBE-POSTROUTING"
)

// ownPrefixes are the prefixes of the chains of single services and endpoints, in table nat.
// KUBE-XLB- is the name of KUBE-EXT- before 1.24.
var ownPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", endpointPrefix, "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"}

// hooked are the chains that kube-proxy jumps to from base chains; a jump to any
// other of its chains is not its own.
var hooked = map[string]bool{
	"KUBE-SERVICES": true, "KUBE-EXTERNAL-SERVICES": true, "KUBE-NODEPORTS": true, "KUBE-FORWARD": true, "KUBE-PROXY-FIREWALL": true,
	postroutingChain: true,
	"KUBE-NODE-PORT": true, "KUBE-IPVS-FILTER": true, "KUBE-IPVS-OUT-FILTER": true,
}

// owned reports whether a chain is kube-proxy's.
func owned(table, chain string) bool {
	return slices.Contains(ownChains[table], chain) ||
		table == "nat" && slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// table is the relevant part of one table of iptables.
type table struct {
	xtables.Place
	chains map[string]*chain
}

type chain struct {
	base  bool
	rules []rule
}

// rule is a rule that may jump to other chains.
type rule struct {
	id      uint64   // nft: its handle; legacy: the index of its entry
	targets []string // of jump and goto
}

// removal is the chains and jumps to remove from one table.
type removal struct {
	table  *table
	chains []string // sorted; with all their rules
	jumps  []jump   // in the order of chains, then rules
	rules  int      // in chains
}

// jump is a rule of a base chain.
type jump struct {
	chain string
	id    uint64
}

// String describes the removal.
func (r *removal) String() string {
	return fmt.Sprintf("%s: %s with %s, and %s to them", r.table, quantity.Count(len(r.chains), "chain"), quantity.Count(r.rules, "rule"), quantity.Count(len(r.jumps), "jump"))
}

// plan computes what can be removed, and notes what cannot and why. Without chains there are no
// jumps either.
func (t *table) plan() (*removal, []string) {
	r := &removal{table: t}
	kept, notes := t.keptChains()
	for _, name := range slices.Sorted(maps.Keys(t.chains)) {
		c := t.chains[name]
		if owned(t.Table, name) && !c.base {
			if !kept[name] {
				r.chains = append(r.chains, name)
				r.rules += len(c.rules)
			}
			continue
		}
		for _, rl := range c.rules {
			// (A rule has one target, unless it has a verdict map, which iptables does not.)
			if c.base && len(rl.targets) == 1 && t.isOwn(rl.targets[0]) && hooked[rl.targets[0]] && !kept[rl.targets[0]] {
				r.jumps = append(r.jumps, jump{name, rl.id})
			}
		}
	}
	return r, notes
}

// keptChains are kube-proxy's chains that must stay: those that rules of other programs use, and
// those that these use in turn; with notes on the former.
func (t *table) keptChains() (kept map[string]bool, notes []string) {
	kept = make(map[string]bool)
	var keep func(name string)
	keep = func(name string) {
		if kept[name] || !t.isOwn(name) {
			return
		}
		kept[name] = true
		for _, rl := range t.chains[name].rules {
			for _, target := range rl.targets {
				keep(target)
			}
		}
		if name == markMasqChain {
			keep(postroutingChain) // without which the mark has no effect
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.chains)) {
		c := t.chains[name]
		if t.isOwn(name) {
			continue
		}
		for _, rl := range c.rules {
			for _, target := range rl.targets {
				if !t.isOwn(target) || c.base && len(rl.targets) == 1 && hooked[target] {
					continue
				}
				if !kept[target] {
					notes = append(notes, fmt.Sprintf("%s: chain %s stays, because chain %s, which is not kube-proxy's, jumps to it", t, target, name))
				}
				keep(target)
			}
		}
	}
	return kept, notes
}

// isOwn reports whether a chain is there and kube-proxy's.
func (t *table) isOwn(name string) bool {
	c := t.chains[name]
	return c != nil && !c.base && owned(t.Table, name)
}

// legacyTable returns the parts of a legacy table that plan uses.
func legacyTable(at xtables.Place, chains []*xtables.Chain) *table {
	t := &table{Place: at, chains: make(map[string]*chain)}
	for _, of := range chains {
		c := &chain{base: of.Base}
		for _, e := range of.Rules {
			r := rule{id: uint64(e.Old)}
			if e.To != nil {
				r.targets = []string{e.To.Name}
			}
			c.rules = append(c.rules, r)
		}
		t.chains[of.Name] = c
	}
	return t
}

// cut takes the chains and jumps out of the draft of a legacy table.
func (r *removal) cut(d *xtables.Draft) {
	for _, c := range d.Chains {
		c.Rules = slices.DeleteFunc(c.Rules, func(rl xtables.Rule) bool {
			return slices.ContainsFunc(r.jumps, func(j jump) bool { return j.id == uint64(rl.Old) })
		})
	}
	d.Chains = slices.DeleteFunc(d.Chains, func(c *xtables.Chain) bool {
		_, goes := slices.BinarySearch(r.chains, c.Name)
		return goes && !c.Base
	})
}
