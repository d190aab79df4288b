package replay

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// trackedFlow is a flow that was decided, and what connection tracking would know of it.
type trackedFlow struct {
	original   conntrack.Tuple // as its first packet had it
	translated conntrack.Tuple // as it goes on: equal to original where nothing is translated
	record     *flow.Record    // nil iff copied
	// copied: not decided, but a packet seen again behind a translation that another proxy
	// made while the capture was taken.
	copied bool

	begun, last time.Time
	answered    bool
	finished    [2]bool // TCP: a FIN was seen; by reply
	over        bool    // a new flow may have its tuple
}

// gone reports whether the flow's packets are left out of a translated capture.
func (f *trackedFlow) gone() bool {
	return f.copied || f.record.Verdict == decision.Drop.String() || f.record.Verdict == decision.Reject.String()
}

// form is how a packet of a flow looks: in which direction, and on which side of the
// translation.
type form uint8

const (
	request       form = iota // a request, before translation
	replyToNode               // a reply, as the endpoint sends it
	replyToClient             // a reply, as the client receives it
)

func (f form) reply() bool { return f != request }

// Timeouts of connection tracking's defaults (nf_conntrack_proto_*.c).
const (
	tcpSYNTimeout          = 120 * time.Second
	tcpEstablishedTimeout  = 5 * 24 * time.Hour
	udpTimeout             = 30 * time.Second
	udpStreamTimeout       = 120 * time.Second
	udpStreamAfter         = 2 * time.Second
	sctpInitTimeout        = 3 * time.Second
	sctpEstablishedTimeout = 210 * time.Second
)

func (f *trackedFlow) timeout() time.Duration {
	switch f.original.Protocol {
	case packet.TCP:
		if f.answered {
			return tcpEstablishedTimeout
		}
		return tcpSYNTimeout
	case packet.SCTP:
		if f.answered {
			return sctpEstablishedTimeout
		}
		return sctpInitTimeout
	}
	if f.answered && f.last.Sub(f.begun) > udpStreamAfter {
		return udpStreamTimeout
	}
	return udpTimeout
}

func (f *trackedFlow) expired(now time.Time) bool { return now.Sub(f.last) > f.timeout() }

// note takes a packet into account.
func (f *trackedFlow) note(p *captured, as form, now time.Time) {
	if now.After(f.last) {
		f.last = now
	}
	f.answered = f.answered || as.reply()
	switch f.original.Protocol {
	case packet.TCP:
		flags, side := p.flags(), 0
		if as.reply() {
			side = 1
		}
		f.finished[side] = f.finished[side] || flags&iptables.FIN != 0
		f.over = f.over || flags&iptables.RST != 0 || f.finished[0] && f.finished[1]
	case packet.SCTP:
		chunk := p.chunk()
		f.over = f.over || chunk == chunkAbort || chunk == chunkShutdownComplete
	}
}

// direction is what a tuple is of a flow.
type direction struct {
	flow *trackedFlow
	form form
}

// tracker knows the flows of a capture by the tuples of their packets, for as long as
// connection tracking would. Answers are known as the client gets them and as the
// endpoint sends them: captures are taken on either side.
type tracker struct {
	flows map[conntrack.Tuple]direction
	// forget is called with flows that have ended; may be nil.
	forget func(*trackedFlow)
	added  int // since the last sweep
}

func newTracker() *tracker { return &tracker{flows: make(map[conntrack.Tuple]direction)} }

// find gives the flow that has packets of the tuple; nil: none that lives.
func (t *tracker) find(tuple conntrack.Tuple, now time.Time) (*trackedFlow, form) {
	d, ok := t.flows[tuple]
	switch {
	case !ok:
		return nil, request
	case d.flow.expired(now):
		t.remove(d.flow)
		return nil, request
	}
	return d.flow, d.form
}

// sweepAfter is how many flows are added between two searches for expired ones.
const sweepAfter = 1 << 16

func (t *tracker) add(f *trackedFlow) {
	if t.added++; t.added >= sweepAfter {
		t.added = 0
		for _, d := range t.flows {
			if d.flow.expired(f.begun) {
				t.remove(d.flow)
			}
		}
	}
	// In this order: where nothing is translated, the latter two are one.
	t.flows[f.original] = direction{f, request}
	t.flows[f.translated.Inverse()] = direction{f, replyToNode}
	t.flows[f.original.Inverse()] = direction{f, replyToClient}
}

// unique gives the source of a translated tuple another port where other flows have its
// answers, as the kernel does (get_unique_tuple, nf_nat_core.c): it takes any port that is
// free, here it is the next one. Without a translated source there is nothing to do.
func (t *tracker) unique(translated, original conntrack.Tuple) conntrack.Tuple {
	if translated.Source == original.Source {
		return translated
	}
	for range 1 << 16 {
		d, taken := t.flows[translated.Inverse()]
		if !taken || d.flow.original == original {
			break
		}
		port := max(translated.Source.Port()+1, 1024) // also behind 65535
		translated.Source = netip.AddrPortFrom(translated.Source.Addr(), port)
	}
	return translated
}

func (t *tracker) remove(f *trackedFlow) {
	for _, tuple := range []conntrack.Tuple{f.original, f.translated.Inverse(), f.original.Inverse()} {
		if t.flows[tuple].flow == f {
			delete(t.flows, tuple)
		}
	}
	if t.forget != nil {
		t.forget(f)
	}
}
