package reconcile_test

import (
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/live/reconcile"
)

func families(t *testing.T, f func(t *testing.T, six bool)) {
	for name, six := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) { f(t, six) })
	}
}

// TestFastSendersMoveOn: senders that never pause are moved from one endpoint to the
// other and back. Nothing sent after a pass goes to the old endpoint, every flow
// arrives at the new one, and few datagrams are lost.
func TestFastSendersMoveOn(t *testing.T) {
	for name, answers := range map[string]bool{"answered": true, "one way": false} {
		t.Run(name, func(t *testing.T) {
			families(t, func(t *testing.T, six bool) { fastSenders(t, six, answers) })
		})
	}
}

func fastSenders(t *testing.T, six, answers bool) {
	l := newLab(t, six)
	to := []*receiver{l.receive(l.one, answers), l.receive(l.other, answers)}
	at := []netip.AddrPort{l.one, l.other}
	l.follow(l.table(l.one))
	var from [senders]*sender
	for i := range from {
		from[i] = l.send(i, func() int64 { return max(to[0].last[i].Load(), to[1].last[i].Load()) })
	}
	moving := func(r *receiver, i int) {
		start := r.got[i].Load()
		l.eventually("datagrams at the endpoint", func() bool { return r.got[i].Load() >= start+50 })
	}
	const rounds = 20
	for round := range rounds {
		old, now := to[round%2], to[(round+1)%2]
		for i := range from {
			moving(old, i)
		}
		result := l.follow(l.table(at[(round+1)%2]))
		var sent [senders]int64
		for i := range from {
			sent[i] = from[i].sent.Load()
		}
		if result.Deleted[reconcile.EndpointGone] != senders || result.Total() != senders {
			t.Errorf("round %d: %+v, want all %d flows gone", round, result, senders)
		}
		for i := range from {
			moving(now, i)
			// One that was being sent when the pass ended has a number of its own.
			if last := old.last[i].Load(); last > sent[i]+1 {
				t.Errorf("round %d: datagram %d of sender %d went to the old endpoint; %d had been sent when the pass was over", round, last, i, sent[i])
			}
		}
	}
	// In the end all flows are known to the kernel: none is queued any more.
	l.eventually("datagrams that are not queued", func() bool {
		queued := l.engine.Stats().Packets
		for i := range from {
			moving(to[rounds%2], i)
		}
		return l.engine.Stats().Packets == queued
	})
	for i := range from {
		from[i].stop()
		lost := func() int64 { return from[i].sent.Load() - to[0].got[i].Load() - to[1].got[i].Load() }
		// Those that are being decided while the entry goes are lost, at worst all that
		// are on the way; mostly it is one or none for each pass.
		l.eventually("all datagrams but a few to arrive", func() bool { return lost() <= rounds*window })
		t.Logf("sender %d: %d of %d datagrams lost in %d passes", i, lost(), from[i].sent.Load(), rounds)
	}
}

// TestServiceThatComesAndGoes: endpoints go, so datagrams are refused; they come back,
// also for flows that were let pass meanwhile; the service goes.
func TestServiceThatComesAndGoes(t *testing.T) {
	families(t, func(t *testing.T, six bool) {
		l := newLab(t, six)
		to := l.receive(l.one, false)
		s := l.send(0, to.last[0].Load)
		arrive := func() {
			t.Helper()
			start := to.got[0].Load()
			l.eventually("datagrams at the endpoint", func() bool { return to.got[0].Load() >= start+50 })
		}
		refused := func() {
			t.Helper()
			start := s.refused.Load()
			l.eventually("refusals", func() bool {
				// What a datagram on its way left behind is seen by the next pass.
				if _, err := l.reconciler.Run(l.table()); err != nil {
					t.Fatal(err)
				}
				return s.refused.Load() >= start+5
			})
		}
		l.follow(l.table(l.one))
		arrive()
		if r := l.follow(l.table()); r.Deleted[reconcile.EndpointGone] != 1 {
			t.Errorf("without endpoints: %+v", r)
		}
		refused()
		// Passed by, as while no proxy decided: an entry without translation, with its
		// elements. It is refused as soon as a pass sees it.
		l.engine.Apply(l.tableOf())
		l.eventually("an entry without translation", func() bool {
			untranslated := false
			l.flows(six, func(f *conntrack.State) { untranslated = untranslated || f.Original.Destination == l.service })
			return untranslated
		})
		if r := l.follow(l.table()); r.Deleted[reconcile.Unanswered] != 1 {
			t.Errorf("let pass, without endpoints: %+v", r)
		}
		refused()
		l.follow(l.table(l.one))
		arrive()
		if r := l.follow(l.tableOf()); r.Deleted[reconcile.ServiceGone] != 1 {
			t.Errorf("without the service: %+v", r)
		}
		l.flows(six, func(f *conntrack.State) {
			if f.Mark != 0 {
				t.Errorf("left of the service: %+v", f)
			}
		})
	})
}

// flows looks at all UDP flows of the node.
func (l *lab) flows(six bool, f func(*conntrack.State)) {
	l.t.Helper()
	family := map[bool]uint8{false: conntrack.IPv4, true: conntrack.IPv6}[six]
	must(l.t, l.connections.Dump(conntrack.Filter{Family: family, Protocol: 17}, f))
}
