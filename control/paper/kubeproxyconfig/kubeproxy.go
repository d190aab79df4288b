// Package kubeproxyconfig completes the configuration of a simulated node by that of kube-proxy.
package kubeproxyconfig

import (
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// Config has the fields that are used of kube-proxy's configuration (KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1).
type Config struct {
	Mode            string          `json:"mode"`
	FeatureGates    map[string]bool `json:"featureGates"`
	ClusterCIDR     string          `json:"clusterCIDR"`
	DetectLocalMode string          `json:"detectLocalMode"`
	DetectLocal     struct {
		BridgeInterface     string `json:"bridgeInterface"`
		InterfaceNamePrefix string `json:"interfaceNamePrefix"`
	} `json:"detectLocal"`
	NodePortAddresses []string `json:"nodePortAddresses"`
	IPTables          struct {
		MasqueradeAll      bool  `json:"masqueradeAll"`
		LocalhostNodePorts *bool `json:"localhostNodePorts"`
	} `json:"iptables"`
	NFTables struct {
		MasqueradeAll bool `json:"masqueradeAll"`
	} `json:"nftables"`
}

// The modes of kube-proxy that differ from iptables.
const (
	ModeIPVS     = "ipvs"
	ModeNFTables = "nftables"
)

// Of reads the ConfigMap of kube-proxy; nil: there is none. What is no configuration is kube-proxy's to report.
func Of(o *kube.Objects) *Config {
	m, k := o.Context.KubeProxy, new(Config)
	if m == nil || m.Data["config.conf"] == "" || yaml.Unmarshal([]byte(m.Data["config.conf"]), k) != nil {
		return nil
	}
	return k
}

// Complete fills in what the configuration of a simulated node leaves open; k may be nil.
func (k *Config) Complete(c *servicetable.NodeConfig) {
	if k == nil {
		return
	}
	if on, given := k.FeatureGates["AllowServiceExternalIPs"]; given && !on {
		c.IgnoreExternalIPs = true
	}
	if (c.Mode == "" || c.Mode == servicetable.ClusterCIDR) && len(c.ClusterCIDRs) == 0 {
		if k.DetectLocalMode != "" {
			c.Mode = servicetable.DetectLocalMode(k.DetectLocalMode)
		}
		c.Bridge, c.InterfacePrefix = k.DetectLocal.BridgeInterface, k.DetectLocal.InterfaceNamePrefix
		c.ClusterCIDRs = prefixesIn(strings.Split(k.ClusterCIDR, ","))
	}
	if len(c.NodePortAddresses) == 0 && !c.PrimaryNodePorts {
		c.NodePortAddresses = prefixesIn(k.NodePortAddresses)
		for _, a := range k.NodePortAddresses {
			c.PrimaryNodePorts = c.PrimaryNodePorts || a == "primary"
		}
		if k.Mode == ModeNFTables && len(k.NodePortAddresses) == 0 {
			c.PrimaryNodePorts = true // its default
		}
	}
	all := k.IPTables.MasqueradeAll
	if k.Mode == ModeNFTables {
		all = k.NFTables.MasqueradeAll
	}
	c.MasqueradeAll = c.MasqueradeAll || all
	if l := k.IPTables.LocalhostNodePorts; l != nil && !*l || k.Mode == ModeNFTables || k.Mode == ModeIPVS {
		c.LocalhostNodePorts = false
	}
}

// prefixesIn returns the texts that are prefixes.
func prefixesIn(texts []string) (list []netip.Prefix) {
	for _, text := range texts {
		if p, err := kubeaddr.ParsePrefix(strings.TrimSpace(text)); err == nil {
			list = append(list, p)
		}
	}
	return list
}
