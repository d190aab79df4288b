package proxyconfig

import (
	"cmp"
	"encoding/json"
	"net"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

const (
	kind       = "KubeProxyConfiguration"
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
)

// object is a KubeProxyConfiguration as it is in the file: the type of k8s.io/kube-proxy/config/v1alpha1, which links
// k8s.io/component-base with its metrics and flags. A test compares the two.
type object struct {
	metav1.TypeMeta
	FeatureGates     map[string]bool  `json:"featureGates,omitempty"`
	ClientConnection ClientConnection `json:"clientConnection"`
	Logging          struct {
		Format         string  `json:"format,omitempty"`
		FlushFrequency logTime `json:"flushFrequency"`
		Verbosity      uint32  `json:"verbosity"`
		VModule        []struct {
			FilePattern string `json:"filePattern"`
			Verbosity   uint32 `json:"verbosity"`
		} `json:"vmodule,omitempty"`
		Options struct {
			Text logOutput `json:"text,omitempty"`
			JSON logOutput `json:"json,omitempty"`
		} `json:"options,omitempty"`
	} `json:"logging,omitempty"`
	HostnameOverride            string `json:"hostnameOverride"`
	BindAddress                 string `json:"bindAddress"`
	HealthzBindAddress          string `json:"healthzBindAddress"`
	MetricsBindAddress          string `json:"metricsBindAddress"`
	BindAddressHardFail         bool   `json:"bindAddressHardFail"`
	EnableProfiling             bool   `json:"enableProfiling"`
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`
	Mode                        string `json:"mode"`
	IPTables                    struct {
		MasqueradeBit      *int32          `json:"masqueradeBit"`
		MasqueradeAll      bool            `json:"masqueradeAll"`
		LocalhostNodePorts *bool           `json:"localhostNodePorts"`
		SyncPeriod         metav1.Duration `json:"syncPeriod"`
		MinSyncPeriod      metav1.Duration `json:"minSyncPeriod"`
	} `json:"iptables"`
	IPVS struct {
		SyncPeriod    metav1.Duration `json:"syncPeriod"`
		MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
		Scheduler     string          `json:"scheduler"`
		ExcludeCIDRs  []string        `json:"excludeCIDRs"`
		StrictARP     bool            `json:"strictARP"`
		TCPTimeout    metav1.Duration `json:"tcpTimeout"`
		TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
		UDPTimeout    metav1.Duration `json:"udpTimeout"`
	} `json:"ipvs"`
	NFTables struct {
		MasqueradeBit *int32          `json:"masqueradeBit"`
		MasqueradeAll bool            `json:"masqueradeAll"`
		SyncPeriod    metav1.Duration `json:"syncPeriod"`
		MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	} `json:"nftables"`
	Winkernel struct {
		NetworkName           string `json:"networkName"`
		SourceVip             string `json:"sourceVip"`
		EnableDSR             bool   `json:"enableDSR"`
		RootHnsEndpointName   string `json:"rootHnsEndpointName"`
		ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
	} `json:"winkernel"`
	DetectLocalMode string `json:"detectLocalMode"`
	DetectLocal     struct {
		BridgeInterface     string `json:"bridgeInterface"`
		InterfaceNamePrefix string `json:"interfaceNamePrefix"`
	} `json:"detectLocal"`
	ClusterCIDR       string   `json:"clusterCIDR"`
	NodePortAddresses []string `json:"nodePortAddresses"`
	OOMScoreAdj       *int32   `json:"oomScoreAdj"`
	Conntrack         struct {
		MaxPerCore            *int32           `json:"maxPerCore"`
		Min                   *int32           `json:"min"`
		TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
		TCPCloseWaitTimeout   *metav1.Duration `json:"tcpCloseWaitTimeout"`
		TCPBeLiberal          bool             `json:"tcpBeLiberal"`
		UDPTimeout            metav1.Duration  `json:"udpTimeout"`
		UDPStreamTimeout      metav1.Duration  `json:"udpStreamTimeout"`
	} `json:"conntrack"`
	ConfigSyncPeriod    metav1.Duration `json:"configSyncPeriod"`
	PortRange           string          `json:"portRange"`
	WindowsRunAsService bool            `json:"windowsRunAsService,omitempty"`
}

// logOutput are the options of a log format.
type logOutput struct {
	SplitStream    bool                   `json:"splitStream,omitempty"`
	InfoBufferSize resource.QuantityValue `json:"infoBufferSize,omitempty"`
}

// logTime is a duration that older files have as a number of nanoseconds.
type logTime struct{ metav1.Duration }

// MarshalJSON writes the number, which all versions of kube-proxy read.
func (t logTime) MarshalJSON() ([]byte, error) { return json.Marshal(t.Duration.Duration) }

// UnmarshalJSON reads both.
func (t *logTime) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return t.Duration.UnmarshalJSON(b)
	}
	return json.Unmarshal(b, &t.Duration.Duration)
}

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
	defaultTo(&c.IPTables.MasqueradeBit, new(int32(14)))
	defaultTo(&c.NFTables.MasqueradeBit, new(int32(14)))
	defaultTo(&c.IPTables.LocalhostNodePorts, new(true))
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{keywordPrimary}
	}
	defaultTo(&c.DetectLocalMode, "ClusterCIDR")

	defaultTo(&c.OOMScoreAdj, new(int32(-999)))
	defaultTo(&c.Conntrack.MaxPerCore, new(int32(32*1024)))
	defaultTo(&c.Conntrack.Min, new(int32(128*1024)))
	defaultTo(&c.Conntrack.TCPEstablishedTimeout, new(period(24*time.Hour)))
	defaultTo(&c.Conntrack.TCPCloseWaitTimeout, new(period(time.Hour)))

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
	*field = cmp.Or(*field, value)
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
