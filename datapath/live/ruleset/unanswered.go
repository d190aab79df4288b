package ruleset

import (
	"time"

	"github.com/google/nftables/expr"
)

// unansweredTimeout is how long a UDP flow with one datagram and no reply is remembered: the flows
// of spoofed sources must not keep others out of the set. The next datagram, of either direction,
// extends it to Spec.SeenTimeout.
const unansweredTimeout = 2 * time.Second

// learnRules remember the UDP flows that conntrack knows, by a key of their packets.
func (spec *Spec) learnRules(t *table, key keyed) []rule {
	return []rule{
		{ctState("new", expr.CtStateBitNEW, true), key.notIn(t.seen), key.rememberedFor(t.seen, min(unansweredTimeout, spec.SeenTimeout))},
		{key.notIn(t.seen), key.refreshed(t.seen)},
	}
}
