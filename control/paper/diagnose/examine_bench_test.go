package diagnose

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// BenchmarkExamine examines clusters of 1,000 and 10,000 services with two pods each in one namespace. The
// second should take ten times as long.
func BenchmarkExamine(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		objects := large(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if found := New(objects, servicetable.NodeConfig{}).Examine(); len(found) != 0 {
					b.Fatal(found[0])
				}
			}
		})
	}
}

// large is a healthy cluster of 100 nodes.
func large(services int) *manifest.Objects {
	o := new(manifest.Objects)
	for i := range 100 {
		o.Nodes = append(o.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.20.0.%d", i+1)}}},
		})
	}
	address := func(base string, i int) string {
		a := netip.MustParseAddr(base).As4()
		a[1], a[2], a[3] = a[1]+byte(i>>16), byte(i>>8), byte(i)
		return netip.AddrFrom4(a).String()
	}
	for i := range services {
		service := fmt.Sprintf("web-%d", i)
		of := map[string]string{"app": service, "tier": "web"}
		ip := address("10.96.0.0", i+1)
		o.Services = append(o.Services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, ClusterIP: ip, ClusterIPs: []string{ip}, Selector: of, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports: []corev1.ServicePort{{Port: 80, NodePort: int32(20_000 + i), TargetPort: intstr.FromInt32(8080)}},
			},
		})
		port, ready := int32(8080), true
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		}
		for j := range 2 {
			name, node, ip := fmt.Sprintf("%s-%d", service, j), fmt.Sprintf("node-%d", (i+j)%100), address("10.244.0.0", 2*i+j+1)
			o.Pods = append(o.Pods, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: of}, Spec: corev1.PodSpec{NodeName: node},
				Status: corev1.PodStatus{PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
			})
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name},
			})
		}
		o.EndpointSlices = append(o.EndpointSlices, slice)
	}
	return o
}
