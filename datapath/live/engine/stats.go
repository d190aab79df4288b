package engine

import (
	"log/slog"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Stats are the counters of packets since the start.
type Stats struct {
	Packets     uint64 // received from the queues; held ones count when they are released
	Undecodable uint64 // passed unchanged because they could not be decoded
	HeldBack    uint64 // dropped undecided as retransmissions of a held flow
	NoService   uint64 // passed unchanged because they are for no service
	Translated  uint64 // for a service, with an entry in the connection table
	Rejected    uint64 // refused
	Dropped     uint64 // discarded
	// Flows are first packets of flows, all but the undecodable ones, by decision. A retransmitted one counts again.
	// Classes without any are left out.
	Flows map[FlowClass]uint64

	Created  uint64 // connection entries created
	Kept     uint64 // packets whose tuple had a live connection
	Replaced uint64 // entries that replaced one of a finished connection
	Failed   uint64 // entries that could not be created
	// HostMasqueraded are the created entries whose source one of the host's own rules translated, HostUnknown those
	// whose source is unchanged because the effect of such a rule is unknown.
	HostMasqueraded, HostUnknown uint64
	NoRoute                      uint64 // of Failed: there is no route to the endpoint, on which the translation of the source depends
	TableFull                    uint64 // of Failed: the connection table is full
	// EvictedFull are the unreplied entries that were evicted from a full connection table,
	// EvictedCrowded those that were removed early from one more than half full.
	EvictedFull, EvictedCrowded uint64

	// SecondChances are the flows that were sent to another endpoint because the last one refused them or did not
	// answer, RefusalsQueued the packets that were examined because they refuse a connection.
	SecondChances, RefusalsQueued uint64

	// ForgottenClients lost their session affinity early, because there were too many.
	ForgottenClients uint64

	RefusedVerdicts uint64 // verdicts for packets the kernel had flushed
	// Undecided are the packets that passed undecided because of an overflow: those that did not fit into a full queue,
	// as of the last second, and the Overrun of all queues.
	Undecided uint64
	// InvalidDropped are the forwarded packets that were dropped as invalid for conntrack, as of the last second.
	InvalidDropped uint64
	// DecidedByCopy are the packets that the kernel's copy of the service table decided, as of the last
	// second: the first of each flow that it translated, and all that it refused.
	DecidedByCopy uint64
	// LocalhostNodePorts are the translated first packets of flows to node ports at loopback
	// addresses.
	LocalhostNodePorts uint64
	LostRecords        uint64 // flow records that a slow reader missed
	// Reinstalled counts how often the kernel rules were reinstalled after another program removed them, Repaired how
	// often some were repaired after it changed them.
	Reinstalled, Repaired uint64
	// FilterRepaired counts how often our rules in the host's own firewall were repaired after another program changed
	// them; see package hostfilter. The engine does not set it.
	FilterRepaired uint64
	Queues         []QueueStats

	// DecisionTime is how long the decision of one packet took: the mean of its batch,
	// counted once for each packet.
	DecisionTime Histogram
	// EstablishTime is how long it took to write a batch's entries into the connection table, including the replies;
	// batches without entries do not count.
	EstablishTime Histogram
	// VerdictTime is how long a packet took from its receipt to its verdict, counted once for each
	// packet. The preceding wait in the kernel is known for single flows only: see flow.Stages.
	VerdictTime Histogram
}

// QueueStats are those of one queue.
type QueueStats struct {
	Number uint16
	// NoService: its packets are for no service, or for one without endpoints.
	NoService bool
	Packets   uint64 // received from it
	Waiting   uint64 // packets in the kernel without a verdict, when the kernel's counter was last read
	// Overrun are the packets that did not fit into the socket's buffer and passed
	// undecided.
	Overrun uint64
	Refused uint64 // verdicts for packets the kernel had flushed
	// PortID is the netlink port that is bound to the queue, as the kernel reports it.
	PortID uint32
	// Stuck: its worker makes no progress; see [Engine.Stuck].
	Stuck bool
}

// LogValue leaves out values that are only for monitoring systems.
func (s Stats) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Uint64("packets", s.Packets), slog.Uint64("undecodable", s.Undecodable),
		slog.Uint64("noService", s.NoService), slog.Uint64("translated", s.Translated),
		slog.Uint64("rejected", s.Rejected), slog.Uint64("dropped", s.Dropped),
		slog.Uint64("created", s.Created), slog.Uint64("kept", s.Kept),
		slog.Uint64("replaced", s.Replaced), slog.Uint64("failed", s.Failed),
		slog.Uint64("refusedVerdicts", s.RefusedVerdicts), slog.Uint64("undecided", s.Undecided),
		slog.Uint64("lostRecords", s.LostRecords), slog.Uint64("reinstalled", s.Reinstalled),
		slog.Uint64("repaired", s.Repaired),
	)
}

// The numbers of values in the enums of package decision.
const (
	verdicts = int(decision.Drop) + 1
	entries  = int(decision.EntryNodePort) + 1
	reasons  = int(decision.TranslationUnknown) + 1
)

// FlowClass is the key by which flows are counted.
type FlowClass struct {
	Verdict decision.Verdict
	Entry   decision.Entry
	Reason  decision.Reason
}

// counters are the Stats of one worker. Any goroutine may read them.
type counters struct {
	packets, undecodable, heldBack           atomic.Uint64
	created, kept, replaced, failed          atomic.Uint64
	noRoute, tableFull                       atomic.Uint64
	hostMasqueraded, hostUnknown             atomic.Uint64
	missed, localhostNodePorts               atomic.Uint64
	flows                                    [verdicts][entries][reasons]atomic.Uint64
	decisionTime, establishTime, verdictTime histogram
}

func (c *counters) addTo(s *Stats) {
	s.Packets += c.packets.Load()
	s.Undecodable += c.undecodable.Load()
	s.HeldBack += c.heldBack.Load()
	if s.Flows == nil {
		s.Flows = make(map[FlowClass]uint64)
	}
	for v := range c.flows {
		for e := range c.flows[v] {
			for r := range c.flows[v][e] {
				n := c.flows[v][e][r].Load()
				if n == 0 {
					continue
				}
				class := FlowClass{decision.Verdict(v), decision.Entry(e), decision.Reason(r)}
				s.Flows[class] += n
				switch class.Verdict {
				case decision.Accept:
					s.NoService += n
				case decision.Reject:
					s.Rejected += n
				case decision.Drop:
					s.Dropped += n
				}
			}
		}
	}
	s.LocalhostNodePorts += c.localhostNodePorts.Load()
	created, kept, replaced := c.created.Load(), c.kept.Load(), c.replaced.Load()
	s.Created += created
	s.Kept += kept
	s.Replaced += replaced
	s.Translated += created + kept + replaced
	// The total is counted first, so read the parts before it: their sum never exceeds it.
	s.NoRoute += c.noRoute.Load()
	s.TableFull += c.tableFull.Load()
	s.Failed += c.failed.Load()
	s.HostMasqueraded += c.hostMasqueraded.Load()
	s.HostUnknown += c.hostUnknown.Load()
	c.decisionTime.addTo(&s.DecisionTime)
	c.establishTime.addTo(&s.EstablishTime)
	c.verdictTime.addTo(&s.VerdictTime)
}

// growth sums up a counter that may restart at 0.
type growth struct{ total, last uint64 }

// look takes the counter's value and returns the sum.
func (g *growth) look(shows uint64) uint64 {
	if shows < g.last {
		g.last = 0
	}
	g.total += shows - g.last
	g.last = shows
	return g.total
}

// overflow counts the packets that were sent to full queues: the difference between the counters
// of the rules and of the queues.
type overflow struct {
	before   uint64 // under earlier rules
	now      uint64 // under the present ones
	enqueued uint64 // when the present rules were installed
}

// restart begins again with rules whose counters are 0.
func (o *overflow) restart(enqueued uint64) {
	o.before, o.now, o.enqueued = o.before+o.now, 0, enqueued
}

// look takes the counters of the rules and those of the queues, read in this order: so a packet on
// its way from one to the other never counts as lost.
func (o *overflow) look(queued, enqueued uint64) uint64 {
	if arrived := enqueued - o.enqueued; queued > arrived {
		o.now = max(o.now, queued-arrived)
	}
	return o.before + o.now
}

// HistogramBuckets is how many buckets with a bound a Histogram has.
const HistogramBuckets = 24

// firstBound is the bound of the first bucket; each further one is twice as large, up
// to 0.84 s. A decision takes less than a microsecond, a full batch some hundred.
const firstBound = 100 * time.Nanosecond

// Histogram is a distribution of durations.
type Histogram struct {
	// Counts holds, by position, the durations longer than the bound before and not
	// longer than [HistogramBound] of the position; the last one those longer than all
	// bounds.
	Counts [HistogramBuckets + 1]uint64
	Sum    time.Duration // of all durations
}

// HistogramBound is the upper, inclusive bound of bucket i, from 0 to HistogramBuckets-1.
func HistogramBound(i int) time.Duration { return firstBound << i }

// Total is how many durations were counted.
func (h *Histogram) Total() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// histogram is the live form of a Histogram: one goroutine writes, any may read.
type histogram struct {
	counts [HistogramBuckets + 1]atomic.Uint64
	sum    atomic.Int64
}

// observe counts the duration n times.
func (h *histogram) observe(d time.Duration, n uint64) {
	d = max(d, 1)
	i := bits.Len64(uint64((d - 1) / firstBound))
	h.counts[min(i, HistogramBuckets)].Add(n)
	h.sum.Add(int64(d) * int64(n))
}

func (h *histogram) addTo(sum *Histogram) {
	for i := range h.counts {
		sum.Counts[i] += h.counts[i].Load()
	}
	sum.Sum += time.Duration(h.sum.Load())
}
