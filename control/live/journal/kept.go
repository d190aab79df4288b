package journal

import (
	"fmt"
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

// flow returns the flow.
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
