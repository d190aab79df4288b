package diagnose

import (
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/kubeproxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Cluster answers questions about a cluster's objects. It is not safe for concurrent use.
type Cluster struct {
	objects *manifest.Objects
	config  servicetable.NodeConfig // of all nodes, but for the name
	proxy   *kubeproxyconfig.Config // nil: not known

	services map[name]*corev1.Service
	slices   map[name][]*discoveryv1.EndpointSlice // by Service
	pods     map[name]*corev1.Pod
	podsIn   map[string]*namespace      // nil: the objects have no Pods of the namespace
	owners   map[netip.Addr]*corev1.Pod // those with an address of their own
	// clusterIPs are the Services by their cluster IPs.
	clusterIPs map[netip.Addr]*corev1.Service
	listens    map[name][]labapi.Port                   // the servers of a lab's pods
	policies   map[string][]*networkingv1.NetworkPolicy // by namespace
	nodes      nodes
	ignored    map[string]string          // codes of findings, by object
	tables     map[string]*decision.Table // by node
	seen       map[string]seen            // by endpoint and protocol
	blamed     map[string]Finding         // likewise
}

type name = decision.ServiceName // of any object in a namespace

// New makes a cluster of objects. The configuration is that of all nodes; if it has a name, its addresses and its zone
// are those of the node with that name. Neither
// may change later.
func New(objects *manifest.Objects, config servicetable.NodeConfig) *Cluster {
	c := &Cluster{
		objects: objects, config: config, proxy: kubeproxyconfig.Of(&objects.Objects),
		services: make(map[name]*corev1.Service), slices: make(map[name][]*discoveryv1.EndpointSlice),
		pods: make(map[name]*corev1.Pod), podsIn: make(map[string]*namespace), owners: make(map[netip.Addr]*corev1.Pod), clusterIPs: make(map[netip.Addr]*corev1.Service),
		listens: make(map[name][]labapi.Port), policies: make(map[string][]*networkingv1.NetworkPolicy), nodes: nodesOf(objects), ignored: ignoredIn(objects), tables: make(map[string]*decision.Table), seen: make(map[string]seen), blamed: make(map[string]Finding),
	}
	for _, a := range config.IPs { // those that its object lacks
		if node := config.Name; node != "" && c.nodes.Node(a) == "" {
			c.nodes.addresses[node] = append(c.nodes.addresses[node], a)
			c.nodes.AddNode(node, a)
		}
	}
	for _, s := range objects.Services {
		c.services[nameOf(s)] = s
		for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			if a, err := kubeaddr.Parse(text); err == nil {
				c.clusterIPs[a] = s
			}
		}
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
	}
	for _, n := range sortedNames(c.pods) {
		p := c.pods[n]
		if c.podsIn[n.Namespace] == nil {
			c.podsIn[n.Namespace] = &namespace{by: make(map[label][]*corev1.Pod)}
		}
		if servicetable.PodEnded(p) {
			c.podsIn[n.Namespace].ended = append(c.podsIn[n.Namespace].ended, p)
			continue
		}
		if !manifest.IsHook(p) {
			c.podsIn[n.Namespace].add(p)
		}
		if !p.Spec.HostNetwork {
			for _, a := range servicetable.PodAddresses(p) {
				c.owners[a] = p
			}
		}
	}
	for _, p := range objects.Context.NetworkPolicies {
		c.policies[p.Namespace] = append(c.policies[p.Namespace], p)
	}
	if objects.Lab != nil {
		for _, p := range objects.Lab.LabPods() {
			c.listens[name{Namespace: p.Namespace, Name: p.Name}] = p.Ports
		}
	}
	return c
}

// podsOf are the Pods that endpoints name: their names, nodes and addresses.
func podsOf(list []*discoveryv1.EndpointSlice) (pods []*corev1.Pod) {
	known := make(map[name]*corev1.Pod)
	for s, e := range endpointsIn(list) {
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
	return pods
}

func nameOf(o metav1.Object) name { return name{Namespace: o.GetNamespace(), Name: o.GetName()} }

// endpointsOf are the endpoints of a Service, with their EndpointSlices.
func (c *Cluster) endpointsOf(svc *corev1.Service) iter.Seq2[*discoveryv1.EndpointSlice, *discoveryv1.Endpoint] {
	return endpointsIn(c.slices[nameOf(svc)])
}

func endpointsIn(list []*discoveryv1.EndpointSlice) iter.Seq2[*discoveryv1.EndpointSlice, *discoveryv1.Endpoint] {
	return func(yield func(*discoveryv1.EndpointSlice, *discoveryv1.Endpoint) bool) {
		for _, s := range list {
			for i := range s.Endpoints {
				if !yield(s, &s.Endpoints[i]) {
					return
				}
			}
		}
	}
}

// table returns the service table of the named node; "" is a node that nothing is known of.
func (c *Cluster) table(node string) *decision.Table {
	if t := c.tables[node]; t != nil {
		return t
	}
	config := c.config
	if config.Name != "" && config.Name != node {
		config.IPs, config.Zone = nil, ""
	}
	config.Name = node
	t, _ := servicetable.Table(&c.objects.Objects, config)
	c.tables[node] = t
	return t
}
