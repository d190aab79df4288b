package metrics

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// datapathCollector reads the datapath's counters at scrape time. Without a datapath it collects
// nothing.
type datapathCollector struct {
	descs
	stats *atomic.Pointer[func() engine.Stats]
}

var (
	datapathDescs descs

	descFlows            = datapathDescs.add("nfqproxy_flows_total", "Flows decided: first packets, including retransmissions. The entry is the type of the destination address.", "verdict", "entry", "reason")
	descUndecodable      = datapathDescs.add("nfqproxy_undecodable_packets_total", "Packets that passed unchanged because they could not be decoded.")
	descHeldBack         = datapathDescs.add("nfqproxy_held_back_packets_total", "Retransmitted packets of held flows, dropped without a decision: see holds in the flow API.")
	descDecision         = datapathDescs.add("nfqproxy_decision_duration_seconds", "Time to decide one flow: the mean of its batch.")
	descEstablish        = datapathDescs.add("nfqproxy_conntrack_write_duration_seconds", "Time to write the entries of one batch of flows into the conntrack table.")
	descVerdict          = datapathDescs.add("nfqproxy_verdict_duration_seconds", "Time from reading a packet from the queue to its verdict, without the time it waited in the kernel.")
	descEntries          = datapathDescs.add("nfqproxy_conntrack_entries_total", "Conntrack entries by outcome: created, kept (the tuple has a live connection), replaced (it had a finished one) or failed.", "outcome")
	descFailures         = datapathDescs.add("nfqproxy_conntrack_failures_total", "Conntrack entries that could not be created.", "reason")
	descEvictions        = datapathDescs.add("nfqproxy_conntrack_evictions_total", "Conntrack entries without a reply that were removed: table_full, to insert another one into a full table; crowded, after 2 s while the table was more than half full.", "reason")
	descHostMasq         = datapathDescs.add("nfqproxy_host_masqueraded_flows_total", "Flows masqueraded by a rule of the node's own, of the entries created and replaced.")
	descHostRulesUnknown = datapathDescs.add("nfqproxy_host_rules_unknown_flows_total", "Flows whose source is not translated because the effect of a rule of the node's own is not known, of the entries created and replaced. The log names the rule.")
	descAffinityLost     = datapathDescs.add("nfqproxy_affinity_forgotten_clients_total", "Clients that lost their session affinity before its timeout because of the limit for a service port or for all.")
	descQueuePackets     = datapathDescs.add("nfqproxy_queue_packets_total", "Packets received from the queue.", "queue")
	descQueueWaiting     = datapathDescs.add("nfqproxy_queue_waiting_packets", "Packets in the kernel without a verdict.", "queue")
	descUndecided        = datapathDescs.add("nfqproxy_undecided_packets_total", "Packets that passed without a decision because a queue or its socket buffer overflowed.")
	descDecidedByCopy    = datapathDescs.add("nfqproxy_kernel_copy_packets_total", "Packets that the kernel's copy of the service table decided: the first of each flow that it translated, and all that it refused.")
	descQueueOverrun     = datapathDescs.add("nfqproxy_queue_overrun_packets_total", "Of these, packets lost by overflow of the socket buffer of this queue.", "queue")
	descQueueRefused     = datapathDescs.add("nfqproxy_queue_refused_verdicts_total", "Verdicts refused by the kernel because it had flushed the packet.", "queue")
	descLostRecords      = datapathDescs.add("nfqproxy_flow_records_lost_total", "Flow records that a slow reader missed.")
	descReinstalled      = datapathDescs.add("nfqproxy_rules_reinstalled_total", "Times that the kernel rules had been removed and were installed again.")
	descRepaired         = datapathDescs.add("nfqproxy_rules_repaired_total", "Times that another program had changed some of the kernel rules and they were repaired in place.")
	descSecondChances    = datapathDescs.add("nfqproxy_second_chances_total", "Flows that were sent to another endpoint because the one before refused them or did not answer (--second-chance).")
	descRefusals         = datapathDescs.add("nfqproxy_refusals_queued_total", "Packets that refuse a TCP connection and were queued (--second-chance).")
	descFilter           = datapathDescs.add("nfqproxy_host_filter_repaired_total", "Times that another program had changed the rules in the table filter of iptables that accept flows to services, and they were repaired.")

	// kube-proxy counts the same packets with nfacct, and exports the counters under these names
	// (pkg/proxy/metrics: ...NFAcctCounter).
	descInvalidDropped = datapathDescs.add("kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Packets in conntrack state INVALID that were dropped instead of forwarded.")
	descLocalhostAccepted = datapathDescs.add("kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"First packets of flows to an endpoint through a node port on 127.0.0.0/8.")
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

// Collect implements [prometheus.Collector].
func (c datapathCollector) Collect(to chan<- prometheus.Metric) {
	read := c.stats.Load()
	if read == nil {
		return
	}
	s := (*read)()
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	flows := func(c engine.FlowClass, n uint64) {
		counter(descFlows, n, c.Verdict.String(), c.Entry.String(), c.Reason.String())
	}
	for _, c := range alwaysThere {
		if s.Flows.Count(c) == 0 {
			flows(c, 0)
		}
	}
	for c, n := range s.Flows.All() {
		flows(c, n)
	}
	counter(descUndecodable, s.Undecodable)
	counter(descHeldBack, s.HeldBack)
	to <- histogram(descDecision, &s.DecisionTime)
	to <- histogram(descEstablish, &s.EstablishTime)
	to <- histogram(descVerdict, &s.VerdictTime)
	counter(descEntries, s.Created, "created")
	counter(descEntries, s.Kept, "kept")
	counter(descEntries, s.Replaced, "replaced")
	counter(descEntries, s.Failed, "failed")
	counter(descFailures, s.NoRoute, "no_route")
	counter(descFailures, s.TableFull, "table_full")
	counter(descFailures, s.Failed-s.NoRoute-s.TableFull, "other")
	counter(descEvictions, s.EvictedFull, "table_full")
	counter(descEvictions, s.EvictedCrowded, "crowded")
	counter(descHostMasq, s.HostMasqueraded)
	counter(descHostRulesUnknown, s.HostUnknown)
	counter(descAffinityLost, s.ForgottenClients)
	for _, q := range s.Queues {
		number := strconv.Itoa(int(q.Number))
		counter(descQueuePackets, q.Packets, number)
		to <- prometheus.MustNewConstMetric(descQueueWaiting, prometheus.GaugeValue, float64(q.Waiting), number)
		counter(descQueueOverrun, q.Overrun, number)
		counter(descQueueRefused, q.Refused, number)
	}
	counter(descUndecided, s.Undecided)
	counter(descDecidedByCopy, s.DecidedByCopy)
	counter(descLostRecords, s.LostRecords)
	counter(descReinstalled, s.Reinstalled)
	counter(descRepaired, s.Repaired)
	counter(descSecondChances, s.SecondChances)
	counter(descRefusals, s.RefusalsQueued)
	counter(descFilter, s.FilterRepaired)
	counter(descInvalidDropped, s.InvalidDropped)
	counter(descLocalhostAccepted, s.LocalhostNodePorts)
}

func histogram(d *prometheus.Desc, h *engine.Histogram) prometheus.Metric {
	buckets := make(map[float64]uint64, engine.HistogramBuckets)
	var below uint64
	for i := range engine.HistogramBuckets {
		below += h.Counts[i]
		// Not Seconds(), which makes 1.6e-06 into 1.6000000000000001e-06.
		buckets[float64(engine.HistogramBound(i).Nanoseconds())/1e9] = below
	}
	return prometheus.MustNewConstHistogram(d, h.Total(), h.Sum.Seconds(), buckets)
}
