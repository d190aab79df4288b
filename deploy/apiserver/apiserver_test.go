package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/nfqproxy/nfqproxy/control/kube"
)

func start(t *testing.T) (*Server, kubernetes.Interface, string) {
	t.Helper()
	s := new(Server)
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.CloseClientConnections() // those of watches
		h.Close()
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: h.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return s, client, h.URL
}

func service(name string, port int32, labels map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}}}
}

func (s *Server) mustSet(t *testing.T, services ...*corev1.Service) {
	t.Helper()
	o := &kube.Objects{
		Services:       services,
		Context:        kube.Context{ServiceCIDRs: []*networkingv1.ServiceCIDR{{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}}},
		Nodes:          []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "node-b"}}},
		EndpointSlices: []*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-x"}}},
		Pods:           []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}}},
	}
	if err := s.Set(o); err != nil {
		t.Fatal(err)
	}
}

// TestInformer: client-go's informer, which kube-proxy has, follows the objects, also where labels select them.
func TestInformer(t *testing.T) {
	s, client, _ := start(t)
	headless := map[string]string{corev1.IsHeadlessService: ""}
	s.mustSet(t, service("web", 80, nil), service("hidden", 80, headless))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "!" + corev1.IsHeadlessService }))
	events := make(chan string, 100)
	text := func(what string, o any) string {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		svc := o.(*corev1.Service)
		return fmt.Sprintf("%s %s %d", what, svc.Name, svc.Spec.Ports[0].Port)
	}
	_, err := factory.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { events <- text("add", o) },
		UpdateFunc: func(_, o any) { events <- text("update", o) },
		DeleteFunc: func(o any) { events <- text("delete", o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case got := <-events:
				if got != w {
					t.Errorf("got %s, want %s", got, w)
				}
			case <-ctx.Done():
				t.Fatalf("%s does not come", w)
			}
		}
	}
	expect("add web 80")
	s.mustSet(t, service("web", 81, nil), service("hidden", 80, headless))
	expect("update web 81")
	s.mustSet(t, service("web", 81, headless), service("hidden", 80, nil)) // one goes, one comes
	first, second := <-events, <-events
	if first != "delete web 81" {
		first, second = second, first
	}
	if first != "delete web 81" || second != "add hidden 80" {
		t.Errorf("got %s and %s", first, second)
	}
	s.mustSet(t, service("hidden", 80, nil)) // web is not seen any more
	s.mustSet(t, service("hidden", 80, nil), service("last", 1, nil))
	expect("add last 1")
	s.mustSet(t)
	first, second = <-events, <-events
	if first+second != "delete hidden 80delete last 1" && first+second != "delete last 1delete hidden 80" {
		t.Errorf("got %s and %s", first, second)
	}
}

// TestRequests: lists, single objects, selectors, and what the API refuses.
func TestRequests(t *testing.T) {
	s, client, url := start(t)
	s.mustSet(t, service("web", 80, nil), service("api", 80, nil))
	ctx := t.Context()
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil || len(services.Items) != 2 || services.Items[0].Name != "api" || services.Items[0].ResourceVersion == "" || services.ResourceVersion == "" {
		t.Errorf("%+v, %v", services, err)
	}
	if list, err := client.CoreV1().Services("other").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("of another namespace: %+v, %v", list, err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=node-b"})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != "node-b" {
		t.Errorf("%+v, %v", nodes, err)
	}
	if n, err := client.CoreV1().Nodes().Get(ctx, "node-a", metav1.GetOptions{}); err != nil || n.Name != "node-a" {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, "node-c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if p, err := client.CoreV1().Pods("shop").Get(ctx, "web-1", metav1.GetOptions{}); err != nil || p.Name != "web-1" {
		t.Errorf("%+v, %v", p, err)
	}
	if list, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 || list.Items[0].Spec.CIDRs[0] != "10.96.0.0/16" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if _, err := client.CoreV1().Services("default").Create(ctx, service("new", 80, nil), metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Error(err)
	}
	if err := client.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Error(err)
	}
	if e, err := client.CoreV1().Events("default").Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}}, metav1.CreateOptions{}); err != nil || e.Name != "e" {
		t.Errorf("%+v, %v", e, err)
	}
	for _, path := range []string{"/", "/api", "/api/v1", "/apis/apps/v1", "/api/v1/services/a/b/c", "/api/v1/namespaces/a"} {
		r, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	if r, err := http.Get(url + "/api/v1/services?labelSelector=%21%21"); err != nil || r.Body.Close() != nil || r.StatusCode != http.StatusBadRequest {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestForgottenEvents: a watch from a version whose events are forgotten ends, so that the client lists again.
func TestForgottenEvents(t *testing.T) {
	s, client, _ := start(t)
	s.mustSet(t)
	for i := range maxEvents + 10 {
		s.mustSet(t, service("web", int32(i), nil))
	}
	list, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{"2": "ERROR", list.ResourceVersion: "MODIFIED"} {
		w, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		s.mustSet(t, service("web", 1<<20, map[string]string{"for": version}))
		if e := <-w.ResultChan(); string(e.Type) != want {
			t.Errorf("from version %s: %s %v", version, e.Type, e.Object)
		}
		w.Stop()
	}
	if n := len(s.events); n != maxEvents {
		t.Errorf("%d events are kept", n)
	}
	if s.oldest == 0 {
		t.Error("nothing is forgotten")
	}
}
