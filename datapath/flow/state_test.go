package flow_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// TestStates: which states are final, and which are errors.
func TestStates(t *testing.T) {
	var ended, errors []flow.State
	for _, s := range flow.States() {
		if s.Ended() {
			ended = append(ended, s)
		}
		if vocabulary.StateOf(s).IsError() {
			errors = append(errors, s)
		}
		if vocabulary.StateOf(s).IsError() && !s.Ended() {
			t.Errorf("%s is an error, and has not ended", s)
		}
		if s.IsDecision() != (s == flow.Decided || s == flow.Rejected || s == flow.Dropped || s == flow.Failed) {
			t.Errorf("%s: IsDecision %t", s, s.IsDecision())
		}
	}
	if want := []flow.State{flow.Closed, flow.Reset, flow.Refused, flow.Expired, flow.Removed, flow.Rejected, flow.Dropped, flow.Failed}; !slices.Equal(ended, want) {
		t.Errorf("ended are %v, want %v", ended, want)
	}
	if want := []flow.State{flow.Reset, flow.Refused, flow.Rejected, flow.Dropped, flow.Failed}; !slices.Equal(errors, want) {
		t.Errorf("errors are %v, want %v", errors, want)
	}
	for _, e := range []flow.Event{flow.Repeated, flow.Gone} {
		if slices.Contains(flow.States(), e) || !slices.Contains(flow.Events(), e) {
			t.Errorf("%s is an event and no state", e)
		}
	}
	for e := flow.State(0); e <= flow.Unknown; e++ {
		var read flow.State
		if name, err := e.MarshalText(); err != nil || read.UnmarshalText(name) != nil || read != e {
			t.Errorf("event %d is %q as text, which is read as event %d (%v)", e, name, read, err)
		}
	}
	var later flow.State
	if err := later.UnmarshalText([]byte("melted")); err != nil || later != flow.Unknown || later.Ended() || vocabulary.StateOf(later) != (vocabulary.StateWord{Word: vocabulary.Word{Code: "unknown"}, Tone: vocabulary.Waiting}) {
		t.Error("something is known of a state of a later version")
	}
}

// TestRefusal: an entry in state CLOSE is a refusal only if the connection was never established, whatever is known of
// its states before.
func TestRefusal(t *testing.T) {
	const answered, established = conntrack.StatusSeenReply, conntrack.StatusSeenReply | conntrack.StatusAssured
	for _, tt := range []struct {
		status conntrack.Status
		before flow.State
		want   flow.State
	}{
		{answered, flow.Decided, flow.Refused},
		{answered, flow.Unanswered, flow.Refused},
		{established, flow.Decided, flow.Reset},
		{established, flow.Established, flow.Reset},
		{established, flow.Closed, flow.Closed},
		{0, flow.Decided, flow.Reset}, // the client's own RST
	} {
		for _, s := range []conntrack.State{
			{Original: conntrack.Tuple{Protocol: uint8(decision.TCP)}, Status: tt.status, TCP: conntrack.TCPClose},
			{Original: conntrack.Tuple{Protocol: uint8(decision.SCTP)}, Status: tt.status, SCTP: conntrack.SCTPClosed},
		} {
			if got := flow.StateOf(&s, tt.before); got != tt.want {
				t.Errorf("protocol %d, status %#x, from %s: %s, want %s", s.Original.Protocol, tt.status, tt.before, got, tt.want)
			}
		}
	}
}

// TestOpen: a flow is open while it may go on. In TIME_WAIT it does not; nor without an entry.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		state flow.State
		over  bool
		open  bool
	}{
		{flow.Decided, false, true}, {flow.Established, false, true}, {flow.Unanswered, false, true}, {flow.Closing, false, true},
		{flow.Closed, false, false}, {flow.Refused, false, false}, {flow.Reset, false, false},
		{flow.Unanswered, true, false}, {flow.Established, true, false}, {flow.Rejected, true, false},
	} {
		if l := (&flow.Life{State: c.state, Over: c.over}); l.Open() != c.open {
			t.Errorf("%+v: open %t, want %t", c, l.Open(), c.open)
		}
	}
}

// TestStateOfRecord: without a life, the state comes from the verdict.
func TestStateOfRecord(t *testing.T) {
	for _, c := range []struct {
		verdict   decision.Verdict
		conntrack string
		life      *flow.Life
		want      flow.State
	}{
		{decision.Accept, "", nil, 0},
		{decision.Accept, "", &flow.Life{State: flow.Refused}, flow.Refused},
		{decision.DNAT, "", nil, flow.Decided},
		{decision.DNAT, conntrack.Created.String(), nil, flow.Decided},
		{decision.DNAT, conntrack.Failed.String(), nil, flow.Failed},
		{decision.Reject, "", nil, flow.Rejected},
		{decision.Drop, "", nil, flow.Dropped},
		{decision.DNAT, "", &flow.Life{State: flow.Closed}, flow.Closed},
	} {
		if r := (&flow.Record{Verdict: c.verdict.String(), Conntrack: c.conntrack, Life: c.life}); r.State() != c.want {
			t.Errorf("%+v: state %q", c, r.State())
		}
	}
	if f := (&flow.Flow{Decision: decision.Decision{Verdict: decision.DNAT}, Outcome: conntrack.Failed}); f.First() != flow.Failed {
		t.Errorf("a flow without an entry begins as %s", f.First())
	}
}

// TestRecordKeepsNothing: readers of a stream use the memory of a flow again while its record
// is on the way.
func TestRecordKeepsNothing(t *testing.T) {
	node, began := decision.Node{Name: "a"}, time.Unix(1, 0)
	f := flow.Flow{Node: &node, Time: began, Queue: 7}
	r := f.Record()
	f = flow.Flow{Node: &node, Time: began.Add(time.Hour), Queue: 8}
	if !r.Time.Equal(began) || *r.Queue != 7 {
		t.Errorf("the record has time %s and queue %d of another flow", r.Time, *r.Queue)
	}
}

// TestSchemaStates: SCHEMA.md has exactly the events, in their order, and marks each as
// final and as an error where it is.
func TestSchemaStates(t *testing.T) {
	b, err := os.ReadFile("SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(section(t, string(b), "Life"), "### States and events\n")
	var documented []flow.Event
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		var e flow.Event
		if err := e.UnmarshalText([]byte(strings.Trim(cells[1], " `"))); err != nil {
			t.Fatal(err)
		}
		documented = append(documented, e)
		if has := strings.TrimSpace(cells[2]) == "yes"; has != e.Ended() {
			t.Errorf("%s: final is documented as %q", e, cells[2])
		}
		if has := strings.TrimSpace(cells[3]) == "yes"; has != vocabulary.StateOf(e).IsError() {
			t.Errorf("%s: error is documented as %q", e, cells[3])
		}
	}
	if want := flow.Events(); !slices.Equal(documented, want) {
		t.Errorf("documented are %v, want %v", documented, want)
	}
}
