package proxyconfig

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// Modes of kube-proxy on Linux.
const (
	modeIPTables = "iptables"
	modeIPVS     = "ipvs"
	modeNFTables = "nftables"
)

// Ports of kube-proxy (pkg/cluster/ports).
const (
	healthzPort = 10256
	metricsPort = 10249
)

// setDefaults fills in what the file leaves open, as kube-proxy does
// (pkg/proxy/apis/config/v1alpha1/defaults.go; platformApplyDefaults on Linux). Zero
// means "left open" to it, also for times.
func setDefaults(c *object) {
	defaultTo(&c.BindAddress, "0.0.0.0")
	every, loopback := "0.0.0.0", "127.0.0.1"
	if a, err := kubeaddr.Parse(c.BindAddress); err != nil || !a.Is4() {
		every, loopback = "::", "::1"
	}
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, every, healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, loopback, metricsPort)

	// The least time between two syncs is 1 s by default in kube-proxy, whose syncs have
	// work in proportion to the cluster. Here it is none unless it is configured.
	defaultTo(&c.Mode, modeIPTables)
	defaultTo(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	defaultTo(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	defaultTo(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	c.IPTables.MasqueradeBit = orPointer(c.IPTables.MasqueradeBit, 14)
	c.NFTables.MasqueradeBit = orPointer(c.NFTables.MasqueradeBit, 14)
	c.IPTables.LocalhostNodePorts = orPointer(c.IPTables.LocalhostNodePorts, true)
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{keywordPrimary}
	}
	defaultTo(&c.DetectLocalMode, "ClusterCIDR")

	c.OOMScoreAdj = orPointer(c.OOMScoreAdj, -999)
	c.Conntrack.MaxPerCore = orPointer(c.Conntrack.MaxPerCore, 32*1024)
	c.Conntrack.Min = orPointer(c.Conntrack.Min, 128*1024)
	c.Conntrack.TCPEstablishedTimeout = orPointer(c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	c.Conntrack.TCPCloseWaitTimeout = orPointer(c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})

	defaultTo(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	defaultTo(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	defaultTo(&c.ClientConnection.QPS, 5)
	defaultTo(&c.ClientConnection.Burst, 10)
	defaultTo(&c.Logging.Format, "text")
	defaultTo(&c.Logging.FlushFrequency.Duration.Duration, flushFrequency)
}

// flushFrequency is the default of logging.flushFrequency.
const flushFrequency = 5 * time.Second

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func orPointer[T any](field *T, value T) *T {
	if field == nil {
		return &value
	}
	return field
}

// withPort completes an address to serve on: kube-proxy lets its port, or all of it, be
// left out.
func withPort(address, host string, port int) string {
	if address == "" {
		return net.JoinHostPort(host, strconv.Itoa(port))
	}
	if a, err := kubeaddr.Parse(address); err == nil {
		return net.JoinHostPort(a.String(), strconv.Itoa(port))
	}
	return address
}
