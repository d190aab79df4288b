package objecttext

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/control/manifest"
)

// none is what kubectl prints for nothing.
const none = "<none>"

func list(texts []string) string { return cmp.Or(strings.Join(texts, ","), none) }

// pairs are labels or a selector.
func pairs(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return list(all)
}

func services(o *manifest.Objects) (all []Object) {
	for _, s := range o.Services {
		c := *s
		external := slices.Clone(s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			external = append(external, cmp.Or(i.IP, i.Hostname))
		}
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			external = append(external, s.Spec.ExternalName)
		}
		var ports []string
		for _, p := range s.Spec.Ports {
			text := fmt.Sprint(p.Port)
			if p.NodePort != 0 {
				text += fmt.Sprint(":", p.NodePort)
			}
			ports = append(ports, text+"/"+string(p.Protocol))
		}
		all = append(all, Object{Object: &c, rows: [][]string{{
			string(s.Spec.Type), cmp.Or(strings.Join(s.Spec.ClusterIPs, ","), s.Spec.ClusterIP, none), list(external), list(ports), pairs(s.Spec.Selector),
		}}})
	}
	return all
}

// endpointSlices have a line for each endpoint.
func endpointSlices(o *manifest.Objects) (all []Object) {
	for _, s := range o.EndpointSlices {
		c := *s
		var ports []string
		for _, p := range s.Ports {
			text := ""
			if name := ptr.Deref(p.Name, ""); name != "" {
				text = name + ":"
			}
			if p.Port != nil {
				text += fmt.Sprint(*p.Port)
			}
			if p.Protocol != nil {
				text += "/" + string(*p.Protocol)
			}
			ports = append(ports, text)
		}
		head := []string{cmp.Or(s.Labels[discoveryv1.LabelServiceName], none), list(ports)}
		object := Object{Object: &c}
		for _, e := range s.Endpoints {
			target := none
			if e.TargetRef != nil {
				target = e.TargetRef.Name
			}
			// Unset conditions count as true, and terminating as false (discovery.k8s.io/v1, EndpointConditions).
			ready := ptr.Deref(e.Conditions.Ready, true)
			object.rows = append(object.rows, slices.Concat(head, []string{
				list(e.Addresses), fmt.Sprint(ready), fmt.Sprint(ptr.Deref(e.Conditions.Serving, ready)),
				fmt.Sprint(ptr.Deref(e.Conditions.Terminating, false)), target, ptr.Deref(e.NodeName, none),
			}))
		}
		if len(s.Endpoints) == 0 {
			object.rows = [][]string{slices.Concat(head, []string{none, "", "", "", "", ""})}
		}
		all = append(all, object)
	}
	return all
}

func deployments(o *manifest.Objects) (all []Object) {
	for _, d := range o.Deployments {
		c := *d
		all = append(all, Object{Object: &c, rows: [][]string{{
			fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1)), metav1.FormatLabelSelector(d.Spec.Selector),
		}}})
	}
	return all
}

func pods(o *manifest.Objects) (all []Object) {
	for _, p := range o.Pods {
		c := *p
		containers := max(1, len(p.Spec.Containers)) // those of pods without a server are not written
		ready := 0
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
			ready = containers
		}
		status := cmp.Or(string(p.Status.Phase), "Unknown")
		if p.DeletionTimestamp != nil {
			status = "Terminating"
		}
		var addresses []string
		for _, ip := range p.Status.PodIPs {
			addresses = append(addresses, ip.IP)
		}
		all = append(all, Object{Object: &c, rows: [][]string{{
			fmt.Sprintf("%d/%d", ready, containers), status, cmp.Or(strings.Join(addresses, ","), p.Status.PodIP, none), cmp.Or(p.Spec.NodeName, none), pairs(p.Labels),
		}}})
	}
	return all
}

func nodes(o *manifest.Objects) (all []Object) {
	for _, n := range o.Nodes {
		c := *n
		status := "Ready"
		if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		}) {
			status = "NotReady"
		}
		if n.Spec.Unschedulable {
			status += ",SchedulingDisabled"
		}
		var addresses []string
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				addresses = append(addresses, a.Address)
			}
		}
		cidrs := n.Spec.PodCIDRs
		if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
			cidrs = []string{n.Spec.PodCIDR}
		}
		all = append(all, Object{Object: &c, rows: [][]string{{status, list(addresses), list(cidrs)}}})
	}
	return all
}
