package journal

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// event is a [flow.Event] in one byte.
type event uint8

// The events. Those up to failed are states.
const (
	decided event = iota
	answered
	established
	closing
	closed
	reset
	refused
	unanswered
	expired
	removed
	rejected
	dropped
	failed
	repeated
	gone
)

var eventNames = [...]flow.Event{
	decided: flow.Decided, answered: flow.Answered, established: flow.Established, closing: flow.Closing, closed: flow.Closed,
	reset: flow.Reset, refused: flow.Refused, unanswered: flow.Unanswered, expired: flow.Expired, removed: flow.Removed,
	rejected: flow.Rejected, dropped: flow.Dropped, failed: flow.Failed, repeated: flow.Repeated, gone: flow.Gone,
}

// endedStates are the states with [flow.State.Ended].
var endedStates = func() (ended [len(eventNames)]bool) {
	for e, name := range eventNames {
		ended[e] = name.Ended()
	}
	return ended
}()

// eventOf is the inverse of eventNames.
func eventOf(name flow.Event) event { return event(slices.Index(eventNames[:], name)) }

// entry is one flow and its life cycle.
type entry struct {
	flow flow.Flow // without its table
	key  key
	// previous is the number of the flow that had the tuple before; 0: none is known.
	previous uint64
	// inherited: it began before the journal followed events.
	inherited bool
	seen      uint64 // the last resync that found its entry
	life      life
	// seenSource is the source as seen by the endpoint; valid after the first conntrack event.
	seenSource netip.AddrPort
	history    [8]moment
	happened   uint8          // how many of them
	port       *usedPort      // nil: it is for no service
	endpoint   *endpointTally // nil: it goes to none
}

// life is a [flow.Life] without pointers. Times are nanoseconds since 1970; 0: not known.
type life struct {
	state                               event
	answered, over, incomplete, counted bool
	kernelState                         uint8
	repeated                            uint32
	since, countedAt, start, end        int64
	sent, received                      conntrack.Counters
}

type moment struct {
	event event
	at    int64
}

// note is an event of a flow, with its life as it was then.
type note struct {
	flow  uint64
	event event
	at    int64
	noted int64
	life  life
}

func newLife(f *flow.Flow) life {
	l := life{state: eventOf(f.First()), since: f.Time.UnixNano()}
	l.over = endedStates[l.state] // it never had an entry
	return l
}

// open is [flow.Life.Open].
func (l *life) open() bool { return !l.over && !endedStates[l.state] }

// coalesce is for how long the packets of a tuple that are refused or dropped count as
// sent again: longer than TCP ever waits between two.
const coalesce = 130 * time.Second

// repeatedBy reports whether the flow is no new one, but this one's packet once more.
func (e *entry) repeatedBy(f *flow.Flow) bool {
	d := &f.Decision
	if d.Verdict != e.flow.Decision.Verdict {
		return false
	}
	switch d.Verdict {
	case decision.DNAT:
		return f.Outcome == conntrack.Kept && !e.life.over
	case decision.Accept:
		// A live tuple of TCP is not decided again, one of UDP is whenever the rules have
		// not seen it for a while.
		return !e.life.over && (f.Packet.Protocol != decision.TCP || e.life.state == decided || e.life.state == unanswered)
	}
	return f.Time.Sub(e.flow.Time) < coalesce
}

// begun is when the batch that the flow was decided in began: its entry is no older.
func (e *entry) begun() int64 {
	return e.flow.Time.Add(-e.flow.Deciding).UnixNano()
}

// remember adds to the history. Of more than it holds the last one is the newest.
func (e *entry) remember(what event, at int64) {
	i := min(int(e.happened), len(e.history)-1)
	e.history[i] = moment{what, at}
	e.happened = uint8(i + 1)
}

// answeredBy reports whether packets came back. One that is the answer to TCP's first packet
// and ends the connection at once only shows in the counts (nf_conntrack_tcp_packet).
func answeredBy(s *conntrack.State) bool {
	return s.Status&conntrack.StatusSeenReply != 0 || s.HasCounters && s.Received.Packets > 0
}

// stateOf returns the state that the kernel's state of a connection stands for, coming from
// the one before.
func stateOf(s *conntrack.State, before event) event {
	replied := answeredBy(s)
	switch decision.Protocol(s.Original.Protocol) {
	case decision.TCP:
		return tcpState(s.TCP, before, replied)
	case decision.SCTP:
		return sctpState(s.SCTP, before, replied)
	}
	switch {
	case s.Status&conntrack.StatusAssured != 0:
		return established
	case replied:
		return answered
	}
	return before
}

// tcpState follows tcp_conntracks in net/netfilter/nf_conntrack_proto_tcp.c.
func tcpState(s conntrack.TCPState, before event, replied bool) event {
	switch s {
	case conntrack.TCPSynRecv:
		return answered
	case conntrack.TCPEstablished:
		return established
	case conntrack.TCPFinWait, conntrack.TCPCloseWait, conntrack.TCPLastAck:
		return closing
	case conntrack.TCPTimeWait:
		return closed
	case conntrack.TCPClose:
		return brokenOff(before, replied)
	}
	return before
}

// sctpState follows sctp_conntracks in net/netfilter/nf_conntrack_proto_sctp.c, which has
// one state for an association that was shut down and one that was aborted.
func sctpState(s conntrack.SCTPState, before event, replied bool) event {
	switch s {
	case conntrack.SCTPEstablished:
		return established
	case conntrack.SCTPShutdownSent, conntrack.SCTPShutdownRecd, conntrack.SCTPShutdownAckSent:
		return closing
	case conntrack.SCTPClosed:
		if before == closing || before == closed {
			return closed
		}
		return brokenOff(before, replied)
	}
	if replied && (before == decided || before == unanswered) {
		return answered
	}
	return before
}

// brokenOff is the state of a connection that ended with a RST or an ABORT: one that was
// the answer to the first packet is a refusal.
func brokenOff(before event, replied bool) event {
	switch before {
	case decided, unanswered, refused:
		if replied {
			return refused
		}
	case closed:
		return closed
	}
	return reset
}

// order is the position of a state in the life cycle. The kernel's entries never go back.
func (e event) order() int {
	switch e {
	case decided, unanswered:
		return 0
	case answered:
		return 1
	case established:
		return 2
	case closing:
		return 3
	}
	return 4
}

// Life returns the life cycle of the flow, without history.
func (l *life) record(f *flow.Flow, seenSource netip.AddrPort) *flow.Life {
	r := &flow.Life{
		State: eventNames[l.state], Since: time.Unix(0, l.since), Answered: l.answered, Over: l.over,
		Repeated: l.repeated, Incomplete: l.incomplete, Duration: l.duration(f).Seconds(),
	}
	if seenSource.IsValid() {
		r.SeenSource = seenSource.String()
		switch f.Packet.Protocol {
		case decision.TCP:
			r.KernelState = conntrack.TCPState(l.kernelState).String()
		case decision.SCTP:
			r.KernelState = conntrack.SCTPState(l.kernelState).String()
		}
	}
	if l.counted {
		at := time.Unix(0, l.countedAt)
		r.Sent, r.Received, r.CountedAt = &flow.Count{Packets: l.sent.Packets, Bytes: l.sent.Bytes}, &flow.Count{Packets: l.received.Packets, Bytes: l.received.Bytes}, &at
	}
	return r
}

// duration is from the making of the entry to its end, as the kernel noted it, or to the
// last thing that is known of it.
func (l *life) duration(f *flow.Flow) time.Duration {
	from, to := f.Time.UnixNano(), max(l.since, l.end)
	if l.start != 0 {
		from = l.start
	}
	if l.end != 0 {
		to = l.end
	}
	return max(0, time.Duration(to-from))
}
