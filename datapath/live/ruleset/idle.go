package ruleset

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

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
	for name := range s.chains {
		if forQueued(name) {
			return true
		}
	}
	return false
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
