package control

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPodNames(t *testing.T) {
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
	var names PodNames
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
		names.update(step.update)
		for a, want := range step.want {
			if got := names.Name(netip.MustParseAddr(a)); got != want {
				t.Errorf("step %d: %s is %q, want %q", i, a, got, want)
			}
		}
	}
}
