package kubeproxyconfig

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// TestComplete: the ConfigMap of kube-proxy tells what the configuration leaves open, and no more.
func TestComplete(t *testing.T) {
	text := func(c servicetable.NodeConfig) string {
		return fmt.Sprintf("%s %v %s%s, %v %v, %v %v %v", c.Mode, c.ClusterCIDRs, c.Bridge, c.InterfacePrefix, c.NodePortAddresses, c.PrimaryNodePorts, c.MasqueradeAll, c.LocalhostNodePorts, c.IgnoreExternalIPs)
	}
	start := servicetable.NodeConfig{Mode: servicetable.ClusterCIDR, LocalhostNodePorts: true}
	for name, tt := range map[string]struct {
		text string
		from servicetable.NodeConfig
		want string
	}{
		"none":               {"", start, "ClusterCIDR [] , [] false, false true false"},
		"no configuration":   {"\t:", start, "ClusterCIDR [] , [] false, false true false"},
		"empty":              {"mode: ''", start, "ClusterCIDR [] , [] false, false true false"},
		"two families":       {"clusterCIDR: 10.244.0.0/16,fd00:10:244::/56", start, "ClusterCIDR [10.244.0.0/16 fd00:10:244::/56] , [] false, false true false"},
		"a flag before":      {"clusterCIDR: 10.0.0.0/8\ndetectLocalMode: NodeCIDR", servicetable.NodeConfig{ClusterCIDRs: prefixesIn([]string{"10.244.0.0/16"})}, " [10.244.0.0/16] , [] false, false false false"},
		"by interface":       {"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}", start, "InterfaceNamePrefix [] cali, [] false, false true false"},
		"by bridge":          {"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}", start, "BridgeInterface [] cni0, [] false, false true false"},
		"node port prefixes": {"nodePortAddresses: [172.20.0.0/16, primary]", start, "ClusterCIDR [] , [172.20.0.0/16] true, false true false"},
		"iptables":           {"iptables: {masqueradeAll: true, localhostNodePorts: false}", start, "ClusterCIDR [] , [] false, true false false"},
		"nftables":           {"mode: nftables\niptables: {masqueradeAll: true}", start, "ClusterCIDR [] , [] true, false false false"},
		"external IPs":       {"featureGates: {AllowServiceExternalIPs: false}", start, "ClusterCIDR [] , [] false, false true true"},
	} {
		t.Run(name, func(t *testing.T) {
			o := new(kube.Objects)
			if tt.text != "" {
				o.Context.KubeProxy = &corev1.ConfigMap{Data: map[string]string{"config.conf": tt.text}}
			}
			c := tt.from
			Of(o).Complete(&c)
			if got := text(c); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
