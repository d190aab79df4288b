package proxyconfig

import (
	"math/bits"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// Marshal returns the configuration as a KubeProxyConfiguration in YAML that [Parse] reads
// back without loss and that kube-proxy, too, can be started with; it would then run in
// mode iptables, which is how nfqproxy decides. What the file has no word for is not in
// it: Node.Zone, and servers that a flag has turned off.
func (c Config) Marshal() ([]byte, error) {
	n := &c.Node
	object := v1alpha1.KubeProxyConfiguration{
		TypeMeta:         metav1.TypeMeta{Kind: kind, APIVersion: v1alpha1.SchemeGroupVersion.String()},
		HostnameOverride: n.Name,
		BindAddress:      "0.0.0.0",
		Mode:             modeIPTables,
		DetectLocalMode:  v1alpha1.LocalMode(n.Mode),
		DetectLocal:      v1alpha1.DetectLocalConfiguration{BridgeInterface: n.Bridge, InterfaceNamePrefix: n.InterfacePrefix},

		HealthzBindAddress:  c.HealthzBindAddress,
		MetricsBindAddress:  c.MetricsBindAddress,
		BindAddressHardFail: c.BindAddressHardFail,
		EnableProfiling:     c.EnableProfiling,
		OOMScoreAdj:         new(int32(c.OOMScoreAdj)),
		ConfigSyncPeriod:    period(c.ConfigSyncPeriod),
		Conntrack:           c.Conntrack.object(),
	}
	if len(n.IPs) > 0 {
		object.BindAddress = n.IPs[0].String()
	}
	var cidrs []string
	for _, p := range n.ClusterCIDRs {
		cidrs = append(cidrs, p.String())
	}
	object.ClusterCIDR = strings.Join(cidrs, ",")
	for _, p := range n.NodePortAddresses {
		object.NodePortAddresses = append(object.NodePortAddresses, p.String())
	}
	if n.PrimaryNodePorts {
		object.NodePortAddresses = append([]string{keywordPrimary}, object.NodePortAddresses...)
	}
	object.IPTables = v1alpha1.KubeProxyIPTablesConfiguration{
		MasqueradeBit:      masqueradeBit(n),
		MasqueradeAll:      n.MasqueradeAll,
		LocalhostNodePorts: &n.LocalhostNodePorts,
		SyncPeriod:         period(c.SyncPeriod),
		// Zero is "left open" to kube-proxy, which then takes a second.
		MinSyncPeriod: period(c.MinSyncPeriod),
	}
	if n.IgnoreExternalIPs {
		object.FeatureGates = map[string]bool{GateExternalIPs: false}
	}
	object.ClientConnection.Kubeconfig = c.Kubeconfig
	object.ClientConnection.QPS = c.QPS
	object.ClientConnection.Burst = int32(c.Burst)
	object.ClientConnection.ContentType = c.ContentType
	object.ClientConnection.AcceptContentTypes = c.AcceptContentTypes
	object.Logging.Format = c.LogFormat
	object.Logging.Verbosity = logsapi.VerbosityLevel(c.Verbosity)
	return yaml.Marshal(&object)
}

func (c Conntrack) object() v1alpha1.KubeProxyConntrackConfiguration {
	return v1alpha1.KubeProxyConntrackConfiguration{
		MaxPerCore:            new(int32(c.MaxPerCore)),
		Min:                   new(int32(c.Min)),
		TCPEstablishedTimeout: new(period(c.TCPEstablishedTimeout)),
		TCPCloseWaitTimeout:   new(period(c.TCPCloseWaitTimeout)),
		TCPBeLiberal:          c.TCPBeLiberal,
		UDPTimeout:            period(c.UDPTimeout),
		UDPStreamTimeout:      period(c.UDPStreamTimeout),
	}
}

// masqueradeBit is nil, kube-proxy's default, where no mark is set.
func masqueradeBit(n *servicetable.NodeConfig) *int32 {
	if n.MasqueradeMark == 0 {
		return nil
	}
	return new(int32(bits.TrailingZeros32(n.MasqueradeMark)))
}

func period(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
