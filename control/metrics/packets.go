package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// PacketCounts reads two counters of the kernel, which never go down while the program runs:
// INVALID packets that were dropped instead of forwarded, and first packets that went to an
// endpoint by a node port on an IPv4 loopback address. kube-proxy has nfacct count the same
// packets (pkg/proxy/metrics: ...NFAcctCounter), and exports the counters under these names.
type PacketCounts func() (invalidDropped, localhostNodePorts uint64, err error)

// ReadPackets lets every scrape from now on read the counters with the function, which may be
// called by several goroutines at once. Before, there are no such metrics. A scrape leaves them
// out if the function fails, and the log says why.
func (m *Metrics) ReadPackets(read PacketCounts) { m.packets.Store(&read) }

// packetCollector reads the counters at scrape time.
type packetCollector struct {
	read *atomic.Pointer[PacketCounts]
}

var (
	descInvalidDropped = prometheus.NewDesc("kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"Packets in conntrack state INVALID that were dropped instead of forwarded.", nil, nil)
	descLocalhostAccepted = prometheus.NewDesc("kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"First packets of flows that went to an endpoint by a node port on 127.0.0.0/8.", nil, nil)
)

// Describe is [prometheus.Collector]'s.
func (c packetCollector) Describe(to chan<- *prometheus.Desc) {
	to <- descInvalidDropped
	to <- descLocalhostAccepted
}

// Collect is [prometheus.Collector]'s.
func (c packetCollector) Collect(to chan<- prometheus.Metric) {
	read := c.read.Load()
	if read == nil {
		return
	}
	invalid, localhost, err := (*read)()
	if err != nil {
		to <- prometheus.NewInvalidMetric(descInvalidDropped, err)
		return
	}
	to <- prometheus.MustNewConstMetric(descInvalidDropped, prometheus.CounterValue, float64(invalid))
	to <- prometheus.MustNewConstMetric(descLocalhostAccepted, prometheus.CounterValue, float64(localhost))
}
