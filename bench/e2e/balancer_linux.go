package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// balancer is a cloud's load balancer, the smallest there can be. It gives each Service of type
// LoadBalancer an address per family, and routes that address to the nodes, by addresses and ports
// of connections. With externalTrafficPolicy Local it routes to those nodes whose health check node port
// answers yes. What then happens on the node is the service proxy's business.
type balancer struct {
	client kubernetes.Interface
	lan    *lan
	nodes  int
	health *http.Client
	served map[types.UID]*balanced
	// last is the number of the last address. Addresses are not soon used again.
	last uint16
}

// balanced is a Service with load balancer.
type balanced struct {
	addresses []netip.Addr
	nodes     []int // to which the addresses are routed
}

const (
	balancerPeriod    = 500 * time.Millisecond
	balancerFinalizer = "service.kubernetes.io/load-balancer-cleanup"
)

func newBalancer(client kubernetes.Interface, l *lan, nodes int) *balancer {
	return &balancer{
		client: client, lan: l, nodes: nodes,
		health: &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
		served: make(map[types.UID]*balanced),
		last:   uint16(time.Now().Unix()),
	}
}

// run serves until the end of ctx.
func (b *balancer) run(ctx context.Context, report func(error)) {
	tick := time.NewTicker(balancerPeriod)
	defer tick.Stop()
	for {
		if err := b.sync(ctx); err != nil && ctx.Err() == nil {
			report(fmt.Errorf("load balancer: %w", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (b *balancer) sync(ctx context.Context) error {
	list, err := b.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	seen := make(map[types.UID]bool)
	for i := range list.Items {
		s := &list.Items[i]
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil || s.Spec.LoadBalancerClass != nil {
			errs = append(errs, b.release(ctx, s))
			continue
		}
		seen[s.UID] = true
		errs = append(errs, b.serve(ctx, s))
	}
	for uid, s := range b.served {
		if !seen[uid] {
			errs = append(errs, b.route(s, nil))
			delete(b.served, uid)
		}
	}
	return errors.Join(errs...)
}

// serve gives a Service its addresses and routes them.
func (b *balancer) serve(ctx context.Context, s *corev1.Service) error {
	if !slices.Contains(s.Finalizers, balancerFinalizer) {
		if err := b.setFinalizers(ctx, s, append(slices.Clone(s.Finalizers), balancerFinalizer)); err != nil {
			return err
		}
	}
	own := b.served[s.UID]
	if own == nil {
		own = &balanced{addresses: b.next(s.Spec.IPFamilies)}
		b.served[s.UID] = own
	}
	nodes := b.healthy(ctx, s)
	// As clouds do; what the node makes of it is the service proxy's business.
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && len(nodes) > 1 {
		nodes = nodes[:1]
	}
	if !slices.Equal(own.nodes, nodes) {
		if err := b.route(own, nodes); err != nil {
			return err
		}
	}
	var ingress []corev1.LoadBalancerIngress
	mode := corev1.LoadBalancerIPModeVIP
	for _, a := range own.addresses {
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	return b.setStatus(ctx, s, ingress)
}

// next are new addresses, one for each family.
func (b *balancer) next(families []corev1.IPFamily) (addresses []netip.Addr) {
	b.last++
	for _, f := range b.lan.families {
		if slices.Contains(families, corev1.IPv4Protocol) == f.control.Addr().Is4() || len(families) == 2 {
			a := f.balancers.Addr().AsSlice()
			a[len(a)-2], a[len(a)-1] = byte(b.last/250), byte(b.last%250+1)
			addr, _ := netip.AddrFromSlice(a)
			addresses = append(addresses, addr)
		}
	}
	return addresses
}

// healthy are the nodes to which traffic goes.
func (b *balancer) healthy(ctx context.Context, s *corev1.Service) (nodes []int) {
	for i := range b.nodes {
		if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || b.check(ctx, i+1, s) {
			nodes = append(nodes, i+1)
		}
	}
	return nodes
}

// check requests a node's health check node port, in the Service's first family.
func (b *balancer) check(ctx context.Context, node int, s *corev1.Service) bool {
	for _, f := range b.lan.families {
		if (s.Spec.IPFamilies[0] == corev1.IPv4Protocol) != f.control.Addr().Is4() {
			continue
		}
		at := netip.AddrPortFrom(f.node(node), uint16(s.Spec.HealthCheckNodePort))
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/healthz", nil)
		if err != nil {
			return false
		}
		response, err := b.health.Do(request)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}
	return false
}

// release takes away what serve has given to a Service that no longer is one of type
// LoadBalancer, or is about to go.
func (b *balancer) release(ctx context.Context, s *corev1.Service) error {
	if len(s.Status.LoadBalancer.Ingress) > 0 && s.Spec.LoadBalancerClass == nil {
		if err := b.setStatus(ctx, s, nil); err != nil {
			return err
		}
	}
	if !slices.Contains(s.Finalizers, balancerFinalizer) {
		return nil
	}
	return b.setFinalizers(ctx, s, slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == balancerFinalizer }))
}

func (b *balancer) setFinalizers(ctx context.Context, s *corev1.Service, finalizers []string) error {
	return b.patch(ctx, s, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
}

func (b *balancer) setStatus(ctx context.Context, s *corev1.Service, ingress []corev1.LoadBalancerIngress) error {
	return b.patch(ctx, s, map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}}, "status")
}

func (b *balancer) patch(ctx context.Context, s *corev1.Service, change any, subresources ...string) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = b.client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, text, metav1.PatchOptions{}, subresources...)
	return err
}

// route routes the addresses to nodes; to none, packets are lost.
func (b *balancer) route(s *balanced, nodes []int) error {
	var errs []error
	for _, a := range s.addresses {
		errs = append(errs, b.lan.balance(a, nodes))
	}
	s.nodes = nodes
	return errors.Join(errs...)
}
