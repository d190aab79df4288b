package proxyconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// comesBack writes a configuration and reads it again.
func comesBack(t *testing.T, c Config) {
	t.Helper()
	text, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	// Strictly, as kube-proxy does.
	var object v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Errorf("kube-proxy would not read this: %v\n%s", err, text)
	}
	got, warnings, err := Parse("written", text)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %q in\n%s", err, warnings, text)
	}
	if diff := cmp.Diff(c, got, compareValues); diff != "" {
		t.Errorf("written and read (-before +after):\n%s\n%s", diff, text)
	}
}

func TestMarshal(t *testing.T) {
	comesBack(t, Default())
	for _, text := range []string{
		"mode: nftables",
		"mode: ipvs\nipvs: {scheduler: rr}",
		"mode: nftables\nnodePortAddresses: [all]\nnftables: {masqueradeAll: true, masqueradeBit: 0, syncPeriod: 1m}",
		"featureGates: {AllowServiceExternalIPs: false}",
		"bindAddress: fd00::1\nclusterCIDR: fd00::/48,10.0.0.0/8\nhostnameOverride: node\noomScoreAdj: 0",
		"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}",
		"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, tcpBeLiberal: true, udpTimeout: 1s, udpStreamTimeout: 1500ms}",
		"clientConnection: {kubeconfig: /k, qps: -1, burst: 1, contentType: application/json, acceptContentTypes: c/d}\nlogging: {verbosity: 9, format: json}",
		"healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: '[::1]:2'\nenableProfiling: true\nbindAddressHardFail: true\nconfigSyncPeriod: 1s",
	} {
		config, _, err := Parse("f", []byte(header+text))
		if err != nil {
			t.Fatal(err)
		}
		comesBack(t, config)
	}
}
