// Package vocabulary describes the codes in flow records.
//
// It is a ground package.
package vocabulary

import (
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
)

// Word is a code in records and a description of it.
type Word struct{ Code, Text string }

// List is a list of codes with their descriptions.
type List []Word

// Of returns the description of a code, or the code itself if the list lacks it: it may be of a later version.
func (l List) Of(code string) string {
	for _, w := range l {
		if w.Code == code {
			return w.Text
		}
	}
	return code
}

// VerdictWord is a verdict.
type VerdictWord struct {
	Word
	// State is the flow's state right after the verdict. It is 0 for packets that pass
	// unchanged: simulations do not know their life cycle.
	State flow.State
}

// Vocabulary holds the codes in records, with descriptions for lists, labels and sentences, also on the web page.
type Vocabulary struct {
	Events      []StateWord // states first, see [flow.Events]
	Verdicts    []VerdictWord
	Reasons     List
	Exclusions  List
	Masquerades List
	Entries     List
	Branches    List
	Outcomes    List // of conntrack entries
	Holds       List // the actions that end a hold
	Gaps        List // why a [nodepath.Hop] has no record
}

// Words returns the vocabulary, which must not be changed.
func Words() *Vocabulary { return vocabulary }

var vocabulary = newVocabulary()

func newVocabulary() *Vocabulary {
	v := &Vocabulary{
		Exclusions:  words(flow.All(decision.Exclusion(1), "unknown"), exclusionWords),
		Masquerades: append(words(flow.All(decision.MarkAll, ""), markWords), Word{flow.HostMasquerade, "a masquerade rule of the host"}),
		Entries:     words(flow.All(decision.EntryClusterIP, "unknown"), entryWords),
		Branches:    words(flow.All(decision.BranchInternal, ""), branchWords),
		Outcomes: List{
			{conntrack.Created.String(), "created before the verdict"},
			{conntrack.Kept.String(), "kept: exists since an earlier packet"},
			{conntrack.Replaced.String(), "replaced the entry of a finished connection"},
			{conntrack.Failed.String(), "could not be created"},
		},
		Holds: List{
			{flow.HoldReleased, "released as decided"},
			{flow.HoldChosen, "released to the chosen endpoint"},
			{flow.HoldDropped, "dropped"},
			{flow.HoldCancelled, "released as decided: the hold was cancelled"},
			{flow.HoldExpired, "released as decided: timeout"},
		},
		Gaps: List{
			{nodepath.GapUnobserved, "not observed: its decision is not known"},
			{nodepath.GapNoRecord, "no record of this packet within 10 s"},
		},
	}
	for _, r := range flow.Reasons() {
		v.Reasons = append(v.Reasons, Word{r.String(), ReasonText(r)})
	}
	v.Reasons = append(v.Reasons, Word{"rules", "decided by the node's rules"})
	for _, e := range flow.Events() {
		v.Events = append(v.Events, StateOf(e))
	}
	for _, d := range flow.Verdicts() {
		s := (&flow.Flow{Decision: decision.Decision{Verdict: d}}).First()
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
}](codes []T, texts map[T]string) List {
	var list List
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

var exclusionWords = map[decision.Exclusion]string{
	decision.NotReady:    "not ready",
	decision.NotServing:  "terminating, not serving",
	decision.Terminating: "terminating, and other endpoints are ready",
	decision.OtherZone:   "topology hints for other zones",
	decision.OtherNode:   "topology hints for other nodes",
	decision.NotLocal:    "on another node, and the traffic policy is Local",
	decision.OtherFamily: "other address family",
	decision.Unused:      "no traffic to the service uses this policy",
	decision.NotBound:    "session affinity selects another endpoint",
}

var markWords = map[decision.Mark]string{
	decision.MarkAll:      "--masquerade-all is set",
	decision.MarkOutside:  "the source is not a pod, and the reply must return through this node",
	decision.MarkExternal: "the endpoint may be on any node, and the reply must return through this one",
	decision.MarkLocal:    "the source is this node, and the reply must return to it",
	decision.MarkHairpin:  "hairpin: the endpoint would reply to itself directly, without the translation",
}

var entryWords = map[decision.Entry]string{
	decision.EntryClusterIP:    "cluster IP",
	decision.EntryExternalIP:   "external IP",
	decision.EntryLoadBalancer: "load balancer IP",
	decision.EntryNodePort:     "node port",
}

var branchWords = map[decision.Branch]string{
	decision.BranchInternal:     "internal traffic policy",
	decision.BranchExternal:     "external traffic policy",
	decision.BranchPodShortcut:  "externalTrafficPolicy Local does not apply to pods",
	decision.BranchNodeShortcut: "externalTrafficPolicy Local does not apply to the node itself",
}

// ReasonText describes a reason of a verdict.
func ReasonText(r decision.Reason) string { return reasonWords[r] }

var reasonWords = map[decision.Reason]string{
	decision.NotAService:        "no service has this destination",
	decision.Balanced:           "selected at random",
	decision.Bound:              "session affinity: same endpoint as the client's earlier flows",
	decision.NoEndpoints:        "no usable endpoint in the cluster",
	decision.NoLocalEndpoints:   "policy Local, usable endpoints only on other nodes",
	decision.SourceNotAllowed:   "source not in loadBalancerSourceRanges",
	decision.ForeignLocalnet:    "loopback destination from a non-loopback source",
	decision.NotFiltered:        "the packet does not reach the chain of the rule that would reject it",
	decision.DroppedByHand:      "held at the queue and dropped by the user",
	decision.ByKernel:           "selected at random by the kernel's copy of the service table",
	decision.ByProxy:            "selected by the node's service proxy",
	decision.UnknownEndpoint:    "translated by the node's service proxy to an address that is not an endpoint of the service",
	decision.NotTranslated:      "the destination is a service, but the node's service proxy did not translate it",
	decision.TranslationUnknown: "no information on whether the node's service proxy translated it",
}
