package flow

import "github.com/nfqproxy/nfqproxy/datapath/decision"

// Verdicts are all verdicts of records.
func Verdicts() []decision.Verdict { return all(decision.Accept, "unknown") }

// Reasons are all reasons of verdicts that decisions have.
func Reasons() []decision.Reason { return all(decision.NotAService, "unknown") }

// all are the values from first on, up to the one that has no name but none.
func all[T interface {
	~uint8
	String() string
}](first T, none string) []T {
	var list []T
	for v := first; v.String() != none; v++ {
		list = append(list, v)
	}
	return list
}

// Word is a code of records and its meaning in a few words.
type Word struct{ Code, Text string }

// StateWord is a state or an event.
type StateWord struct {
	Word
	Tone  Tone
	Ended bool
}

// VerdictWord is a verdict.
type VerdictWord struct {
	Word
	// State is that of a flow right after the verdict; empty: lives of flows that pass
	// untouched are not known in simulations.
	State State
}

// Vocabulary are all codes of records, with their meanings for lists and labels. The web
// page's words are generated from it.
type Vocabulary struct {
	Events      []StateWord // states first, see [Events]
	Verdicts    []VerdictWord
	Reasons     []Word
	Exclusions  []Word
	Masquerades []Word
	Entries     []Word
	Branches    []Word
}

// Words gives the vocabulary.
func Words() Vocabulary {
	v := Vocabulary{
		Reasons:     append(words(Reasons(), reasonWords), Word{"rules", "the rules say so"}),
		Exclusions:  words(all(decision.Exclusion(1), "unknown"), exclusionWords),
		Masquerades: append(words(all(decision.MarkAll, ""), markWords), Word{HostMasquerade, "a rule of the host's own"}),
		Entries:     words(all(decision.EntryClusterIP, "unknown"), entryWords),
		Branches:    words(all(decision.BranchInternal, ""), branchWords),
	}
	for _, m := range meanings {
		v.Events = append(v.Events, StateWord{Word{string(m.event), m.words}, m.tone, m.ended})
	}
	for _, d := range Verdicts() {
		s := first(d, false)
		if d == decision.Accept {
			s = ""
		}
		v.Verdicts = append(v.Verdicts, VerdictWord{Word{d.String(), verdictWords[d]}, s})
	}
	return v
}

// words pairs codes with their words. A test finds those that have none.
func words[T interface {
	comparable
	String() string
}](codes []T, texts map[T]string) []Word {
	var list []Word
	for _, c := range codes {
		list = append(list, Word{c.String(), texts[c]})
	}
	return list
}

var verdictWords = map[decision.Verdict]string{
	decision.Accept: "passes",
	decision.DNAT:   "translated",
	decision.Reject: "rejected",
	decision.Drop:   "dropped",
}

var reasonWords = map[decision.Reason]string{
	decision.NotAService:      "no service has this destination",
	decision.Balanced:         "drawn by lot",
	decision.Bound:            "session affinity: the client was there before",
	decision.NoEndpoints:      "no usable endpoint anywhere",
	decision.NoLocalEndpoints: "policy Local, and no usable endpoint on this node",
	decision.SourceNotAllowed: "source not within loadBalancerSourceRanges",
	decision.ForeignLocalnet:  "to a loopback address, but not from one",
	decision.NotFiltered:      "the refusing rule is not on its way",
	decision.DroppedByHand:    "held at the queue and dropped by hand",
}

var exclusionWords = map[decision.Exclusion]string{
	decision.NotReady:    "not ready",
	decision.NotServing:  "terminating, and serves no more",
	decision.Terminating: "terminating, while others are ready",
	decision.OtherZone:   "hinted for another zone",
	decision.OtherNode:   "hinted for another node",
	decision.NotLocal:    "on another node, and the policy is Local",
	decision.OtherFamily: "of the other address family",
	decision.Unused:      "nothing is used under the policy",
	decision.NotBound:    "the client is bound to another",
}

var markWords = map[decision.Mark]string{
	decision.MarkAll:      "all ClusterIP traffic is (--masquerade-all)",
	decision.MarkOutside:  "to a ClusterIP, and from no pod",
	decision.MarkExternal: "it came from outside, so that the reply comes back here",
	decision.MarkLocal:    "made on the node itself",
	decision.MarkHairpin:  "the endpoint reaches itself",
}

var entryWords = map[decision.Entry]string{
	decision.EntryClusterIP:    "ClusterIP",
	decision.EntryExternalIP:   "external IP",
	decision.EntryLoadBalancer: "load balancer IP",
	decision.EntryNodePort:     "node port",
}

var branchWords = map[decision.Branch]string{
	decision.BranchInternal:     "internal traffic policy",
	decision.BranchExternal:     "external traffic policy",
	decision.BranchPodShortcut:  "from a pod: the external policy does not bind it",
	decision.BranchNodeShortcut: "from the node itself: the external policy does not bind it",
}
