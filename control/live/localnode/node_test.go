package localnode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// owners knows one pod and one node.
type owners struct{}

func (owners) Owner(a netip.Addr) flow.Owner {
	switch a.String() {
	case "10.244.1.9":
		return flow.Owner{Pod: "shop/shell", Node: "node-b"}
	case "172.20.0.3":
		return flow.Owner{Node: "node-b"}
	}
	return flow.Owner{}
}

func (owners) Pods(each func(name, node string, addresses []netip.Addr)) {
	each("shop/shell", "node-b", []netip.Addr{netip.MustParseAddr("10.244.1.9")})
}

func (owners) Nodes(each func(name string, addresses []netip.Addr)) {
	each("node-b", []netip.Addr{netip.MustParseAddr("172.20.0.3")})
}

// bench is a node with one service, whose journal runs until the end of the test.
type bench struct {
	*Node
	journal *journal.Journal
	port    *decision.ServicePort
	table   *decision.Table
	stats   *engine.Stats
	daemon  fakeDaemon
}

func newBench(t *testing.T, records int) *bench {
	t.Helper()
	b := &bench{journal: journal.New(journal.Config{}), port: &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: "web", Port: "http"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80, NodePort: 30080,
		Endpoints: []decision.Endpoint{
			{AddrPort: netip.MustParseAddrPort("10.244.0.2:8080"), Pod: "default/web-1", NodeName: "node-a", Local: true, Ready: true},
			{AddrPort: netip.MustParseAddrPort("10.244.1.2:8080"), Pod: "default/web-2", NodeName: "node-b", Ready: true},
			{AddrPort: netip.MustParseAddrPort("10.244.1.3:8080"), Pod: "default/web-3", NodeName: "node-b", Exclusions: [2]decision.Exclusion{decision.NotReady, decision.NotReady}},
		},
		Usable: [2][]uint32{{0, 1}, nil}, HasEndpoints: true,
	}}
	b.table = decision.NewTable(5, time.Now(), decision.Node{Name: "node-a", Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2")}}, []*decision.ServicePort{b.port})
	b.Node = New(Config{
		Name: "node-a", Version: "v1", Journal: b.journal, Owners: owners{}, Records: records,
		Table: func() *decision.Table { return b.table }, Stats: func() *engine.Stats { return b.stats }, Daemon: &b.daemon,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); b.journal.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

// flow makes one that was decided by the lot.
func (b *bench) flow(source string, index uint32) flow.Flow {
	return flow.Flow{
		Packet:   decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort("10.96.0.10:80")},
		Decision: decision.Decision{Verdict: decision.DNAT, Entry: decision.EntryClusterIP, Branch: decision.BranchInternal, Reason: decision.Balanced, ServicePort: b.port, Index: index, Drawn: true, Generation: 5},
		Table:    b.table, Node: b.table.Node(), Time: time.Now(), Waited: -1, Outcome: conntrack.Created,
	}
}

// add reports flows and waits until the journal has them.
func (b *bench) add(t *testing.T, flows ...flow.Flow) {
	t.Helper()
	want := b.journal.Known().Flows + len(flows)
	b.journal.Flows(flows)
	for end := time.Now().Add(time.Minute); b.journal.Known().Flows < want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the journal does not take flows")
		}
	}
}

func (b *bench) list(t *testing.T, q observe.FlowQuery) (sources []string) {
	t.Helper()
	if err := b.Node.Flows(t.Context(), q, func(i observe.Item) error {
		sources = append(sources, i.Record.Source)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return sources
}

func TestListing(t *testing.T) {
	b := newBench(t, 0)
	rejected := b.flow("10.244.1.9:3", 0)
	rejected.Decision.Verdict, rejected.Decision.Reason = decision.Reject, decision.NoEndpoints
	other := b.flow("192.0.2.1:4", 0)
	other.Packet.Destination, other.Decision = netip.MustParseAddrPort("192.0.2.9:443"), decision.Decision{}
	old := b.flow("192.0.2.1:5", 1)
	old.Time = time.Now().Add(-time.Hour)
	b.add(t, old, b.flow("192.0.2.1:1", 0), b.flow("10.244.1.9:2", 1), rejected, other)
	for _, tt := range []struct {
		name string
		q    observe.FlowQuery
		want string
	}{
		{"all", observe.FlowQuery{}, "192.0.2.1:5 192.0.2.1:1 10.244.1.9:2 10.244.1.9:3 192.0.2.1:4"},
		{"of a pod", observe.FlowQuery{Source: "shop/shell"}, "10.244.1.9:2 10.244.1.9:3"},
		{"of a pod and a port", observe.FlowQuery{Source: "shell:3,shop/shell:4"}, "10.244.1.9:3"},
		{"of the pod's node", observe.FlowQuery{Source: "node-b"}, ""},
		{"to a pod", observe.FlowQuery{Endpoint: "default/web-2"}, "192.0.2.1:5 10.244.1.9:2"},
		{"the newest", observe.FlowQuery{Limit: "2"}, "10.244.1.9:3 192.0.2.1:4"},
		{"the newest of a kind", observe.FlowQuery{Limit: "2", Verdict: "dnat"}, "192.0.2.1:1 10.244.1.9:2"},
		{"since", observe.FlowQuery{Since: "5m", Verdict: "dnat"}, "192.0.2.1:1 10.244.1.9:2"},
		{"service", observe.FlowQuery{Service: "default/web"}, "192.0.2.1:5 192.0.2.1:1 10.244.1.9:2 10.244.1.9:3"},
		{"no such service", observe.FlowQuery{Service: "default/we"}, ""},
		{"source pod", observe.FlowQuery{Pod: "shop/shell"}, "10.244.1.9:2 10.244.1.9:3"},
		{"endpoint pod", observe.FlowQuery{Pod: "web-2"}, "192.0.2.1:5 10.244.1.9:2"},
		{"namespace of a pod", observe.FlowQuery{Namespace: "shop"}, "10.244.1.9:2 10.244.1.9:3"},
		{"endpoint", observe.FlowQuery{Endpoint: "10.244.0.0/24"}, "192.0.2.1:1"},
		{"port", observe.FlowQuery{Port: "443,8443"}, "192.0.2.1:4"},
		{"reason", observe.FlowQuery{Reason: "no-endpoints"}, "10.244.1.9:3"},
		{"state", observe.FlowQuery{State: "rejected"}, "10.244.1.9:3"},
		{"this node", observe.FlowQuery{Node: "node-a", Limit: "1"}, "192.0.2.1:4"},
		{"another node", observe.FlowQuery{Node: "node-b"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := strings.Join(b.list(t, tt.q), " "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	err := b.Node.Flows(t.Context(), observe.FlowQuery{Verdict: "maybe"}, nil)
	if e, ok := errors.AsType[*observe.Error](err); !ok || e.Field != "verdict" {
		t.Errorf("error %v", err)
	}
}

// TestServicesOnly: what is for no service is left out, and counted where it is missing.
func TestServicesOnly(t *testing.T) {
	b := newBench(t, 0)
	other := func(source string) flow.Flow {
		f := b.flow(source, 0)
		f.Packet.Destination, f.Decision = netip.MustParseAddrPort("192.0.2.9:443"), decision.Decision{}
		return f
	}
	unfiltered := b.flow("192.0.2.1:6", 0)
	unfiltered.Decision.Verdict, unfiltered.Decision.Reason = decision.Accept, decision.NotFiltered
	foreign := other("192.0.2.1:7")
	foreign.Decision = decision.Decision{Verdict: decision.Drop, Reason: decision.ForeignLocalnet}
	b.add(t, other("10.0.0.1:1"), b.flow("192.0.2.1:2", 0), other("10.0.0.1:3"), other("10.0.0.1:4"), unfiltered, foreign, other("10.0.0.1:8"))
	for _, tt := range []struct {
		q    observe.FlowQuery
		want string
	}{
		{observe.FlowQuery{ServicesOnly: true}, "(1) 192.0.2.1:2 (2) 192.0.2.1:6 192.0.2.1:7 (1)"},
		{observe.FlowQuery{ServicesOnly: true, Limit: "2"}, "192.0.2.1:6 192.0.2.1:7 (1)"},
		{observe.FlowQuery{ServicesOnly: true, Source: "10.0.0.1"}, "(4)"},
		{observe.FlowQuery{ServicesOnly: true, Source: "10.0.0.1:4"}, "(1)"},
		{observe.FlowQuery{Source: "10.0.0.1:4"}, "10.0.0.1:4"},
	} {
		var got []string
		if err := b.Node.Flows(t.Context(), tt.q, func(i observe.Item) error {
			if i.Record != nil {
				got = append(got, i.Record.Source)
			} else if got = append(got, fmt.Sprintf("(%d)", i.Missed.Missed)); i.Missed.Why != observe.MissedLeftOut {
				t.Errorf("%+v: missed %+v", tt.q, i.Missed)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.q, got, tt.want)
		}
	}

	// Following, flows are counted, not their records.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	leftOut := uint64(0)
	var emitted []time.Time
	following := make(chan struct{})
	go func() {
		<-following
		again := other("10.0.0.1:8") // comes again, and is no new flow
		b.journal.Flows([]flow.Flow{other("10.0.0.1:9"), again, b.flow("192.0.2.1:9", 0), other("10.0.0.1:10")})
	}()
	began := time.Now()
	if err := b.Node.Flows(ctx, observe.FlowQuery{Follow: true, ServicesOnly: true, Limit: "1"}, func(i observe.Item) error {
		switch {
		case i.Missed != nil:
			leftOut += i.Missed.Missed
		case i.Record.Event == 0:
			if i.Record.Emitted != nil {
				t.Error("a flow as it is was emitted at a time")
			}
			close(following)
		default:
			emitted = append(emitted, *i.Record.Emitted)
		}
		if leftOut == 3 && len(emitted) == 1 { // one before, two after
			cancel()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if leftOut != 3 || len(emitted) != 1 || emitted[0].Before(began) || emitted[0].After(time.Now()) {
		t.Errorf("%d flows are left out, want 3; emitted at %s", leftOut, emitted)
	}
	if s := b.Node.missed.Load(); s != 0 {
		t.Errorf("%d records count as missed", s)
	}
}

// TestNames: of sources and endpoints.
func TestNames(t *testing.T) {
	b := newBench(t, 0)
	b.add(t, b.flow("10.244.1.9:2", 1))
	if err := b.Node.Flows(t.Context(), observe.FlowQuery{Steps: true}, func(i observe.Item) error {
		r := i.Record
		if r.SourcePod != "shop/shell" || r.SourceNode != "node-b" || r.Pod != "default/web-2" || r.EndpointNode != "node-b" || len(r.Steps) == 0 {
			t.Errorf("record %+v", r)
		}
		one, err := b.Flow(t.Context(), r.ID)
		if err != nil || one.Source != r.Source || len(one.Life.History) != 1 {
			t.Errorf("by its ID: %+v, %v", one, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err := b.Flow(t.Context(), "x-1")
	if e, ok := errors.AsType[*observe.Error](err); !ok || e.Status != 404 {
		t.Errorf("error %v", err)
	}
}

// TestStream: when more happens than a reader may be given, or than it can take, each event
// is given or counted as missed.
func TestStream(t *testing.T) {
	for _, tt := range []struct {
		name    string
		flows   int
		records int // a second
		rate    string
		stall   bool
		busy    bool
		why     []string
	}{
		{"as fast as it comes", 10_000, 1 << 30, "", false, false, nil},
		{"sampled", 100_000, 1000, "", false, false, []string{observe.MissedSampled}},
		{"rate of the reader", 100_000, 1 << 30, "5", false, false, []string{observe.MissedSampled}},
		{"busy", 100_000, 10_000, "", false, true, []string{observe.MissedSampled}},
		{"stalled", 100_000, 1 << 30, "", true, false, []string{observe.MissedSlow}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.records)
			if tt.busy {
				following, stop := context.WithCancel(t.Context())
				events := &noEvents{closed: make(chan struct{})}
				followed := make(chan error, 1)
				go func() { followed <- b.journal.Follow(following, journal.Kernel{Events: events, DetailRate: 1}) }()
				defer func() {
					stop()
					if err := <-followed; err != nil {
						t.Error(err)
					}
				}()
			}
			var given, missed atomic.Uint64
			why := make(map[string]bool)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			release := make(chan struct{})
			if !tt.stall {
				close(release)
			}
			done := make(chan error, 1)
			go func() {
				done <- b.Node.Flows(ctx, observe.FlowQuery{Follow: true, Rate: tt.rate}, func(i observe.Item) error {
					<-release
					if i.Missed != nil {
						missed.Add(i.Missed.Missed)
						why[i.Missed.Why] = true
					} else {
						given.Add(1)
					}
					return nil
				})
			}()
			await(t, "the reader", func() bool { return b.readers.Load() == 1 })
			f := b.flow("10.0.0.1:1", 0)
			for i := range tt.flows {
				f.Packet.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 7)
				f.Time = time.Now()
				b.journal.Flows([]flow.Flow{f})
				if tt.busy && i == tt.flows/2 {
					await(t, "the journal to be busy", b.journal.Busy)
				}
				if i%4000 == 0 { // the journal keeps up
					before := b.journal.Known().Forgotten + uint64(b.journal.Known().Flows)
					await(t, "the journal", func() bool {
						k := b.journal.Known()
						return k.Forgotten+uint64(k.Flows) > before || k.Forgotten+uint64(k.Flows) > uint64(i)
					})
				}
			}
			if tt.stall {
				await(t, "the journal", func() bool { k := b.journal.Known(); return k.Forgotten+uint64(k.Flows)+k.Lost == uint64(tt.flows) })
				close(release)
			}
			await(t, "all to be given or missed", func() bool { return given.Load()+missed.Load() >= uint64(tt.flows) })
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if n := given.Load() + missed.Load(); n != uint64(tt.flows) {
				t.Errorf("%d given and %d missed, want %d", given.Load(), missed.Load(), tt.flows)
			}
			if len(tt.why) == 0 && missed.Load() != 0 {
				t.Errorf("%d missed: %v", missed.Load(), why)
			}
			for _, w := range tt.why {
				if !why[w] || given.Load() == 0 {
					t.Errorf("%d given; missed because of %v, want %s", given.Load(), why, w)
				}
			}
		})
	}
}

// TestSampleOf: a sample has the same connections on all nodes, whatever their destination is translated to, and half of
// many sources for each bit.
func TestSampleOf(t *testing.T) {
	half := 0
	for i := range 10_000 {
		p := decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), uint16(1024+i)), Destination: netip.MustParseAddrPort("10.96.0.10:80")}
		translated := p
		translated.Destination = netip.MustParseAddrPort("10.244.1.2:8080")
		if sampleOf(&p) != sampleOf(&translated) {
			t.Fatalf("%s: another sample after translation", p.Source)
		}
		if sampleOf(&p)&1 == 0 {
			half++
		}
	}
	if half < 4700 || half > 5300 { // six standard deviations
		t.Errorf("%d of 10,000 sources are in half of them", half)
	}
}

// noEvents is a kernel that sends none.
type noEvents struct{ closed chan struct{} }

func (e *noEvents) Receive([]conntrack.Event) (int, error) { <-e.closed; return 0, os.ErrClosed }
func (e *noEvents) Pause(bool) error                       { return nil }
func (e *noEvents) Close() error                           { close(e.closed); return nil }

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestReaderThatFails ends its stream, and no other.
func TestReaderThatFails(t *testing.T) {
	b := newBench(t, 0)
	failed := errors.New("gone")
	done := make(chan error, 1)
	go func() {
		done <- b.Node.Flows(t.Context(), observe.FlowQuery{Follow: true}, func(observe.Item) error { return failed })
	}()
	await(t, "the reader", func() bool { return b.readers.Load() == 1 })
	b.add(t, b.flow("10.244.1.9:2", 1))
	if err := <-done; !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if n := b.readers.Load(); n != 0 {
		t.Errorf("%d readers are left", n)
	}
}

func TestServices(t *testing.T) {
	b := newBench(t, 0)
	s, err := b.Services(t.Context(), observe.ServiceQuery{})
	if err != nil || len(s.Services) != 1 || s.Services[0].Fit != nil || s.Services[0].Endpoints[0].Expected != 0.5 {
		t.Fatalf("before there are flows: %+v, %v", s, err)
	}
	if s, err = b.Services(t.Context(), observe.ServiceQuery{Active: true}); err != nil || len(s.Services) != 0 {
		t.Errorf("active: %+v, %v", s, err)
	}
	rejected := b.flow("10.244.1.9:99", 0)
	rejected.Decision.Verdict, rejected.Decision.Reason = decision.Reject, decision.NoEndpoints
	flows := []flow.Flow{rejected}
	for i := range 100 {
		f := b.flow("10.244.1.9:1", uint32(i%4/3)) // 75 to the first, 25 to the second
		f.Packet.Source = netip.AddrPortFrom(f.Packet.Source.Addr(), uint16(1000+i))
		flows = append(flows, f)
	}
	b.add(t, flows...)
	if s, err = b.Services(t.Context(), observe.ServiceQuery{Service: "web"}); err != nil {
		t.Fatal(err)
	}
	w := s.Services[0]
	if w.Service != "default/web:http" || w.Flows.Total != 101 || w.Flows.Drawn != 100 || w.Flows.Rejected != 1 || w.Refused["no-endpoints"] != 1 {
		t.Errorf("service %+v", w)
	}
	if e := w.Endpoints; len(e) != 3 || e[0].Observed != 0.75 || e[0].Expected != 0.5 || e[1].Observed != 0.25 || e[2].Excluded != "not-ready" || e[2].Expected != 0 {
		t.Errorf("endpoints %+v", w.Endpoints)
	}
	// (75-50)^2/50 + (25-50)^2/50
	if f := w.Fit; f == nil || f.Draws != 100 || f.ChiSquare != 25 || f.DegreesOfFreedom != 1 || f.PValue > 1e-6 || f.PValue <= 0 {
		t.Errorf("fit %+v", w.Fit)
	}
}

// TestServicePages: pages of any length, one after the other, are the whole list, whose order
// is not that of the ports in a Service.
func TestServicePages(t *testing.T) {
	b := newBench(t, 0)
	var ports []*decision.ServicePort
	for i, name := range []decision.ServicePortName{
		{Namespace: "default", Name: "web", Port: "https"}, {Namespace: "default", Name: "web", Port: "http"}, {Namespace: "default", Name: "web"},
		{Namespace: "default", Name: "web-2"}, {Namespace: "a", Name: "z"}, {Namespace: "a-b", Name: "a"},
	} {
		for _, f := range []decision.Family{decision.IPv6, decision.IPv4} {
			s := *b.port
			s.Name, s.Family, s.Port, s.NodePort = name, f, uint16(1+i), 0
			if f == decision.IPv6 {
				s.ClusterIP = netip.MustParseAddr("fd96::a")
			}
			ports = append(ports, &s)
		}
	}
	b.table = decision.NewTable(6, time.Now(), *b.table.Node(), ports)
	list := func(q observe.ServiceQuery) (keys []string, next string) {
		t.Helper()
		s, err := b.Services(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.Services {
			keys = append(keys, s.Services[i].Key().String())
		}
		return keys, s.Next
	}
	want := []string{
		"a/z/IPv4", "a/z/IPv6", "a-b/a/IPv4", "a-b/a/IPv6", "default/web/IPv4", "default/web/IPv6", "default/web:http/IPv4", "default/web:http/IPv6",
		"default/web:https/IPv4", "default/web:https/IPv6", "default/web-2/IPv4", "default/web-2/IPv6",
	}
	for limit := range len(want) + 2 {
		q := observe.ServiceQuery{Limit: strconv.Itoa(limit)}
		var got []string
		for pages := 1; ; pages++ {
			keys, next := list(q)
			got = append(got, keys...)
			if limit > 0 && len(keys) > limit || pages > len(want) {
				t.Fatalf("limit %d: %d services on page %d", limit, len(keys), pages)
			}
			if next == "" {
				break
			}
			q.After = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %v, want %v", limit, got, want)
		}
	}
	if keys, next := list(observe.ServiceQuery{Service: "web", Limit: "2", After: "a-b/gone/IPv4"}); !slices.Equal(keys, want[4:6]) || next != want[5] {
		t.Errorf("behind a service that has gone: %v, next %s", keys, next)
	}
}

// TestRemovedEndpoint stays in sight.
func TestRemovedEndpoint(t *testing.T) {
	b := newBench(t, 0)
	b.add(t, b.flow("10.244.1.9:1", 1), b.flow("10.244.1.9:2", 0))
	b.config.Journal.SetTable(journal.Published{Table: b.table})
	next := *b.port
	next.Endpoints, next.Usable = next.Endpoints[:1], [2][]uint32{{0}, nil}
	b.table = decision.NewTable(6, time.Now(), decision.Node{Name: "node-a"}, []*decision.ServicePort{&next})
	s, err := b.Services(t.Context(), observe.ServiceQuery{})
	if err != nil {
		t.Fatal(err)
	}
	if e := s.Services[0].Endpoints; len(e) != 2 || !e[1].Removed || e[1].Pod != "default/web-2" || e[1].Flows.Total != 1 || e[0].Expected != 1 {
		t.Errorf("endpoints %+v", e)
	}
	if f := s.Services[0].Fit; f != nil {
		t.Errorf("fit of draws among others: %+v", f)
	}
	if c := s.Services[0].Changes; c != nil {
		t.Errorf("changes that the query does not want: %+v", c)
	}
	b.config.Journal.SetTable(journal.Published{Table: b.table})
	if s, err = b.Services(t.Context(), observe.ServiceQuery{Changes: true}); err != nil || len(s.Services[0].Changes) != 1 || len(s.Services[0].Changes[0].Endpoints) != 2 {
		t.Errorf("changes: %+v, %v", s.Services[0].Changes, err)
	}
}

func TestExplain(t *testing.T) {
	b := newBench(t, 0)
	seed := uint64(1)
	q := observe.Question{Question: flow.Question{Protocol: "tcp", Source: "10.244.1.9", Destination: "10.96.0.10:80"}, Seed: &seed}
	r, err := b.Explain(t.Context(), q)
	if err != nil || r.Service != "default/web:http" || r.SourcePod != "shop/shell" || len(r.Steps) == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	for field, change := range map[string]func(*observe.Question){
		"protocol":    func(q *observe.Question) { q.Protocol = "tpc" },
		"source":      func(q *observe.Question) { q.Source = "pod/shop/nobody" },
		"destination": func(q *observe.Question) { q.Destination = "10.96.0.10" },
		"node":        func(q *observe.Question) { q.Node = "node-z" },
	} {
		bad := q
		change(&bad)
		_, err := b.Explain(t.Context(), bad)
		if e, ok := errors.AsType[*observe.Error](err); !ok || e.Field != field || e.Status < 400 || e.Status > 404 {
			t.Errorf("%s: error %v", field, err)
		}
	}
	b.table = nil
	_, err = b.Explain(t.Context(), q)
	if e, ok := errors.AsType[*observe.Error](err); !ok || e.Status != 503 {
		t.Errorf("without a table: %v", err)
	}
}

// TestObjects: the table in force, or an earlier one that the journal keeps, of all Services or of one.
func TestObjects(t *testing.T) {
	b := newBench(t, 0)
	other := *b.port
	other.Name.Name, other.ClusterIP, other.NodePort = "other", netip.MustParseAddr("10.96.0.11"), 0
	b.journal.SetTable(journal.Published{Table: b.table})
	b.table = b.table.Next(time.Now(), *b.table.Node(), decision.Change{Service: other.Name.Service(), Ports: []*decision.ServicePort{&other}})
	b.journal.SetTable(journal.Published{Table: b.table})
	for _, tt := range []struct {
		q        observe.ObjectsQuery
		want     uint64
		services []string
	}{
		{observe.ObjectsQuery{}, 6, []string{"other", "web"}},
		{observe.ObjectsQuery{Node: "node-a", Generation: "6"}, 6, []string{"other", "web"}},
		{observe.ObjectsQuery{Generation: "5"}, 5, []string{"web"}},
		{observe.ObjectsQuery{Generation: "6", Service: "default/other"}, 6, []string{"other"}},
	} {
		o, err := b.Objects(t.Context(), tt.q)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := manifest.Options{}.LoadText("objects", o.YAML)
		if err != nil {
			t.Fatalf("%v\n%s", err, o.YAML)
		}
		var names []string
		for _, s := range objects.Services {
			names = append(names, s.Name)
		}
		if o.Node != "node-a" || o.Generation != tt.want || o.Built.IsZero() || !slices.Equal(names, tt.services) || len(objects.EndpointSlices) != len(names) || len(objects.Nodes) != 1 {
			t.Errorf("%+v: %+v", tt.q, o)
		}
	}
	for message, q := range map[string]observe.ObjectsQuery{
		"node node-b is not observed by this server: it observes node-a":    {Node: "node-b"},
		"generation 4 is not kept: node-a keeps generation 5 and later":     {Generation: "4"},
		"service default/other is not in generation 5 of the service table": {Generation: "5", Service: "default/other"},
		`generation "x": want the number of a service table, from 1`:        {Generation: "x"},
		`service "web": want NAMESPACE/NAME`:                                {Service: "web"},
	} {
		if _, err := b.Objects(t.Context(), q); err == nil || err.Error() != message {
			t.Errorf("%+v: %v, want %s", q, err, message)
		}
	}
	b.table = nil
	if _, err := b.Objects(t.Context(), observe.ObjectsQuery{}); err == nil {
		t.Error("objects before the first table")
	}
}

func TestTopology(t *testing.T) {
	b := newBench(t, 0)
	top, err := b.Topology(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range top.Nodes {
		names = append(names, n.Name)
	}
	for _, p := range top.Pods {
		names = append(names, p.Name+"@"+p.Node)
	}
	if got, want := strings.Join(names, " "), "node-a node-b default/web-1@node-a default/web-2@node-b default/web-3@node-b shop/shell@node-b"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !top.Nodes[0].Observed || top.Nodes[1].Observed || top.Nodes[1].Addresses[0].String() != "172.20.0.3" {
		t.Errorf("nodes %+v", top.Nodes)
	}
}
