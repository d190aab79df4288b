package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

const (
	namespace = "default"
	ownNode   = "node-0"
	nodes     = 100 // that endpoints spread over
	podCIDR   = "10.128.0.0/9"
	port      = 80
)

var (
	controlAddress = netip.MustParsePrefix("192.0.2.1/24")
	nodeAddress    = netip.MustParsePrefix("192.0.2.2/24")
	firstPod       = netip.MustParseAddr("10.128.0.1")
)

// world is a control plane with its objects, and a node.
type world struct {
	control, node *netns.Namespace
	cluster       *cluster.Cluster
	kubeconfig    string
	endpoints     int              // of each Service
	addresses     []netip.AddrPort // of the Services

	mu      sync.Mutex
	lastPod netip.Addr // that was given an address
}

func newWorld(ctx context.Context, endpoints int) (_ *world, err error) {
	w := &world{endpoints: endpoints, lastPod: firstPod}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.control, err = netns.New("control"); err != nil {
		return nil, err
	}
	if w.node, err = netns.New("node"); err != nil {
		return nil, err
	}
	// What is sent to pods ends in the control plane's namespace, which does not forward.
	err = errors.Join(
		w.control.AddVeth("eth0", w.node, "eth0"),
		w.control.AddAddress("eth0", controlAddress), w.node.AddAddress("eth0", nodeAddress),
		w.node.AddRoute(netns.Route{Destination: netip.MustParsePrefix("0.0.0.0/0"), Via: controlAddress.Addr(), Link: "eth0"}))
	if err != nil {
		return nil, err
	}
	w.cluster, err = cluster.Start(ctx, cluster.Config{Namespace: w.control, Addresses: []netip.Addr{controlAddress.Addr()}})
	if err != nil {
		return nil, err
	}
	w.kubeconfig, err = w.cluster.Account(ctx, "nfqproxy", "cluster-admin", controlAddress.Addr())
	return w, errors.Join(err, w.cluster.AddNode(ctx, ownNode, nodeAddress.Addr()))
}

func (w *world) client() kubernetes.Interface { return w.cluster.Client() }

func (w *world) close() {
	if w.cluster != nil {
		_ = w.cluster.Close()
	}
	for _, n := range []*netns.Namespace{w.node, w.control} {
		if n != nil {
			_ = n.Close()
		}
	}
}

// load makes n Services and their slices.
func (w *world) load(ctx context.Context, n int) error {
	w.addresses = make([]netip.AddrPort, n)
	return cluster.Each(ctx, 0, n, func(ctx context.Context, i int) error {
		svc, err := w.client().CoreV1().Services(namespace).Create(ctx, service(i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		ip, err := netip.ParseAddr(svc.Spec.ClusterIP)
		if err != nil {
			return err
		}
		w.addresses[i] = netip.AddrPortFrom(ip, port)
		_, err = w.client().DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice(svc, w.newEndpoints(i)), metav1.CreateOptions{})
		return err
	})
}

func name(i int) string { return fmt.Sprintf("service-%05d", i) }

func service(i int) *corev1.Service {
	labels := map[string]string{"app.kubernetes.io/name": name(i), "app.kubernetes.io/part-of": "scale"}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name(i), Labels: labels},
		Spec: corev1.ServiceSpec{
			Selector: labels,
			Ports:    []corev1.ServicePort{{Name: "http", Port: port, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// slice is what the EndpointSlice controller would make.
func slice(svc *corev1.Service, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: "scale",
				"app.kubernetes.io/name": svc.Name, "app.kubernetes.io/part-of": "scale",
			},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID, Controller: new(true), BlockOwnerDeletion: new(true)}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   endpoints,
	}
}

// newEndpoints are endpoints of a Service with addresses that none had before.
func (w *world) newEndpoints(i int) []discoveryv1.Endpoint {
	w.mu.Lock()
	defer w.mu.Unlock()
	endpoints := make([]discoveryv1.Endpoint, w.endpoints)
	for k := range endpoints {
		w.lastPod = w.lastPod.Next()
		pod := fmt.Sprintf("%s-%08x-%02d", name(i), w.lastPod.As4(), k)
		endpoints[k] = discoveryv1.Endpoint{
			Addresses:  []string{w.lastPod.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", (i+k)%nodes)),
			Zone:       new(fmt.Sprintf("zone-%d", (i+k)%3)),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-0000%08x", w.lastPod.As4()))},
		}
	}
	return endpoints
}

// replacement is a change of a slice: all its endpoints are others.
type replacement struct {
	first, last    netip.Addr // of the new endpoints, which have all addresses between
	sent, answered time.Time
}

// replace changes the slice of a Service.
func (w *world) replace(ctx context.Context, i int) (replacement, error) {
	endpoints := w.newEndpoints(i)
	patch, err := json.Marshal(map[string]any{
		"metadata":  map[string]any{"annotations": map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339)}},
		"endpoints": endpoints,
	})
	if err != nil {
		return replacement{}, err
	}
	address := func(k int) netip.Addr { return netip.MustParseAddr(endpoints[k].Addresses[0]) }
	r := replacement{first: address(0), last: address(len(endpoints) - 1), sent: time.Now()}
	_, err = w.client().DiscoveryV1().EndpointSlices(namespace).Patch(ctx, name(i), types.MergePatchType, patch, metav1.PatchOptions{})
	r.answered = time.Now()
	return r, err
}

// has reports whether an endpoint is one of the new ones.
func (r *replacement) has(endpoint string) bool {
	a, err := netip.ParseAddrPort(endpoint)
	return err == nil && r.first.Compare(a.Addr()) <= 0 && a.Addr().Compare(r.last) <= 0
}
