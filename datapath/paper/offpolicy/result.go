package offpolicy

import "github.com/nfqproxy/nfqproxy/datapath/flow"

// result is what happened to a flow.
type result struct {
	refused, unanswered bool
	latency             float64 // seconds to the reply; 0: it did not connect, or the time is not known
}

// longestLatency keeps sums finite: eleven days.
const longestLatency = 1e6

// resultOf gives what happened to the flow of a record, or the reason why that is not known.
func resultOf(r *flow.Record) (result, string) {
	l := r.Life
	if l == nil {
		return result{}, "the record has no life (nfqproxy flows -o jsonl has it)"
	}
	switch l.State {
	case flow.Refused:
		return result{refused: true}, ""
	case flow.Answered, flow.Established, flow.Closing, flow.Closed, flow.Reset, flow.Expired:
		return result{latency: l.AnsweredAfter}, ""
	}
	switch {
	case l.Answered:
		return result{latency: l.AnsweredAfter}, ""
	case l.State == flow.Unanswered && !l.Incomplete:
		return result{unanswered: true}, ""
	}
	return result{}, "its answer is not known yet, or was lost"
}

// term is one flow's part of a mean: the sum of values divided by the sum of counts.
type term struct{ value, count float64 }

// The outcomes that are means.
const (
	latency = iota
	refused
	unanswered
	outcomes
)

var names = [outcomes]string{Latency, Refused, Unanswered}

// terms are the flow's parts of the recorded means. Connect latency is a mean of connections only.
func (r *result) terms() (t [outcomes]term) {
	if r.latency > 0 {
		t[latency] = term{r.latency, 1}
	}
	t[refused] = term{one(r.refused), 1}
	t[unanswered] = term{one(r.unanswered), 1}
	return t
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
