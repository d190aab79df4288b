package ruleset

import (
	"fmt"
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
