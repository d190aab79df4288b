package diagnose

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Cluster answers questions about a cluster's objects. It is not safe for concurrent use.
type Cluster struct {
	objects *manifest.Objects
	config  control.NodeConfig // of all nodes, but for the name

	services map[name]*corev1.Service
	pods     map[name]*corev1.Pod
	slices   map[name][]*discoveryv1.EndpointSlice // by Service
	owners   map[netip.Addr]*corev1.Pod            // those with an address of their own
	listens  map[name][]manifest.LabPort           // the servers of a lab's pods
	tables   map[string]*decision.Table            // by node
	seen     map[string]seen                       // by endpoint and protocol
}

type name = decision.ServiceName // of any object in a namespace

// New makes a cluster of objects. The configuration is that of all nodes; its name is ignored. Neither
// may change later.
func New(objects *manifest.Objects, config control.NodeConfig) *Cluster {
	c := &Cluster{
		objects: objects, config: config,
		services: make(map[name]*corev1.Service), pods: make(map[name]*corev1.Pod), slices: make(map[name][]*discoveryv1.EndpointSlice),
		owners: make(map[netip.Addr]*corev1.Pod), listens: make(map[name][]manifest.LabPort), tables: make(map[string]*decision.Table), seen: make(map[string]seen),
	}
	for _, s := range objects.Services {
		c.services[name{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, s := range objects.EndpointSlices {
		of := name{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		c.slices[of] = append(c.slices[of], s)
	}
	pods := objects.Pods
	if len(pods) == 0 {
		pods = podsOf(objects.EndpointSlices)
	}
	for _, p := range pods {
		c.pods[nameOf(p)] = p
		if p.Spec.HostNetwork || ended(p) {
			continue
		}
		for _, a := range addressesOf(p) {
			c.owners[a] = p
		}
	}
	if objects.Lab != nil {
		for _, p := range objects.Lab.Pods {
			c.listens[name{Namespace: p.Namespace, Name: p.Name}] = p.Ports
		}
	}
	return c
}

// podsOf are the Pods that endpoints name: their names, nodes and addresses.
func podsOf(list []*discoveryv1.EndpointSlice) (pods []*corev1.Pod) {
	known := make(map[name]*corev1.Pod)
	for _, s := range list {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
				continue
			}
			n := name{Namespace: s.Namespace, Name: e.TargetRef.Name}
			p := known[n]
			if p == nil {
				p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}, Spec: corev1.PodSpec{NodeName: deref(e.NodeName)}}
				known[n], pods = p, append(pods, p)
			}
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: e.Addresses[0]})
		}
	}
	return pods
}

func nameOf(p *corev1.Pod) name { return name{Namespace: p.Namespace, Name: p.Name} }

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func addressesOf(p *corev1.Pod) (addrs []netip.Addr) {
	for _, ip := range append([]corev1.PodIP{{IP: p.Status.PodIP}}, p.Status.PodIPs...) {
		if a, err := kubeaddr.Parse(ip.IP); err == nil && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// table returns the service table of the named node; "" is a node that nothing is known of.
func (c *Cluster) table(node string) *decision.Table {
	if t := c.tables[node]; t != nil {
		return t
	}
	config := c.config
	config.Name = node
	t, _ := control.Table(c.objects, config)
	c.tables[node] = t
	return t
}

// nodeNames are the names of the cluster's nodes, sorted: those of Node objects, or without any, those
// that endpoints name.
func (c *Cluster) nodeNames() []string {
	var names []string
	for _, n := range c.objects.Nodes {
		names = append(names, n.Name)
	}
	if len(names) == 0 {
		for _, s := range c.objects.EndpointSlices {
			for i := range s.Endpoints {
				if n := s.Endpoints[i].NodeName; n != nil && *n != "" {
					names = append(names, *n)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nodeAddresses are the addresses of a node, internal ones first.
func (c *Cluster) nodeAddresses(named string) (addrs []netip.Addr) {
	for _, n := range c.objects.Nodes {
		if n.Name != named {
			continue
		}
		at := slices.Clone(n.Status.Addresses)
		slices.SortStableFunc(at, func(a, b corev1.NodeAddress) int { return rank(a) - rank(b) })
		for _, a := range at {
			if ip, err := kubeaddr.Parse(a.Address); err == nil && !slices.Contains(addrs, ip) {
				addrs = append(addrs, ip)
			}
		}
	}
	return addrs
}

func rank(a corev1.NodeAddress) int {
	if a.Type == corev1.NodeInternalIP {
		return 0
	}
	return 1
}

// nodeWith is the node that has the address; "" if none.
func (c *Cluster) nodeWith(a netip.Addr) string {
	for _, n := range c.objects.Nodes {
		if slices.Contains(c.nodeAddresses(n.Name), a) {
			return n.Name
		}
	}
	return ""
}

// nodeOfPods is the node whose Pods have addresses like this one (spec.podCIDRs); "" if none.
func (c *Cluster) nodeOfPods(a netip.Addr) string {
	for _, n := range c.objects.Nodes {
		for _, p := range control.PodCIDRs(n) {
			if p.Contains(a) {
				return n.Name
			}
		}
	}
	return ""
}

// inside reports whether an address belongs to a Pod, as far as prefixes show. Without any, all do.
func (c *Cluster) inside(a netip.Addr) bool {
	prefixes := slices.Clone(c.config.ClusterCIDRs)
	for _, n := range c.objects.Nodes {
		prefixes = append(prefixes, control.PodCIDRs(n)...)
	}
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
