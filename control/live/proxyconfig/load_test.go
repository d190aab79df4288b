package proxyconfig

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

var compareValues = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

// TestKubeadm: what kubeadm and kind write starts the daemon, without a warning.
func TestKubeadm(t *testing.T) {
	want := Default()
	want.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want.Node.ClusterCIDRs = prefixes("10.244.0.0/16")
	loads(t, "testdata/kubeadm.conf", want)

	want.Node.ClusterCIDRs = prefixes("10.244.0.0/16", "fd00:10:244::/56")
	want.Conntrack = Conntrack{Min: 128 * 1024}
	want.MinSyncPeriod = time.Second
	loads(t, "testdata/kind.conf", want)
}

func loads(t *testing.T, path string, want Config) {
	t.Helper()
	got, warnings, err := Load(path)
	if err != nil || len(warnings) > 0 {
		t.Errorf("%s: error %v, warnings %q", path, err, warnings)
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestKubeadmFileIsMarshalled holds the file against what kubeadm does: it marshals the
// type with no defaults but these three.
func TestKubeadmFileIsMarshalled(t *testing.T) {
	var object v1alpha1.KubeProxyConfiguration
	object.Kind, object.APIVersion = kind, v1alpha1.SchemeGroupVersion.String()
	object.BindAddress, object.ClusterCIDR = "0.0.0.0", "10.244.0.0/16"
	object.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want, err := yaml.Marshal(&object)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("testdata/kubeadm.conf")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("testdata/kubeadm.conf (-marshalled +file):\n%s", diff)
	}
}

// TestDefaults pins kube-proxy's defaults.
func TestDefaults(t *testing.T) {
	want := Config{
		Node:               servicetable.NodeConfig{Mode: servicetable.ClusterCIDR, LocalhostNodePorts: true, MasqueradeMark: 1 << 14},
		ClientConnection:   ClientConnection{QPS: 5, Burst: 10, ContentType: "application/vnd.kubernetes.protobuf"},
		ConfigSyncPeriod:   15 * time.Minute,
		SyncPeriod:         30 * time.Second,
		HealthzBindAddress: "0.0.0.0:10256",
		MetricsBindAddress: "127.0.0.1:10249",
		OOMScoreAdj:        -999,
		Conntrack:          Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
		LogFormat:          "text",
	}
	if diff := cmp.Diff(want, Default(), compareValues); diff != "" {
		t.Errorf("Default (-want +got):\n%s", diff)
	}
	got, warnings, err := Parse("empty", []byte(header))
	if err != nil || len(warnings) > 0 {
		t.Errorf("error %v, warnings %q", err, warnings)
	}
	if diff := cmp.Diff(want, got, compareValues); diff != "" {
		t.Errorf("an empty file (-want +got):\n%s", diff)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var p []netip.Prefix
	for _, s := range texts {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

// TestFields: each field that is honoured, alone.
func TestFields(t *testing.T) {
	for _, c := range []struct {
		yaml string
		want func(*Config)
	}{
		{"hostnameOverride: ' Node-1 '", func(c *Config) { c.Node.Name = "node-1" }},
		{"bindAddress: 10.0.0.7", func(c *Config) { c.Node.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.7")} }},
		{"bindAddress: '::'", func(c *Config) { c.HealthzBindAddress, c.MetricsBindAddress = "[::]:10256", "[::1]:10249" }},
		{"bindAddress: fd00::7", func(c *Config) {
			c.Node.IPs = []netip.Addr{netip.MustParseAddr("fd00::7")}
			c.HealthzBindAddress, c.MetricsBindAddress = "[::]:10256", "[::1]:10249"
		}},
		{"clusterCIDR: 10.244.1.1/16", func(c *Config) { c.Node.ClusterCIDRs = prefixes("10.244.0.0/16") }},
		{"detectLocalMode: NodeCIDR\nclusterCIDR: nonsense", func(c *Config) { c.Node.Mode = servicetable.NodeCIDR }},
		{"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}", func(c *Config) { c.Node.Mode, c.Node.Bridge = servicetable.BridgeInterface, "cni0" }},
		{"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}", func(c *Config) { c.Node.Mode, c.Node.InterfacePrefix = servicetable.InterfaceNamePrefix, "veth" }},
		{"nodePortAddresses: [10.0.0.0/8, primary, localhost]", func(c *Config) {
			c.Node.PrimaryNodePorts, c.Node.NodePortAddresses = true, prefixes("10.0.0.0/8", "127.0.0.0/8", "::1/128")
		}},
		{"nodePortAddresses: [010.000.0.0/08]", func(c *Config) { c.Node.NodePortAddresses = prefixes("10.0.0.0/8") }},
		{"clusterCIDR: 10.244.000.000/016", func(c *Config) { c.Node.ClusterCIDRs = prefixes("10.244.0.0/16") }},
		{"clusterCIDR: '::ffff:10.244.0.0/112'", func(c *Config) { c.Node.ClusterCIDRs = prefixes("10.244.0.0/16") }},
		{"bindAddress: 010.0.0.07", func(c *Config) { c.Node.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.7")} }},
		{"bindAddress: '::ffff:10.0.0.7'", func(c *Config) { c.Node.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.7")} }},
		{"healthzBindAddress: 127.000.000.001:10256", func(c *Config) { c.HealthzBindAddress = "127.0.0.1:10256" }},
		{"metricsBindAddress: 127.000.000.001", func(c *Config) { c.MetricsBindAddress = "127.0.0.1:10249" }},
		{"nodePortAddresses: [primary]", func(c *Config) { c.Node.PrimaryNodePorts = true }},
		{"nodePortAddresses: [10.0.0.0/8, localhost]", func(c *Config) { c.Node.NodePortAddresses = prefixes("10.0.0.0/8", "127.0.0.0/8", "::1/128") }},
		{"nodePortAddresses: [all]", func(c *Config) { c.Node.NodePortAddresses = prefixes("0.0.0.0/0", "::/0") }},
		{"iptables: {localhostNodePorts: false}", func(c *Config) { c.Node.LocalhostNodePorts = false }},
		{"featureGates: {AllowServiceExternalIPs: true}", func(*Config) {}},
		{"featureGates: {AllowServiceExternalIPs: false}", func(c *Config) { c.Node.IgnoreExternalIPs = true }},
		{"iptables: {masqueradeAll: true}", func(c *Config) { c.Node.MasqueradeAll = true }},
		{"iptables: {masqueradeBit: 0}", func(c *Config) { c.Node.MasqueradeMark = 1 }},
		{"iptables: {masqueradeBit: 31}", func(c *Config) { c.Node.MasqueradeMark = 1 << 31 }},
		{"iptables: {syncPeriod: 1m, minSyncPeriod: 10s}", func(c *Config) { c.SyncPeriod, c.MinSyncPeriod = time.Minute, 10*time.Second }},
		{"nftables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 1h}", func(*Config) {}}, // of another mode
		{"clientConnection: {kubeconfig: /k, qps: 0.5, burst: 7, contentType: application/json, acceptContentTypes: 'c/d,e/f'}", func(c *Config) {
			c.Kubeconfig, c.QPS, c.Burst, c.ContentType, c.AcceptContentTypes = "/k", 0.5, 7, "application/json", "c/d,e/f"
		}},
		{"configSyncPeriod: 1m", func(c *Config) { c.ConfigSyncPeriod = time.Minute }},
		{"healthzBindAddress: 127.0.0.1", func(c *Config) { c.HealthzBindAddress = "127.0.0.1:10256" }},
		{"healthzBindAddress: '[fd00::1]:99'", func(c *Config) { c.HealthzBindAddress = "[fd00::1]:99" }},
		{"metricsBindAddress: 0.0.0.0:10249", func(c *Config) { c.MetricsBindAddress = "0.0.0.0:10249" }},
		{"metricsBindAddress: '::'", func(c *Config) { c.MetricsBindAddress = "[::]:10249" }},
		{"bindAddressHardFail: true", func(c *Config) { c.BindAddressHardFail = true }},
		{"enableProfiling: true", func(c *Config) { c.EnableProfiling = true }},
		{"oomScoreAdj: 0", func(c *Config) { c.OOMScoreAdj = 0 }},
		{"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 2s, tcpBeLiberal: true, udpTimeout: 30s, udpStreamTimeout: 5m}", func(c *Config) {
			c.Conntrack = Conntrack{TCPCloseWaitTimeout: 2 * time.Second, TCPBeLiberal: true, UDPTimeout: 30 * time.Second, UDPStreamTimeout: 5 * time.Minute}
		}},
		{"logging: {verbosity: 4, format: json}", func(c *Config) { c.Verbosity, c.LogFormat = 4, "json" }},
	} {
		want := Default()
		c.want(&want)
		got, warnings, err := Parse("f", []byte(header+c.yaml))
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: error %v, warnings %q", c.yaml, err, warnings)
			continue
		}
		if diff := cmp.Diff(want, got, compareValues); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.yaml, diff)
		}
		if err := got.Node.Validate(); err != nil {
			t.Errorf("%s: the node is not valid: %v", c.yaml, err)
		}
	}
}

// TestModes: settings come from the section of the mode, and the mode is warned of.
func TestModes(t *testing.T) {
	sections := `
iptables: {masqueradeAll: false, masqueradeBit: 1, syncPeriod: 11s, minSyncPeriod: 1s}
nftables: {masqueradeAll: true, masqueradeBit: 2, syncPeriod: 12s, minSyncPeriod: 2s}
ipvs: {syncPeriod: 13s}
`
	for mode, change := range map[string]func(*Config){
		"iptables": func(c *Config) { c.Node.MasqueradeMark, c.SyncPeriod, c.MinSyncPeriod = 2, 11*time.Second, time.Second },
		"nftables": func(c *Config) {
			c.Node.MasqueradeMark, c.Node.MasqueradeAll, c.SyncPeriod, c.MinSyncPeriod = 4, true, 12*time.Second, 2*time.Second
			c.Node.LocalhostNodePorts, c.Node.PrimaryNodePorts = false, true
		},
		"ipvs": func(c *Config) {
			c.Node.MasqueradeMark, c.SyncPeriod, c.MinSyncPeriod = 2, 13*time.Second, 0
			c.Node.LocalhostNodePorts = false
		},
	} {
		want := Default()
		change(&want)
		got, warnings, err := Parse("f", []byte(header+sections+"mode: "+mode))
		if err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if diff := cmp.Diff(want, got, compareValues); diff != "" {
			t.Errorf("%s (-want +got):\n%s", mode, diff)
		}
		if warned := len(warnings) == 1 && strings.HasPrefix(warnings[0], "mode: "+mode+":"); warned != (mode != "iptables") || len(warnings) > 1 {
			t.Errorf("%s: warnings %q", mode, warnings)
		}
	}
}

// TestJSON: the same in JSON.
func TestJSON(t *testing.T) {
	yamlText, err := os.ReadFile("testdata/kubeadm.conf")
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.YAMLToJSON(yamlText)
	if err != nil {
		t.Fatal(err)
	}
	want, _, _ := Load("testdata/kubeadm.conf")
	got, warnings, err := Parse("config.json", text)
	if err != nil || len(warnings) > 0 || !cmp.Equal(want, got, compareValues) {
		t.Errorf("JSON: %v, %q, %s", err, warnings, cmp.Diff(want, got, compareValues))
	}
}

// FuzzParse: nothing panics; what is accepted can be used, written and read again.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"kubeadm.conf", "kind.conf"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(header + "mode: nftables\nnodePortAddresses: [all, 10.0.0.0/8]\nconntrack: {min: -1}"))
	f.Add([]byte(`{"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "iptables": []}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, _, err := Parse("f", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f: ") {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		if err := config.Node.Validate(); err != nil {
			t.Errorf("accepted, but the node is not valid: %v", err)
		}
		comesBack(t, config)
	})
}

// TestObject: the object has the fields of kube-proxy's type.
func TestObject(t *testing.T) {
	var compare func(path string, ours, theirs reflect.Type)
	compare = func(path string, ours, theirs reflect.Type) {
		switch {
		case ours.Kind() != theirs.Kind():
			t.Errorf("%s is a %s, want a %s", path, ours.Kind(), theirs.Kind())
		case ours == theirs, ours == reflect.TypeFor[logTime]() && theirs == reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		case ours.Kind() == reflect.Pointer || ours.Kind() == reflect.Slice:
			compare(path+"[]", ours.Elem(), theirs.Elem())
		case ours.Kind() == reflect.Struct:
			own, want := fieldsOf(ours), fieldsOf(theirs)
			if len(own) != len(want) {
				t.Errorf("%s has %d fields, want %d", path, len(own), len(want))
			}
			for i := range min(len(own), len(want)) {
				if own[i].Tag.Get("json") != want[i].Tag.Get("json") {
					t.Errorf("%s: field %q, want %q", path, own[i].Tag, want[i].Tag)
				}
				compare(path+"."+want[i].Name, own[i].Type, want[i].Type)
			}
		}
	}
	compare("", reflect.TypeFor[object](), reflect.TypeFor[v1alpha1.KubeProxyConfiguration]())
	if got := v1alpha1.SchemeGroupVersion.String(); got != apiVersion {
		t.Errorf("version %s, want %s", apiVersion, got)
	}
}

// fieldsOf are the fields of a structure, with those of embedded ones.
func fieldsOf(of reflect.Type) (list []reflect.StructField) {
	for f := range of.Fields() {
		if f.Anonymous && f.Tag.Get("json") == "" {
			list = append(list, fieldsOf(f.Type)...)
		} else {
			list = append(list, f)
		}
	}
	return list
}
