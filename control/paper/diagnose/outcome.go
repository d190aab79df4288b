package diagnose

import (
	"cmp"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Outcome is the judgement of an answer in a word. Headlines, exit codes and colors follow from it, and it follows from the
// findings of the answer: no two of them contradict each other.
type Outcome string

// The outcomes.
const (
	Works   Outcome = "works"   // each connection reaches an endpoint that should answer
	Partly  Outcome = "partly"  // some connections fail, or a finding of the answer is an error
	Fails   Outcome = "fails"   // no connection reaches an endpoint that should answer
	Unknown Outcome = "unknown" // the objects do not show whether there are endpoints
)

// Settle sets what follows from the rest of the answer: Works, Outcome and Headline. Whoever changes an answer calls it
// again.
func (a *Answer) Settle() {
	a.Works, a.Outcome = a.Cause == nil, Works
	total, failing := len(a.Endpoints), 0
	for i := range a.Endpoints {
		if a.Endpoints[i].Problem != nil {
			failing++
		}
	}
	unless, mistake := "", a.mistake()
	if a.Unless != "" {
		unless = ", unless " + a.Unless
	}
	switch {
	case !a.Works && (a.Cause.Code == NotShown || a.Cause.Code == HostRuleUnclear):
		a.Outcome, a.Headline = Unknown, "no answer"
	case !a.Works && a.Cause.Code == OtherPort: // a declaration of ports is information only
		a.Outcome, a.Headline = Fails, "probably does not work"+unless
	case !a.Works:
		a.Outcome, a.Headline = Fails, "does not work"+unless
	case failing > 0 && a.sticky:
		a.Outcome = Partly
		a.Headline = fmt.Sprintf("works in part%s, as far as %s: %d of %d endpoints should answer, and session affinity binds a client to one: either all of its flows fail, or none", unless, a.known(), total-failing, total)
	case failing > 0 && a.chosen:
		a.Outcome = Partly
		a.Headline = fmt.Sprintf("works in part%s, as far as %s: %d of %d endpoints should answer; the client selects one of their addresses", unless, a.known(), total-failing, total)
	case failing > 0:
		a.Outcome = Partly
		a.Headline = fmt.Sprintf("works in part%s, as far as %s: %d of %d endpoints should answer, and %d in %d flows %s", unless, a.known(), total-failing, total, failing, total, verb(failing, "fails", "fail"))
	case mistake != nil:
		a.Outcome, a.Headline = Partly, fmt.Sprintf("works%s, but %s (%s)", unless, mistake.Text, mistake.Code)
	case total == 1:
		a.Headline = fmt.Sprintf("works%s, as far as %s: one endpoint", unless, a.known())
	case total > 1 && a.chosen:
		a.Headline = fmt.Sprintf("works%s, as far as %s: %d endpoints, of which the client selects an address", unless, a.known(), total)
	case total > 1 && a.sticky:
		a.Headline = fmt.Sprintf("works%s, as far as %s: %d endpoints, and session affinity sends all flows of a client to one of them", unless, a.known(), total)
	case total > 1:
		a.Headline = fmt.Sprintf("works%s, as far as %s: %d endpoints, each gets one flow in %d", unless, a.known(), total, total)
	default:
		a.Headline = "works" + unless
	}
}

// Has reports whether a finding is in the answer already.
func (a *Answer) Has(f Finding) bool {
	is := func(o *Finding) bool { return o != nil && o.Code == f.Code && o.Text == f.Text }
	if is(a.Cause) {
		return true
	}
	for i := range a.Endpoints {
		if is(a.Endpoints[i].Problem) && a.Endpoints[i].Problem.Code != HostDropsSome {
			return true
		}
	}
	for i := range a.Notes {
		if is(&a.Notes[i]) {
			return true
		}
	}
	return false
}

// mistake is the first of the notes that is an error; nil: there is none.
func (a *Answer) mistake() *Finding {
	for i := range a.Notes {
		if a.Notes[i].Code.Severity() == Error {
			return &a.Notes[i]
		}
	}
	return nil
}

// known is what the answer is from.
func (a *Answer) known() string {
	for i := range a.Endpoints {
		if a.Endpoints[i].Flows != nil {
			return "objects and recent flows show"
		}
	}
	return cmp.Or(a.by, "the objects show")
}

// Flows are the recent flows to an endpoint that have come to a result.
type Flows struct {
	Answered   int `json:"answered"`
	Refused    int `json:"refused,omitempty"`
	Unanswered int `json:"unanswered,omitempty"`
}

// String is "it answered 5 of the last 7 flows".
func (f *Flows) String() string {
	return fmt.Sprintf("answered %d of the last %s", f.Answered, quantity.Count(f.Answered+f.Refused+f.Unanswered, "flow"))
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
