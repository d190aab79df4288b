package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
)

// maxMadePods is how many Pods of a template are made: more show nothing more.
const maxMadePods = 100

// pods makes the Pods of templates, and completes Pods that were written without a status.
func (c *completion) pods(podCIDRs []netip.Prefix) {
	c.families = c.podFamilies()
	c.reserve()
	known := c.clusterNamespaces()
	what := "Pods"
	if len(c.Nodes) == 0 {
		what = "Pods on nodes that are not known"
	}
	for _, p := range slices.Clone(c.Pods) {
		if !isHandWritten(p) {
			continue
		}
		c.Made.Pods[p] = nil
		nodes, unfit := c.nodesFor(&p.Spec, false)
		p.Spec.NodeName, c.Made.Guessed[p] = nodes[0], len(nodes) > 1
		c.start(p, podCIDRs, true, unfit)
		c.add(MadeItem{
			What: what, Text: fmt.Sprintf("%s for Pod %s/%s", addressesOf(p), p.Namespace, p.Name), Services: c.selecting(p), Addresses: ipsOf(p),
		})
	}
	for _, t := range c.Templates {
		if t.Owned || known[t.Namespace] || c.hasPods(t) {
			continue
		}
		var made []*corev1.Pod
		nodes, unfit := c.nodesFor(&t.Pod.Spec, t.EachNode)
		for i := range t.count(len(nodes)) {
			p := t.pod(i, nodes[i%len(nodes)])
			c.start(p, podCIDRs, t.Ready == nil || i < *t.Ready, unfit)
			c.Made.Guessed[p] = t.count(len(nodes)) < len(nodes)
			c.Pods = append(c.Pods, p)
			c.Made.Pods[p] = t
			made = append(made, p)
		}
		if len(made) == 0 {
			continue
		}
		var texts []string
		item := MadeItem{What: what, Services: c.selecting(made[0])}
		for _, p := range made {
			texts, item.Addresses = append(texts, addressesOf(p)), append(item.Addresses, ipsOf(p)...)
		}
		item.Text = fmt.Sprintf("%s for %s", listed(slices.Compact(texts)), t)
		c.add(item)
	}
}

// selecting are the Services that select a Pod.
func (c *completion) selecting(p *corev1.Pod) (names []string) {
	for _, s := range c.Services {
		if selects(s, p) {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	return names
}

// isHandWritten reports whether a Pod was written by a person: no control plane gave it anything.
func isHandWritten(p *corev1.Pod) bool {
	return !fromCluster(p) && p.Status.Phase == "" && p.Status.PodIP == "" && len(p.Status.PodIPs) == 0 && len(p.Status.Conditions) == 0 && p.DeletionTimestamp == nil
}

// count is how many Pods of a template are made for nodes on which they may run.
func (t *Template) count(nodes int) int {
	if t.EachNode {
		return nodes
	}
	return min(t.Replicas, maxMadePods)
}

// pod is one of the template's Pods.
func (t *Template) pod(i int, node string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Namespace, Name: fmt.Sprintf("%s-%d", t.Name, i), Labels: t.labels(i), Annotations: t.Pod.Annotations,
			OwnerReferences: []metav1.OwnerReference{{Kind: t.Kind, Name: t.Name, Controller: new(true)}},
		},
		Spec: t.Pod.Spec,
	}
	if node != "" {
		p.Spec.NodeName = node
	}
	return p
}

// labels are those of one of the template's Pods, with those that its controller adds.
func (t *Template) labels(i int) map[string]string {
	added := make(map[string]string)
	switch t.Kind {
	case "StatefulSet":
		added[appsv1.StatefulSetPodNameLabel], added[appsv1.PodIndexLabel] = fmt.Sprintf("%s-%d", t.Name, i), strconv.Itoa(i)
	case "Job":
		added[batchv1.JobNameLabel], added["job-name"] = t.Name, t.Name
	}
	maps.Copy(added, t.Pod.Labels)
	return added
}

// start makes a Pod run: it gets addresses, and is ready or not. Where no node is fit for it, it waits.
func (c *completion) start(p *corev1.Pod, podCIDRs []netip.Prefix, ready bool, unfit string) {
	if unfit != "" {
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: unfit}}
		return
	}
	for _, f := range c.families {
		if a, ok := c.address(p, f, podCIDRs); ok {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
	}
	if len(p.Status.PodIPs) > 0 {
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
	p.Status.Phase = corev1.PodRunning
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	if why := ProbeWithoutPort(p); why != "" {
		condition.Status, condition.Message = corev1.ConditionFalse, why
	} else if !ready {
		condition.Status, condition.Message = corev1.ConditionFalse, "the object's status counts fewer Pods as ready"
	}
	p.Status.Conditions = []corev1.PodCondition{condition}
}

// ProbeWithoutPort tells of a probe without which the Pod does not become ready, to a port by a name that its container has not: the
// kubelet takes it for failed (pkg/kubelet/prober, ResolveContainerPort); "": there is none.
func ProbeWithoutPort(p *corev1.Pod) string {
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		for i, probe := range []*corev1.Probe{c.ReadinessProbe, c.StartupProbe} {
			var port intstr.IntOrString
			switch {
			case probe == nil:
			case probe.HTTPGet != nil:
				port = probe.HTTPGet.Port
			case probe.TCPSocket != nil:
				port = probe.TCPSocket.Port
			}
			named := func(q corev1.ContainerPort) bool { return q.Name == port.StrVal }
			if _, err := strconv.Atoi(port.StrVal); err != nil && port.Type == intstr.String && !slices.ContainsFunc(c.Ports, named) {
				return fmt.Sprintf("the %s probe of container %s is to port %q, and the container has none of that name", [...]string{"readiness", "startup"}[i], c.Name, port.StrVal)
			}
		}
	}
	return ""
}

// address is one for a Pod: of its node if it is in its network and the Node is known, or else a free one.
func (c *completion) address(p *corev1.Pod, f corev1.IPFamily, podCIDRs []netip.Prefix) (netip.Addr, bool) {
	var networks []netip.Prefix
	for _, n := range c.Nodes {
		if n.Name != p.Spec.NodeName {
			continue
		}
		for _, a := range n.Status.Addresses {
			if ip, err := kubeaddr.Parse(a.Address); err == nil && familyOf(ip) == f && p.Spec.HostNetwork {
				return ip, true
			}
		}
		if p.Spec.HostNetwork && len(n.Status.Addresses) > 0 {
			return netip.Addr{}, false
		}
		for _, text := range append(n.Spec.PodCIDRs, n.Spec.PodCIDR) {
			if cidr, err := kubeaddr.ParsePrefix(text); err == nil {
				networks = append(networks, cidr)
			}
		}
	}
	if podCIDRs = slices.Concat(networks, podCIDRs, defaultPodCIDRs); p.Spec.HostNetwork {
		podCIDRs = defaultNodeCIDRs
	}
	for _, cidr := range podCIDRs {
		if familyOf(cidr.Addr()) != f {
			continue
		}
		// The first address is the gateway of many networks.
		for a, tries := cidr.Masked().Addr().Next().Next(), 0; cidr.Contains(a) && tries <= len(c.taken); a, tries = a.Next(), tries+1 {
			if !c.taken[a] {
				c.taken[a] = true
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// podFamilies returns the address families of the cluster IPs.
func (c *completion) podFamilies() (all []corev1.IPFamily) {
	for _, s := range c.Services {
		all = distinct.Append(all, s.Spec.IPFamilies...)
	}
	if len(all) == 0 {
		return []corev1.IPFamily{corev1.IPv4Protocol}
	}
	slices.Sort(all)
	return all
}

// reserve notes the addresses that others have.
func (c *completion) reserve() {
	take := func(text string) {
		if a, err := kubeaddr.Parse(text); err == nil {
			c.taken[a] = true
		}
	}
	for _, p := range c.Pods {
		take(p.Status.PodIP)
		for _, ip := range p.Status.PodIPs {
			take(ip.IP)
		}
	}
	for _, n := range c.Nodes {
		for _, a := range n.Status.Addresses {
			take(a.Address)
		}
	}
	for _, s := range c.EndpointSlices {
		for i := range s.Endpoints {
			for _, a := range s.Endpoints[i].Addresses {
				take(a)
			}
		}
	}
}

// clusterNamespaces are those whose Pods an API server has shown, if only as endpoints: what is not there does not run.
func (o *Objects) clusterNamespaces() map[string]bool {
	known := make(map[string]bool)
	for _, p := range o.Pods {
		if fromCluster(p) {
			known[p.Namespace] = true
		}
	}
	for _, s := range o.EndpointSlices {
		for i := range s.Endpoints {
			if ref := s.Endpoints[i].TargetRef; ref != nil && ref.Kind == "Pod" {
				known[s.Namespace] = true
			}
		}
	}
	return known
}

// hasPods reports whether a Pod that was not made up is one of the template's.
func (c *completion) hasPods(t *Template) bool {
	return slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool {
		_, made := c.Made.Pods[p]
		return !made && p.Namespace == t.Namespace && len(t.Pod.Labels) > 0 && HasLabels(p.Labels, t.Pod.Labels)
	})
}

// nodesFor are the nodes on which Pods may run; "" alone stands for those that are not known. Pods of a DaemonSet tolerate what the
// control plane says of a node's condition, as that it is cordoned. unfit is why no Node will do; empty: some will, or it is not known.
func (c *completion) nodesFor(spec *corev1.PodSpec, daemons bool) (names []string, unfit string) {
	if spec.NodeName != "" || len(c.Nodes) == 0 {
		return []string{spec.NodeName}, ""
	}
	tainted, labelled, all := false, true, true
	for _, n := range c.Nodes {
		labelled = labelled && n.Labels[corev1.LabelOSStable] != "" // each kubelet writes it
		all = all && n.ResourceVersion != Printed                   // somebody may describe one of many
		taints := slices.Clip(n.Spec.Taints)
		if n.Spec.Unschedulable {
			taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		}
		switch {
		case !HasLabels(n.Labels, spec.NodeSelector):
		case slices.ContainsFunc(taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !(daemons && strings.HasPrefix(t.Key, "node.kubernetes.io/")) &&
				!slices.ContainsFunc(spec.Tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(klog.Background(), &t, true) })
		}):
			tainted = true
		default:
			names = append(names, n.Name)
		}
	}
	switch {
	case len(names) > 0:
		return names, ""
	case all && tainted:
		unfit = fmt.Sprintf("no Node here (%d) that could run it has only taints that it tolerates", len(c.Nodes))
	case all && labelled:
		unfit = fmt.Sprintf("no Node here (%d) has the labels of its nodeSelector", len(c.Nodes))
	}
	return []string{""}, unfit
}

func addressesOf(p *corev1.Pod) string {
	return cmp.Or(strings.Join(ipsOf(p), " and "), "without an address")
}

func ipsOf(p *corev1.Pod) (texts []string) {
	for _, ip := range p.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	return texts
}

// listed is the first of some addresses and the last.
func listed(texts []string) string {
	switch n := len(texts); n {
	case 1, 2:
		return strings.Join(texts, " and ")
	default:
		return texts[0] + " to " + texts[n-1]
	}
}
