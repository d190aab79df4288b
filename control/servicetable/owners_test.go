package servicetable

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestOwners(t *testing.T) {
	pod := func(ips ...string) *corev1.Pod {
		p := new(corev1.Pod)
		for _, ip := range ips {
			p.Status.PodIP = ips[0]
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	host := pod("172.20.0.2")
	host.Spec.HostNetwork = true
	ended := pod("10.0.0.9")
	ended.Status.Phase = corev1.PodSucceeded
	type pods = map[types.NamespacedName]*corev1.Pod
	key := func(n string) types.NamespacedName { return types.NamespacedName{Namespace: "default", Name: n} }
	var owners Owners
	for i, step := range []struct {
		update Update
		want   map[string]string
	}{
		{Update{}, map[string]string{"10.0.0.1": ""}},
		{Update{All: true, Pods: pods{key("a"): pod("10.0.0.1", "fd00::1"), key("h"): host, key("e"): ended}},
			map[string]string{"10.0.0.1": "default/a", "fd00::1": "default/a", "::ffff:10.0.0.1": "default/a", "172.20.0.2": "", "10.0.0.9": ""}},
		// The address goes to another pod before the first one is gone.
		{Update{Pods: pods{key("b"): pod("10.0.0.1")}}, map[string]string{"10.0.0.1": "default/b", "fd00::1": "default/a"}},
		{Update{Pods: pods{key("a"): nil}}, map[string]string{"10.0.0.1": "default/b", "fd00::1": ""}},
		{Update{Pods: pods{key("b"): pod("10.0.0.2")}}, map[string]string{"10.0.0.1": "", "10.0.0.2": "default/b"}},
		{Update{All: true}, map[string]string{"10.0.0.2": ""}},
	} {
		owners.update(step.update)
		for a, want := range step.want {
			if got := owners.Owner(netip.MustParseAddr(a)).Pod; got != want {
				t.Errorf("step %d: %s is %q, want %q", i, a, got, want)
			}
		}
	}
}

// TestOwnersKnowNodes: by their own addresses, and of pods.
func TestOwnersKnowNodes(t *testing.T) {
	node := func(ips ...string) *corev1.Node {
		n := new(corev1.Node)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "one"}}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		return n
	}
	pod := new(corev1.Pod)
	pod.Spec.NodeName, pod.Status.PodIP = "one", "10.0.0.1"
	var owners Owners
	for i, step := range []struct {
		update Update
		want   map[string]string
	}{
		{Update{All: true, Nodes: map[string]*corev1.Node{"one": node("172.20.0.2", "fd00::2"), "two": node("172.20.0.3")}, Pods: map[types.NamespacedName]*corev1.Pod{{Namespace: "default", Name: "a"}: pod}},
			map[string]string{"172.20.0.2": "one", "fd00::2": "one", "172.20.0.3": "two", "10.0.0.1": "one", "10.0.0.2": ""}},
		{Update{Nodes: map[string]*corev1.Node{"one": node("172.20.0.9")}}, map[string]string{"172.20.0.2": "", "172.20.0.9": "one", "172.20.0.3": "two"}},
		{Update{Nodes: map[string]*corev1.Node{"two": nil}}, map[string]string{"172.20.0.3": ""}},
	} {
		owners.update(step.update)
		for a, want := range step.want {
			if got := owners.Owner(netip.MustParseAddr(a)).Node; got != want {
				t.Errorf("step %d: %s is on node %q, want %q", i, a, got, want)
			}
		}
	}
	owners.Pods(func(name, node string, addresses []netip.Addr) {
		if name != "default/a" || node != "one" || len(addresses) != 1 {
			t.Errorf("pod %s on %s at %v", name, node, addresses)
		}
	})
}
