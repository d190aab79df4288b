package journal

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// flowRef names a flow, which may have been evicted.
type flowRef struct {
	flow       uint64 // its number; 0: none
	at         int64  // of its decision
	generation uint64 // of the table that decided it
}

func flowRefOf(number uint64, f *flow.Flow) flowRef {
	return flowRef{number, f.Time.UnixNano(), f.Decision.Generation}
}

// result is a flow with its verdict.
type result struct {
	flowRef
	verdict  decision.Verdict
	endpoint netip.AddrPort // invalid: none
}

// confirmsTable reports whether a flow shows that the table of its generation is in use. A kept entry is older, a failed one
// was not made, a user decides as he likes, and of the kernel's copy the generation is not known.
func confirmsTable(f *flow.Flow) bool {
	d := &f.Decision
	return !d.Reason.Observed() && d.Reason != decision.DroppedByHand && !(f.Held != nil && f.Held.Action == flow.HoldChosen) &&
		(d.Verdict != decision.DNAT || connects(f))
}

// connects reports whether a flow has a new entry to the endpoint of its decision.
func connects(f *flow.Flow) bool {
	return f.Decision.HasEndpoint() && (f.Outcome == conntrack.Created || f.Outcome == conntrack.Replaced)
}

// obeyed notes a flow that confirms a table.
func (t *tally) obeyed(number uint64, f *flow.Flow) {
	generation, at := f.Decision.Generation, f.Time.UnixNano()
	if generation == t.first.generation && at >= t.first.at {
		return // as almost always
	}
	m := result{flowRefOf(number, f), f.Decision.Verdict, f.Endpoint()}
	if generation > t.first.generation || generation == t.first.generation && at < t.first.at {
		t.first = m
	}
	if t.history != nil {
		t.history.obeyed(m)
	}
}
