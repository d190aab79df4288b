package flow

import "github.com/nfqproxy/nfqproxy/datapath/decision"

// Verdicts are all verdicts of records.
func Verdicts() []decision.Verdict { return all(decision.Accept, "unknown") }

// Reasons are all reasons of verdicts that decisions have.
func Reasons() []decision.Reason { return all(decision.NotAService, "unknown") }

// all lists the values from first up to the one before the first without a name, whose text is none.
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

// Word is a code in records and a short description of it.
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
	// State is the flow's state right after the verdict. It is 0 for packets that pass
	// unchanged: simulations do not know their life cycle.
	State State
}

// Vocabulary holds all codes in records, with short descriptions for lists and labels. The
// web page's vocabulary.js is generated from it.
type Vocabulary struct {
	Events      []StateWord // states first, see [Events]
	Verdicts    []VerdictWord
	Reasons     []Word
	Exclusions  []Word
	Masquerades []Word
	Entries     []Word
	Branches    []Word
}

// Words returns the vocabulary.
func Words() Vocabulary {
	v := Vocabulary{
		Reasons:     append(words(Reasons(), reasonWords), Word{"rules", "decided by the rules of the dump"}),
		Exclusions:  words(all(decision.Exclusion(1), "unknown"), exclusionWords),
		Masquerades: append(words(all(decision.MarkAll, ""), markWords), Word{HostMasquerade, "a masquerade rule of the host"}),
		Entries:     words(all(decision.EntryClusterIP, "unknown"), entryWords),
		Branches:    words(all(decision.BranchInternal, ""), branchWords),
	}
	for _, e := range Events() {
		v.Events = append(v.Events, StateWord{Word{e.String(), e.Words()}, e.Tone(), e.Ended()})
	}
	for _, d := range Verdicts() {
		s := first(d, false)
		if d == decision.Accept {
			s = 0
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
	decision.Balanced:         "selected at random",
	decision.Bound:            "session affinity: same endpoint as the client's earlier flows",
	decision.NoEndpoints:      "no usable endpoint in the cluster",
	decision.NoLocalEndpoints: "policy Local, no usable endpoint on this node",
	decision.SourceNotAllowed: "source not in loadBalancerSourceRanges",
	decision.ForeignLocalnet:  "loopback destination from a non-loopback source",
	decision.NotFiltered:      "the packet does not reach the chain of the rule that would reject it",
	decision.DroppedByHand:    "held at the queue and dropped by the user",
}

var exclusionWords = map[decision.Exclusion]string{
	decision.NotReady:    "not ready",
	decision.NotServing:  "terminating, not serving",
	decision.Terminating: "terminating, other endpoints are ready",
	decision.OtherZone:   "hinted for another zone",
	decision.OtherNode:   "hinted for another node",
	decision.NotLocal:    "on another node, policy Local",
	decision.OtherFamily: "other address family",
	decision.Unused:      "the policy uses no endpoints",
	decision.NotBound:    "session affinity selects another endpoint",
}

var markWords = map[decision.Mark]string{
	decision.MarkAll:      "all ClusterIP traffic is masqueraded (--masquerade-all)",
	decision.MarkOutside:  "to a ClusterIP from a source that is not a pod",
	decision.MarkExternal: "external traffic: the reply must return through this node",
	decision.MarkLocal:    "sent by the node itself",
	decision.MarkHairpin:  "hairpin: the endpoint connects to itself",
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
	decision.BranchPodShortcut:  "from a pod: the external policy does not apply",
	decision.BranchNodeShortcut: "from the node itself: the external policy does not apply",
}
