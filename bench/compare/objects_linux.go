package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Service i has the address firstService+i and its endpoints those from
// firstEndpoint+i*maxEndpoints on. One in udpEvery has a UDP port beside its TCP port.
var (
	firstService  = traffic.Advance(serviceRange.Addr(), 256) // leaves room for the API server's own
	firstEndpoint = traffic.Advance(podRange.Addr(), 256)
)

const (
	servicePort  = 80
	maxEndpoints = 10 // of a service
	udpEvery     = 16
	maxServices  = 50000
	account      = "node-proxy"
	nodeName     = "bench"
	namespace    = metav1.NamespaceDefault
)

// objects are the Services and EndpointSlices in the API server.
type objects struct {
	cluster    *cluster.Cluster
	kubeconfig string
	count      int // of services
	endpoints  int // of each: even, so that there are halves
}

// startCluster starts the control plane and makes the node and its account.
func startCluster(ctx context.Context, in *netns.Namespace, endpoints int) (*objects, error) {
	c, err := cluster.Start(ctx, cluster.Config{
		Namespace: in, Addresses: []netip.Addr{controlAddress.Addr()}, ServiceCIDRs: []netip.Prefix{serviceRange},
	})
	if err != nil {
		return nil, err
	}
	o := &objects{cluster: c, endpoints: endpoints}
	o.kubeconfig, err = c.Account(ctx, account, "system:node-proxier", controlAddress.Addr())
	if err := errors.Join(err, c.AddNode(ctx, nodeName, nodeAddress.Addr())); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return o, nil
}

// grow makes services until there are n.
func (o *objects) grow(ctx context.Context, n int) error {
	client := o.cluster.Client()
	err := cluster.Each(ctx, o.count, n, func(ctx context.Context, i int) error {
		if _, err := client.CoreV1().Services(namespace).Create(ctx, service(i), metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, o.slice(i, everyEndpoint), metav1.CreateOptions{})
		return err
	})
	o.count = n
	return err
}

// setReady changes which endpoints of a service are ready.
func (o *objects) setReady(ctx context.Context, i int, ready readiness) error {
	_, err := o.cluster.Client().DiscoveryV1().EndpointSlices(namespace).Update(ctx, o.slice(i, ready), metav1.UpdateOptions{})
	return err
}

func objectName(i int) string { return fmt.Sprintf("service-%d", i) }

func hasUDP(i int) bool { return i%udpEvery == 0 }

func service(i int) *corev1.Service {
	port := func(name string, p corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: p, Port: servicePort, TargetPort: intstr.FromInt32(echoPort)}
	}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: objectName(i)},
		Spec: corev1.ServiceSpec{
			ClusterIP: traffic.Advance(firstService, uint32(i)).String(),
			Ports:     []corev1.ServicePort{port("tcp", corev1.ProtocolTCP)},
		},
	}
	if hasUDP(i) {
		s.Spec.Ports = append(s.Spec.Ports, port("udp", corev1.ProtocolUDP))
	}
	if i == 0 {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, nodePort
	}
	return s
}

// readiness is the set of ready endpoints of a service.
type readiness func(endpoint int) bool

func everyEndpoint(int) bool { return true }

// half is the first (0) or second (1) half of the endpoints.
func (o *objects) half(which int) readiness {
	return func(endpoint int) bool { return endpoint/(o.endpoints/2) == which }
}

// answers reports whether a reply came from a ready endpoint of service i.
func (r readiness) answers(i int, who byte) bool {
	for j := range maxEndpoints {
		if r(j) && endpoint(i, j).As4()[3] == who {
			return true
		}
	}
	return false
}

func endpoint(i, j int) netip.Addr {
	return traffic.Advance(firstEndpoint, uint32(i*maxEndpoints+j))
}

func (o *objects) slice(i int, ready readiness) *discoveryv1.EndpointSlice {
	port := func(name string, p corev1.Protocol) discoveryv1.EndpointPort {
		number := int32(echoPort)
		return discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &number}
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: objectName(i), Labels: map[string]string{discoveryv1.LabelServiceName: objectName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{port("tcp", corev1.ProtocolTCP)},
	}
	if hasUDP(i) {
		s.Ports = append(s.Ports, port("udp", corev1.ProtocolUDP))
	}
	for j := range o.endpoints {
		r := ready(j)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{endpoint(i, j).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &r, Serving: &r},
		})
	}
	return s
}
