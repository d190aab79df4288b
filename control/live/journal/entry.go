package journal

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"
	"unique"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// address is a netip.AddrPort without a pointer, in little more than half its memory. The zero value is invalid.
type address struct {
	addr [16]byte // IPv4 in its IPv4-mapped form
	port uint16
}

func addressOf(a netip.AddrPort) address { return address{a.Addr().As16(), a.Port()} }

func (a address) addrPort() netip.AddrPort {
	if a == (address{}) {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a.addr).Unmap(), a.port)
}

// key is the tuple of a flow's first packet.
type key struct {
	source, destination address
	protocol            uint8
}

func keyOf(protocol uint8, source, destination netip.AddrPort) key {
	return key{addressOf(source), addressOf(destination), protocol}
}

// kept is a [flow.Flow] without its table, in less than half its memory. What few flows have is apart.
type kept struct {
	key
	port        *usedPort // nil: it is for no service
	node        *decision.Node
	inInterface unique.Handle[string]
	proxy       unique.Handle[string]
	details     *details // nil: it has none

	time                                                     int64 // nanoseconds since 1970
	tableAge, outdated, waited, deciding, writing, accepting time.Duration
	generation                                               uint64
	draw                                                     float64
	source                                                   address // after translation; its port is not used
	index                                                    uint32
	queue                                                    uint16
	verdict                                                  decision.Verdict
	reason                                                   decision.Reason
	entry                                                    decision.Entry
	branch                                                   decision.Branch
	policy                                                   decision.Policy
	mark                                                     decision.Mark
	outcome                                                  conntrack.Outcome
	local, masquerade, drawn                                 bool
}

// details are what few flows have: those with an algorithm other than kube-proxy's, those that did not get an entry of
// their own, and those that the user or a rule of the host had a part in.
type details struct {
	pick                decision.Pick
	existing            netip.AddrPort
	existingMasqueraded bool
	hostRule            fmt.Stringer
	err                 error
	held                *flow.Hold
	earlier             []flow.Attempt
	shadows             []flow.ShadowPick
}

// keep returns what is kept of a flow, but for its service port and its node.
func keep(f *flow.Flow, k key) kept {
	p, d := &f.Packet, &f.Decision
	c := kept{
		key: k, inInterface: unique.Make(p.InInterface), proxy: unique.Make(f.Proxy), time: f.Time.UnixNano(),
		tableAge: f.TableAge, outdated: f.Outdated, waited: f.Waited, deciding: f.Deciding, writing: f.Writing, accepting: f.Accepting,
		generation: d.Generation, draw: d.Draw, index: d.Index, queue: f.Queue,
		verdict: d.Verdict, reason: d.Reason, entry: d.Entry, branch: d.Branch, policy: d.Policy, mark: d.Mark,
		outcome: f.Outcome, local: p.Local, masquerade: d.Masquerade, drawn: d.Drawn,
	}
	if f.SourceAddr.IsValid() {
		c.source = addressOf(netip.AddrPortFrom(f.SourceAddr, 0))
	}
	if d.Pick != (decision.Pick{}) || f.Existing.IsValid() || f.HostRule != nil || f.Err != nil || f.Held != nil || f.Earlier != nil || f.Shadows != nil {
		c.details = &details{d.Pick, f.Existing, f.ExistingMasqueraded, f.HostRule, f.Err, f.Held, f.Earlier, f.Shadows}
	}
	return c
}

func (c *kept) flow() flow.Flow {
	f := flow.Flow{
		Packet: decision.Packet{
			Protocol: decision.Protocol(c.protocol), Source: c.key.source.addrPort(), Destination: c.destination.addrPort(),
			Local: c.local, InInterface: c.inInterface.Value(),
		},
		Decision: decision.Decision{
			Verdict: c.verdict, Reason: c.reason, Entry: c.entry, Branch: c.branch, Policy: c.policy, Mark: c.mark,
			Masquerade: c.masquerade, Index: c.index, Draw: c.draw, Drawn: c.drawn, Generation: c.generation,
		},
		Node: c.node, TableAge: c.tableAge, Outdated: c.outdated, Queue: c.queue, Time: time.Unix(0, c.time),
		Waited: c.waited, Deciding: c.deciding, Writing: c.writing, Accepting: c.accepting,
		Proxy: c.proxy.Value(), Outcome: c.outcome, SourceAddr: c.source.addrPort().Addr(),
	}
	if c.port != nil {
		f.Decision.ServicePort = c.port.port
	}
	if d := c.details; d != nil {
		f.Decision.Pick, f.Existing, f.ExistingMasqueraded = d.pick, d.existing, d.existingMasqueraded
		f.HostRule, f.Err, f.Held, f.Earlier, f.Shadows = d.hostRule, d.err, d.held, d.earlier, d.shadows
	}
	return f
}

// endpoint is that of the decision; valid iff the verdict is DNAT.
func (c *kept) endpoint() netip.AddrPort { return c.port.port.Endpoints[c.index].AddrPort }

// entry is one flow and its life cycle.
type entry struct {
	kept
	older uint64 // see tuples
	// inherited: it began before the journal knew it.
	inherited bool
	seen      uint64 // the last resync that found its entry
	life      life
	// seenSource is the source as seen by the endpoint; valid after the first conntrack event.
	seenSource address
	history    moments
}

// life is a [flow.Life] without pointers. Times are nanoseconds since 1970; 0: not known.
type life struct {
	state                               flow.State
	answered, over, incomplete, counted bool
	kernelState                         uint8
	repeated                            uint32
	answeredAfter                       uint32 // microseconds from the decision to the first packet of the reply
	since, countedAt, start, end        int64
	sent, received                      conntrack.Counters
}

// moments are the first events of a flow and the last one.
type moments struct {
	events [8]flow.Event
	count  uint8 // of events
	at     [8]int64
}

// note is an event of a flow, with its life as it was then.
type note struct {
	flow  uint64
	event flow.Event
	at    int64
	noted int64
	life  life
}

func newLife(f *flow.Flow) life {
	l := life{state: f.First(), since: f.Time.UnixNano()}
	l.over = l.state.Ended() // it never had an entry
	return l
}

// open is [flow.Life.Open].
func (l *life) open() bool { return !l.over && !l.state.Ended() }

// coalesce is for how long the packets of a tuple that are refused or dropped count as
// sent again: longer than TCP ever waits between two.
const coalesce = 130 * time.Second

// repeatedBy reports whether the flow is no new one, but this one's packet once more.
func (e *entry) repeatedBy(f *flow.Flow) bool {
	d := &f.Decision
	if d.Verdict != e.verdict {
		return false
	}
	switch d.Verdict {
	case decision.DNAT:
		return f.Outcome == conntrack.Kept && !e.life.over
	case decision.Accept:
		// A live tuple of TCP is not decided again, one of UDP is whenever the rules have
		// not seen it for a while.
		return !e.life.over && (f.Packet.Protocol != decision.TCP || e.life.state == flow.Decided || e.life.state == flow.Unanswered)
	}
	return f.Time.UnixNano()-e.time < int64(coalesce)
}

// add adds an event. Of more than it holds the last one is the newest.
func (m *moments) add(what flow.Event, at int64) {
	i := min(int(m.count), len(m.events)-1)
	m.events[i], m.at[i], m.count = what, at, uint8(i+1)
}

// record returns the life cycle of the flow for a record, without its history.
func (l *life) record(f *flow.Flow, seenSource netip.AddrPort) *flow.Life {
	r := &flow.Life{
		State: l.state, Since: time.Unix(0, l.since), Answered: l.answered, Over: l.over,
		Repeated: l.repeated, Incomplete: l.incomplete, Duration: l.duration(f).Seconds(),
	}
	if l.answeredAfter != 0 {
		r.AnsweredAfter = (time.Duration(l.answeredAfter) * time.Microsecond).Seconds()
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
		r.Sent, r.Received, r.CountedAt = new(flow.Count(l.sent)), new(flow.Count(l.received)), new(time.Unix(0, l.countedAt))
	}
	return r
}

// duration is from the making of the entry to its end, as the kernel noted it, or to the
// last thing that is known of it.
func (l *life) duration(f *flow.Flow) time.Duration {
	return max(0, time.Duration(cmp.Or(l.end, l.since)-cmp.Or(l.start, f.Time.UnixNano())))
}

// answer notes the reply; timely: its first packet came at the time, and not before.
func (e *entry) answer(at int64, timely bool) {
	if l := &e.life; !l.answered {
		if l.answered = true; timely {
			after := time.Duration(at - e.time)
			l.answeredAfter = uint32(min(max(after.Microseconds(), 1), math.MaxUint32))
		}
	}
}

// failedBefore ends a flow that a second chance follows. Its entry was removed by the datapath, which
// knows the reason.
func (j *Journal) failedBefore(number uint64, e *entry, next *flow.Flow) {
	n := len(next.Earlier)
	if n == 0 || e.life.answered || e.verdict != decision.DNAT {
		return
	}
	if last := next.Earlier[n-1]; last.Endpoint == e.endpoint().String() && e.life.state != last.Outcome {
		j.change(number, e, last.Outcome, last.Time.UnixNano())
	}
}
