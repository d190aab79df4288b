package vocabulary

import "github.com/nfqproxy/nfqproxy/datapath/flow"

// StateWord is a state or an event.
type StateWord struct {
	Word
	Tone  Tone
	Ended bool // see [flow.State.Ended]
}

// Tone is the severity of a state, for colours.
type Tone string

// The tones.
const (
	Waiting Tone = "wait" // pending
	Good    Tone = "good"
	Notable Tone = "warn" // worth a look
	Bad     Tone = "bad"  // an error: see [StateWord.IsError]
	Neutral Tone = "pass"
)

var states = [...]struct {
	tone Tone
	text string
}{
	0:                {Waiting, ""},
	flow.Decided:     {Waiting, "verdict given; no reply seen yet"},
	flow.Answered:    {Good, "reply seen"},
	flow.Established: {Good, "traffic in both directions"},
	flow.Closing:     {Good, "one side has closed (FIN)"},
	flow.Closed:      {Good, "both sides have closed"},
	flow.Reset:       {Bad, "aborted by one side (RST)"},
	flow.Refused:     {Bad, "connection refused by the endpoint"},
	flow.Unanswered:  {Notable, "no reply"},
	flow.Expired:     {Good, "idle until its conntrack entry timed out"},
	flow.Removed:     {Notable, "its conntrack entry was deleted before its timeout"},
	flow.Rejected:    {Bad, "rejected by the verdict; it reached no endpoint"},
	flow.Dropped:     {Bad, "dropped by the verdict; it reached no endpoint"},
	flow.Failed:      {Bad, "conntrack entry could not be created; it reached no endpoint"},
	flow.Repeated:    {Notable, "first packet retransmitted and decided again"},
	flow.Gone:        {Neutral, "conntrack entry deleted; the counters are final"},
	flow.Unknown:     {Waiting, ""},
}

// StateOf describes a state or an event. One of a later version has no text, and the tone [Waiting].
func StateOf(e flow.Event) StateWord {
	return StateWord{Word{e.String(), states[e].text}, states[e].tone, e.Ended()}
}

// IsError reports whether the state counts as an error: refused, reset, rejected, dropped or
// failed. Unanswered is not an error, as a reply may still arrive; it is counted separately.
func (w StateWord) IsError() bool { return w.Tone == Bad }
