// Package takeover finds what kube-proxy left in a node's kernel and removes it:
// the nftables tables of its mode nftables, and the chains of its modes iptables and
// ipvs with the jumps to them, whichever back end of iptables made them. Both back ends
// are spoken to over the kernel's own interfaces; no program is run.
//
// What counts as kube-proxy's is what its own cleanup removes (CleanupLeftovers in
// pkg/proxy/iptables, ipvs and nftables), by table and name. Everything else stays as it
// is, in its place, with its counters: the chains of kubelet (KUBE-FIREWALL,
// KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-MARK-DROP), of kube-router, of CNI plugins,
// of the administrator. A chain of kube-proxy's that a rule of somebody else's uses stays
// too, and is named.
//
// Removing is safe while kube-proxy runs, but in vain: it looks for its chains every sync
// period (30 s) and makes them anew. So stop it first; who finds leftovers again a minute
// after removing them has a kube-proxy that still runs. Connections that kube-proxy
// translated go on, since conntrack remembers them. Without the rules of kube-proxy or of
// anybody in their place, new connections to services fail: install the successor's rules
// first.
//
// Removing the nftables table of kube-proxy takes base chains away. The kernel then drops
// the packets that wait in netfilter queues of the namespace; their senders send them
// again.
package takeover

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Leftovers is what was found in one network namespace at one time.
type Rules struct {
	// tables are kube-proxy's own nftables tables.
	tables []ownTable
	// removals are of iptables' tables, of either back end.
	removals []*removal
	notes    []string
}

// ownTable is a table that is kube-proxy's as a whole.
type ownTable struct {
	family decision.Family
	chains int
}

// Empty says that there is nothing to remove. There may still be notes.
func (l *Rules) Empty() bool { return len(l.tables) == 0 && len(l.removals) == 0 }

// Lines says what Remove will remove, in the words of an operator: one line for each
// table of the kernel.
func (l *Rules) Lines() []string {
	var lines []string
	for _, t := range l.tables {
		lines = append(lines, fmt.Sprintf("nftables table %s %s with %s", nftName(t.family), ownTableName, count(t.chains, "chain")))
	}
	for _, r := range l.removals {
		lines = append(lines, r.String())
	}
	return lines
}

// Notes tells of what is kube-proxy's but will stay, and why.
func (l *Rules) Notes() []string { return slices.Clone(l.notes) }

// add plans what to remove from a table.
func (l *Rules) add(t *table) {
	r, notes := t.plan()
	l.notes = append(l.notes, notes...)
	if len(r.chains) > 0 {
		l.removals = append(l.removals, r)
	}
}

// String joins Lines and Notes; "no rules of kube-proxy" if there is neither.
func (l *Rules) String() string {
	lines := append(l.Lines(), l.notes...)
	if len(lines) == 0 {
		return "no rules of kube-proxy"
	}
	return strings.Join(lines, "\n")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
