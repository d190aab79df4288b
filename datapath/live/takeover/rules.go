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
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
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
