package balance

import (
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance/exact"
)

// Endpoint is the state of an endpoint of a service port. It survives changes of the set that the
// endpoint is in. It is safe for concurrent use.
type Endpoint struct {
	// What most events change comes first, in one cache line.
	open, inactive  atomic.Int32
	port            *port
	flows, answered atomic.Uint64
	latency         atomic.Uint64 // float64 bits, seconds; 0: unknown
	latencyAt       atomic.Int64
	bytes           atomic.Uint64

	AddrPort            netip.AddrPort
	refused, unanswered atomic.Uint64
	_                   [24]byte // to two cache lines
}

// Open counts the open connections: from the decision until one is being closed. IPVS calls them
// active (tcp_state_active_table in ip_vs_proto_tcp.c).
func (e *Endpoint) Open() int { return int(max(e.open.Load(), 0)) }

// Inactive counts the connections that are being closed, or are closed and whose entry remains.
func (e *Endpoint) Inactive() int { return int(max(e.inactive.Load(), 0)) }

// Latency is the time to the first packet of the reply: it rises to a longer one at once, and falls
// slowly, with a time constant of 10 seconds; 0: unknown.
func (e *Endpoint) Latency() time.Duration {
	return time.Duration(math.Float64frombits(e.latency.Load()) * float64(time.Second))
}

func (e *Endpoint) opened() {
	e.open.Add(1)
	e.flows.Add(1)
}

// observe takes an event over.
func (e *Endpoint) observe(ev *Event) {
	switch ev.Kind {
	case Answered:
		e.answered.Add(1)
		e.sample(ev.After, ev.At)
	case Refused:
		e.refused.Add(1)
	case Unanswered:
		e.unanswered.Add(1)
	case Inactive:
		e.open.Add(-1)
		e.inactive.Add(1)
	case Ended:
		e.inactive.Add(-1)
		e.bytes.Add(ev.Bytes)
	}
}

// decay is the time constant of latencies.
const decay = 10 * time.Second

// sample takes a latency over. Events of one endpoint come one after the other.
func (e *Endpoint) sample(after time.Duration, at int64) {
	was, now := math.Float64frombits(e.latency.Load()), max(after.Seconds(), 1e-9)
	if was > now {
		w := exact.Exp(-float64(max(at-e.latencyAt.Load(), 0)) / float64(decay))
		now = float64(was*w) + float64(now*(1-w)) // not fused: simulations have the same result on all machines
	}
	e.latency.Store(math.Float64bits(now))
	e.latencyAt.Store(at)
}
