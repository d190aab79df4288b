package helm

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
)

// TestHelmLint: helm finds no fault in the chart, with any values.
func TestHelmLint(t *testing.T) {
	_, sets := valueSets(t)
	for _, set := range append(sets, valueSet{name: "defaults"}) {
		args := append([]string{"lint", "--strict", "--quiet", chart}, valueFiles(t, required, set.values)...)
		if out, errs, err := helm(t, args...); err != nil || strings.TrimSpace(out+errs) != "" {
			t.Errorf("%s: %v\n%s%s", set.name, err, out, errs)
		}
	}
}

// TestConfiguration: the daemon takes the files of the ConfigMap, with the values in them and without a
// warning; also if they are all of its own configuration.
func TestConfiguration(t *testing.T) {
	full := proxyconfig.Default()
	full.Node.ClusterCIDRs, full.Conntrack.MaxPerCore, full.HealthzBindAddress = nil, 1048576, "[::]:10266"
	text, err := full.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := yaml.Marshal(map[string]any{"config": decoded(t, string(text))})
	if err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]func(*proxyconfig.Config){
		"": func(*proxyconfig.Config) {},
		"config: {iptables: {masqueradeAll: true}, clientConnection: {qps: 50}}": func(c *proxyconfig.Config) {
			c.Node.MasqueradeAll, c.QPS = true, 50
		},
		string(whole): func(c *proxyconfig.Config) { c.Conntrack.MaxPerCore, c.HealthzBindAddress = 1048576, "[::]:10266" },
	} {
		var files corev1.ConfigMap
		if err := yaml.UnmarshalStrict([]byte(render(t, required, values)["configmap.yaml"]), &files); err != nil {
			t.Fatal(err)
		}
		got, warnings, err := proxyconfig.Parse("config.conf", []byte(files.Data["config.conf"]))
		expected, _, _ := proxyconfig.Parse("config.conf", []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n"))
		expected.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
		want(&expected)
		if diff := cmp.Diff(expected, got, cmp.Comparer(func(a, b interface{ String() string }) bool { return a.String() == b.String() })); err != nil || len(warnings) > 0 || diff != "" {
			t.Errorf("values %q: error %v, warnings %q\n%s", values, err, warnings, diff)
		}
	}
}

func decoded(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// TestPackage: the package is the same whenever it is made, and has nothing but the chart.
func TestPackage(t *testing.T) {
	var sums [2][sha256.Size]byte
	for i := range sums {
		copied, dir := filepath.Join(t.TempDir(), chart), t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(chart)); err != nil {
			t.Fatal(err)
		}
		// As in another working copy.
		then := time.Unix(int64(1e9*(i+1)), 0)
		if err := filepath.WalkDir(copied, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chtimes(path, then, then)
		}); err != nil {
			t.Fatal(err)
		}
		t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
		if _, errs, err := helm(t, "package", copied, "--destination", dir, "--version", "1.2.3", "--app-version", "v1.2.3"); err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		file := filepath.Join(dir, "nfqproxy-1.2.3.tgz")
		sums[i] = sha256.Sum256([]byte(readFile(t, file)))
		out, errs, err := helm(t, append([]string{"template", "nfqproxy", file, "--show-only", "templates/daemonset.yaml"}, valueFiles(t, required)...)...)
		if err != nil || !strings.Contains(out, "image: nfqproxy:v1.2.3\n") || !strings.Contains(out, "helm.sh/chart: nfqproxy-1.2.3\n") {
			t.Errorf("the package gives %s%s, error %v", out, errs, err)
		}
	}
	if sums[0] != sums[1] {
		t.Error("two packages of the same files differ")
	}
}
