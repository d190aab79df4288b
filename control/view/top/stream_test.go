package top

import (
	"errors"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestStream: flows come in, the newest first; events change the flow that they are of, and
// missed flows are reported. Leaving the list leaves the stream.
func TestStream(t *testing.T) {
	s := newScreen(t, 100, 20)
	s.press("end", "f")
	if err := s.cluster.AwaitReader(t.Context()); err != nil {
		t.Fatal(err)
	}
	records := s.cluster.Records()
	s.cluster.Emit(observe.Item{Record: records[0]})
	s.cluster.Emit(observe.Item{Record: records[1]})
	s.receive(2)
	r, life := *records[1], *records[1].Life
	life.State, r.Life, r.Event = flow.Reset, &life, flow.Reset
	s.cluster.Emit(observe.Item{Record: &r})
	s.cluster.Emit(observe.Item{Missed: &observe.Missed{Missed: 12, Why: observe.MissedSlow}})
	s.cluster.Emit(observe.Item{Missed: &observe.Missed{Missed: 30, Why: observe.MissedLeftOut}}) // no loss
	s.receive(3)
	s.check("stream")
	want := observe.FlowQuery{Follow: true, Service: "default/web:http", Limit: "100"}
	if q := s.cluster.Queries(); len(q) != 1 || q[0] != want {
		t.Errorf("query %+v, want %+v", q, want)
	}
	s.press("p")
	before := s.text()
	s.cluster.Emit(observe.Item{Record: records[2]})
	s.receive(1)
	if after := s.text(); after != before {
		t.Errorf("paused, but\n%s\nbecame\n%s", before, after)
	}
	s.press("p")
	if after := s.text(); !strings.Contains(after, "outside:51234") {
		t.Errorf("what came in the pause is lost:\n%s", after)
	}
	items := s.stream.items
	s.press("esc")
	for range items { // until it is closed
	}
}

// TestStaleStream: what still comes for a list that was left does not come into another one.
func TestStaleStream(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.press("end", "f")
	left := s.stream
	s.press("esc", "esc", "home", "f")
	if s.stream == left {
		t.Fatal("the stream is the old one")
	}
	s.send(streamMsg{from: left, items: []observe.Item{{Record: s.cluster.Records()[0]}}})
	s.send(streamMsg{from: left, ended: true, err: errors.New("left")})
	if got := s.text(); !strings.Contains(got, "No flows yet.") || strings.Contains(got, "no answer") {
		t.Errorf("got\n%s", got)
	}
}

// TestStreamBreaks: it is requested again, and what was shown stays.
func TestStreamBreaks(t *testing.T) {
	s := newScreen(t, 80, 24)
	s.press("end", "f")
	if err := s.cluster.AwaitReader(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.cluster.Emit(observe.Item{Record: s.cluster.Records()[0]})
	s.receive(1)
	s.cluster.Fail(errors.New("connection lost"))
	s.send(s.stream.read())
	if got := s.text(); !strings.Contains(got, "connection lost") || !strings.Contains(got, "default/web-1") {
		t.Errorf("got\n%s", got)
	}
	s.cluster.Fail(nil)
	s.tick()
	if err := s.cluster.AwaitReader(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.text(); strings.Contains(got, "connection lost") {
		t.Errorf("got\n%s", got)
	}
}

// TestBounded: a list of flows forgets the oldest.
func TestBounded(t *testing.T) {
	v := &flowsView{}
	for i := range 3 * maxFlows {
		v.take(&flow.Record{ID: string(rune('A' + i))})
	}
	if len(v.records) != maxFlows || v.records[0].ID != string(rune('A'+3*maxFlows-1)) {
		t.Errorf("%d records, the first %q", len(v.records), v.records[0].ID)
	}
}
