package switchover

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
)

// kubeadmMap is kube-proxy's ConfigMap as kubeadm writes it.
func kubeadmMap(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	text, err := os.ReadFile("../../control/live/proxyconfig/testdata/kubeadm.conf")
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{Data: map[string]string{configFile: string(text), kubeconfigFile: "apiVersion: v1\nkind: Config\n"}}
}

func TestConfiguration(t *testing.T) {
	const cidr, server = "10.0.0.0/8,fd00::/48", "https://192.0.2.1:6443"
	without := func(file string) *corev1.ConfigMap {
		m := kubeadmMap(t)
		delete(m.Data, file)
		return m
	}
	replaced := func(old, text string) *corev1.ConfigMap {
		m := kubeadmMap(t)
		m.Data[configFile] = strings.Replace(m.Data[configFile], old, text, 1)
		return m
	}
	for _, tt := range []struct {
		m            *corev1.ConfigMap
		cidr, server string
		want         configuration
		err          string
	}{
		{kubeadmMap(t), "", "", configuration{shared: true}, ""},
		{kubeadmMap(t), cidr, server, configuration{clusterCIDR: cidr, apiServer: server}, ""},
		{nil, cidr, server, configuration{clusterCIDR: cidr, apiServer: server}, ""},
		{nil, "", "", configuration{}, "no ConfigMap kube-proxy in kube-system: give --cluster-cidr and --api-server"},
		{without(kubeconfigFile), "", "", configuration{}, "ConfigMap kube-proxy has no kubeconfig.conf: give"},
		{without(configFile), "", "", configuration{}, "ConfigMap kube-proxy has no config.conf: give"},
		{replaced("/var/lib/kube-proxy/", "/etc/"), "", "", configuration{}, `ConfigMap kube-proxy names the kubeconfig "/etc/kubeconfig.conf"`},
		{replaced("clusterCIDR: 10.244.0.0/16", "clusterCIDR: nonsense"), "", "", configuration{}, "ConfigMap kube-proxy, config.conf: clusterCIDR"},
		{kubeadmMap(t), cidr, "", configuration{}, "--cluster-cidr and --api-server must be given together"},
		{nil, "nonsense", server, configuration{}, "--cluster-cidr: clusterCIDR"},
		{nil, cidr, "192.0.2.1:6443", configuration{}, `--api-server "192.0.2.1:6443": want https://HOST:PORT`},
		{nil, cidr, "http://192.0.2.1:6443", configuration{}, `--api-server "http://192.0.2.1:6443": want https://HOST:PORT`},
	} {
		s := &Switch{Options: Options{ClusterCIDR: tt.cidr, APIServer: tt.server}, state: &state{configMap: tt.m}}
		got, err := s.configuration()
		if tt.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
				t.Errorf("%q, %q: error %v, want %q", tt.cidr, tt.server, err, tt.err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q, %q: %+v, error %v", tt.cidr, tt.server, got, err)
		}
	}
}

// as decodes an object of the manifests.
func as[T any](t *testing.T, list []*unstructured.Unstructured, kind string) *T {
	t.Helper()
	i := slices.IndexFunc(list, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
	if i < 0 {
		return nil
	}
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(list[i].Object, object, true); err != nil {
		t.Fatal(err)
	}
	return object
}

// TestManifests: the objects have the image and the configuration, and each kind has its resource.
func TestManifests(t *testing.T) {
	s := &Switch{Options: Options{Image: "registry.example/nfqproxy:v1"}}
	for _, config := range []configuration{{shared: true}, {clusterCIDR: "10.0.0.0/8,fd00::/48", apiServer: "https://$1:6443"}} {
		list, err := s.manifests(baseDir, config)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if _, ok := resources[o.GetKind()]; !ok {
				t.Errorf("no resource for kind %s", o.GetKind())
			}
		}
		pod := as[appsv1.DaemonSet](t, list, "DaemonSet").Spec.Template.Spec
		m := as[corev1.ConfigMap](t, list, "ConfigMap")
		want := "nfqproxy"
		if config.shared {
			want = "kube-proxy"
		}
		if pod.Containers[0].Image != s.Image || pod.Volumes[0].ConfigMap.Name != want || (m == nil) != config.shared {
			t.Errorf("image %s, ConfigMap %s", pod.Containers[0].Image, pod.Volumes[0].ConfigMap.Name)
		}
		if m == nil {
			continue
		}
		parsed, warnings, err := proxyconfig.Parse(configFile, []byte(m.Data[configFile]))
		if err != nil || len(warnings) > 0 || len(parsed.Node.ClusterCIDRs) != 2 || parsed.Node.ClusterCIDRs[0].String() != "10.0.0.0/8" {
			t.Errorf("configuration %v, warnings %q, error %v", parsed.Node.ClusterCIDRs, warnings, err)
		}
		kubeconfig, err := clientcmd.Load([]byte(m.Data[kubeconfigFile]))
		if err != nil || kubeconfig.Clusters["default"].Server != config.apiServer {
			t.Errorf("kubeconfig %v, error %v", kubeconfig, err)
		}
	}
}

// TestCleanupPod: the pod has the image of the daemon that runs, unless another one is given.
func TestCleanupPod(t *testing.T) {
	installed := new(appsv1.DaemonSet)
	installed.Spec.Template.Spec.Containers = []corev1.Container{{Name: Nfqproxy, Image: "nfqproxy:old", ImagePullPolicy: corev1.PullNever}}
	for _, tt := range []struct {
		set   *appsv1.DaemonSet
		image string
		want  string
		pull  corev1.PullPolicy
	}{
		{installed, "", "nfqproxy:old", corev1.PullNever},
		{installed, "nfqproxy:new", "nfqproxy:new", corev1.PullNever},
		{nil, "nfqproxy:new", "nfqproxy:new", corev1.PullIfNotPresent},
	} {
		s := &Switch{Options: Options{Image: tt.image}, state: &state{nfqproxy: tt.set}}
		pod, err := s.cleanupPod(&node{name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		c := pod.Spec.Containers[0]
		if pod.Spec.NodeName != "a" || pod.GenerateName != cleanupName || c.Image != tt.want || c.ImagePullPolicy != tt.pull || c.Args[0] != "cleanup" {
			t.Errorf("%+v", pod)
		}
	}
}
