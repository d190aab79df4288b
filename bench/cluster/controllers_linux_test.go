package cluster_test

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testEndpointSlice writes what users, kubelets and the scheduler write, and waits for
// what the controllers make of it.
func (f *fixture) testEndpointSlice(t *testing.T) {
	ctx, client := t.Context(), f.Client()
	// Nodes that never reported to be ready are not watched over; the other one falls
	// silent.
	for name, ready := range map[string]bool{"node-1": false, "silent": true} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: "zone-1"}}}
		if ready {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]string{"app": "web"}
	dual := corev1.IPFamilyPolicyRequireDualStack
	service, err := client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, IPFamilyPolicy: &dual, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil || len(service.Spec.ClusterIPs) != 2 {
		t.Fatalf("service: %v, %v; want two cluster IPs", service, err)
	}
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		PodIP:      "10.244.1.2",
		PodIPs:     []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "fd00:10:244:1::2"}},
	}
	if _, err := client.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range pod.Status.PodIPs {
		await(t, "a ready endpoint "+want.IP, func(ctx context.Context) (bool, error) {
			list, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			if err != nil {
				return false, err
			}
			return slices.ContainsFunc(list.Items, func(s discoveryv1.EndpointSlice) bool {
				return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
					return e.Addresses[0] == want.IP && *e.Conditions.Ready && *e.NodeName == "node-1" && *e.Zone == "zone-1"
				})
			}), nil
		})
	}
	await(t, "the silent node to be noticed", func(ctx context.Context) (bool, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, "silent", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
		}), nil
	})
}
