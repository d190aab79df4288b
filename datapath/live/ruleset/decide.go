package ruleset

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Services whose flows the kernel decides are in the maps decide and decide_nodeport, with the verdict
// accept or the chain that queues one flow in so many. Their other flows pass to the kernel's copy.

// oneInPrefix and n are the name of the chain that queues one flow in n.
const oneInPrefix = "one_in_"

func oneInChain(n uint32) string { return fmt.Sprint(oneInPrefix, n) }

// oneIn is the chain that queues one flow in n.
func (spec *Spec) oneIn(t *table, n uint32) chain {
	rules := []rule{{random(int(n), 0).is(false, "0", host32(0)), accept()}}
	return chain{name: oneInChain(n), rules: append(rules, spec.queueRules(t, spec.FirstQueue)...)}
}

// decideChain is for services whose flows the kernel decides: theirs do not return from it.
func (spec *Spec) decideChain(t *table) chain {
	rules := []rule{{t.serviceKey().verdictIn(t.decide)}}
	return chain{name: "decide", rules: append(rules, spec.toNodePorts(t, t.decidePort)...)}
}

// decides is the data of the maps for an address of a service port; "": all of its flows are queued. A
// flow that the copy cannot decide is queued. contested: other service ports have the address, too. s
// may be nil.
func decides(s *decision.ServicePort, contested bool) string {
	switch {
	case s == nil || s.QueueOneIn == 0 || contested:
		return ""
	case s.AffinitySeconds > 0 && s.QueueOneIn != decision.NotQueued:
		return "" // the daemon does not know all bound clients
	case s.QueueOneIn == decision.NotQueued:
		return nft.Accepted
	}
	return oneInChain(s.QueueOneIn)
}

// noteDecides records the change of an element of the maps.
func noteDecides(d sink, s *set, key, before, after string) {
	if before != "" {
		d.remove(s, key, before)
	}
	if after != "" {
		d.add(s, key, after)
	}
}

// referencedChain is a chain that is there because elements of maps lead to it.
func (spec *Spec) referencedChain(t *table, name string) (chain, bool) {
	if b, ok := parseBalance(name); ok {
		return spec.balanceChain(t, b), true
	}
	var n uint32
	if _, err := fmt.Sscanf(name, oneInPrefix+"%d", &n); err == nil && n > 1 && oneInChain(n) == name {
		return spec.oneIn(t, n), true
	}
	if _, err := fmt.Sscanf(name, bindPrefix+"%d", &n); err == nil && n > 0 && bindChain(n) == name {
		return spec.bind(t, n), true
	}
	return chain{}, false
}

// queues reports whether a chain queues packets.
func queues(name string) bool { return name == queueingChain || strings.HasPrefix(name, oneInPrefix) }

// Where the kernel's copy decides all flows, established packets evaluate three base chains instead of
// seven. Chains are left out by the first Install only: with each base chain that is removed, the kernel drops
// all packets that wait in the queues of the namespace (nf_queue.c, nf_queue_nf_hook_drop). When a flow is to
// be queued, Follow adds them, and they stay in tables that are adopted.
//
// The chains of the output hook stay: one has the switch (see Alive), and packets of the node to
// refused node ports are queued in any case.

// forQueued reports whether a base chain is needed for queued flows only.
func forQueued(name string) bool {
	return slices.Contains([]string{"queue_prerouting", "reject_prerouting", "learn_prerouting", "learn_output", "learn_input", "learn_postrouting"}, name)
}

// hasForQueued reports whether a table has one of these chains.
func (s *state) hasForQueued() bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(s.chains)), forQueued)
}

// isIdle reports whether no flow from elsewhere to a service is queued. before is an earlier table of which
// that is known; nil: there is none. A table without services is not idle: their first one may come any time.
func isIdle(before, t *decision.Table) bool {
	idle := t.ServiceCount() > 0
	t.ChangedAddresses(before, func(at netip.AddrPort, p decision.Protocol, _, after *decision.ServicePort) {
		idle = idle && (after == nil || decides(after, t.Contested(at, p)) == nft.Accepted)
	})
	t.ChangedNodePorts(before, func(port uint16, p decision.Protocol, f decision.Family, _, after *decision.ServicePort) {
		idle = idle && (after == nil || decides(after, t.ContestedNodePort(port, p, f)) == nft.Accepted)
	})
	return idle
}

// endIdle adds the base chains for queued flows to the open transaction, if there is one to queue now.
func (r *Ruleset) endIdle(t *decision.Table) (added []chainOf) {
	if !r.spec.Idle || isIdle(r.followed, t) {
		return nil
	}
	r.spec.Idle = false
	for _, of := range r.tables {
		for _, c := range r.spec.chains(of) {
			if forQueued(c.name) {
				r.addChains(of, []chain{c})
				added = append(added, chainOf{of, c})
			}
		}
	}
	return added
}

// checkIdle has the next audit load the tables with the chains for queued flows, if there is one to queue.
func (r *Ruleset) checkIdle(t *decision.Table) {
	if r.spec.Idle && !isIdle(r.followed, t) {
		r.spec.Idle, r.loaded = false, [2]*state{}
	}
}
