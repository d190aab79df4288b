package switchover

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// server is a real API server without controllers and kubelets. What needs these is in the end-to-end tests.
type server struct {
	*testing.T
	*cluster.Cluster
}

// run runs an installation or its way back.
func (s *server) run(way func(*Switch, context.Context) error, change func(*Options)) (output string, err error) {
	s.Helper()
	var out bytes.Buffer
	options := Options{Config: s.RESTConfig(), Image: "nfqproxy:test", Timeout: time.Second, Output: &out}
	change(&options)
	sw, err := New(options)
	if err != nil {
		s.Fatal(err)
	}
	sw.period = 10 * time.Millisecond
	err = way(sw, s.Context())
	return out.String(), err
}

// fails runs an installation that fails with an error.
func (s *server) fails(want string, change func(*Options)) {
	s.Helper()
	if out, err := s.run((*Switch).Install, change); err == nil || !strings.Contains(err.Error(), want) {
		s.Errorf("error %v, want %q\n%s", err, want, out)
	}
}

func asIs(*Options) {}

func TestServer(t *testing.T) {
	netnstest.Require(t)
	clustertest.Require(t)
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s := &server{t, c}
	s.testWithoutKubeProxy()
	s.testConflict()
	s.testSelector()
}

// testWithoutKubeProxy: what runs instead of kube-proxy's DaemonSet is named.
func (s *server) testWithoutKubeProxy() {
	ctx, client := s.Context(), s.Client()
	node := readyNode("server", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.36.3+k3s1" })
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.fails("k3s runs kube-proxy in its own process", asIs)
	if _, err := s.run((*Switch).Uninstall, asIs); err == nil || !strings.Contains(err.Error(), "k3s") {
		s.Errorf("uninstall: %v", err)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "server", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.fails("there is no proxy that node labels could switch", asIs)
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy-server", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}}}
	static.Spec = corev1.PodSpec{NodeName: "server", Containers: []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy"}}}
	if _, err := client.CoreV1().Pods(namespace).Create(ctx, static, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.fails("kube-proxy runs as a static pod of each node (kube-proxy-server, for example)", asIs)
	if err := client.CoreV1().Pods(namespace).Delete(ctx, static.Name, *metav1.NewDeleteOptions(0)); err != nil {
		s.Fatal(err)
	}

	labels := map[string]string{"k8s-app": "kube-proxy"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/os": "linux", "zone": "a"}, Containers: []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy"}},
		}},
	}}
	if _, err := client.AppsV1().DaemonSets(namespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.fails("no ConfigMap kube-proxy in kube-system: give --cluster-cidr and --api-server", asIs)
}

func ownConfig(o *Options) { o.ClusterCIDR, o.APIServer = "10.244.0.0/16", "https://192.0.2.1:6443" }

// testConflict: fields of others are an error before the first change, and overwritten if that is wanted.
func (s *server) testConflict() {
	ctx, client := s.Context(), s.Client()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nfqproxy"}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if out, err := s.run((*Switch).Install, ownConfig); err != nil {
		s.Fatalf("without a node: %v\n%s", err, out)
	}
	patch := []byte(`{"spec":{"template":{"spec":{"priorityClassName":"mine"}}}}`)
	if _, err := client.AppsV1().DaemonSets(namespace).Patch(ctx, Nfqproxy, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "me"}); err != nil {
		s.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, readyNode("new"), metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.fails(`DaemonSet nfqproxy: other field managers have set fields to other values: .spec.template.spec.priorityClassName (conflict with "me" using apps/v1) (give --force-conflicts`, ownConfig)
	if node, err := client.CoreV1().Nodes().Get(ctx, "new", metav1.GetOptions{}); err != nil || node.Labels[Label] != "" {
		s.Errorf("a conflict, after a change: %v, error %v", node.Labels, err)
	}
	// There is no pod of kube-proxy on the node.
	s.fails("kube-proxy on node new: not within 1s: no pod of DaemonSet kube-proxy on the node", func(o *Options) { ownConfig(o); o.Force = true })
	if err := client.CoreV1().Nodes().Delete(ctx, "new", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	if out, err := s.run((*Switch).Install, func(o *Options) { ownConfig(o); o.Force = true }); err != nil {
		s.Errorf("by force: %v\n%s", err, out)
	}
	set, err := client.AppsV1().DaemonSets(namespace).Get(ctx, Nfqproxy, metav1.GetOptions{})
	if err != nil || set.Spec.Template.Spec.PriorityClassName != "system-node-critical" {
		s.Errorf("priority class %q, error %v", set.Spec.Template.Spec.PriorityClassName, err)
	}
}

// testSelector: kube-proxy's own node selectors stay, there and back.
func (s *server) testSelector() {
	check := func(want string) {
		s.Helper()
		set, err := s.Client().AppsV1().DaemonSets(namespace).Get(s.Context(), KubeProxy, metav1.GetOptions{})
		if err != nil {
			s.Fatal(err)
		}
		if got := metav1.FormatLabelSelector(metav1.SetAsLabelSelector(set.Spec.Template.Spec.NodeSelector)); got != want {
			s.Errorf("node selector %s, want %s", got, want)
		}
	}
	check("kubernetes.io/os=linux,service-proxy=kube-proxy,zone=a")
	out, err := s.run((*Switch).Uninstall, asIs)
	if err != nil || !strings.Contains(out, "ConfigMap nfqproxy: deleted\n") {
		s.Errorf("uninstall: %v\n%s", err, out)
	}
	check("kubernetes.io/os=linux,zone=a")
}
