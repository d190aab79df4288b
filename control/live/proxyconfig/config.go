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
	"time"

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

	// Kubeconfig is a path; empty: the service account of the pod.
	Kubeconfig string
	// QPS and Burst limit requests to the API server. A negative QPS means no limit.
	QPS   float32
	Burst int
	// ContentType and AcceptContentTypes are media types, as in client-go's rest.Config.
	ContentType, AcceptContentTypes string
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

// Default returns the configuration of an empty file: kube-proxy's defaults.
func Default() Config {
	var o object
	setDefaults(&o)
	config, _ := honoured(&o)
	return config
}
