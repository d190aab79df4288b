package noderules

import (
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Drop is the end of a packet.
type Drop struct {
	// Rule drops the packet; nil: the policy of the chain does.
	Rule         *iptables.Rule
	Table, Chain string
	Rejected     bool // the sender gets an error
}

// find finds what drops or rejects a packet on every way that it may go; nil: nothing does, or it depends on what the
// rules do not show. begin makes the state before the packet; nil: that of a host that has just booted.
func find(m *netfilter.Machine, p iptables.Packet, begin func() *netfilter.State) *Drop {
	return common(allWays(m, p, begin))
}

// common is the drop at the end of all ways, as the last of them shows it; nil: one has none.
func common(ways []netfilter.Way) (found *Drop) {
	for i := range ways {
		if found = ended(ways[i].Result); found == nil {
			return nil
		}
	}
	return found
}

// allWays are all ways of a packet; none, if there are too many.
func allWays(m *netfilter.Machine, p iptables.Packet, begin func() *netfilter.State) []netfilter.Way {
	if !p.Local {
		m.Place(&p)
	}
	if m.Check(&p) != nil {
		return nil
	}
	const most = 50
	ways, rest := m.Explore(p, begin, most)
	if rest > 0 {
		return nil
	}
	return ways
}

// endedQuietly is ended for a walk without steps.
func endedQuietly(r *netfilter.Result) *Drop {
	if r.Verdict != netfilter.Dropped && r.Verdict != netfilter.Rejected || r.Chain == "" {
		return nil
	}
	return &Drop{Rule: r.By, Table: r.Table, Chain: r.Chain, Rejected: r.Verdict == netfilter.Rejected}
}

// ended is the drop at the end of a walk; nil: there is none, or routing drops the packet.
func ended(r *netfilter.Result) *Drop {
	if r.Verdict != netfilter.Dropped && r.Verdict != netfilter.Rejected || len(r.Steps) == 0 {
		return nil
	}
	last := &r.Steps[len(r.Steps)-1]
	if r.By == nil && last.Outcome != flow.StepPolicy {
		return nil
	}
	return &Drop{Rule: r.By, Table: last.Table, Chain: last.Chain, Rejected: r.Verdict == netfilter.Rejected}
}
