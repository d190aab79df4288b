package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestBalancer: a Service gets an address per family, which leads to healthy nodes only, and loses
// all when it has another type.
func TestBalancer(t *testing.T) {
	netnstest.Require(t)
	router, err := netns.New("router")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	l, err := newLAN(router, []family{ipv4, ipv6})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeLoadBalancer,
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort:   30000,
		},
	}
	client := fake.NewClientset(service)
	b := newBalancer(client, l, 2)
	// Node 2 has an endpoint, node 1 has none, and does not even answer.
	second, err := l.attach(2)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	listen(t, second)
	serveHealth(t, second, service.Spec.HealthCheckNodePort)
	b.health.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		return l.Dial(ctx, network, netip.AddrPort{}, netip.MustParseAddrPort(to))
	}}

	sync := func() *corev1.Service {
		t.Helper()
		if err := b.sync(ctx); err != nil {
			t.Fatal(err)
		}
		s, err := client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	got := sync()
	ingress := got.Status.LoadBalancer.Ingress
	if len(ingress) != 2 || !slices.Equal(got.Finalizers, []string{balancerFinalizer}) {
		t.Fatalf("the Service is %+v", got)
	}
	if again := sync(); !slices.EqualFunc(again.Status.LoadBalancer.Ingress, ingress, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP }) {
		t.Errorf("the addresses were %v, are %v", ingress, again.Status.LoadBalancer.Ingress)
	}
	addresses := []netip.Addr{netip.MustParseAddr(ingress[0].IP), netip.MustParseAddr(ingress[1].IP)}
	for i, f := range l.families {
		if !f.balancers.Contains(addresses[i]) {
			t.Errorf("address %s is not in %s", addresses[i], f.balancers)
		}
		if err := second.AddAddress("lo", host(addresses[i])); err != nil {
			t.Fatal(err)
		}
		reach(t, router, addresses[i], connected)
	}

	got.Spec.Type = corev1.ServiceTypeClusterIP
	if _, err := client.CoreV1().Services("default").Update(ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got = sync(); len(got.Status.LoadBalancer.Ingress) > 0 || len(got.Finalizers) > 0 {
		t.Errorf("a Service of another type keeps %v and %v", got.Status.LoadBalancer.Ingress, got.Finalizers)
	}
	for _, a := range addresses {
		reach(t, router, a, silence)
	}
}

// serveHealth answers yes at a health check node port.
func serveHealth(t *testing.T, in *netns.Namespace, port int32) {
	t.Helper()
	s, err := in.Listen(t.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = server.Serve(s) }()
	t.Cleanup(func() { _ = server.Close() })
}
