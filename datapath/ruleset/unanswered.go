package ruleset

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
)

// unansweredTimeout is how long a UDP flow with one datagram and no reply is remembered: the flows
// of spoofed sources must not keep others out of the set. The next datagram, of either direction,
// extends it to Spec.SeenTimeout.
const unansweredTimeout = 2 * time.Second

// learnRules remember the UDP flows that conntrack knows, by a key of their packets.
func (spec *Spec) learnRules(s *sets, key func(family) keyed) []rule {
	var rules []rule
	for _, f := range []family{ipv4, ipv6} {
		seen := s.of(f).seen
		rules = append(rules,
			rule{f.is(), ctState("new", expr.CtStateBitNEW, true), key(f).notIn(seen), key(f).rememberedFor(seen, min(unansweredTimeout, spec.SeenTimeout))},
			rule{f.is(), key(f).notIn(seen), key(f).refreshed(seen)})
	}
	return rules
}

// rememberedFor adds the key to the set for some time.
func (k keyed) rememberedFor(s *set, timeout time.Duration) clause {
	return k.then(fmt.Sprintf("update @%s { %s timeout %s }", s.name, k.text, timeout),
		&expr.Dynset{SrcRegKey: key, SetName: s.name, SetID: s.id(), Operation: opUpdate, Timeout: timeout})
}
