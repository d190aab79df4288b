package journal

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
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
	b.found([]conntrack.Event{{State: state}}, 1)
	b.expect("decided established")
	entries, _ := b.Last(1, time.Time{}, all)
	r := entries[0].Record(nil, false)
	if !r.Time.Equal(start.Add(-time.Hour)) || r.Pod != "default/web-2" || !r.Masquerade || r.MasqueradeAddress != "172.20.0.2" {
		t.Errorf("record %+v", r)
	}
	b.event(client, conntrack.Destroyed, func(e *conntrack.Event) { e.State = state })
	b.read()
	// Its state was read before its end.
	b.found([]conntrack.Event{{State: state}}, 2)
	b.expect("")
	// A connection of the daemon's, and one to an endpoint that is not known.
	state.Mark, state.Start = conntrack.DefaultMark, start.Add(time.Hour)
	b.found([]conntrack.Event{{State: state}}, 3)
	state.Mark, state.Reply.Source = conntrack.CopyMark, netip.MustParseAddrPort("10.244.0.9:8080")
	b.found([]conntrack.Event{{State: state}}, 3)
	b.expect("")
}
