package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// alwaysThere are the flows whose counters exist from the start: a rate misses a first flow
// that makes its counter appear.
var alwaysThere = []engine.FlowClass{
	{Verdict: decision.Accept, Entry: decision.EntryNone, Reason: decision.NotAService},
	{Verdict: decision.DNAT, Entry: decision.EntryClusterIP, Reason: decision.Balanced},
	{Verdict: decision.DNAT, Entry: decision.EntryExternalIP, Reason: decision.Balanced},
	{Verdict: decision.DNAT, Entry: decision.EntryLoadBalancer, Reason: decision.Balanced},
	{Verdict: decision.DNAT, Entry: decision.EntryNodePort, Reason: decision.Balanced},
	{Verdict: decision.Reject, Entry: decision.EntryClusterIP, Reason: decision.NoEndpoints},
	{Verdict: decision.Reject, Entry: decision.EntryNodePort, Reason: decision.NoEndpoints},
	{Verdict: decision.Drop, Entry: decision.EntryClusterIP, Reason: decision.NoLocalEndpoints},
	{Verdict: decision.Drop, Entry: decision.EntryNodePort, Reason: decision.NoLocalEndpoints},
	{Verdict: decision.Drop, Entry: decision.EntryLoadBalancer, Reason: decision.SourceNotAllowed},
}

// ReadStats makes every scrape from now on read the datapath's counters with the
// function, which may be called by several goroutines at once. Before, there are no metrics of the
// datapath. [engine.Engine.Stats] is such a function.
func (m *Metrics) ReadStats(stats func() engine.Stats) {
	m.read(func(to scrape) {
		s := stats()
		to.datapath(&s)
	})
}

func (to scrape) datapath(s *engine.Stats) {
	count := to.counters("nfqproxy_flows_total", "Flows decided: first packets, including retransmissions. The entry is the type of the destination address.", "verdict", "entry", "reason")
	flows := func(c engine.FlowClass, n uint64) { count(n, c.Verdict.String(), c.Entry.String(), c.Reason.String()) }
	for _, c := range alwaysThere {
		if s.Flows[c] == 0 {
			flows(c, 0)
		}
	}
	for c, n := range s.Flows {
		flows(c, n)
	}
	to.counter("nfqproxy_undecodable_packets_total", "Packets that passed unchanged because they could not be decoded.", s.Undecodable)
	to.counter("nfqproxy_held_back_packets_total", "Retransmitted packets of held flows, dropped without a decision: see holds in the flow API.", s.HeldBack)
	to.histogram("nfqproxy_decision_duration_seconds", "Time to decide one flow: the mean of its batch.", &s.DecisionTime)
	to.histogram("nfqproxy_conntrack_write_duration_seconds", "Time to write the entries of one batch of flows into the conntrack table.", &s.EstablishTime)
	to.histogram("nfqproxy_verdict_duration_seconds", "Time from reading a packet from the queue to its verdict, without the time it waited in the kernel.", &s.VerdictTime)
	entries := to.counters("nfqproxy_conntrack_entries_total", "Conntrack entries by outcome: created, kept (the tuple has a live connection), replaced (it had a finished one) or failed.", "outcome")
	entries(s.Created, "created")
	entries(s.Kept, "kept")
	entries(s.Replaced, "replaced")
	entries(s.Failed, "failed")
	failures := to.counters("nfqproxy_conntrack_failures_total", "Conntrack entries that could not be created.", "reason")
	failures(s.NoRoute, "no_route")
	failures(s.TableFull, "table_full")
	failures(s.Failed-s.NoRoute-s.TableFull, "other")
	evictions := to.counters("nfqproxy_conntrack_evictions_total", "Conntrack entries without a reply that were removed: table_full, to insert another one into a full table; crowded, after 2 s while the table was more than half full.", "reason")
	evictions(s.EvictedFull, "table_full")
	evictions(s.EvictedCrowded, "crowded")
	to.counter("nfqproxy_host_masqueraded_flows_total", "Flows masqueraded by a rule of the node's own, of the entries created and replaced.", s.HostMasqueraded)
	to.counter("nfqproxy_host_rules_unknown_flows_total", "Flows whose source is not translated because the effect of a rule of the node's own is not known, of the entries created and replaced. The log names the rule.", s.HostUnknown)
	to.counter("nfqproxy_affinity_forgotten_clients_total", "Clients that lost their session affinity before its timeout because of the limit for a service port or for all.", s.ForgottenClients)
	packets := to.counters("nfqproxy_queue_packets_total", "Packets received from the queue.", "queue")
	queued := to.gauges("nfqproxy_queue_waiting_packets", "Packets in the kernel without a verdict.", "queue")
	overrun := to.counters("nfqproxy_queue_overrun_packets_total", "Of these, packets lost by overflow of the socket buffer of this queue.", "queue")
	refused := to.counters("nfqproxy_queue_refused_verdicts_total", "Verdicts refused by the kernel because it had flushed the packet.", "queue")
	for _, q := range s.Queues {
		number := strconv.Itoa(int(q.Number))
		packets(q.Packets, number)
		queued(float64(q.Waiting), number)
		overrun(q.Overrun, number)
		refused(q.Refused, number)
	}
	to.counter("nfqproxy_undecided_packets_total", "Packets that passed without a decision because a queue or its socket buffer overflowed.", s.Undecided)
	to.counter("nfqproxy_kernel_copy_packets_total", "Packets that the kernel's copy of the service table decided: the first of each flow that it translated, and all that it refused.", s.DecidedByCopy)
	to.counter("nfqproxy_flow_records_lost_total", "Flow records that a slow reader missed.", s.LostRecords)
	to.counter("nfqproxy_rules_reinstalled_total", "Times that the kernel rules had been removed and were installed again.", s.Reinstalled)
	to.counter("nfqproxy_rules_repaired_total", "Times that another program had changed some of the kernel rules and they were repaired in place.", s.Repaired)
	to.counter("nfqproxy_second_chances_total", "Flows that were sent to another endpoint because the one before refused them or did not answer (--second-chance).", s.SecondChances)
	to.counter("nfqproxy_refusals_queued_total", "Packets that refuse a TCP connection and were queued (--second-chance).", s.RefusalsQueued)
	to.counter("nfqproxy_host_filter_repaired_total", "Times that another program had changed the rules in the table filter of iptables that accept flows to services, and they were repaired.", s.FilterRepaired)

	// kube-proxy counts the same packets with nfacct, and exports the counters under these names
	// (pkg/proxy/metrics: ...NFAcctCounter).
	to.counter("kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "Packets in conntrack state INVALID that were dropped instead of forwarded.", s.InvalidDropped)
	to.counter("kubeproxy_iptables_localhost_nodeports_accepted_packets_total", "First packets of flows to an endpoint through a node port on 127.0.0.0/8.", s.LocalhostNodePorts)
}

func (to scrape) histogram(name, help string, h *engine.Histogram) {
	buckets := make(map[float64]uint64, engine.HistogramBuckets)
	var below uint64
	for i := range engine.HistogramBuckets {
		below += h.Counts[i]
		// Not Seconds(), which makes 1.6e-06 into 1.6000000000000001e-06.
		buckets[float64(engine.HistogramBound(i).Nanoseconds())/1e9] = below
	}
	to <- prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, nil, nil), h.Total(), h.Sum.Seconds(), buckets)
}
