package apiserver

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/view/clusterobjects"
)

// testList: List returns the objects as they are, and names what it may not read.
func testList(t *testing.T, c *cluster.Cluster) {
	_, err1 := c.Client().CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "listed"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	_, err2 := c.Client().CoreV1().ServiceAccounts("kube-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "without-rights"}}, metav1.CreateOptions{})
	kubeconfig, err3 := c.KubeconfigFor(t.Context(), "kube-system", "without-rights", netip.Addr{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	list := func(kubeconfig string) (*kube.Objects, error) {
		config, err := (&Connection{ClientConnection: proxyconfig.ClientConnection{Kubeconfig: kubeconfig}}).load()
		if err != nil {
			t.Fatal(err)
		}
		return clusterobjects.List(t.Context(), config)
	}
	objects, err := list(c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	selector := ""
	for _, s := range objects.Services {
		selector += s.Spec.Selector["app"]
	}
	if len(objects.Nodes) != 2 || selector != "web" {
		t.Errorf("%d nodes, selector %q; want 2 and web", len(objects.Nodes), selector)
	}
	_, err = list(kubeconfig)
	if want := "no permission to list services, endpointslices, nodes, pods in all namespaces"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
