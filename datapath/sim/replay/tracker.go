package replay

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// trackedFlow is a decided flow with its state in connection tracking.
type trackedFlow struct {
	original   Tuple        // as its first packet had it
	translated Tuple        // after translation: equal to original if nothing is translated
	record     *flow.Record // nil iff copied
	// copied: not decided, but a packet seen again after a translation by a proxy during the
	// capture.
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

// form is the direction of a packet of a flow, and the side of the translation.
type form uint8

const (
	asked       form = iota // a request, before translation
	answeredFar             // a reply, as the endpoint sends it
	answered                // a reply, as the client gets it
)

func (f form) reply() bool { return f != asked }

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
	case decision.TCP:
		if f.answered {
			return tcpEstablishedTimeout
		}
		return tcpSYNTimeout
	case decision.SCTP:
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

// note updates the flow's state by a packet.
func (f *trackedFlow) note(p *packet, as form, now time.Time) {
	if now.After(f.last) {
		f.last = now
	}
	f.answered = f.answered || as.reply()
	switch f.original.Protocol {
	case decision.TCP:
		flags, side := p.flags(), 0
		if as.reply() {
			side = 1
		}
		f.finished[side] = f.finished[side] || flags&flagFIN != 0
		f.over = f.over || flags&flagRST != 0 || f.finished[0] && f.finished[1]
	case decision.SCTP:
		chunk := p.chunk()
		f.over = f.over || chunk == chunkAbort || chunk == chunkShutdownComplete
	}
}

// direction is a flow and the form of a tuple.
type direction struct {
	flow *trackedFlow
	form form
}

// tracker stores the flows of a capture by the tuples of their packets, for as long as connection
// tracking would. Replies are stored as the client gets them and as the endpoint sends them:
// captures are taken on either side.
type tracker struct {
	flows map[Tuple]direction
	// forget is called with flows that have ended; may be nil.
	forget func(*trackedFlow)
	added  int // since the last sweep
}

func newTracker() *tracker { return &tracker{flows: make(map[Tuple]direction)} }

// find returns the live flow with packets of the tuple; nil: there is none.
func (t *tracker) find(tuple Tuple, now time.Time) (*trackedFlow, form) {
	d, ok := t.flows[tuple]
	switch {
	case !ok:
		return nil, asked
	case d.flow.expired(now):
		t.remove(d.flow)
		return nil, asked
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
	t.flows[f.original] = direction{f, asked}
	t.flows[f.translated.reversed()] = direction{f, answeredFar}
	t.flows[f.original.reversed()] = direction{f, answered}
}

// unique changes the source port of a translated tuple if another flow has its reply tuple, as the
// kernel does (get_unique_tuple, nf_nat_core.c): the kernel takes any free port, here it is the
// next one. Without a translated source there is nothing to do.
func (t *tracker) unique(translated, original Tuple) Tuple {
	if translated.Source == original.Source {
		return translated
	}
	for range 1 << 16 {
		d, taken := t.flows[translated.reversed()]
		if !taken || d.flow.original == original {
			break
		}
		port := max(translated.Source.Port()+1, 1024) // also after 65535
		translated.Source = netip.AddrPortFrom(translated.Source.Addr(), port)
	}
	return translated
}

func (t *tracker) remove(f *trackedFlow) {
	for _, tuple := range []Tuple{f.original, f.translated.reversed(), f.original.reversed()} {
		if t.flows[tuple].flow == f {
			delete(t.flows, tuple)
		}
	}
	if t.forget != nil {
		t.forget(f)
	}
}
