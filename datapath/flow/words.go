package flow

import (
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Verdicts lists all verdicts in records.
func Verdicts() []decision.Verdict { return all(decision.Accept, "unknown") }

// Reasons lists all reasons of verdicts.
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

// Word is a code in records and a description of it.
type Word struct{ Code, Text string }

// WordList is a list of codes with their descriptions.
type WordList []Word

// Of returns the description of a code, or the code itself if the list lacks it: it may be of a later version.
func (l WordList) Of(code string) string {
	for _, w := range l {
		if w.Code == code {
			return w.Text
		}
	}
	return code
}

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

// Vocabulary holds the codes in records, with descriptions for lists, labels and sentences, also on the web page.
type Vocabulary struct {
	Events      []StateWord // states first, see [Events]
	Verdicts    []VerdictWord
	Reasons     WordList
	Exclusions  WordList
	Masquerades WordList
	Entries     WordList
	Branches    WordList
	Outcomes    WordList // of conntrack entries
	Holds       WordList // the actions that end a hold
	Gaps        WordList // why a hop has no record
}

// The reasons why a [Hop] has no record.
const (
	GapUnobserved = "not-observed"
	GapNoRecord   = "no-record"
)

// Words returns the vocabulary, which must not be changed.
func Words() *Vocabulary { return vocabulary }

var vocabulary = newVocabulary()

func newVocabulary() *Vocabulary {
	v := &Vocabulary{
		Reasons:     append(words(Reasons(), reasonWords), Word{"rules", "decided by the node's rules"}),
		Exclusions:  words(all(decision.Exclusion(1), "unknown"), exclusionWords),
		Masquerades: append(words(all(decision.MarkAll, ""), markWords), Word{HostMasquerade, "a masquerade rule of the host"}),
		Entries:     words(all(decision.EntryClusterIP, "unknown"), entryWords),
		Branches:    words(all(decision.BranchInternal, ""), branchWords),
		Outcomes: WordList{
			{conntrack.Created.String(), "created before the verdict"},
			{conntrack.Kept.String(), "kept: exists since an earlier packet"},
			{conntrack.Replaced.String(), "replaced the entry of a finished connection"},
			{conntrack.Failed.String(), "could not be created"},
		},
		Holds: WordList{
			{HoldReleased, "released as decided"},
			{HoldChosen, "released to the chosen endpoint"},
			{HoldDropped, "dropped"},
			{HoldCancelled, "released as decided: the hold was cancelled"},
			{HoldExpired, "released as decided: timeout"},
		},
		Gaps: WordList{
			{GapUnobserved, "not observed: its decision is not known"},
			{GapNoRecord, "no record of this packet within 10 s"},
		},
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
}](codes []T, texts map[T]string) WordList {
	var list WordList
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
