package journal

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// copied is an event of a connection that the kernel's copy decided.
func (b *bench) copied(kind conntrack.EventKind, change func(*conntrack.Event)) {
	b.event(client, kind, func(e *conntrack.Event) {
		e.State.Mark = conntrack.DefaultMark | conntrack.CopyMark
		if change != nil {
			change(e)
		}
	})
}

// TestCopied: a connection of the kernel's copy is a flow from its first event on.
func TestCopied(t *testing.T) {
	b := newBench(t, Config{})
	established := func(e *conntrack.Event) {
		e.State.TCP, e.State.Status = conntrack.TCPEstablished, conntrack.StatusSeenReply|conntrack.StatusAssured
	}
	b.copied(conntrack.Updated, established)
	b.expect("") // without a table it is not known what it is
	b.SetTable(Published{Table: b.table})
	b.copied(conntrack.Updated, established)
	b.expect("decided established")
	entries, _ := b.Last(1, time.Time{}, all)
	r := entries[0].Record(nil, true)
	if r.Reason != "kernel-copy" || r.Verdict != "dnat" || r.Service != "default/web" || r.Pod != "default/web-1" || len(r.Candidates) != 2 ||
		r.Queue != nil || r.Stages != nil || r.Draw != nil || r.Steps != nil || r.Generation != 1 || r.Masquerade {
		t.Errorf("record %+v", r)
	}
	b.copied(conntrack.Destroyed, func(e *conntrack.Event) {
		e.State.TCP, e.State.Start = conntrack.TCPTimeWait, b.now.Add(-time.Second)
	})
	b.expect("closed gone/closed.")

	// Another connection of the same tuple; one that nothing answered is known from its end only.
	b.now = b.now.Add(time.Minute)
	b.copied(conntrack.Destroyed, func(e *conntrack.Event) { e.State.Start = b.now.Add(-time.Second) })
	b.expect("decided gone/unanswered.")
}

// TestCopiedBefore: connections that the copy decided while the daemon was away are found.
func TestCopiedBefore(t *testing.T) {
	b := newBench(t, Config{})
	if b.stale() {
		t.Error("without a table there is nothing to look for")
	}
	b.SetTable(Published{Table: b.table})
	if !b.stale() {
		t.Error("with the first table, connections are not looked for")
	}
	state := conntrack.State{
		Original: conntrack.Tuple{Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
		Reply:    conntrack.Tuple{Source: netip.MustParseAddrPort("10.244.0.3:8080"), Destination: netip.MustParseAddrPort("172.20.0.2:1024"), Protocol: 6},
		Mark:     conntrack.CopyMark, TCP: conntrack.TCPEstablished, Status: conntrack.StatusSeenReply | conntrack.StatusAssured | conntrack.StatusSourceNAT,
		Start: start.Add(-time.Hour),
	}
	b.found([]conntrack.Event{{State: state}}, 1, b.horizon())
	b.expect("decided established")
	entries, _ := b.Last(1, time.Time{}, all)
	r := entries[0].Record(nil, false)
	if !r.Time.Equal(start.Add(-time.Hour)) || r.Pod != "default/web-2" || !r.Masquerade || r.MasqueradeAddress != "172.20.0.2" {
		t.Errorf("record %+v", r)
	}
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) { e.State = state })
	b.read()
	// Its state was read before its end.
	b.found([]conntrack.Event{{State: state}}, 2, b.horizon())
	b.expect("")
	// A connection of the daemon's, and one to an endpoint that is not known.
	state.Mark, state.Start = conntrack.DefaultMark, start.Add(time.Hour)
	b.found([]conntrack.Event{{State: state}}, 3, b.horizon())
	state.Mark, state.Reply.Source = conntrack.CopyMark, netip.MustParseAddrPort("10.244.0.9:8080")
	b.found([]conntrack.Event{{State: state}}, 3, b.horizon())
	b.expect("")
}

// observing is a journal of a node with another proxy, and a table in force.
func observing(t *testing.T, c Observe) *bench {
	c.Proxy = func() string { return "kube-proxy (iptables)" }
	b := newBench(t, Config{Observe: &c})
	b.SetTable(Published{Table: b.table})
	return b
}

// began reports a new connection that the proxy sent to an endpoint.
func (b *bench) began(endpoint string, change func(*conntrack.Event)) {
	b.event(client, conntrack.Began, func(e *conntrack.Event) {
		e.State.Reply.Source = netip.MustParseAddrPort(endpoint)
		if change != nil {
			change(e)
		}
	})
}

// record is that of the newest flow; without flows it fails.
func (b *bench) record() *flow.Record {
	b.t.Helper()
	entries, _ := b.Last(1, time.Time{}, all)
	if len(entries) == 0 {
		b.t.Fatal("there is no flow")
	}
	return entries[0].Record(nil, false)
}

// TestObserved: the flows of another proxy are known from their entries.
func TestObserved(t *testing.T) {
	b := observing(t, Observe{})
	for _, kind := range []conntrack.EventKind{conntrack.Updated, conntrack.Destroyed} {
		b.event(client, kind, func(*conntrack.Event) {}) // of a connection from before: a pass over the table finds those that are there
	}
	b.take(b.now.Add(time.Minute))
	b.expect("")
	b.began("10.244.0.3:8080", nil)
	b.expect("decided")
	r := b.record()
	if r.Reason != "service-proxy" || r.Proxy != "kube-proxy (iptables)" || r.Verdict != "dnat" || r.Service != "default/web" || r.Pod != "default/web-2" ||
		len(r.Candidates) != 2 || r.Candidates[0].Probability != 0.5 || r.Outdated != 0 || r.Draw != nil || r.Conntrack != "" || r.Life.Incomplete {
		t.Errorf("record %+v", r)
	}
	b.event(client, conntrack.Updated, func(e *conntrack.Event) {
		e.State.TCP, e.State.Status = conntrack.TCPEstablished, conntrack.StatusSeenReply|conntrack.StatusAssured
	})
	b.expect("established")
	// The event of its end is lost: the tuple's next connection is another flow.
	b.began("10.244.0.2:8080", nil)
	b.expect("gone/established. decided")
	if r := b.record(); r.Pod != "default/web-1" {
		t.Errorf("record %+v", r)
	}
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) { e.State.TCP = conntrack.TCPTimeWait })
	b.expect("closed gone/closed.")

	// To no service.
	b.began("10.244.0.2:8080", func(e *conntrack.Event) { e.State.Original.Destination = e.State.Reply.Source })
	b.expect("decided")
	if r := b.record(); r.Reason != "not-a-service" || r.Verdict != "accept" || r.Proxy != "" {
		t.Errorf("record %+v", r)
	}
}

// TestObservedFound: a pass over the connection table finds a flow before its event arrives.
func TestObservedFound(t *testing.T) {
	for _, tt := range []struct {
		name          string
		start, second time.Time // of the entry that was found, and of the event's
		endpoint      string
		after         time.Duration
		want          string
	}{
		{"the same", time.Time{}, time.Time{}, "10.244.0.3:8080", time.Second, ""},
		{"the same by its start", start, start, "10.244.0.3:8080", time.Minute, ""},
		{"another by its start", start, start.Add(time.Second), "10.244.0.3:8080", time.Second, "gone/decided. decided"},
		{"another by its endpoint", time.Time{}, time.Time{}, "10.244.0.2:8080", time.Second, "gone/decided. decided"},
		{"another by the time", time.Time{}, time.Time{}, "10.244.0.3:8080", time.Minute, "gone/decided. decided"},
	} {
		b := observing(t, Observe{})
		b.found([]conntrack.Event{{State: conntrack.State{
			Original: conntrack.Tuple{Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
			Reply:    conntrack.Tuple{Source: netip.MustParseAddrPort("10.244.0.3:8080"), Destination: client, Protocol: 6},
			Start:    tt.start,
		}}}, 1, b.horizon())
		first := make([]Entry, 1)
		if n, _ := b.reader.Read(first, all); n != 1 || first[0].Event != flow.Decided || !first[0].Record(nil, false).Life.Incomplete {
			t.Errorf("%s: found %+v", tt.name, first)
		}
		b.now = time.Now().Add(tt.after) // the pass has the time of the clock
		b.began(tt.endpoint, func(e *conntrack.Event) { e.State.Start = tt.second })
		if got := b.read(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		r := b.record()
		if r.Life.Incomplete {
			t.Errorf("%s: incomplete, though its beginning is known", tt.name)
		}
		if last := b.flows.at(b.number(r.ID)).counts().last(); b.ID(last.flow) != r.ID || last.at != r.Time.UnixNano() {
			t.Errorf("%s: the last flow to the endpoint is %+v, want %s of %s", tt.name, last, r.ID, r.Time)
		}
	}
}

// TestObservedForgotten: a flow whose record is evicted gets no second one by what comes of its entry later.
func TestObservedForgotten(t *testing.T) {
	c := Observe{Proxy: func() string { return "kube-proxy (iptables)" }}
	b := newBench(t, Config{Flows: fewFlows, Observe: &c})
	b.SetTable(Published{Table: b.table})
	b.began("10.244.0.3:8080", nil)
	b.expect("decided")
	later := func(what string, start time.Time, mark uint32, want uint64) {
		t.Helper()
		before := b.flows.next
		change := func(e *conntrack.Event) {
			e.State.Reply.Source = netip.MustParseAddrPort("10.244.0.3:8080")
			e.State.TCP, e.State.Status, e.State.Start, e.State.Mark = conntrack.TCPEstablished, replied, start, mark
		}
		b.event(client, conntrack.Updated, change)
		b.event(client, conntrack.Destroyed, change)
		ev := conntrack.Event{State: conntrack.State{Original: conntrack.Tuple{Source: client, Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6}}}
		change(&ev)
		b.found([]conntrack.Event{ev}, 1, b.horizon())
		b.take(b.now.Add(time.Minute))
		if got := b.flows.next - before; got != want {
			t.Errorf("%s: %d further records, want %d", what, got, want)
		}
	}
	later("its own", time.Time{}, 0, 0)
	for i := range fewFlows + 1 {
		b.event(netip.AddrPortFrom(netip.MustParseAddr("10.9.9.9"), uint16(i)), conntrack.Began, func(*conntrack.Event) {})
	}
	later("forgotten, and its beginning is not known", time.Time{}, 0, 0)
	later("forgotten", start, 0, 0)
	later("forgotten, of the copy", start, conntrack.CopyMark, 0)
	later("a newer one, whose event was lost", b.now, 0, 1)
}

// TestObservedServices: flows to no service have no records if nobody wants them.
func TestObservedServices(t *testing.T) {
	b := observing(t, Observe{OnlyServices: true})
	b.began("10.244.0.2:8080", func(e *conntrack.Event) { e.State.Original.Destination = e.State.Reply.Source })
	b.expect("")
	b.began("10.244.0.2:8080", nil)
	b.expect("decided")
}

// TestObservedOutdated: the proxy sends flows to an endpoint that is gone, or not there yet.
func TestObservedOutdated(t *testing.T) {
	b := observing(t, Observe{})
	next := web()
	next.Endpoints, next.Usable[decision.Cluster] = next.Endpoints[:1], []uint32{0}
	b.SetTable(Published{Table: decision.NewTable(2, b.now.Add(time.Second), node, []*decision.ServicePort{next})})
	b.began("10.244.0.3:8080", func(e *conntrack.Event) { e.At = b.now })
	if r := b.record(); r.Reason != "service-proxy" || r.Pod != "default/web-2" || r.Generation != 1 || r.Outdated != 0 {
		t.Errorf("a flow before the change: %+v", r)
	}
	b.now = b.now.Add(3 * time.Second)
	b.began("10.244.0.3:8080", func(e *conntrack.Event) { e.At = b.now })
	if r := b.record(); r.Generation != 1 || r.Outdated < 1.9 || r.Outdated > 2.1 {
		t.Errorf("a flow two seconds after the change: %+v", r)
	}

	b.read()
	b.began("10.244.0.9:8080", nil) // nobody knows it yet
	b.expect("")
	third := web()
	third.Endpoints = append(third.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort("10.244.0.9:8080"), Pod: "default/web-9"})
	third.Usable[decision.Cluster] = []uint32{0, 2}
	b.SetTable(Published{Table: decision.NewTable(3, b.now, node, []*decision.ServicePort{third})})
	b.take(b.now)
	if r := b.record(); r.Reason != "service-proxy" || r.Pod != "default/web-9" || r.Generation != 3 {
		t.Errorf("a flow to an endpoint that came later: %+v", r)
	}
}

// TestObservedOddities: what no table explains is said so, after a while.
func TestObservedOddities(t *testing.T) {
	for _, tt := range []struct{ endpoint, reason, verdict string }{
		{"10.244.0.9:8080", "unknown-endpoint", "dnat"},
		{"10.96.0.10:80", "not-translated", "accept"},
	} {
		b := observing(t, Observe{})
		b.began(tt.endpoint, nil)
		b.event(client, conntrack.Updated, func(e *conntrack.Event) {
			e.State.Reply.Source = netip.MustParseAddrPort(tt.endpoint)
			e.State.TCP, e.State.Status = conntrack.TCPEstablished, conntrack.StatusSeenReply
		})
		b.expect("")
		b.now = b.now.Add(markedEventTimeout + time.Second)
		b.take(b.now)
		b.expect("decided established")
		r := b.record()
		if r.Reason != tt.reason || r.Verdict != tt.verdict || r.Service != "default/web" || (r.Endpoint == tt.endpoint) != (tt.verdict == "dnat") || r.Pod != "" {
			t.Errorf("record %+v", r)
		}
	}
}

// TestObservedAffinity: with affinity, the chances of the endpoints are not known.
func TestObservedAffinity(t *testing.T) {
	b := observing(t, Observe{})
	b.port.AffinitySeconds = 10
	b.began("10.244.0.3:8080", nil)
	if r := b.record(); len(r.Candidates) != 2 || r.Candidates[0].Probability != 0 {
		t.Errorf("record %+v", r)
	}
}

// measured is a Meter that notes what it is told.
type measured struct{ list []string }

func (m *measured) Converged(event string, after time.Duration) {
	m.list = append(m.list, fmt.Sprintf("%s %.1f", event, after.Seconds()))
}

func (m *measured) Odd(c observe.Flows) {
	m.list = append(m.list, fmt.Sprintf("odd %d %d %d", c.Outdated, c.UnknownEndpoint, c.NotTranslated))
}

// expect compares what was measured since the last call.
func (m *measured) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if !slices.Equal(m.list, want) {
		t.Errorf("%s: measured %q, want %q", what, m.list, want)
	}
	m.list = nil
}

// since returns the seconds since the beginning.
func since(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", at.Sub(start).Seconds())
}

// TestConvergence: of each change of an endpoint the first or last flow, and the rules, are known, whichever comes first.
func TestConvergence(t *testing.T) {
	m := new(measured)
	b := newBench(t, Config{Observe: &Observe{Proxy: func() string { return "kube-proxy (nftables)" }}, Meter: m})
	b.SetTable(Published{Table: b.table})
	at := func(seconds float64) { b.now = start.Add(time.Duration(seconds * float64(time.Second))) }
	port := uint16(1)
	flow := func(seconds float64, endpoint string) {
		at(seconds)
		port++
		b.event(netip.AddrPortFrom(client.Addr(), port), conntrack.Began, func(e *conntrack.Event) {
			e.At = b.now
			e.State.Reply.Source = netip.MustParseAddrPort(endpoint)
		})
	}
	rules := func(seconds float64, endpoint string, leads bool) {
		at(seconds)
		b.RuleChanged(web().NFTablesChain(decision.Cluster), decision.NFTablesEndpoint(netip.MustParseAddrPort(endpoint)), leads, b.now)
	}
	const gone, added = "10.244.0.3:8080", "10.244.0.9:8080"
	flow(1, gone)

	// The rules have the new endpoint before the daemon does, and lose the old one after it did.
	next := web()
	next.Endpoints[1] = decision.Endpoint{AddrPort: netip.MustParseAddrPort(added), Pod: "default/web-9"}
	rules(9.9, added, true)
	at(10)
	b.SetTable(Published{Table: decision.NewTable(2, b.now, node, []*decision.ServicePort{next})})
	m.expect(t, "the table", "rules 0.0")
	flow(10.2, gone)
	m.expect(t, "a late flow", "odd 1 0 0")
	rules(10.3, gone, false)
	m.expect(t, "the rules", "rules 0.3")
	flow(10.5, added)
	flow(10.6, added)
	m.expect(t, "the first flow", "first_flow 0.5")
	b.take(start.Add(70*time.Second - 1))
	m.expect(t, "less than a minute later")
	b.take(start.Add(70 * time.Second))
	m.expect(t, "a minute later", "last_flow 0.2")

	c := b.Changes(next)[0]
	if len(c.Endpoints) != 2 {
		t.Fatalf("%+v", c)
	}
	first, last := c.Endpoints[0], c.Endpoints[1]
	if first.FirstFlow == nil || last.LastFlow == nil || first.LastFlow != nil || last.FirstFlow != nil {
		t.Fatalf("%+v", c)
	}
	if got := []string{since(first.Rules), since(&first.FirstFlow.Time), since(last.Rules), since(&last.LastFlow.Time)}; !slices.Equal(got, []string{"9.9", "10.5", "10.3", "10.2"}) {
		t.Errorf("rules, first flow, rules, last flow: %v", got)
	}
	if counts, _ := b.Counts(next); counts.Flows.Outdated != 1 || counts.Endpoints[netip.MustParseAddrPort(gone)].Flows.Outdated != 1 || counts.Endpoints[netip.MustParseAddrPort(added)].Flows.Outdated != 0 {
		t.Errorf("counts %+v", counts)
	}

	// It is back, and gone again without a flow. What was missed meanwhile is not known.
	third := web()
	third.Endpoints = append(third.Endpoints[:1], next.Endpoints[1], third.Endpoints[1])
	third.Usable[decision.Cluster] = []uint32{0, 1, 2}
	at(80)
	b.SetTable(Published{Table: decision.NewTable(3, b.now, node, []*decision.ServicePort{third})})
	b.RulesMissed()
	at(81)
	b.SetTable(Published{Table: decision.NewTable(4, b.now, node, []*decision.ServicePort{next})})
	if list := b.Changes(next); list[0].Endpoints[0].RulesAwaited || list[1].Endpoints[0].RulesAwaited || !list[2].Endpoints[0].RulesAwaited {
		t.Errorf("rules are awaited: %+v", list)
	}
	rules(82, gone, true)
	rules(83, gone, false)
	m.expect(t, "the rules", "rules 2.0")
	list := b.Changes(next)
	if back, again := list[1].Endpoints[0], list[2].Endpoints[0]; back.Change != observe.EndpointAdded || back.Rules != nil || back.FirstFlow != nil || since(again.Rules) != "83.0" || again.RulesAwaited {
		t.Errorf("back %+v, gone again %+v", back, again)
	}
	if h := b.changes.ports[portKeyOf(next)]; h.awaited != 0 {
		t.Errorf("%d endpoints are awaited", h.awaited)
	}
	b.take(start.Add(time.Hour))
	m.expect(t, "an hour later", "last_flow 0.0")

	// A proxy that is late by more than that, or restarts, is not measured.
	at(100)
	b.SetTable(Published{Table: decision.NewTable(5, b.now, node, []*decision.ServicePort{third})})
	rules(100+rulesWait.Seconds(), gone, true)
	m.expect(t, "too late")
	if e := b.Changes(third)[3].Endpoints[0]; since(e.Rules) != "400.0" || e.RulesAwaited {
		t.Errorf("too late: %+v", e)
	}
}

// TestConvergenceOfOthers: flows whose beginning is not known show nothing about a change.
func TestConvergenceOfOthers(t *testing.T) {
	m := new(measured)
	b := newBench(t, Config{Observe: &Observe{Proxy: func() string { return "" }}, Meter: m})
	b.SetTable(Published{Table: b.table})
	b.began("10.244.0.3:8080", nil)
	next := web()
	next.Endpoints, next.Usable[decision.Cluster] = next.Endpoints[:1], []uint32{0}
	b.SetTable(Published{Table: decision.NewTable(2, b.now, node, []*decision.ServicePort{next})})
	b.now = b.now.Add(10 * time.Second)
	for i, endpoint := range []string{"10.244.0.3:8080", "10.244.0.9:8080", "10.96.0.10:80"} {
		b.found([]conntrack.Event{{State: conntrack.State{
			Original: conntrack.Tuple{Source: netip.AddrPortFrom(client.Addr(), uint16(i)), Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6},
			Reply:    conntrack.Tuple{Source: netip.MustParseAddrPort(endpoint), Destination: client, Protocol: 6},
		}}}, 1, b.horizon())
	}
	b.now = b.now.Add(time.Hour)
	b.take(b.now)
	m.expect(t, "connections from before", "last_flow 0.0")
	if c, _ := b.Counts(next); c.Flows.Outdated+c.Flows.UnknownEndpoint+c.Flows.NotTranslated != 0 || c.Flows.Total != 4 {
		t.Errorf("%+v", c.Flows)
	}
	if last := b.Changes(next)[0].Endpoints[0].LastFlow; last == nil || last.Time.After(start.Add(time.Second)) {
		t.Errorf("last flow %+v", last)
	}
}

// TestReplacedRules: a chain of which it was not known where it led has the changes that agree with where it leads now, whichever
// comes first, and of its address family only.
func TestReplacedRules(t *testing.T) {
	other, six := netip.MustParseAddrPort("10.244.0.9:80"), netip.MustParseAddrPort("[fd00::9]:80")
	port := func(f decision.Family) *decision.ServicePort {
		return &decision.ServicePort{Name: decision.ServicePortName{Name: "web"}, Family: f}
	}
	chain := port(decision.IPv4).NFTablesChain(decision.Cluster)
	replaced := func(c *changes, seconds int, endpoints ...string) {
		c.rules.replace(chainOf{chain, decision.IPv4}, replacement{endpoints, start.Add(time.Duration(seconds) * time.Second)}, c)
	}
	for name, tt := range map[string]struct {
		followed followed
		leads    bool
		had      bool
	}{
		"begins, and is there":       {followed{addr: other, begins: true}, true, true},
		"begins, and is not there":   {followed{addr: other, begins: true}, false, false},
		"ends, and is not there":     {followed{addr: other, ends: true}, false, true},
		"ends, and is there":         {followed{addr: other, ends: true}, true, false},
		"ends, of the other family":  {followed{addr: six, ends: true}, false, false},
		"begins, of another address": {followed{addr: client, begins: true}, true, false},
	} {
		var leads []string
		if tt.leads {
			leads = []string{decision.NFTablesEndpoint(other)}
		}
		want := func(g *followed, seconds int) *changes {
			c := &changes{rules: newProxyRules()}
			if seconds > 1 {
				replaced(c, 1, leads...)
			}
			c.rules.want(port(decision.FamilyOf(g.addr.Addr())), g, start.Add(time.Duration(seconds)*time.Second), c)
			return c
		}
		before, after, late := tt.followed, tt.followed, tt.followed
		replaced(want(&before, 0), 1, leads...)
		want(&after, 2)
		want(&late, 62)
		wanted := int64(0)
		if tt.had {
			wanted = start.Add(time.Second).UnixNano()
		}
		if before.rules != wanted || after.rules != wanted || late.rules != 0 {
			t.Errorf("%s: %d before the rules, %d after them, %d much later; want %d, the same and 0", name, before.rules, after.rules, late.rules, wanted)
		}
	}
}

// TestIptablesRules: the chain of the internal traffic policy tells, except of a large cluster's service port without
// endpoints.
func TestIptablesRules(t *testing.T) {
	for _, large := range []bool{false, true} {
		for _, usable := range [][]uint32{nil, {0}} {
			c := &changes{rules: newProxyRules()}
			c.large[decision.IPv4] = large
			s := &decision.ServicePort{Name: decision.ServicePortName{Name: "web"}, Family: decision.IPv4, InternalPolicy: decision.Local, Endpoints: []decision.Endpoint{{AddrPort: client}}}
			s.Usable[decision.Local] = usable
			g := &followed{addr: client, ends: true}
			c.rules.want(s, g, start, c)
			if awaited := g.rules == 0; awaited == large {
				t.Errorf("large %t, usable %v: awaited %t", large, usable, awaited)
			}
			c.rules.changed(link{s.ServiceChain(), s.EndpointChain(client)}, linkChange{false, start.Add(time.Second)}, c)
			if g.rules > 0 {
				t.Error("the other policy's chain tells")
			}
			c.rules.changed(link{s.PolicyChain(decision.Local), s.EndpointChain(client)}, linkChange{false, start.Add(2 * time.Second)}, c)
			if known, want := g.rules == start.Add(2*time.Second).UnixNano(), !large || usable != nil; known != want {
				t.Errorf("large %t, usable %v: known %t", large, usable, known)
			}
		}
	}
}

// TestRulesAreBounded: in changes that nothing waits for, and in endpoints that wait.
func TestRulesAreBounded(t *testing.T) {
	c := &changes{rules: newProxyRules()}
	for i := range 2*maxRules + 10 {
		n := fmt.Sprint(i)
		c.rules.changed(link{chain: n}, linkChange{true, start}, c)
		s := &decision.ServicePort{Name: decision.ServicePortName{Name: n}}
		c.rules.want(s, &followed{addr: client, begins: true}, start, c)
		c.rules.replace(chainOf{n, decision.IPv6}, replacement{at: start}, c)
	}
	if r := c.rules; len(r.recent) > maxRules || len(r.wanted) > maxRules+1 || len(r.recent) == 0 || len(r.replaced) > maxRules || len(r.replaced) == 0 {
		t.Errorf("%d, %d and %d", len(r.recent), len(r.wanted), len(r.replaced))
	}
}
