// Package replay decides again what happened before: each new flow of a captured file of
// packets, by a service table or by the rules of a dump, and the flows of a flow log,
// to see whether they would be decided the same.
//
// What is a new flow is what it is for the daemon: a TCP SYN, an SCTP INIT, a UDP datagram
// of a flow that connection tracking would not know (any more). Time is that of the
// capture, so that session affinity ends where it would have.
package replay

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// First is the first packet of a flow.
type First struct {
	conntrack.Tuple
	Time      time.Time
	Interface string // where it was captured; empty: not known
	Length    int    // with the IP header, in bytes
	TOS, TTL  uint8
	// Data is the packet from its IP header on, as far as it was captured. It is valid during
	// Decide only.
	Data []byte
	// Sender is the Ethernet address that its frame came from; nil: the capture does not contain it.
	Sender *[6]byte
}

// Decision is the decision about a flow.
type Decision struct {
	Record *flow.Record
	// Translated is the tuple with which the flow's packets go on.
	Translated conntrack.Tuple
	// NoSource: the source is masqueraded, but it is not known as what.
	NoSource bool
}

// Decider decides the first packets of flows, in the order of their capture.
type Decider interface {
	Decide(*First) (Decision, error)
	// Forget is called for flows that have ended: their tuples may come again.
	Forget(original conntrack.Tuple)
}

// Replay decides the flows of one capture. It is not safe for concurrent use.
type Replay struct {
	// Translate has packets changed as they would be behind the node: a request as the
	// endpoint gets it, an answer of the endpoint as the client gets it. Where the capture
	// was taken at the client, its answers become what the endpoint sent.
	Translate bool

	decider   Decider
	flows     *tracker
	copies    *copies
	fragments map[fragmentKey]firstFragment
	summary   Summary
}

// fragmentKey is what the fragments of a packet have in common.
type fragmentKey struct {
	source, destination netip.Addr
	protocol            byte
	id                  uint32
}

// firstFragment is what the first fragment of a packet shows of the others.
type firstFragment struct {
	direction
	when time.Time
}

// Fragments belong together for as long as the kernel would wait for the rest
// (net.ipv4.ipfrag_time). How many packets are remembered is bounded.
const (
	fragmentTimeout = 30 * time.Second
	maxFragmented   = 1 << 16
)

// New makes a replay with nothing replayed yet.
func New(d Decider) *Replay {
	r := &Replay{
		decider: d, flows: newTracker(), copies: newCopies(), fragments: make(map[fragmentKey]firstFragment),
		summary: Summary{Verdicts: make(map[string]int), Services: make(map[string]int)},
	}
	r.flows.forget = func(f *trackedFlow) {
		if !f.copied {
			d.Forget(f.original)
		}
	}
	return r
}

// Summary returns the counts so far.
func (r *Replay) Summary() *Summary { return &r.summary }

// Run replays a capture to its end. decided gets the record of each new flow; out, if it
// is not nil, the capture; with Translate its packets are as they are behind the node, without those
// that did not get through.
func (r *Replay) Run(c *Capture, out io.Writer, decided func(*flow.Record) error) error {
	for {
		b, err := c.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		keep := true
		if b.Frame != nil {
			if keep, err = r.packet(b, decided); err != nil {
				return fmt.Errorf("packet %d: %w", b.Number, err)
			}
			keep = keep || !r.Translate
		}
		switch {
		case out == nil:
		case !keep:
			r.summary.LeftOut++
		default:
			if _, err := out.Write(b.Raw); err != nil {
				return err
			}
		}
	}
}

// packet replays one. keep means that it got through.
func (r *Replay) packet(b *Block, decided func(*flow.Record) error) (keep bool, err error) {
	r.summary.note(b)
	data, err := b.Link.packetOf(b.Frame)
	var p captured
	if err == nil {
		p.Packet, err = packet.Decode(data)
	}
	switch {
	case err == nil:
	case errors.Is(err, packet.ErrFragment):
		r.summary.Fragments++
		return r.laterFragment(&p, b.Time), nil
	case errors.Is(err, packet.ErrNoPorts), errors.Is(err, packet.ErrExtensions):
		r.summary.OtherProtocols++
		return r.icmpError(&p, b.Time), nil
	case errors.Is(err, packet.ErrTruncated):
		r.summary.Cut++
		return true, nil
	default:
		r.summary.NotIP++
		return true, nil
	}

	again := r.copies.again(&p, b.Time)
	if again {
		r.summary.Duplicates++
	}
	f, as := r.flows.find(p.Tuple, b.Time)
	switch {
	case f != nil && !(f.over && p.begins() && !again):
		if !again && as == request && p.begins() && !f.copied {
			r.copies.request(&p, b.Time)
			if p.Tuple.Protocol != packet.UDP {
				r.summary.SentAgain++
			}
		}
	case !p.begins():
		if p.Cut && len(p.Transport()) < p.headerLength() {
			r.summary.Cut++
		} else {
			r.summary.Midway++
		}
		return true, nil
	default:
		if f != nil {
			r.flows.remove(f)
		}
		if f, err = r.begin(&p, b, decided); err != nil {
			return false, err
		}
		as = request
	}
	f.note(&p, as, b.Time)
	if p.Fragment {
		r.summary.Fragments++
		if len(r.fragments) >= maxFragmented {
			clear(r.fragments)
		}
		r.fragments[p.fragmentKey()] = firstFragment{direction{f, as}, b.Time}
	}
	if r.Translate && !f.gone() {
		p.rewrite(f.through(as))
	}
	return !f.gone(), nil
}

// begin decides a new flow.
func (r *Replay) begin(p *captured, b *Block, decided func(*flow.Record) error) (*trackedFlow, error) {
	f := &trackedFlow{original: p.Tuple, translated: p.Tuple, begun: b.Time, last: b.Time}
	if r.copies.translated(p, b.Time) {
		f.copied = true
		r.summary.Copies++
		r.flows.add(f)
		return f, nil
	}
	first := &First{Tuple: p.Tuple, Time: b.Time, Interface: b.Interface, Length: p.length(), Data: p.Data, Sender: b.Link.sender(b.Frame)}
	if p.Is4() {
		first.TOS, first.TTL = p.Data[1], p.Data[8]
	} else {
		first.TOS, first.TTL = p.Data[0]<<4|p.Data[1]>>4, p.Data[7]
	}
	d, err := r.decider.Decide(first)
	if err != nil {
		return nil, err
	}
	if d.NoSource && r.Translate {
		return nil, fmt.Errorf("%s %s -> %s is masqueraded, but the node has no known %s address: set --node-ip, or add its Node object",
			decision.Protocol(p.Tuple.Protocol), p.Tuple.Source, p.Tuple.Destination, decision.FamilyOf(p.Tuple.Destination.Addr()))
	}
	f.record, f.translated = d.Record, r.flows.unique(d.Translated, p.Tuple)
	r.flows.add(f)
	r.copies.request(p, b.Time)
	r.summary.decided(d.Record)
	return f, decided(d.Record)
}

// icmpError translates an error about a packet of a flow.
func (r *Replay) icmpError(p *captured, now time.Time) (keep bool) {
	if !r.Translate {
		return true
	}
	in, ok := p.errorIn()
	if !ok {
		return true
	}
	from := in.Tuple.Inverse()
	f, as := r.flows.find(from, now)
	if f == nil {
		return true
	}
	if f.gone() {
		return false
	}
	p.rewriteError(&in, from, f.through(as))
	return true
}

// laterFragment translates a fragment without ports.
func (r *Replay) laterFragment(p *captured, now time.Time) (keep bool) {
	first, ok := r.fragments[p.fragmentKey()]
	if !ok || now.Sub(first.when) > fragmentTimeout {
		return true
	}
	if r.Translate && !first.flow.gone() {
		to := first.flow.through(first.form)
		p.setAddresses(to.Source.Addr(), to.Destination.Addr())
	}
	return !first.flow.gone()
}
