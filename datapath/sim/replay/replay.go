// Package replay repeats decisions: for each new flow of a packet capture, by a service table or
// by the rules of a dump, and for the flows of a flow log, to compare them with the recorded
// decisions.
//
// A new flow is the same as for the daemon: a TCP SYN, an SCTP INIT, a UDP datagram of a flow that
// is not (or no longer) in connection tracking. Time is that of the capture, so that session
// affinity ends at the same time.
package replay

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// First is the first packet of a flow.
type First struct {
	Tuple
	Time      time.Time
	Interface string // where it was captured; empty: not known
	Length    int    // with the IP header, in bytes
	TOS, TTL  uint8
	// Data is the packet from its IP header on, as far as it was captured. It is valid during
	// Decide only.
	Data []byte
	// Sender is the Ethernet source address of its frame; nil: unknown.
	Sender *[6]byte
}

// Decision is the decision for a flow.
type Decision struct {
	Record *flow.Record
	// Translated is the tuple of the flow's packets after translation.
	Translated Tuple
	// NoSource: the source is masqueraded, but the new address is unknown.
	NoSource bool
}

// Decider decides the first packets of flows, in the order of their capture.
type Decider interface {
	Decide(*First) (Decision, error)
	// Forget is called for flows that have ended: their tuples may come again.
	Forget(original Tuple)
}

// Replay decides the flows of one capture. It is not safe for concurrent use.
type Replay struct {
	// Translate changes packets to their form on the other side of the node: a request as the
	// endpoint gets it, a reply of the endpoint as the client gets it. In a capture from the
	// client's side, replies become what the endpoint sent.
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

// firstFragment is what the first fragment of a packet determines for the others.
type firstFragment struct {
	direction
	when time.Time
}

// Fragments belong together for as long as the kernel would wait for the rest
// (net.ipv4.ipfrag_time). The number of stored packets is bounded.
const (
	fragmentTimeout = 30 * time.Second
	maxFragmented   = 1 << 16
)

// New makes an empty replay.
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

// Run replays a capture to its end. decided gets the record of each new flow; out, if it is not
// nil, the capture; with Translate its packets are those on the other side of the node, without
// dropped and refused ones.
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

// packet replays one packet. keep: it was not dropped or refused.
func (r *Replay) packet(b *Block, decided func(*flow.Record) error) (keep bool, err error) {
	r.summary.note(b)
	data, err := b.Link.packetOf(b.Frame)
	var p packet
	if err == nil {
		p, err = decode(data)
	}
	switch err {
	case nil:
	case errFragment:
		r.summary.Fragments++
		return r.laterFragment(&p, b.Time), nil
	case errNoPorts:
		r.summary.OtherProtocols++
		return r.icmpError(&p, b.Time), nil
	case errCut:
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
	f, as := r.flows.find(p.tuple, b.Time)
	switch {
	case f != nil && !(f.over && p.begins() && !again):
		if !again && as == asked && p.begins() && !f.copied {
			r.copies.request(&p, b.Time)
			if p.tuple.Protocol != decision.UDP {
				r.summary.SentAgain++
			}
		}
	case !p.begins():
		if p.cut && len(p.transport()) < p.headerLength() {
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
		as = asked
	}
	f.note(&p, as, b.Time)
	if p.fragment {
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
func (r *Replay) begin(p *packet, b *Block, decided func(*flow.Record) error) (*trackedFlow, error) {
	f := &trackedFlow{original: p.tuple, translated: p.tuple, begun: b.Time, last: b.Time}
	if r.copies.translated(p, b.Time) {
		f.copied = true
		r.summary.Copies++
		r.flows.add(f)
		return f, nil
	}
	first := &First{Tuple: p.tuple, Time: b.Time, Interface: b.Interface, Length: p.length(), Data: p.data, Sender: b.Link.sender(b.Frame)}
	if p.is4() {
		first.TOS, first.TTL = p.data[1], p.data[8]
	} else {
		first.TOS, first.TTL = p.data[0]<<4|p.data[1]>>4, p.data[7]
	}
	d, err := r.decider.Decide(first)
	if err != nil {
		return nil, err
	}
	if d.NoSource && r.Translate {
		return nil, fmt.Errorf("%s %s -> %s is masqueraded, but the node has no known %s address: set --node-ip, or add its Node object",
			p.tuple.Protocol, p.tuple.Source, p.tuple.Destination, decision.FamilyOf(p.tuple.Destination.Addr()))
	}
	f.record, f.translated = d.Record, r.flows.unique(d.Translated, p.tuple)
	r.flows.add(f)
	r.copies.request(p, b.Time)
	r.summary.decided(d.Record)
	return f, decided(d.Record)
}

// icmpError translates an error about a packet of a flow.
func (r *Replay) icmpError(p *packet, now time.Time) (keep bool) {
	if !r.Translate {
		return true
	}
	in, ok := p.errorIn()
	if !ok {
		return true
	}
	from := in.tuple.reversed()
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
func (r *Replay) laterFragment(p *packet, now time.Time) (keep bool) {
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
