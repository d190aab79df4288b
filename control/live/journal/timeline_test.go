package journal

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// timeline is a bench whose table changes.
type timeline struct {
	*bench
	flows uint16
}

func newTimeline(t *testing.T) *timeline {
	l := &timeline{bench: newBench(t, Config{})}
	l.port = servicePort("web", "10.0.0.1:80", "10.0.0.2:80")
	l.table = decision.NewTable(1, start, node, []*decision.ServicePort{l.port})
	l.SetTable(Published{Table: l.table})
	return l
}

// build makes the next table, which workers use at once.
func (l *timeline) build(endpoints ...string) {
	l.now = l.now.Add(time.Millisecond)
	l.port = servicePort("web", endpoints...)
	l.table = l.table.Next(l.now, node, decision.Change{Service: l.port.Name.Service(), Ports: []*decision.ServicePort{l.port}})
}

func (l *timeline) publish() { l.SetTable(Published{Table: l.table}) }

// flow reports a flow of the newest table to an endpoint.
func (l *timeline) flow(index uint32, change func(*flow.Flow)) (source netip.AddrPort) {
	l.flows++
	source = netip.AddrPortFrom(client.Addr(), 30000+l.flows)
	l.decide(source, func(f *flow.Flow) {
		f.Decision.Index, f.Decision.Generation = index, l.table.Generation()
		if change != nil {
			change(f)
		}
	})
	return source
}

// text is the history: of each change its generation, the number of its first flow and, of each endpoint
// that gets no new flows, that of the last flow and of open connections.
func (l *timeline) text() string {
	number := func(id string) string { return id[strings.IndexByte(id, '-')+1:] }
	var words []string
	for _, c := range l.Changes(l.port) {
		w := fmt.Sprint("g", c.Generation)
		if c.FirstFlow != nil {
			w += " first " + number(c.FirstFlow.ID)
			if c.FirstFlow.Endpoint == "" {
				w += " " + c.FirstFlow.Verdict
			}
		}
		for _, e := range c.Endpoints {
			if e.Change == "added" || e.Change == "usable" {
				if e.LastFlow != nil || e.Open != nil || e.Closed != nil {
					l.t.Errorf("%s is not gone: %+v", e.Endpoint, e)
				}
				continue
			}
			w += " -" + e.Endpoint[7:8]
			if e.LastFlow != nil {
				w += " last " + number(e.LastFlow.ID)
			}
			if e.Open != nil {
				w += fmt.Sprint(" open ", *e.Open)
			}
			if e.Closed != nil {
				w += " closed"
			}
		}
		words = append(words, w)
	}
	return strings.Join(words, "; ")
}

func (l *timeline) expect(want string) {
	l.t.Helper()
	if got := l.text(); got != want {
		l.t.Errorf("got\n  %s\nwant\n  %s", got, want)
	}
}

// TestTimeline: the first flow that a change is in force for, the last one to a removed endpoint, and its
// connections.
func TestTimeline(t *testing.T) {
	l := newTimeline(t)
	old := l.flow(0, nil)
	l.flow(1, nil)
	l.build("10.0.0.2:80")
	l.publish()
	l.expect("g2 -1 last 1 open 1")
	l.flow(0, nil)
	l.expect("g2 first 3 -1 last 1 open 1")
	l.build("10.0.0.2:80", "10.0.0.3:80")
	l.publish()
	l.expect("g2 first 3 -1 last 1 open 1; g3")
	l.flow(1, nil)
	l.flow(0, nil)
	l.expect("g2 first 3 -1 last 1 open 1; g3 first 4")
	l.event(old, conntrack.Destroyed, func(e *conntrack.Event) { e.State.Reply.Source = netip.MustParseAddrPort("10.0.0.1:80") })
	l.expect("g2 first 3 -1 last 1 open 0 closed; g3 first 4")
	l.setFollowing(false, "")
	l.expect("g2 first 3 -1 last 1; g3 first 4")
}

// TestTimelineOfAnEndpointThatComesBack: later flows to it are none of the old endpoint's.
func TestTimelineOfAnEndpointThatComesBack(t *testing.T) {
	l := newTimeline(t)
	l.flow(0, nil)
	l.build("!10.0.0.1:80", "10.0.0.2:80")
	l.publish()
	l.flow(1, nil)
	l.build("10.0.0.1:80", "10.0.0.2:80")
	l.flow(0, nil) // before the journal has the table
	l.publish()
	l.expect("g2 first 2 -1 last 1; g3 first 3")
	l.flow(0, nil)
	l.expect("g2 first 2 -1 last 1; g3 first 3")
	l.build("10.0.0.2:80")
	l.publish()
	l.expect("g2 first 2 -1 last 1; g3 first 3; g4 -1 last 4 open 3")
}

// TestTimelineBeforeTheTable: a worker uses a table before the journal has it.
func TestTimelineBeforeTheTable(t *testing.T) {
	l := newTimeline(t)
	l.build("10.0.0.2:80")
	l.flow(0, nil)
	l.flow(0, nil)
	l.publish()
	l.expect("g2 first 1 -1 open 0")
	l.flow(0, func(f *flow.Flow) { f.Time = start }) // of another worker, which is reported late
	l.expect("g2 first 3 -1 open 0")
}

// TestWhatObeys: the flows that do not show that a table is in use.
func TestWhatObeys(t *testing.T) {
	for _, tt := range []struct {
		name string
		flow func(*flow.Flow)
		want string
	}{
		{"affinity", func(f *flow.Flow) { f.Decision.Reason = decision.Bound }, "first 1"},
		{"replaced", func(f *flow.Flow) { f.Outcome = conntrack.Replaced }, "first 1"},
		{"refused", func(f *flow.Flow) { f.Decision.Verdict, f.Decision.Reason = decision.Reject, decision.NoEndpoints }, "first 1 reject"},
		{"kept", func(f *flow.Flow) { f.Outcome = conntrack.Kept }, ""},
		{"failed", func(f *flow.Flow) { f.Outcome = conntrack.Failed }, ""},
		{"by the kernel", func(f *flow.Flow) { f.Decision.Reason = decision.ByKernel }, ""},
		{"dropped by hand", func(f *flow.Flow) { f.Decision.Verdict, f.Decision.Reason = decision.Drop, decision.DroppedByHand }, ""},
		{"chosen by hand", func(f *flow.Flow) { f.Held = &flow.Hold{Action: flow.HoldChosen} }, ""},
		{"an older table", func(f *flow.Flow) { f.Decision.Generation = 1 }, ""},
	} {
		l := newTimeline(t)
		l.build("10.0.0.2:80", "10.0.0.3:80")
		l.publish()
		l.flow(0, tt.flow)
		if got := strings.TrimPrefix(l.text(), "g2 "); got != strings.TrimSpace(tt.want+" -1 open 0") {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestLastFlowConnects: a kept entry leads elsewhere, and a failed one nowhere.
func TestLastFlowConnects(t *testing.T) {
	l := newTimeline(t)
	l.flow(0, nil)
	l.flow(0, func(f *flow.Flow) { f.Outcome, f.Existing = conntrack.Kept, netip.MustParseAddrPort("10.0.0.9:80") })
	l.flow(0, func(f *flow.Flow) { f.Outcome = conntrack.Failed })
	l.build("10.0.0.2:80")
	l.publish()
	if got := l.text(); !strings.HasPrefix(got, "g2 -1 last 1 ") {
		t.Error(got)
	}
}

// TestOrigins: a change has the times of its own Service.
func TestOrigins(t *testing.T) {
	l := newTimeline(t)
	l.build("10.0.0.2:80")
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	l.SetTable(Published{Table: l.table, InForce: at(3), Origins: map[decision.ServiceName]servicetable.Origin{
		l.port.Name.Service():             {Received: at(2), Triggered: at(1)},
		{Namespace: "other", Name: "web"}: {Received: at(8), Triggered: at(9)},
	}})
	c := l.Changes(l.port)[0]
	if !c.Changed.Equal(at(1)) || !c.Received.Equal(at(2)) || !c.InForce.Equal(at(3)) {
		t.Errorf("%+v", c)
	}
	l.build("10.0.0.3:80")
	l.publish()
	if c := l.Changes(l.port)[1]; c.Changed != nil || c.Received != nil || c.InForce != nil {
		t.Errorf("%+v", c)
	}
}
