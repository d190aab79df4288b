package diagnose

import (
	"cmp"
	"fmt"
	"slices"

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
	unless := ""
	if a.Unless != "" {
		unless = ", unless " + a.Unless
	}
	known := unless + ", as far as " + a.known()
	mistake := slices.IndexFunc(a.Notes, func(f Finding) bool { return f.Code.Severity() == Error })
	switch {
	case !a.Works && (a.Cause.Code == NotShown || a.Cause.Code == HostRuleUnclear):
		a.Outcome, a.Headline = Unknown, "no answer"
	case !a.Works && a.Cause.Code == OtherPort: // a declaration of ports is information only
		a.Outcome, a.Headline = Fails, "probably does not work"+unless
	case !a.Works:
		a.Outcome, a.Headline = Fails, "does not work"+unless
	case failing > 0:
		a.Outcome, a.Headline = Partly, fmt.Sprintf("works in part%s: %d of %d endpoints should answer", known, total-failing, total)
		switch {
		case a.sticky:
			a.Headline += ", and session affinity binds a client to one: either all of its flows fail, or none"
		case a.chosen:
			a.Headline += "; the client selects one of their addresses"
		default:
			a.Headline += fmt.Sprintf(", and %d in %d flows %s", failing, total, verb(failing, "fails", "fail"))
		}
	case mistake >= 0:
		a.Outcome, a.Headline = Partly, fmt.Sprintf("works%s, but %s (%s)", unless, a.Notes[mistake].Text, a.Notes[mistake].Code)
	case total == 1:
		a.Headline = fmt.Sprintf("works%s: one endpoint", known)
	case total > 1 && a.chosen:
		a.Headline = fmt.Sprintf("works%s: %d endpoints, of which the client selects an address", known, total)
	case total > 1 && a.sticky:
		a.Headline = fmt.Sprintf("works%s: %d endpoints, and session affinity sends all flows of a client to one of them", known, total)
	case total > 1:
		a.Headline = fmt.Sprintf("works%s: %d endpoints, each gets one flow in %d", known, total, total)
	default:
		a.Headline = "works" + unless
	}
}

// Has reports whether a finding is in the answer already.
func (a *Answer) Has(f Finding) bool {
	is := func(o *Finding) bool { return o != nil && o.Code == f.Code && o.Text == f.Text }
	return is(a.Cause) || slices.ContainsFunc(a.Notes, func(o Finding) bool { return is(&o) }) ||
		slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return is(e.Problem) && e.Problem.Code != HostDropsSome })
}

// known is what the answer is from.
func (a *Answer) known() string {
	if slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return e.Flows != nil }) {
		return "objects and recent flows show"
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
