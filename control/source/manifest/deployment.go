package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabDeployment is a number of like pods. Their names are NAME-1, NAME-2 and so on; they are on the nodes in turn.
type LabDeployment struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"` // the default is "default"
	Replicas  *uint16           `json:"replicas" range:"0-1000"`
	Labels    map[string]string `json:"labels"` // of the pods; the default is {app: NAME}
	Nodes     []string          `json:"nodes"`  // the default is all
	Ports     []LabPort         `json:"ports"`
	// GracePeriodSeconds is that of the pods, see LabPod.
	GracePeriodSeconds *uint16 `json:"gracePeriodSeconds" range:"0-3600"`
}

// FullName is "namespace/name".
func (d *LabDeployment) FullName() string { return d.Namespace + "/" + d.Name }

// PodsOf returns the pods that a deployment has to get besides the existing ones of the lab, so that it has its number
// of replicas. Their addresses are the lowest ones of their nodes that no existing pod has, and their nodes those with the
// fewest pods of the deployment. Nodes for which unschedulable returns true get none. An error is that of a node
// without a free address, or that there is no node.
func (l *Lab) PodsOf(d *LabDeployment, existing []LabPod, unschedulable ...func(node string) bool) (added []LabPod, err error) {
	nodes := l.nodesOf(d)
	nodes = slices.DeleteFunc(nodes, func(n *LabNode) bool {
		return slices.ContainsFunc(unschedulable, func(f func(string) bool) bool { return f(n.Name) })
	})
	names, on := make(map[string]bool), make(map[string]int)
	taken := make(map[netip.Addr]bool)
	have := 0
	for i := range existing {
		p := &existing[i]
		names[p.FullName()] = true
		for _, a := range p.Addresses {
			taken[a] = true
		}
		if p.Deployment == d.Name && p.Namespace == d.Namespace {
			have++
			on[p.Node]++
		}
	}
	for i := 1; have < int(*d.Replicas); i++ {
		p := LabPod{Name: fmt.Sprintf("%s-%d", d.Name, i), Namespace: d.Namespace, Labels: d.Labels, Ports: d.Ports, GracePeriodSeconds: d.GracePeriodSeconds, Deployment: d.Name}
		if names[p.FullName()] {
			continue
		}
		if len(nodes) == 0 {
			return added, errors.New("no node for its pods")
		}
		node := slices.MinFunc(nodes, func(a, b *LabNode) int { return on[a.Name] - on[b.Name] }) // the first of several
		p.Node = node.Name
		if p.Addresses, err = node.free(taken); err != nil {
			return added, err
		}
		on[node.Name]++
		have++
		added = append(added, p)
	}
	return added, nil
}

func (l *Lab) nodesOf(d *LabDeployment) (nodes []*LabNode) {
	for i := range l.Nodes {
		if n := &l.Nodes[i]; len(d.Nodes) == 0 || slices.Contains(d.Nodes, n.Name) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// free takes a free address of each of the node's prefixes for pods.
func (n *LabNode) free(taken map[netip.Addr]bool) (all []netip.Addr, _ error) {
	for _, c := range n.PodCIDRs {
		if c.IsSingleIP() {
			continue
		}
		a := c.Addr().Next().Next() // the first one is the gateway
		for c.Contains(a) && taken[a] {
			a = a.Next()
		}
		if !c.Contains(a) || c.Addr().Is4() && !c.Contains(a.Next()) {
			return nil, fmt.Errorf("node %s has no free address in %s", n.Name, c)
		}
		taken[a] = true
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("node %s has no podCIDRs", n.Name)
	}
	return all, nil
}

// Object is the pod as a Kubernetes object, running and ready.
func (p *LabPod) Object() *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec:       corev1.PodSpec{NodeName: p.Node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if len(p.Ports) > 0 {
		server := corev1.Container{Name: "server"}
		for _, port := range p.Ports {
			server.Ports = append(server.Ports, corev1.ContainerPort{Name: port.Name, ContainerPort: int32(port.Port), Protocol: corev1.Protocol(port.Protocol.String())})
		}
		o.Spec.Containers = []corev1.Container{server}
	}
	for _, a := range p.Addresses {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	if len(p.Addresses) > 0 {
		o.Status.PodIP = p.Addresses[0].String()
	}
	return o
}
