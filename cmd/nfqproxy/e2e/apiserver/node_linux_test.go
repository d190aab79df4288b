package apiserver

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setPodCIDRs gives a Node its pod CIDRs, as a controller does some time after its
// creation.
func (c *apiCluster) setPodCIDRs(name string) {
	c.T.Helper()
	for _, n := range c.Spec().Nodes {
		if n.Name == name {
			c.patchNode(name, fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":[%q,%q]}}`, n.PodCIDRs[0], n.PodCIDRs[0], n.PodCIDRs[1]))
		}
	}
}

// testZone moves node-a to another zone. A service that prefers the same zone follows.
// Its endpoints are on nodes that do not move: one of them has no machine, and its pods
// are on node-b.
func (c *apiCluster) testZone() {
	c.makeNode("node-c", "zone-1")
	near := corev1.ServiceTrafficDistributionPreferSameZone
	svc := c.service("zonal", "zonal", func(s *corev1.ServiceSpec) { s.TrafficDistribution = &near })
	one, two := c.podOf("zonal-1", "zonal", "node-b", "node-c"), c.pod("zonal-2", "zonal", "node-b")
	list := fronts(svc)
	for i := range list {
		list[i].vantages = []string{"shell"}
	}
	c.reaches(list, one)
	c.patchNode("node-a", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-2"}}}`)
	c.reaches(list, two)
	c.patchNode("node-a", `{"metadata":{"labels":{"topology.kubernetes.io/zone":null}}}`)
	c.reaches(list, one, two) // nobody knows what is near
	c.patchNode("node-a", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-1"}}}`)
	c.reaches(list, one)
	one.delete()
	two.delete()
	c.deleteService(svc.Name)
	c.Must(c.control.Client().CoreV1().Nodes().Delete(c.T.Context(), "node-c", metav1.DeleteOptions{}))
}

// testSameNode: a service that prefers the same node. Another node has an endpoint in the zone of node-b, too.
func (c *apiCluster) testSameNode() {
	c.makeNode("node-c", "zone-2")
	near := corev1.ServiceTrafficDistributionPreferSameNode
	svc := c.service("same-node", "same-node", func(s *corev1.ServiceSpec) { s.TrafficDistribution = &near })
	own, other := c.pod("same-node-1", "same-node", "node-b"), c.podOf("same-node-2", "same-node", "node-b", "node-c")
	list := fronts(svc)
	for i := range list {
		list[i].vantages = []string{"node-b"}
	}
	c.reaches(list, own)
	own.delete()
	c.reaches(list, other) // none is on the node: those in its zone
	other.delete()
	c.deleteService(svc.Name)
	c.Must(c.control.Client().CoreV1().Nodes().Delete(c.T.Context(), "node-c", metav1.DeleteOptions{}))
}

// testNodeIPs gives node-b another address, first on the machine and then in its Node
// object. Node ports are where the object says: the daemons are told "primary".
func (c *apiCluster) testNodeIPs() {
	svc := c.service("ported", "ported", withNodePort)
	p := c.pod("ported-1", "ported", "node-a")
	before, after := c.AddressOf("node-b", v4), netip.MustParseAddr("172.21.0.33")
	c.Must(c.Host("node-b").AddAddress("eth0", netip.PrefixFrom(after, 16)))
	c.reaches([]front{nodePort(svc, before)}, p)
	c.ignores([]front{nodePort(svc, after)})
	c.setNodeIPs("node-b", after, c.AddressOf("node-b", v6))
	c.reaches([]front{nodePort(svc, after)}, p)
	c.ignores([]front{nodePort(svc, before)})
	c.setNodeIPs("node-b", before, c.AddressOf("node-b", v6))
	c.reaches([]front{nodePort(svc, before)}, p)
	p.delete()
	c.deleteService(svc.Name)
}

func (c *apiCluster) setNodeIPs(name string, addresses ...netip.Addr) {
	c.T.Helper()
	nodes := c.control.Client().CoreV1().Nodes()
	node, err := nodes.Get(c.T.Context(), name, metav1.GetOptions{})
	c.Must(err)
	node.Status.Addresses = internalIPs(addresses...)
	_, err = nodes.UpdateStatus(c.T.Context(), node, metav1.UpdateOptions{})
	c.Must(err)
}
