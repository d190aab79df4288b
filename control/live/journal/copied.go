package journal

import (
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// insertCopied adds the flow of a connection that the kernel's copy of the service table decided, and
// reports whether it did: the connection has the copy's mark, and the table in force a way to its
// endpoint.
func (j *Journal) insertCopied(ev *conntrack.Event, now time.Time) bool {
	s := &ev.State
	if s.Mark&conntrack.CopyMark == 0 || j.inForce == nil {
		return false
	}
	k := keyOf(s.Original.Protocol, s.Original.Source, s.Original.Destination)
	_, e := j.newest(k)
	if e != nil && e.life.over && !s.Start.IsZero() && s.Start.UnixNano() <= e.time {
		return false // it has ended since its state was read
	}
	f := flow.Flow{
		Packet: decision.Packet{
			Protocol: decision.Protocol(s.Original.Protocol), Source: s.Original.Source, Destination: s.Original.Destination,
			Local: j.inForce.IsLocal(s.Original.Source.Addr()),
		},
		Node: j.inForce.Node(), Time: now, Waited: -1, Outcome: conntrack.Created,
	}
	for _, at := range []time.Time{ev.At, s.Start} {
		if !at.IsZero() && at.Before(f.Time) {
			f.Time = at
		}
	}
	var ok bool
	if f.Decision, ok = decision.ToEndpoint(j.inForce, &f.Packet, s.Reply.Source); !ok {
		return false
	}
	f.TableAge = max(0, f.Time.Sub(j.inForce.Built()))
	// The interface that the packet came in by is not known, so the mark may be wrong.
	if masqueraded := s.Reply.Destination != s.Original.Source; masqueraded != f.Decision.Masquerade {
		f.Decision.Masquerade, f.Decision.Mark = masqueraded, decision.NotMarked
	}
	if f.Decision.Masquerade {
		f.SourceAddr = s.Reply.Destination.Addr()
	}
	j.insert(&f)
	_, e = j.newest(k)
	e.inherited = true
	return true
}
