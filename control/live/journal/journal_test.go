package journal

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// fewFlows is the capacity of a small journal.
const fewFlows = 1024

// web is a service port with two endpoints.
func web() *decision.ServicePort {
	return &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: "web"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80,
		Endpoints: []decision.Endpoint{
			{AddrPort: netip.MustParseAddrPort("10.244.0.2:8080"), Pod: "default/web-1", NodeName: "a"},
			{AddrPort: netip.MustParseAddrPort("10.244.0.3:8080"), Pod: "default/web-2", NodeName: "b"},
		},
		Usable: [2][]uint32{{0, 1}, nil}, HasEndpoints: true,
	}
}

var (
	start  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	client = netip.MustParseAddrPort("10.244.1.9:40000")
	node   = decision.Node{Name: "a"}
)

// bench is a journal at a time of its own.
type bench struct {
	*Journal
	t      testing.TB
	now    time.Time
	port   *decision.ServicePort
	table  *decision.Table
	reader *Reader
	caught time.Time // see apply
}

func newBench(t testing.TB, c Config) *bench {
	b := &bench{Journal: New(c), t: t, now: start, port: web()}
	b.table = decision.NewTable(1, start, node, []*decision.ServicePort{b.port})
	b.setFollowing(true, "")
	b.reader = b.NewReader()
	return b
}

// decide reports a flow that was decided a moment ago.
func (b *bench) decide(source netip.AddrPort, change func(*flow.Flow)) {
	b.now = b.now.Add(time.Millisecond)
	f := flow.Flow{
		Packet:   decision.Packet{Protocol: decision.TCP, Source: source, Destination: netip.MustParseAddrPort("10.96.0.10:80")},
		Decision: decision.Decision{Verdict: decision.DNAT, Reason: decision.Balanced, Entry: decision.EntryClusterIP, Branch: decision.BranchInternal, ServicePort: b.port, Draw: 0.3, Drawn: true, Generation: 1},
		Table:    b.table, Node: b.table.Node(), Time: b.now, Waited: -1, Accepting: 10 * time.Microsecond, Outcome: conntrack.Created,
	}
	if change != nil {
		change(&f)
	}
	b.Flows([]flow.Flow{f})
	b.take(b.now)
}

// event reports the kernel's event of the flow from a source.
func (b *bench) event(source netip.AddrPort, kind conntrack.EventKind, change func(*conntrack.Event)) {
	b.now = b.now.Add(time.Millisecond)
	ev := conntrack.Event{Kind: kind, State: conntrack.State{
		Original: conntrack.Tuple{Source: source, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
		Reply:    conntrack.Tuple{Source: netip.MustParseAddrPort("10.244.0.2:8080"), Destination: source, Protocol: 6},
	}}
	change(&ev)
	b.apply([]conntrack.Event{ev}, b.caught, b.now)
}

func (b *bench) tcp(s conntrack.TCPState, status conntrack.Status) {
	b.event(client, conntrack.Updated, func(e *conntrack.Event) { e.State.TCP, e.State.Status = s, status })
}

// read returns what a reader received since the last call: event, and the state then.
func (b *bench) read() string {
	entries := make([]Entry, 64)
	n, missed := b.reader.Read(entries, all)
	var words []string
	if missed > 0 {
		words = append(words, fmt.Sprintf("(%d missed)", missed))
	}
	for i := range n {
		r := entries[i].Record(nil, false)
		w := r.Event.String()
		if r.Life.State.String() != w {
			w += "/" + r.Life.State.String()
		}
		if r.Life.Over {
			w += "."
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// Last gives the newest flows.
func (b *bench) Last(limit int, since time.Time, match Match) ([]Entry, *Reader) {
	p := b.NewPast(limit, since, match)
	entries := make([]Entry, b.flows.len()+1)
	return entries[:p.Read(entries)], p.Reader()
}

func all(*flow.Flow, flow.State, flow.Event) bool { return true }

func (b *bench) expect(want string) {
	b.t.Helper()
	if got := b.read(); got != want {
		b.t.Errorf("got\n  %s\nwant\n  %s", got, want)
	}
}

const replied = conntrack.StatusSeenReply

// TestLives: which events make which states.
func TestLives(t *testing.T) {
	destroyed := func(s conntrack.TCPState, status conntrack.Status, change func(*conntrack.Event)) func(*bench) {
		return func(b *bench) {
			b.event(client, conntrack.Destroyed, func(e *conntrack.Event) {
				e.State.TCP, e.State.Status = s, status
				if change != nil {
					change(e)
				}
			})
		}
	}
	tcp := func(s conntrack.TCPState, status conntrack.Status) func(*bench) {
		return func(b *bench) { b.tcp(s, status) }
	}
	wait := func(d time.Duration) func(*bench) {
		return func(b *bench) { b.now = b.now.Add(d); b.take(b.now) }
	}
	asUDP := func(status conntrack.Status, kind conntrack.EventKind, timeout uint32) func(*bench) {
		return func(b *bench) {
			b.event(client, kind, func(e *conntrack.Event) {
				e.State.Original.Protocol, e.State.Reply.Protocol, e.State.Status, e.State.Timeout = 17, 17, status, timeout
			})
		}
	}
	udp := func(f *flow.Flow) { f.Packet.Protocol = decision.UDP }
	for _, tt := range []struct {
		name   string
		change func(*flow.Flow)
		events []func(*bench)
		want   string
	}{
		{"closed", nil, []func(*bench){tcp(conntrack.TCPSynSent, 0), tcp(conntrack.TCPSynRecv, replied), tcp(conntrack.TCPEstablished, replied), tcp(0, replied|conntrack.StatusAssured),
			tcp(conntrack.TCPFinWait, replied), tcp(conntrack.TCPLastAck, replied), tcp(conntrack.TCPTimeWait, replied), destroyed(conntrack.TCPTimeWait, replied, nil)},
			"decided answered established closing closed gone/closed."},
		{"reset", nil, []func(*bench){tcp(conntrack.TCPSynRecv, replied), tcp(conntrack.TCPEstablished, replied), tcp(conntrack.TCPClose, replied), destroyed(conntrack.TCPClose, replied, nil)},
			"decided answered established reset gone/reset."},
		{"refused", nil, []func(*bench){tcp(conntrack.TCPSynSent, 0), tcp(conntrack.TCPClose, replied), destroyed(conntrack.TCPClose, replied, nil)},
			"decided refused gone/refused."},
		{"refused, and forgotten at once", nil, []func(*bench){destroyed(conntrack.TCPClose, 0, func(e *conntrack.Event) { e.State.HasCounters, e.State.Received.Packets = true, 1 })},
			"decided refused gone/refused."},
		{"given up by the client", nil, []func(*bench){tcp(conntrack.TCPSynSent, 0), tcp(conntrack.TCPClose, 0)}, "decided reset"},
		{"never answered", nil, []func(*bench){wait(4 * time.Second), destroyed(conntrack.TCPSynSent, 0, nil)}, "decided unanswered gone/unanswered."},
		{"answered late", nil, []func(*bench){wait(4 * time.Second), tcp(conntrack.TCPSynRecv, replied)}, "decided unanswered answered"},
		{"not waited for twice", nil, []func(*bench){wait(2 * time.Second), wait(2 * time.Second), wait(2 * time.Second)}, "decided unanswered"},
		{"timed out", nil, []func(*bench){tcp(conntrack.TCPEstablished, replied), destroyed(conntrack.TCPEstablished, replied, nil)}, "decided established gone/expired."},
		{"removed", nil, []func(*bench){tcp(conntrack.TCPEstablished, replied), destroyed(conntrack.TCPEstablished, replied, func(e *conntrack.Event) { e.State.Timeout = 432000 })}, "decided established gone/removed."},
		{"removed by another program at the last moment", nil, []func(*bench){tcp(conntrack.TCPEstablished, replied), destroyed(conntrack.TCPEstablished, replied, func(e *conntrack.Event) { e.PortID = 7 })}, "decided established gone/removed."},
		{"closed, and replaced by the next", nil, []func(*bench){tcp(conntrack.TCPTimeWait, replied), destroyed(conntrack.TCPTimeWait, replied, func(e *conntrack.Event) { e.PortID, e.State.Timeout = 7, 100 })}, "decided closed gone/closed."},
		{"UDP answered", udp, []func(*bench){asUDP(replied, conntrack.Updated, 30), asUDP(replied, conntrack.Destroyed, 0)}, "decided answered gone/expired."},
		{"UDP to and fro", udp, []func(*bench){asUDP(replied, conntrack.Updated, 30), asUDP(replied|conntrack.StatusAssured, conntrack.Updated, 120), asUDP(replied|conntrack.StatusAssured, conntrack.Destroyed, 0)}, "decided answered established gone/expired."},
		{"UDP unanswered", udp, []func(*bench){asUDP(0, conntrack.Destroyed, 0)}, "decided gone/unanswered."},
		{"UDP removed", udp, []func(*bench){asUDP(0, conntrack.Destroyed, 12)}, "decided gone/removed."},
		{"rejected", func(f *flow.Flow) { f.Decision.Verdict, f.Decision.Reason = decision.Reject, decision.NoEndpoints }, []func(*bench){wait(4 * time.Second)}, "rejected."},
		{"dropped", func(f *flow.Flow) { f.Decision.Verdict, f.Decision.Reason = decision.Drop, decision.NoLocalEndpoints }, []func(*bench){wait(4 * time.Second)}, "dropped."},
		{"failed", func(f *flow.Flow) { f.Outcome = conntrack.Failed }, []func(*bench){wait(4 * time.Second)}, "failed."},
		{"for no service", func(f *flow.Flow) { f.Decision = decision.Decision{Generation: 1} }, []func(*bench){tcp(conntrack.TCPSynRecv, replied)}, "decided answered"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, Config{})
			b.t = t
			b.decide(client, tt.change)
			for _, e := range tt.events {
				e(b)
			}
			b.expect(tt.want)
			b.expectOpen()
		})
	}
}

// expectOpen recounts the flows that are open.
func (b *bench) expectOpen() {
	b.t.Helper()
	flows, _ := b.Last(5000, time.Time{}, all)
	open, ofService := 0, uint64(0)
	for i := range flows {
		if r := flows[i].Record(nil, false); r.Life.Open() {
			open++
			if r.Service != "" {
				ofService++
			}
		}
	}
	if k := b.Known(); k.Open != open {
		b.t.Errorf("%d flows are counted as open, want %d", k.Open, open)
	}
	if c, _ := b.Counts(b.port); c.Flows.Open != ofService {
		b.t.Errorf("%d flows of the service are counted as open, want %d", c.Flows.Open, ofService)
	}
}

// TestClosedIsNotOpen: a connection whose entry stays for TIME_WAIT is no open flow, nor one
// that is forgotten too early.
func TestClosedIsNotOpen(t *testing.T) {
	b := newBench(t, Config{Flows: fewFlows})
	b.decide(client, nil)
	if k := b.Known(); k.Open != 1 {
		t.Errorf("%d flows are open, want 1", k.Open)
	}
	b.tcp(conntrack.TCPTimeWait, replied)
	if c, _ := b.Counts(b.port); b.Known().Open != 0 || c.Flows.Open != 0 {
		t.Errorf("closed, %d flows are open, %d of the service", b.Known().Open, c.Flows.Open)
	}
	for i := range uint16(fewFlows) { // forget it
		b.decide(netip.AddrPortFrom(client.Addr(), 41000+i), nil)
	}
	if k := b.Known(); k.Open != fewFlows || k.Forgotten != 0 {
		t.Errorf("known %+v, want nothing forgotten that was open", k)
	}
	b.expectOpen()
}

// TestNoted: an event has the time when it was noted, which may be long after it happened: the kernel
// reports the end of a flow that fell silent when it removes the entry.
func TestNoted(t *testing.T) {
	b := newBench(t, Config{})
	before := time.Now()
	b.decide(client, nil) // by a clock of the test's
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) { e.At, e.State.Status = start.Add(time.Second), replied })
	entries := make([]Entry, 8)
	n, _ := b.reader.Read(entries, all)
	if n != 2 {
		t.Fatalf("%d events, want 2", n)
	}
	for _, e := range entries[:n] {
		if e.Noted.Before(before) || e.Noted.After(time.Now()) {
			t.Errorf("%s was noted at %s, want a time since %s", e.Event, e.Noted, before)
		}
	}
	if got, _ := b.Last(1, time.Time{}, all); !got[0].Noted.IsZero() {
		t.Error("a flow as it is has been noted")
	}
}

// TestRepeated: a first packet that comes again is no new flow.
func TestRepeated(t *testing.T) {
	for _, tt := range []struct {
		name   string
		first  func(*flow.Flow)
		again  func(*flow.Flow)
		want   string
		number int
	}{
		{"kept", nil, func(f *flow.Flow) { f.Outcome = conntrack.Kept; f.Existing = f.Decision.Endpoint() }, "decided repeated/decided", 1},
		{"replaced", nil, func(f *flow.Flow) { f.Outcome = conntrack.Replaced }, "decided decided", 2},
		{"kept, of before", func(f *flow.Flow) { f.Outcome = conntrack.Kept; f.Existing = f.Decision.Endpoint() }, nil, "decided decided", 2},
		{"dropped", func(f *flow.Flow) { f.Decision.Verdict = decision.Drop }, func(f *flow.Flow) { f.Decision.Verdict = decision.Drop }, "dropped. repeated/dropped.", 1},
		{"dropped long ago", func(f *flow.Flow) { f.Decision.Verdict = decision.Drop }, func(f *flow.Flow) { f.Decision.Verdict, f.Time = decision.Drop, f.Time.Add(time.Hour) }, "dropped. dropped.", 2},
		{"no service", func(f *flow.Flow) { f.Decision = decision.Decision{} }, func(f *flow.Flow) { f.Decision = decision.Decision{} }, "decided repeated/decided", 1},
		{"another verdict", func(f *flow.Flow) { f.Decision.Verdict = decision.Reject }, nil, "rejected. decided", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, Config{})
			b.decide(client, tt.first)
			b.decide(client, tt.again)
			b.expect(tt.want)
			if n := b.Known().Flows; n != tt.number {
				t.Errorf("%d flows, want %d", n, tt.number)
			}
		})
	}
}

// TestSamePort: the events of a connection whose addresses and ports another one has taken
// over are those of the right one.
func TestSamePort(t *testing.T) {
	b := newBench(t, Config{})
	b.decide(client, nil)
	began := b.now
	b.tcp(conntrack.TCPTimeWait, replied)
	b.now = b.now.Add(time.Minute)
	b.decide(client, func(f *flow.Flow) { f.Outcome = conntrack.Replaced })
	second := b.now
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) {
		e.State.TCP, e.State.Status, e.State.Start, e.State.Stop = conntrack.TCPTimeWait, replied, began, second
		e.State.HasCounters, e.State.Sent = true, conntrack.Counters{Packets: 5, Bytes: 500}
	})
	b.tcp(conntrack.TCPSynRecv, replied)
	b.expect("decided closed decided gone/closed. answered")
	flows, _ := b.Last(10, time.Time{}, all)
	if len(flows) != 2 || flows[0].life.sent.Bytes != 500 || !flows[0].life.over || flows[1].life.over || flows[1].life.counted {
		t.Errorf("flows %+v", flows)
	}
	// Behind the end of the first, and before the second was reported, its events wait.
	b = newBench(t, Config{})
	b.decide(client, nil)
	b.tcp(conntrack.TCPTimeWait, replied)
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) { e.State.TCP, e.State.Status = conntrack.TCPTimeWait, replied })
	b.tcp(conntrack.TCPSynRecv, replied)
	b.expect("decided closed gone/closed.")
	b.decide(client, nil)
	b.expect("decided answered")
}

// TestEventBeforeDecision: the kernel may be quicker than the worker that reports the flow.
func TestEventBeforeDecision(t *testing.T) {
	b := newBench(t, Config{})
	b.tcp(conntrack.TCPSynRecv, replied)
	b.decide(client, nil)
	b.expect("decided answered")
	// Events of no known flow are given up.
	b.tcp(conntrack.TCPSynRecv, replied)
	b.event(netip.MustParseAddrPort("10.0.0.1:1"), conntrack.Destroyed, func(*conntrack.Event) {})
	b.now = b.now.Add(time.Second)
	b.take(b.now)
	if n := len(b.kernel.orphans); n != 0 {
		t.Errorf("%d events wait for ever", n)
	}
}

// TestLateDecision: on a busy machine the worker reports a flow long after its events, of which the
// last one may have the time at which the entry was made.
func TestLateDecision(t *testing.T) {
	for _, tt := range []struct {
		late time.Duration
		want string
	}{{time.Second, "decided established closing closed"}, {3 * time.Second, "decided unanswered"}} {
		b := newBench(t, Config{})
		began := b.now
		for _, s := range []conntrack.TCPState{conntrack.TCPEstablished, conntrack.TCPLastAck, conntrack.TCPTimeWait} {
			b.now = b.now.Add(30 * time.Millisecond)
			b.event(client, conntrack.Updated, func(e *conntrack.Event) {
				e.State.TCP, e.State.Status, e.State.Mark, e.At = s, replied, conntrack.DefaultMark, b.now
				if s == conntrack.TCPTimeWait {
					e.State.Start = began.Add(time.Millisecond)
				}
			})
		}
		b.now = b.now.Add(tt.late)
		b.take(b.now)
		b.decide(client, func(f *flow.Flow) { f.Time = began })
		b.expect(tt.want)
	}
}

// TestCountsAndDuration: events without a state of TCP change none.
func TestCountsAndDuration(t *testing.T) {
	b := newBench(t, Config{})
	b.decide(client, nil)
	began := b.now
	b.tcp(conntrack.TCPEstablished, replied)
	b.tcp(0, replied|conntrack.StatusAssured)
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) {
		e.State.TCP, e.State.Status, e.State.Start, e.State.Stop = conntrack.TCPTimeWait, replied, began, began.Add(90*time.Second)
		e.State.HasCounters, e.State.Sent, e.State.Received = true, conntrack.Counters{Packets: 5, Bytes: 500}, conntrack.Counters{Packets: 4, Bytes: 4000}
		e.State.Reply.Destination = netip.MustParseAddrPort("172.20.0.2:1234")
	})
	flows, _ := b.Last(1, time.Time{}, all)
	e, ok := b.Find(flows[0].id)
	if !ok {
		t.Fatal("the flow cannot be found by its ID")
	}
	l := e.Record(nil, true).Life
	if l.State != flow.Closed || !l.Answered || !l.Over || l.KernelState != "TIME_WAIT" || l.SeenSource != "172.20.0.2:1234" || l.Duration != 90 || l.AnsweredAfter != 0.001 ||
		l.Sent == nil || *l.Sent != (flow.Count{Packets: 5, Bytes: 500}) || *l.Received != (flow.Count{Packets: 4, Bytes: 4000}) || l.Incomplete {
		t.Errorf("life %+v", l)
	}
	var history []string
	for _, m := range l.History {
		history = append(history, m.Event.String())
	}
	if got := strings.Join(history, " "); got != "decided established closed gone" {
		t.Errorf("history %s", got)
	}
	if _, ok := b.Find("other-1"); ok {
		t.Error("found the flow of another journal")
	}
}

// TestAnswerFound: a reply that is found in the table came before, at an unknown time.
func TestAnswerFound(t *testing.T) {
	b := newBench(t, Config{})
	b.decide(client, nil)
	b.found([]conntrack.Event{{State: conntrack.State{
		Original: conntrack.Tuple{Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
		TCP:      conntrack.TCPEstablished, Status: replied,
	}}}, 1, b.horizon())
	b.tcp(conntrack.TCPCloseWait, replied)
	flows, _ := b.Last(1, time.Time{}, all)
	if l := flows[0].Record(nil, false).Life; !l.Answered || l.AnsweredAfter != 0 {
		t.Errorf("life %+v", l)
	}
}

// TestSteps: a flow's walk is made of what the journal kept of its table.
func TestSteps(t *testing.T) {
	b := newBench(t, Config{})
	b.decide(client, nil)
	flows, _ := b.Last(1, time.Time{}, all)
	r := flows[0].Record(nil, true)
	var chain []string
	for _, s := range r.Steps {
		chain = append(chain, s.Chain)
	}
	if !slices.Contains(chain, "KUBE-SERVICES") || !slices.ContainsFunc(chain, func(c string) bool { return strings.HasPrefix(c, "KUBE-SEP-") }) {
		t.Errorf("steps %v", chain)
	}
	if flows[0].Flow.Table != nil {
		t.Error("the journal keeps the table")
	}
}

// TestBounds: the journal keeps to its bounds, and a reader that is too late gets
// the number of missed flows.
func TestBounds(t *testing.T) {
	b := newBench(t, Config{Flows: fewFlows})
	const flows = 5 * fewFlows
	source := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1000)
	}
	for i := range flows {
		b.decide(source(i), nil)
	}
	k := b.Known()
	if k.Flows != fewFlows || k.Open != fewFlows || k.Forgotten != flows-fewFlows {
		t.Errorf("known %+v", k)
	}
	for i, known := range map[int]bool{0: false, flows - fewFlows - 1: false, flows - fewFlows: true, flows - 1: true} {
		if _, e := b.newest(keyOf(uint8(decision.TCP), source(i), netip.AddrPortFrom(b.port.ClusterIP, b.port.Port))); (e != nil) != known {
			t.Errorf("flow %d: %v, want %v", i, e, known)
		}
	}
	if c, _ := b.Counts(b.port); c.Flows.Total != flows || c.Flows.Open != fewFlows {
		t.Errorf("counts %+v", c.Flows)
	}
	n, missed := b.reader.Read(make([]Entry, 2*flows), all)
	if n != fewFlows || missed != flows-fewFlows {
		t.Errorf("read %d, missed %d", n, missed)
	}
	if got, _ := b.Last(1, time.Time{}, all); got[0].Flow.Packet.Source != source(flows-1) {
		t.Errorf("the last flow is from %s", got[0].Flow.Packet.Source)
	}
	if got, _ := b.Last(10, b.now.Add(-1500*time.Microsecond), all); len(got) != 2 {
		t.Errorf("%d flows since a moment ago, want 2", len(got))
	}
}

// TestMemory: a journal of the default size takes what docs/reference/flow-api.md has.
func TestMemory(t *testing.T) {
	j := New(Config{})
	bytes := uintptr(j.flows.capacity())*unsafe.Sizeof(entry{}) + uintptr(j.notes.capacity())*unsafe.Sizeof(note{})
	if mib := float64(bytes) / (1 << 20); mib < 12 || mib > 13.5 {
		t.Errorf("flows and events take %.1f MiB, docs/reference/flow-api.md has 13", mib)
	}
}

// TestServicePortsAreBounded: flows that hold on to many versions of large services make
// room early.
func TestServicePortsAreBounded(t *testing.T) {
	b := newBench(t, Config{ServiceBytes: 100_000})
	for i := range 1000 {
		b.port = web()
		for range 100 {
			b.port.Endpoints = append(b.port.Endpoints, b.port.Endpoints[0])
		}
		b.decide(netip.AddrPortFrom(client.Addr(), uint16(1000+i)), nil)
	}
	if n := b.Known().Flows; n < 2 || n > 10 || len(b.ports.ports) != n {
		t.Errorf("%d flows hold %d service ports", n, len(b.ports.ports))
	}
}

// TestNewestServicePortIsKept: for the next flow, until it has a new version or its service is gone; then no longer than a flow holds on
// to it.
func TestNewestServicePortIsKept(t *testing.T) {
	b := newBench(t, Config{Flows: 2})
	sources := uint16(1000)
	decide := func(port *decision.ServicePort) {
		sources++
		b.port = port
		b.decide(netip.AddrPortFrom(client.Addr(), sources), nil)
	}
	kept := func(when string, bytes bool, want ...*decision.ServicePort) {
		t.Helper()
		if len(b.ports.ports) != len(want) || b.ports.bytes > 0 != bytes {
			t.Errorf("%s: %d service ports with %d bytes are kept, want %d", when, len(b.ports.ports), b.ports.bytes, len(want))
		}
		for _, s := range want {
			if b.ports.ports[s] == nil {
				t.Errorf("%s: %s is not kept", when, s.Name)
			}
		}
	}
	other := web()
	other.Name.Name = "other"
	first, second := web(), web()
	decide(first)
	decide(other)
	decide(other)
	kept("without a flow", true, first, other)
	if c, _ := b.Counts(first); c.Flows.Total != 1 {
		t.Errorf("%d flows count, want 1", c.Flows.Total)
	}
	decide(second)
	kept("with a new version", true, second, other)
	if c, _ := b.Counts(second); c.Flows.Total != 2 {
		t.Errorf("%d flows count, want 2", c.Flows.Total)
	}
	b.SetTable(Published{Table: decision.NewTable(2, start, node, []*decision.ServicePort{other})})
	b.prune(time.Now().Add(time.Hour))
	kept("without its service", true, second, other)
	decide(other)
	decide(other)
	kept("without its service and a flow", true, other)
	b.forget()
	b.forget()
	kept("without flows", false, other)
}

// TestServicePortsInForce: those of the table in force are in memory anyhow.
func TestServicePortsInForce(t *testing.T) {
	b := newBench(t, Config{ServiceBytes: 1})
	var ports []*decision.ServicePort
	for i := range 50 {
		s := web()
		s.Name.Name, s.ClusterIP = fmt.Sprint("web-", i), netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})
		ports = append(ports, s)
	}
	b.SetTable(Published{Table: decision.NewTable(1, start, node, ports)})
	for i, s := range ports {
		b.port = s
		b.decide(netip.AddrPortFrom(client.Addr(), uint16(1000+i)), nil)
	}
	if n := b.Known().Flows; n != len(ports) {
		t.Errorf("%d flows are remembered, want one for each of %d service ports", n, len(ports))
	}
	b.SetTable(Published{Table: decision.NewTable(2, start, node, nil)})
	b.decide(netip.AddrPortFrom(client.Addr(), 2000), nil)
	if n := b.Known().Flows; n != 1 {
		t.Errorf("%d flows hold service ports of the past, more than the limit", n)
	}
}

// TestIntakeIsBounded: workers do not wait, and overflow is counted.
func TestIntakeIsBounded(t *testing.T) {
	j := New(Config{})
	batch := make([]flow.Flow, 1000)
	for range 10 {
		j.Flows(batch)
	}
	if j.Lost() != 10_000-inputCapacity {
		t.Errorf("%d lost", j.Lost())
	}
}

// TestIntakeIsTakenOver: the first flow at once, the next ones together, and sooner if they fill the queue.
func TestIntakeIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(Config{Flows: 2 * inputCapacity})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go j.Run(ctx)
		port := uint16(0)
		offer := func(n int) {
			batch := make([]flow.Flow, n)
			for i := range batch {
				port++
				batch[i].Packet = decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(client.Addr(), port), Destination: client}
			}
			j.Flows(batch)
			synctest.Wait()
		}
		expect := func(want int) {
			t.Helper()
			if n := j.Known().Flows; n != want {
				t.Errorf("%d flows are taken over, want %d", n, want)
			}
		}
		offer(1)
		expect(1)
		offer(1)
		expect(1)
		time.Sleep(gatherFlows)
		synctest.Wait()
		expect(2)
		offer(inputCapacity/2 - 1)
		expect(2)
		offer(1)
		expect(2 + inputCapacity/2)
	})
}

// TestLostEvents: after events were lost lives are incomplete, and the connection table
// makes up for what it can.
func TestLostEvents(t *testing.T) {
	b := newBench(t, Config{})
	other := netip.AddrPortFrom(client.Addr(), 40001)
	b.decide(client, nil)
	b.decide(other, nil)
	b.read()
	f := &follower{Journal: b.Journal, Kernel: Kernel{Dumps: dump{{
		Original: conntrack.Tuple{Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
		TCP:      conntrack.TCPEstablished, Status: replied,
	}}}}
	f.lostEvents()
	b.now = b.now.Add(10 * time.Second)
	b.take(b.now)
	b.expect("") // whether they were answered is not known
	f.resync()
	b.expect("established gone/decided.")
	flows, _ := b.Last(2, time.Time{}, all)
	for _, e := range flows {
		if !e.life.incomplete {
			t.Errorf("flow %s does not report that events were missed", e.Flow.Packet.Source)
		}
	}
	if k := b.Kernel(); k.Overruns != 1 || k.Resyncs != 1 {
		t.Errorf("kernel %+v", k)
	}
}

// dump is a connection table with these entries.
type dump []conntrack.State

func (dump) Reread([]*conntrack.State, func(int, *conntrack.State)) error { return nil }

func (d dump) Dump(_ conntrack.Filter, each func(*conntrack.State)) error {
	for i := range d {
		each(&d[i])
	}
	return nil
}

// TestDraws: the draws are counted by endpoint, anew when other endpoints can be drawn.
func TestDraws(t *testing.T) {
	b := newBench(t, Config{})
	port := uint16(1000)
	draw := func(index uint32, generation uint64) {
		port++
		b.decide(netip.AddrPortFrom(client.Addr(), port), func(f *flow.Flow) { f.Decision.Index, f.Decision.Generation = index, generation })
	}
	expect := func(what string, draws uint64, first uint64) {
		t.Helper()
		c, _ := b.Counts(b.port)
		if c.Draws[0] != draws || c.Endpoints[b.port.Endpoints[0].AddrPort].Draws[0] != first {
			t.Errorf("%s: %d draws, %d of the first endpoint, want %d and %d", what, c.Draws[0], c.Endpoints[b.port.Endpoints[0].AddrPort].Draws[0], draws, first)
		}
	}
	draw(0, 1)
	draw(1, 1)
	draw(1, 1)
	expect("at first", 3, 1)
	old := b.port
	b.port = web() // another version with the same endpoints
	draw(0, 2)
	expect("same endpoints", 4, 2)
	b.port = web()
	b.port.Usable[0] = []uint32{0}
	expect("before the first flow to others", 0, 0)
	draw(0, 3)
	expect("other endpoints", 1, 1)
	now := b.port
	b.port = old
	draw(0, 2) // by the table of before, but reported later
	b.port = now
	expect("a late one", 1, 1)
	if c, _ := b.Counts(b.port); c.Flows.Total != 6 || c.Flows.Drawn != 6 || c.Endpoints[b.port.Endpoints[0].AddrPort].Flows.Total != 4 {
		t.Errorf("counts %+v", c)
	}
	// A table that is older than the flows does not show which endpoints are gone.
	b.SetTable(Published{Table: decision.NewTable(2, start, node, nil)})
	b.now = b.now.Add(time.Minute)
	b.take(b.now)
	if c, ok := b.Counts(b.port); !ok || c.Flows.Total != 6 {
		t.Errorf("by an old table the counts are gone: %+v", c)
	}
	b.SetTable(Published{Table: decision.NewTable(4, start, node, nil)})
	b.now = b.now.Add(time.Minute)
	b.take(b.now)
	if _, ok := b.Counts(b.port); ok {
		t.Error("the counts of a service that is gone are still there")
	}
}

// TestDrawsOfAnAlgorithm: selections of another algorithm, or with other weights, are counted on their own.
func TestDrawsOfAnAlgorithm(t *testing.T) {
	b := newBench(t, Config{})
	for i, change := range []func(){
		func() {},
		func() { b.port.Balance = "wrr" },
		func() { b.port.Endpoints[0].Weight = 5 },
		func() { b.port.Balance = "" },
	} {
		old := b.port
		b.port = web()
		b.port.Balance, b.port.Endpoints[0].Weight = old.Balance, old.Endpoints[0].Weight
		change()
		for n := range uint16(3) {
			b.decide(netip.AddrPortFrom(client.Addr(), uint16(i)*10+n+1), func(f *flow.Flow) { f.Decision.Generation = uint64(i + 1) })
		}
		if c, _ := b.Counts(b.port); c.Draws[0] != 3 {
			t.Errorf("change %d: %d draws, want the 3 since then", i, c.Draws[0])
		}
	}
}

// TestHeldFlows: a choice is no draw, and a flow that a user dropped never went where the
// chains lead.
func TestHeldFlows(t *testing.T) {
	b := newBench(t, Config{})
	b.decide(client, nil)
	b.decide(netip.AddrPortFrom(client.Addr(), 2), func(f *flow.Flow) { f.Held = &flow.Hold{Action: flow.HoldReleased} })
	b.decide(netip.AddrPortFrom(client.Addr(), 3), func(f *flow.Flow) { f.Held = &flow.Hold{Action: flow.HoldChosen} })
	b.decide(netip.AddrPortFrom(client.Addr(), 4), func(f *flow.Flow) {
		f.Held = &flow.Hold{Action: flow.HoldDropped}
		f.Decision.Verdict, f.Decision.Reason = decision.Drop, decision.DroppedByHand
	})
	c, _ := b.Counts(b.port)
	if c.Draws[decision.Cluster] != 2 || c.Flows.Total != 4 || c.Flows.Dropped != 1 || c.Refused["dropped-by-hand"] != 1 {
		t.Errorf("counts %+v, want two draws, and one dropped", c)
	}
	flows, _ := b.Last(10, time.Time{}, all)
	for i, want := range []bool{true, true, true, false} {
		if r := flows[i].Record(nil, true); len(r.Steps) > 0 != want {
			t.Errorf("%s (%s): %d steps", r.Source, r.Reason, len(r.Steps))
		}
	}
}

// slowDump is a dump that lasts until it is closed.
type slowDump struct{ began, end chan struct{} }

func (d slowDump) Reread([]*conntrack.State, func(int, *conntrack.State)) error { return nil }

func (d slowDump) Dump(conntrack.Filter, func(*conntrack.State)) error {
	close(d.began)
	<-d.end
	return nil
}

// counting has one connection, with counters.
type counting struct{ conntrack.State }

func (c counting) Reread(_ []*conntrack.State, found func(int, *conntrack.State)) error {
	found(0, &c.State)
	return nil
}

func (counting) Dump(conntrack.Filter, func(*conntrack.State)) error { return nil }

// TestClosedDuringDump: a connection that closes while the connection table is read has its counters.
func TestClosedDuringDump(t *testing.T) {
	b := newBench(t, Config{})
	closed := conntrack.State{
		Original: conntrack.Tuple{Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
		TCP:      conntrack.TCPTimeWait, Status: replied,
	}
	counted := closed
	counted.HasCounters, counted.Sent = true, conntrack.Counters{Packets: 5, Bytes: 300}
	slow := slowDump{make(chan struct{}), make(chan struct{})}
	f := &follower{Journal: b.Journal, Kernel: Kernel{Connections: counting{counted}, Dumps: slow}}
	var dumping sync.WaitGroup
	dumping.Go(f.resync)
	netnstest.Receive(t, slow.began, "the dump to begin")
	events := []conntrack.Event{{Kind: conntrack.Updated, State: closed}}
	f.countEnds(events, maxLookups)
	close(slow.end)
	dumping.Wait()
	if got := events[0].State; !got.HasCounters || got.Sent != counted.Sent {
		t.Errorf("the event has %+v", got)
	}
}
