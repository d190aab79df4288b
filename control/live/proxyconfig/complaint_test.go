package proxyconfig

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWarnings: one for each field that is not honoured, by its path; none for values
// that are the default.
func TestWarnings(t *testing.T) {
	for yaml, want := range map[string][]string{
		"featureGates: {B: true, A: false}":                       {"featureGates: A, B: "},
		"featureGates: {}":                                        nil,
		"featureGates: {AllowServiceExternalIPs: false}":          nil,
		"featureGates: {AllowServiceExternalIPs: false, B: true}": {"featureGates: B: ignored: nfqproxy's only feature gate is AllowServiceExternalIPs"},
		"portRange: 1-2":                                          {"portRange: 1-2: "},
		"showHiddenMetricsForVersion: '1.35'":                     {"showHiddenMetricsForVersion: 1.35: "},
		"windowsRunAsService: true":                               {"windowsRunAsService: true: "},
		"winkernel: {enableDSR: true}":                            {"winkernel.enableDSR: true: "},
		"winkernel: {networkName: net, sourceVip: vip}":           {"winkernel.networkName: net: ", "winkernel.sourceVip: vip: "},
		"ipvs: {scheduler: rr, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}": {
			"ipvs.scheduler: rr: ", "ipvs.excludeCIDRs: [10.0.0.0/8]: ", "ipvs.strictARP: true: ", "ipvs.tcpTimeout: 1s: ", "ipvs.tcpFinTimeout: 2s: ", "ipvs.udpTimeout: 3s: "},
		"ipvs: {syncPeriod: 1m, excludeCIDRs: []}":             nil,
		"logging: {flushFrequency: 5s}":                        nil,
		"logging: {flushFrequency: 1000000000}":                {"logging.flushFrequency: 1s: "},
		"logging: {vmodule: [{filePattern: a, verbosity: 3}]}": {"logging.vmodule: 1 patterns: "},
		"logging: {options: {text: {splitStream: true}}}":      {"logging.options.text.splitStream: true: "},
		"logging: {options: {json: {infoBufferSize: 1k}}}":     {"logging.options.json.infoBufferSize: 1000: "},
		"unheardOf: 1":                                   {"unheardOf: unknown field"},
		"BindAddress: 1.2.3.4":                           {"BindAddress: unknown field"}, // names are case-sensitive
		"conntrack: {maximum: 1}":                        {"conntrack.maximum: unknown field"},
		"enableProfiling: false\nenableProfiling: false": {"a field is given twice: "},
		"---\nkind: Other":                               {"only the first YAML document"},
		"---\n":                                          nil,
		"enableProfiling: false # a comment\nbindAddressHardFail: null": nil,
	} {
		_, warnings, err := Parse("f", []byte(header+yaml))
		if err != nil {
			t.Errorf("%s: %v", yaml, err)
			continue
		}
		if !slices.EqualFunc(warnings, want, strings.HasPrefix) {
			t.Errorf("%s: warnings %q, want %q", yaml, warnings, want)
		}
	}
}

// TestErrors: the message names the file, the field and what is expected.
func TestErrors(t *testing.T) {
	for yaml, want := range map[string]string{
		"bindAddress: here":                             `f: bindAddress: "here": want an IP address`,
		"healthzBindAddress: localhost:1":               `f: healthzBindAddress: "localhost:1": want IP:port`,
		"metricsBindAddress: 0.0.0.0:0":                 `f: metricsBindAddress: "0.0.0.0:0": want IP:port`,
		"hostnameOverride: ' '":                         `f: hostnameOverride: " ": only white space`,
		"clusterCIDR: 10.0.0.0":                         `f: clusterCIDR: "10.0.0.0": want a prefix`,
		"clusterCIDR: 10.0.0.0/8, 10.1.0.0/16":          `f: clusterCIDR: " 10.1.0.0/16": want a prefix`,
		"clusterCIDR: 10.0.0.0/16,10.1.0.0/16":          `f: clusterCIDR: "10.0.0.0/16,10.1.0.0/16": want one prefix, or one of each family`,
		"clusterCIDR: 10.0.0.0/16,fd00::/64,fd01::/64":  `f: clusterCIDR: "10.0.0.0/16,fd00::/64,fd01::/64": want one prefix, or one of each family`,
		"detectLocalMode: Guess":                        `f: detectLocalMode: "Guess": want ClusterCIDR, NodeCIDR`,
		"detectLocalMode: BridgeInterface":              `f: detectLocal.bridgeInterface: detectLocalMode BridgeInterface needs the name`,
		"detectLocalMode: InterfaceNamePrefix":          `f: detectLocal.interfaceNamePrefix: detectLocalMode InterfaceNamePrefix needs the prefix`,
		"nodePortAddresses: [secondary]":                `f: nodePortAddresses[0]: "secondary": want a prefix`,
		"nodePortAddresses: 10.0.0.0/8":                 `f: nodePortAddresses: string: want a list`,
		"iptables: {masqueradeBit: 32}":                 `f: iptables.masqueradeBit: 32: want from 0 to 31`,
		"mode: nftables\nnftables: {masqueradeBit: -1}": `f: nftables.masqueradeBit: -1: want from 0 to 31`,
		"mode: kernelspace":                             `f: mode: "kernelspace": want iptables, ipvs or nftables`,
		"iptables: {syncPeriod: -1s}":                   `f: iptables.syncPeriod: -1s: a time cannot be negative`,
		"iptables: {syncPeriod: 1s, minSyncPeriod: 2s}": `f: iptables.minSyncPeriod: 2s: want at most syncPeriod (1s)`,
		"iptables: {syncPeriod: soon}":                  `f: iptables.syncPeriod: time: invalid duration "soon"`,
		"iptables: [1]":                                 `f: iptables: array: want an object`,
		"conntrack: {min: -1}":                          `f: conntrack.min: -1: want 0 or more`,
		"conntrack: {maxPerCore: many}":                 `f: conntrack.maxPerCore: string: want an integer`,
		"conntrack: {udpTimeout: -1s}":                  `f: conntrack.udpTimeout: -1s: a time cannot be negative`,
		"clientConnection: {burst: -2}":                 `f: clientConnection.burst: -2: want 0 or more`,
		"clientConnection: {contentType: protobuf}":     `f: clientConnection.contentType: "protobuf": want application/vnd.kubernetes.protobuf or application/json`,
		"clientConnection: {qps: a}":                    `f: clientConnection.qps: string: want a number`,
		"enableProfiling: 'true'":                       `f: enableProfiling: string: want true or false`,
		"oomScoreAdj: 1001":                             `f: oomScoreAdj: 1001: want from -1000 to 1000`,
		"oomScoreAdj: 99999999999":                      `f: oomScoreAdj: number 99999999999: want an integer`,
		"configSyncPeriod: -1m":                         `f: configSyncPeriod: -1m0s: a time cannot be negative`,
		"logging: {format: xml}":                        `f: logging.format: "xml": want text or json`,
		"hostnameOverride: 1":                           `f: hostnameOverride: number: want a string`,
		"a: [":                                          `f: neither YAML nor JSON: `,
	} {
		_, _, err := Parse("f", []byte(header+yaml))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s:\n error %v\n want  %s", yaml, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                                "f: want an object of kind KubeProxyConfiguration",
		"- 1":                             "f: want an object of kind KubeProxyConfiguration",
		"{}":                              "f: no kind: want KubeProxyConfiguration",
		"kind: ConfigMap\napiVersion: v1": "f: kind: ConfigMap: want KubeProxyConfiguration (the text under its key config.conf)",
		strings.Replace(header, "v1alpha1", "v1", 1): "f: apiVersion: kubeproxy.config.k8s.io/v1: want kubeproxy.config.k8s.io/v1alpha1",
		strings.Repeat(" ", 1<<20+1):                 "f: more than 1048576 bytes",
	} {
		if _, _, err := Parse("f", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60q:\n error %v\n want  %s", text, err, want)
		}
	}
	// All of it at once.
	_, _, err := Parse("f", []byte(header+"bindAddress: x\noomScoreAdj: 2000"))
	if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "\nf: ") {
		t.Errorf("two errors are %v", err)
	}
	if _, _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "give kube-proxy's configuration file") {
		t.Errorf("a missing file: %v", err)
	}
}
