package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/crossnode"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// nodes are the nodes of a cluster, with their places as far as they are known without Pods.
type nodes struct {
	*crossnode.Places
	names     []string // sorted: of Node objects, or without any, those that endpoints name
	addresses map[string][]netip.Addr
	zones     map[string]string
}

func nodesOf(objects *manifest.Objects) nodes {
	n := nodes{Places: crossnode.PlacesOf(objects.Nodes, nil), addresses: make(map[string][]netip.Addr), zones: make(map[string]string)}
	names := make(map[string]bool)
	for _, o := range objects.Nodes {
		names[o.Name] = true
		n.zones[o.Name] = o.Labels[corev1.LabelTopologyZone]
		n.addresses[o.Name] = internalFirst(o)
	}
	if len(names) == 0 {
		for _, e := range endpointsIn(objects.EndpointSlices) {
			if node := deref(e.NodeName); node != "" {
				names[node] = true
			}
		}
	}
	n.names = slices.Sorted(maps.Keys(names))
	return n
}

// internalFirst are the addresses of a node, internal ones first.
func internalFirst(o *corev1.Node) []netip.Addr {
	sorted := &corev1.Node{Status: corev1.NodeStatus{Addresses: slices.Clone(o.Status.Addresses)}}
	internal := map[bool]int{true: -1}
	slices.SortStableFunc(sorted.Status.Addresses, func(a, b corev1.NodeAddress) int {
		return internal[a.Type == corev1.NodeInternalIP] - internal[b.Type == corev1.NodeInternalIP]
	})
	return servicetable.NodeAddresses(sorted)
}

// some is a node of the cluster, or "".
func (n *nodes) some() string {
	if len(n.names) == 0 {
		return ""
	}
	return n.names[0]
}

// inside reports whether an address belongs to a Pod, as far as prefixes show. Without any, all do.
func (c *Cluster) inside(a netip.Addr) bool {
	if len(c.config.ClusterCIDRs)+len(c.nodes.PodCIDRs) == 0 {
		return true
	}
	return c.nodes.Pod(a) != "" || slices.ContainsFunc(c.config.ClusterCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// opensNodePorts reports whether a node has an address of the family at which node ports are open, or the
// nodes' addresses are not known.
func (c *Cluster) opensNodePorts(f decision.Family) bool {
	known := false
	for _, n := range c.nodes.names {
		config := c.config
		config.Name = n
		var t *decision.Table // without services: they do not matter
		for _, a := range c.nodes.addresses[n] {
			if decision.FamilyOf(a) != f {
				continue
			}
			if t == nil {
				t, _ = servicetable.Table(&kube.Objects{Nodes: c.objects.Nodes}, config)
			}
			known = true
			if t.OpensNodePorts(a) {
				return true
			}
		}
	}
	return !known
}

// NotReady is the finding about a node that is not ready, or has no network, as its object has it; nil: it is, or that is not known.
func (c *Cluster) NotReady(node string) *Finding {
	i := slices.IndexFunc(c.objects.Nodes, func(n *corev1.Node) bool { return n.Name == node })
	if i < 0 {
		return nil
	}
	conditions := c.objects.Nodes[i].Status.Conditions
	at := slices.IndexFunc(conditions, func(o corev1.NodeCondition) bool { return o.Type == corev1.NodeReady })
	if at < 0 || conditions[at].Status == corev1.ConditionTrue {
		for _, o := range conditions {
			if o.Type == corev1.NodeNetworkUnavailable && o.Status == corev1.ConditionTrue {
				return &Finding{
					Code: NodeNotReady, Object: "Node " + node, Field: "status.conditions",
					Text: fmt.Sprintf("the network of node %s is not set up (condition NetworkUnavailable is True: %s): its Pods and those of other nodes may not reach each other", node, cmp.Or(o.Message, o.Reason)),
					Do:   "check the network plugin on the node, or the controller that makes its routes",
				}
			}
		}
		return nil
	}
	pods := 0
	for _, p := range c.objects.Pods {
		if p.Spec.NodeName == node && !servicetable.PodEnded(p) {
			pods++
		}
	}
	text := fmt.Sprintf("node %s is not ready (condition Ready is %s): %s on it %s no new flows, and what %s may be lost",
		node, conditions[at].Status, quantity.Count(pods, "Pod"), verb(pods, "gets", "get"), verb(pods, "it sends", "they send"))
	if pods == 0 {
		text = fmt.Sprintf("node %s is not ready (condition Ready is %s): packets that it gets may be lost", node, conditions[at].Status)
	}
	if n, services := c.readyOn(node); n > 0 {
		text = fmt.Sprintf("node %s is not ready (condition Ready is %s): EndpointSlices still have %s on it as ready (of %s), so new flows go there and may be lost",
			node, conditions[at].Status, quantity.Count(n, "endpoint"), nearest.Few(services))
	}
	return &Finding{
		Code: NodeNotReady, Object: "Node " + node, Field: "status.conditions", Text: text,
		Do: fmt.Sprintf("reconnect the node, and check its kubelet: kubectl describe node %s; in a lab: nfqproxy lab node up %s", node, node),
	}
}

// cutOff is a node that is not ready, if no endpoint is on one that is, and no flow shows that one answers; else empty.
func (w *inquiry) cutOff() (node string) {
	for i := range w.answer.Endpoints {
		e := &w.answer.Endpoints[i]
		if e.Problem != nil {
			continue
		}
		if e.Node == "" || w.NotReady(e.Node) == nil || e.Flows != nil && e.Flows.Answered > 0 {
			return ""
		}
		node = e.Node
	}
	return node
}

// sharedNodes finds nodes with the address of another, and such whose Pods have the same network.
func (e *examination) sharedNodes() {
	with := make(map[string]string) // by address
	for _, n := range e.objects.Nodes {
		for _, a := range n.Status.Addresses {
			if a.Type != corev1.NodeInternalIP {
				continue
			}
			if other := with[a.Address]; other != "" && other != n.Name {
				e.add(Finding{
					Code: SharedAddress, Object: "Node " + n.Name, Field: "status.addresses",
					Text: fmt.Sprintf("nodes %s and %s have the same InternalIP, %s: what is sent to one of them, and to its Pods, may reach the other, or neither", other, n.Name, a.Address),
					Do:   "give each kubelet the address of its own machine (--node-ip), and the network plugin its device, as flannel's --iface",
				})
			}
			with[a.Address] = n.Name
		}
	}
	of := e.nodes.PodCIDRs
	for i, p := range of {
		for _, q := range of[:i] {
			if p.Node != q.Node && p.Overlaps(q.Prefix) {
				e.add(Finding{
					Code: SharedAddress, Object: "Node " + p.Node, Field: "spec.podCIDRs",
					Text: fmt.Sprintf("the pod CIDRs %s of node %s and %s of node %s overlap: two Pods may get one address, and packets to Pods of one node may go to the other", q.Prefix, q.Node, p.Prefix, p.Node),
					Do:   "give each node its own network: delete one Node, and have its kubelet register it again; network plugins with their own management of addresses (Calico, Cilium, those of clouds) may not use spec.podCIDRs",
				})
			}
		}
	}
}

// FullTable is the finding about the connection table of a node, of which four fifths are in use; nil: there is more room.
func FullTable(node string, entries, limit int) *Finding {
	if entries < limit/5*4 {
		return nil
	}
	f := &Finding{
		Code: TableNearlyFull, Text: fmt.Sprintf("the connection table of %s has %d entries of %d: new connections fail when it is full", node, entries, limit),
		Do: moreConnections,
	}
	if entries >= limit {
		f.Text = fmt.Sprintf("the connection table of %s is full (%d entries of %d): packets of new connections are dropped, unless the kernel removes others", node, entries, limit)
	}
	return f
}

// TrackingLosses are the findings about packets and entries that connection tracking has dropped since the start of a node. drops
// includes insertFailed. full: there is a finding about the size of the table already.
func TrackingLosses(node string, earlyDrop, drops, insertFailed uint64, full bool) (found []Finding) {
	others := max(drops, insertFailed) - insertFailed
	switch {
	case full:
	case earlyDrop > 0:
		text := fmt.Sprintf("the connection table of %s was full at some time since the node's start: the kernel removed %s to make room (early_drop)", node, quantity.Count(earlyDrop, "entry"))
		if others > 0 {
			text += fmt.Sprintf(", and dropped %s (drop)", quantity.Count(others, "packet"))
		}
		found = append(found, Finding{Code: TableNearlyFull, Text: text, Do: moreConnections})
	case others > 0:
		found = append(found, Finding{
			Code: TableNearlyFull, Text: fmt.Sprintf("connection tracking of %s has dropped %s since the node's start (drop): its table was full, or a helper refused them", node, quantity.Count(others, "packet")),
			Do: "look for \"nf_conntrack: table full\" in the kernel's log; if it is there, " + moreConnections,
		})
	}
	if insertFailed > 0 {
		found = append(found, Finding{
			Code: SameTuple, Text: fmt.Sprintf("connection tracking of %s has dropped %s since the node's start, because another packet of the same addresses and ports made its entry first (insert_failed): mostly DNS requests for A and AAAA from one socket, which time out after 5 s", node, quantity.Count(insertFailed, "packet")),
			Do: "compare conntrack -S some time later; if insert_failed increases, run NodeLocal DNSCache, or have the Pods' resolver use options single-request-reopen or use-vc",
		})
	}
	return found
}

// moreConnections is what to do about a full connection table.
const moreConnections = "raise net.netfilter.nf_conntrack_max (kube-proxy: --conntrack-max-per-core), or have the clients open fewer connections; conntrack -L shows whose they are"

// readyOn is the number of endpoints on a node that EndpointSlices have as ready, each address once, and the Services that have them.
func (c *Cluster) readyOn(node string) (n int, services []string) {
	addresses := make(map[string]bool)
	for s, e := range endpointsIn(c.objects.EndpointSlices) {
		if deref(e.NodeName) == node && len(e.Addresses) > 0 && isSet(e.Conditions.Ready) {
			addresses[e.Addresses[0]] = true
			services = distinct.Append(services, s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName])
		}
	}
	return len(addresses), services
}

// NodesOf are the nodes of all endpoints of a Service, also of those that get no flows.
func (c *Cluster) NodesOf(service string) (list []string) {
	for s, e := range endpointsIn(c.objects.EndpointSlices) {
		if node := deref(e.NodeName); node != "" && s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName] == service {
			list = distinct.Append(list, node)
		}
	}
	return list
}
