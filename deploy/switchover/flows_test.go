package switchover

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestFlows: what a node's daemon observes decides, and what is not known does not.
func TestFlows(t *testing.T) {
	of := func(protocol, node string, state flow.State, answered bool) observe.Item {
		return observe.Item{Record: &flow.Record{Node: node, Protocol: protocol, Verdict: "dnat", Life: &flow.Life{State: state, Answered: answered}}}
	}
	answered, unanswered, waiting := of("TCP", "a", flow.Established, true), of("TCP", "a", flow.Unanswered, false), of("TCP", "a", flow.Decided, false)
	serving := observe.Status{Node: "a", Daemon: new(observe.Daemon)}
	stuck := serving
	stuck.Problems = []observe.Problem{{Code: observe.ProblemWorkerStuck, Text: "the worker of queue 100 makes no progress"}}
	away := observe.Status{Node: "a", Problems: []observe.Problem{{Code: observe.ProblemUnreachable, Text: "cannot connect"}}}
	for name, tt := range map[string]struct {
		status       observe.Status
		items        []observe.Item
		first, later string // errors of the first check and of one after the time to settle
		report       string
	}{
		"answered":     {serving, []observe.Item{answered, unanswered, waiting}, "", "", "node a: 1 of 3 new TCP flows to services got an answer"},
		"unanswered":   {serving, []observe.Item{unanswered, unanswered}, "none of 2 new TCP flows to services got an answer", "none of 2 new TCP flows", ""},
		"undecided":    {serving, []observe.Item{waiting}, "no new flow to a service got an answer yet", "", "node a: no new TCP flow to a service so far"},
		"none":         {serving, nil, "no new flow to a service got an answer yet", "", "node a: no new TCP flow to a service so far"},
		"another node": {serving, []observe.Item{of("TCP", "b", flow.Unanswered, false)}, "no new flow to a service got an answer yet", "", "node a: no new TCP flow to a service so far"},
		"UDP":          {serving, []observe.Item{of("UDP", "a", flow.Unanswered, false)}, "no new flow to a service got an answer yet", "", "node a: no new TCP flow to a service so far"},
		"problem":      {stuck, []observe.Item{answered}, "NFQ", "NFQ", ""},
		"unreachable":  {away, nil, "cannot connect", "", "node a: flows are not checked: cannot connect"},
	} {
		for _, settled := range []bool{false, true} {
			fake := observetest.New("a")
			fake.StatusAnswer, fake.List = tt.status, tt.items
			report := ""
			f := &Flows{Open: func() (observe.Observer, error) { return fake, nil }, Report: func(text string) { report += text }}
			want, wantReport := tt.first, ""
			if settled {
				f.node, f.since, want = "a", time.Now().Add(-settleTime), tt.later
			}
			if want == "" {
				wantReport = tt.report
			}
			err := f.Check(t.Context(), "a")
			if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) || report != wantReport {
				t.Errorf("%s, settled %t: error %v, want %q; report %q, want %q", name, settled, err, want, report, wantReport)
			}
		}
	}

	report := ""
	f := &Flows{Open: func() (observe.Observer, error) { return nil, errors.New("no permission") }, Report: func(text string) { report += text }}
	if err := errors.Join(f.Check(t.Context(), "a"), f.Check(t.Context(), "b")); err != nil || report != "flows are not checked: no permission" {
		t.Errorf("error %v, report %q", err, report)
	}
}
