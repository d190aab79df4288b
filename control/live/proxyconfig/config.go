// Package proxyconfig reads and writes kube-proxy's configuration file
// (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1), as kubeadm and kind write it,
// and sets its connection tracking sysctls.
//
// [Load] gives a [Config] of what nfqproxy honours, defaults filled in, and a warning for
// each field that is set and not honoured. Where a flag and the file differ
// the flag wins; since every field of a Config is a plain value that already holds its
// default, that is one assignment for each flag that was given:
//
//	cfg, warnings, err := proxyconfig.Load(path) // or proxyconfig.Default()
//	if flags.Changed("kubeconfig") {
//		cfg.Kubeconfig = f.kubeconfig
//	}
//	err = cfg.Node.Validate()
package proxyconfig

import (
	"math/bits"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// Config is the part of a KubeProxyConfiguration that nfqproxy honours. It has no
// reference to the file it came from and may be copied and changed freely, slices
// aside. The zero value is not useful; start from [Default] or [Load].
type Config struct {
	// Node describes the node: hostnameOverride, bindAddress, detectLocalMode,
	// detectLocal, clusterCIDR, nodePortAddresses, the masquerade settings and the feature gate AllowServiceExternalIPs. Name is
	// empty unless hostnameOverride is set: then the host's name counts. IPs has at most
	// one address, bindAddress, which is the node's primary one whatever the Node object
	// has; none if it is 0.0.0.0 or ::. Zone is always empty: the file has no field for it.
	Node servicetable.NodeConfig

	ClientConnection
	// ConfigSyncPeriod is the informers' resync period; above 0.
	ConfigSyncPeriod time.Duration

	// SyncPeriod is how often everything is checked again, above 0; MinSyncPeriod is the
	// least time between two new service tables, from 0 to SyncPeriod. They come from the
	// section of the file's mode.
	SyncPeriod, MinSyncPeriod time.Duration

	// HealthzBindAddress and MetricsBindAddress are "IP:port". The file always gives one;
	// a flag may make them empty, which means: do not serve.
	HealthzBindAddress, MetricsBindAddress string
	// BindAddressHardFail ends the process when one of them cannot be had; otherwise it
	// goes on without and tries again.
	BindAddressHardFail bool
	// EnableProfiling serves /debug/pprof beside the metrics.
	EnableProfiling bool

	// OOMScoreAdj is for /proc/self/oom_score_adj; from -1000 to 1000.
	OOMScoreAdj int
	Conntrack   Conntrack

	// Verbosity is klog's: 0 is the least, 4 is debugging.
	Verbosity int
	// LogFormat is "text" or "json".
	LogFormat string
}

// ClientConnection describes the connection to the API server.
type ClientConnection struct {
	// Kubeconfig is a path; empty: the service account of the pod.
	Kubeconfig string `json:"kubeconfig"`
	// AcceptContentTypes and ContentType are media types, as in client-go's rest.Config.
	AcceptContentTypes string `json:"acceptContentTypes"`
	ContentType        string `json:"contentType"`
	// QPS and Burst limit requests to the API server. A negative QPS means no limit.
	QPS   float32 `json:"qps"`
	Burst int32   `json:"burst"`
}

// Default returns the configuration of an empty file: kube-proxy's defaults.
func Default() Config {
	var o object
	setDefaults(&o)
	config, _ := honoured(&o)
	return config
}

// Marshal returns the configuration as a KubeProxyConfiguration in YAML that [Parse] reads
// back without loss and that kube-proxy can also be started with; it would then run in
// mode iptables, which is how nfqproxy decides. What the file has no word for is not in
// it: Node.Zone, and servers that a flag has turned off.
func (c Config) Marshal() ([]byte, error) {
	n := &c.Node
	o := object{
		TypeMeta:         metav1.TypeMeta{Kind: kind, APIVersion: apiVersion},
		HostnameOverride: n.Name,
		BindAddress:      "0.0.0.0",
		Mode:             modeIPTables,
		DetectLocalMode:  string(n.Mode),

		HealthzBindAddress:  c.HealthzBindAddress,
		MetricsBindAddress:  c.MetricsBindAddress,
		BindAddressHardFail: c.BindAddressHardFail,
		EnableProfiling:     c.EnableProfiling,
		OOMScoreAdj:         new(int32(c.OOMScoreAdj)),
		ConfigSyncPeriod:    period(c.ConfigSyncPeriod),
	}
	o.DetectLocal.BridgeInterface, o.DetectLocal.InterfaceNamePrefix = n.Bridge, n.InterfacePrefix
	if len(n.IPs) > 0 {
		o.BindAddress = n.IPs[0].String()
	}
	var cidrs []string
	for _, p := range n.ClusterCIDRs {
		cidrs = append(cidrs, p.String())
	}
	o.ClusterCIDR = strings.Join(cidrs, ",")
	for _, p := range n.NodePortAddresses {
		o.NodePortAddresses = append(o.NodePortAddresses, p.String())
	}
	if n.PrimaryNodePorts {
		o.NodePortAddresses = append([]string{keywordPrimary}, o.NodePortAddresses...)
	}
	if n.MasqueradeMark != 0 {
		o.IPTables.MasqueradeBit = new(int32(bits.TrailingZeros32(n.MasqueradeMark)))
	}
	o.IPTables.MasqueradeAll = n.MasqueradeAll
	o.IPTables.LocalhostNodePorts = &n.LocalhostNodePorts
	// Zero is "left open" to kube-proxy, which then takes a second for the least time.
	o.IPTables.SyncPeriod, o.IPTables.MinSyncPeriod = period(c.SyncPeriod), period(c.MinSyncPeriod)
	if n.IgnoreExternalIPs {
		o.FeatureGates = map[string]bool{GateExternalIPs: false}
	}
	o.ClientConnection = c.ClientConnection
	o.Logging.Format = c.LogFormat
	o.Logging.Verbosity = uint32(c.Verbosity)
	to, from := &o.Conntrack, &c.Conntrack
	to.MaxPerCore, to.Min = new(int32(from.MaxPerCore)), new(int32(from.Min))
	to.TCPEstablishedTimeout, to.TCPCloseWaitTimeout = new(period(from.TCPEstablishedTimeout)), new(period(from.TCPCloseWaitTimeout))
	to.TCPBeLiberal = from.TCPBeLiberal
	to.UDPTimeout, to.UDPStreamTimeout = period(from.UDPTimeout), period(from.UDPStreamTimeout)
	return yaml.Marshal(&o)
}

func period(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
