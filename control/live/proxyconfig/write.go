package proxyconfig

import (
	"math/bits"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

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
	o.IPTables.MasqueradeBit, o.IPTables.MasqueradeAll = masqueradeBit(n), n.MasqueradeAll
	o.IPTables.LocalhostNodePorts = &n.LocalhostNodePorts
	// Zero is "left open" to kube-proxy, which then takes a second for the least time.
	o.IPTables.SyncPeriod, o.IPTables.MinSyncPeriod = period(c.SyncPeriod), period(c.MinSyncPeriod)
	if n.IgnoreExternalIPs {
		o.FeatureGates = map[string]bool{GateExternalIPs: false}
	}
	o.ClientConnection.Kubeconfig = c.Kubeconfig
	o.ClientConnection.QPS = c.QPS
	o.ClientConnection.Burst = int32(c.Burst)
	o.ClientConnection.ContentType = c.ContentType
	o.ClientConnection.AcceptContentTypes = c.AcceptContentTypes
	o.Logging.Format = c.LogFormat
	o.Logging.Verbosity = uint32(c.Verbosity)
	to, from := &o.Conntrack, &c.Conntrack
	to.MaxPerCore, to.Min = new(int32(from.MaxPerCore)), new(int32(from.Min))
	to.TCPEstablishedTimeout, to.TCPCloseWaitTimeout = new(period(from.TCPEstablishedTimeout)), new(period(from.TCPCloseWaitTimeout))
	to.TCPBeLiberal = from.TCPBeLiberal
	to.UDPTimeout, to.UDPStreamTimeout = period(from.UDPTimeout), period(from.UDPStreamTimeout)
	return yaml.Marshal(&o)
}

// masqueradeBit is nil, kube-proxy's default, where no mark is set.
func masqueradeBit(n *servicetable.NodeConfig) *int32 {
	if n.MasqueradeMark == 0 {
		return nil
	}
	return new(int32(bits.TrailingZeros32(n.MasqueradeMark)))
}

func period(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
